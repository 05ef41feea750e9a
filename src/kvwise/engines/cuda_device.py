"""The GPU as the copier sees it: torch's streams and events, our kernel, the driver's copies.

Streams and events are torch's, so that the engine's work and ours are ordered by the same means. It
plans nothing and holds no state of a job.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

import numpy as np

from kvwise.engines.copying import Addresses
from kvwise.engines.cuda import Lane, Mark
from kvwise.engines.cuda_driver import Driver
from kvwise.engines.staging import Rows
from kvwise.errors import EngineError

if TYPE_CHECKING:
    import torch

_WIDEST_BYTES = 16

_log = logging.getLogger(__name__)


class TorchDevice:
    """One CUDA device of this process."""

    def __init__(self, index: int) -> None:
        """Load what a copy needs, so that the first one finds it.

        Raises:
            EngineError: Triton, the CUDA driver or the device is missing.
        """
        import torch

        try:
            from kvwise.engines.paged_triton import copy_rows
        except ImportError as error:
            raise EngineError(
                f"copies on a GPU need Triton, which comes with CUDA builds of torch: {error}"
            ) from error
        self._torch = torch
        self._copy_rows = copy_rows
        self._device = torch.device("cuda", index)
        with _engine_errors("starting"), torch.cuda.device(self._device):
            torch.cuda.current_stream().synchronize()
            self._driver = Driver()

    def mark(self) -> Mark:
        """Record an event on the stream that the calling thread works on."""
        with _engine_errors("recording an event"):
            event = self._torch.cuda.Event()
            event.record(self._torch.cuda.current_stream(self._device))
        return TorchMark(event)

    def lane(self, staging_bytes: int) -> Lane:
        """A stream with a staging buffer, its kernel compiled."""
        return TorchLane(self, staging_bytes)

    def register(self, address: int, size_bytes: int) -> bool:
        """Pin a part of the arena's mapping."""
        with self.current("pinning host memory"):
            error = self._driver.register(address, size_bytes)
        if error:
            _log.warning("pinning %d bytes of host memory: CUDA error %d", size_bytes, error)
        return error == 0

    def unregister(self, address: int) -> None:
        """Unpin what `register` pinned at `address`."""
        with self.current("unpinning host memory"):
            error = self._driver.unregister(address)
        if error:
            _log.warning("unpinning host memory: CUDA error %d", error)

    @contextmanager
    def current(self, what: str) -> Iterator[None]:
        """Make this the calling thread's device; what goes wrong there is an `EngineError`."""
        with _engine_errors(what), self._torch.cuda.device(self._device):
            self._driver.enter()
            yield

    def stream(self) -> torch.cuda.Stream:
        """A new stream."""
        return self._torch.cuda.Stream(self._device)

    def empty(self, size_bytes: int, stream: torch.cuda.Stream) -> torch.Tensor:
        """Device memory for use on `stream`: other streams may still use what was freed on them."""
        with self._torch.cuda.stream(stream):
            return self._torch.empty(size_bytes, dtype=self._torch.uint8, device=self._device)

    def shuffle(self, rows: Rows, stream: torch.cuda.Stream) -> None:
        """Start the kernel for `rows` on `stream`.

        The table travels from pinned memory: a plain copy would make the host wait for the stream.
        Both of its buffers come from allocators that reuse them only after the stream is past.
        """
        table = np.stack((rows.sources, rows.targets, rows.sizes), axis=1)
        alignment = common_alignment(table)
        with self._torch.cuda.stream(stream):
            host = self._torch.from_numpy(table).pin_memory()
            device = host.to(self._device, non_blocking=True)
            self._copy_rows(device, longest=int(rows.sizes.max()), alignment=alignment)

    def transfer(self, rows: Rows, stream: torch.cuda.Stream) -> None:
        """Start the driver's copies for `rows` on `stream`."""
        self._driver.copy(rows, stream.cuda_stream)


class TorchMark:
    """An event on a stream."""

    def __init__(self, event: torch.cuda.Event) -> None:
        self.event = event

    def done(self) -> bool:
        """Whether the stream is past the event."""
        with _engine_errors("waiting for a copy"):
            return bool(self.event.query())


class TorchLane:
    """A stream of its own with a staging buffer."""

    def __init__(self, device: TorchDevice, staging_bytes: int) -> None:
        """Take the memory and compile the kernel, so that no request waits for a compiler.

        Raises:
            EngineError: no device memory is left for staging, or the kernel does not compile.
        """
        self._device = device
        with device.current("preparing the copy path"):
            self._stream = device.stream()
            self._staging = device.empty(staging_bytes, self._stream)
            start = np.array([self.staging], dtype=np.int64)
            device.shuffle(Rows(start, start, np.array([_WIDEST_BYTES])), self._stream)

    @property
    def staging(self) -> int:
        """Device address of the staging buffer."""
        return int(self._staging.data_ptr())

    def after(self, mark: Mark) -> None:
        """Make the stream wait for an event."""
        with self._device.current("ordering a copy"):
            self._stream.wait_event(cast("TorchMark", mark).event)

    def shuffle(self, rows: Rows) -> None:
        """Start the kernel."""
        with self._device.current("starting the copy kernel"):
            self._device.shuffle(rows, self._stream)

    def transfer(self, rows: Rows) -> None:
        """Start the driver's copies."""
        with self._device.current("starting a transfer"):
            self._device.transfer(rows, self._stream)

    def mark(self) -> Mark:
        """Record an event on the stream."""
        with self._device.current("recording an event"):
            return TorchMark(self._stream.record_event())

    def close(self) -> None:
        """Let go of the staging buffer."""
        self._staging = self._device.empty(0, self._stream)


def common_alignment(table: Addresses) -> int:
    """The largest power of two, up to the widest access, that divides everything in `table`."""
    bits = int(np.bitwise_or.reduce(table, axis=None)) | _WIDEST_BYTES
    return bits & -bits


@contextmanager
def _engine_errors(what: str) -> Iterator[None]:
    """Torch and Triton report whatever a GPU does as `RuntimeError`; say what was being done."""
    try:
        yield
    except RuntimeError as error:
        raise EngineError(f"{what} on the GPU failed: {error}") from error
