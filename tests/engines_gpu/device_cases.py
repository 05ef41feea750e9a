"""Run by test_triton.py where Triton is: `TorchDevice` with torch's GPU and the driver stood in.

Everything happens at once on host memory, with the real kernel interpreted. It shows that the calls
fit together and that torch knows their names; whether a GPU likes them it cannot say.
"""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from kvwise.engines import paged_triton
from kvwise.engines.cuda import CudaCopier, Limits
from kvwise.engines.cuda_device import TorchDevice
from kvwise.errors import EngineError
from kvwise.testing.paged_cases import PagedCase, random_shape
from tests.engines_gpu.virtual_gpu import move

CASES = 10
HANDLE = 7


class Event:
    """`torch.cuda.Event` that is always passed."""

    failed = False

    def record(self, stream: Stream) -> None:
        """Nothing is ever pending."""
        assert isinstance(stream, Stream)

    def query(self) -> bool:
        """Passed, unless the GPU is said to have failed."""
        if self.failed:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return True


class Stream:
    """`torch.cuda.Stream` that has done everything already."""

    cuda_stream = HANDLE

    def wait_event(self, event: Event) -> None:
        """Nothing to wait for."""
        assert isinstance(event, Event)

    def record_event(self) -> Event:
        """A passed event."""
        return Event()

    def synchronize(self) -> None:
        """Nothing to wait for."""


class Driver:
    """`libcuda.so.1` on host memory."""

    def __init__(self) -> None:
        self.registered: dict[int, int] = {}

    def entry(self, name: str) -> Any:
        """A function that takes attributes, as ctypes' do."""
        return type(name, (), {"__call__": lambda _self, *given: getattr(self, name)(*given)})()

    def cuMemcpyAsync(self, target: int, source: int, size: int, stream: int) -> int:  # noqa: N802
        """Copy at once."""
        assert stream == HANDLE
        move(target, source, size)
        return 0

    def cuMemHostRegister_v2(self, address: int, size: int, _flags: int) -> int:  # noqa: N802
        """Note it."""
        self.registered[address] = size
        return 0

    def cuMemHostUnregister(self, address: int) -> int:  # noqa: N802
        """Forget it."""
        del self.registered[address]
        return 0

    def cuCtxGetCurrent(self, context: Any) -> int:  # noqa: N802
        """There is one."""
        context._obj.value = 1
        return 0

    def cuCtxSetCurrent(self, context: Any) -> int:  # noqa: N802
        """Only that one."""
        return int(context.value != 1)


def stood_in_torch() -> Any:
    """What `TorchDevice` uses of torch, the GPU's part replaced under names that torch has."""
    cuda: dict[str, Any] = {
        "Event": Event,
        "Stream": lambda _device: Stream(),
        "stream": lambda _stream: nullcontext(),
        "device": lambda _device: nullcontext(),
        "current_stream": lambda _device=None: Stream(),
    }
    assert all(hasattr(torch.cuda, name) for name in cuda)
    for real, double in ((torch.cuda.Event, Event), (torch.cuda.Stream, Stream)):
        methods = [name for name, value in vars(double).items() if callable(value)]
        assert all(hasattr(real, name) for name in methods)
    return SimpleNamespace(
        cuda=SimpleNamespace(**cuda),
        device=lambda *_name: torch.device("cpu"),
        empty=torch.empty,
        uint8=torch.uint8,
        from_numpy=lambda table: SimpleNamespace(pin_memory=lambda: torch.from_numpy(table)),
    )


def ignore(_layer: int) -> None:
    """Nobody waits for this layer."""


def round_trip(seed: int, device: TorchDevice, driver: Driver) -> dict[str, int]:
    """A cache stored and loaded through a copier on the stood-in device."""
    case = PagedCase(random_shape(seed), "cpu", seed)
    arena = np.zeros(case.arena_bytes, dtype=np.uint8)
    address = int(arena.ctypes.data)
    copier = CudaCopier(device, Limits(4096, 8192))
    copier.pin(address, arena.nbytes)
    copier.store(case.plan(address), copier.fence())
    pinned = sum(driver.registered.values())
    stored_wrong = case.stored_wrong(arena)
    case.clear()
    copier.load(case.plan(address), copier.fence(), ignore)
    copier.close()
    return {
        "bytes": case.plan(address).total_bytes,
        "pinned": pinned,
        "left_pinned": len(driver.registered),
        "stored_wrong": stored_wrong,
        "loaded_wrong": case.loaded_wrong(),
    }


def failure(device: TorchDevice) -> str:
    """What a copier says when the GPU reports an error."""
    case = PagedCase(random_shape(0), "cpu", 0)
    arena = np.zeros(case.arena_bytes, dtype=np.uint8)
    copier = CudaCopier(device, Limits(4096, 8192))
    copier.pin(int(arena.ctypes.data), arena.nbytes)
    with patch.object(Event, "failed", new=True):
        try:
            copier.store(case.plan(int(arena.ctypes.data)), copier.fence())
        except EngineError as error:
            return str(error)
    return ""


def main() -> None:
    """Run all cases and print one JSON object."""
    driver = Driver()
    names = ["cuMemcpyAsync", "cuMemHostRegister_v2", "cuMemHostUnregister"]
    names += ["cuCtxGetCurrent", "cuCtxSetCurrent"]
    library = SimpleNamespace(**{name: driver.entry(name) for name in names})
    assert type(paged_triton.copy_rows_kernel).__name__ == "InterpretedFunction"
    with (
        patch.dict(sys.modules, {"torch": stood_in_torch()}),
        patch("ctypes.CDLL", return_value=library),
    ):
        device = TorchDevice(0)
    print(
        json.dumps(
            {
                "cases": [round_trip(seed, device, driver) for seed in range(CASES)],
                "failure": failure(device),
            }
        )
    )


if __name__ == "__main__":
    main()
