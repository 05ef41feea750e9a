"""For the day a GPU is at hand: is the copy path exact there, does it overlap, and how fast is it?

Prints one JSON object and exits with 1 if a byte was wrong, or if a check could not have noticed.
Needs numpy, and torch with CUDA, which brings Triton. GB/s are 1e9 bytes per second; each figure is
the median of rounds, beside a plain pinned copy of the same size in the same minute. Arena pages
are in random order, the worst case for the link. It tunes nothing.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import platform
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from kvwise.engines.cuda import CudaCopier
from kvwise.engines.cuda_device import TorchDevice
from kvwise.testing.paged_cases import CacheShape, PagedCase, random_shape
from kvwise.units import KIB, MIB

DEVICE = "cuda:0"
ROUNDS = 5
CASES = 60
RACES = 20
BUSY_SIDE = 8192
"""Side of the square matrices whose product keeps the device busy for some milliseconds."""


def plain_page(size_bytes: int) -> CacheShape:
    """Llama-3-8B's cache in 16-bit floats: 32 layers, 64 KiB for a block of 16 tokens."""
    return CacheShape(
        order="LBNHC",
        layers=32,
        blocks=size_bytes // (32 * 64 * KIB),
        heads=8,
        tokens=16,
        content=256,
        chunk_blocks=1,
        page_bytes=128 * KIB,
    )


class Arena:
    """A memfd mapping, as the daemon makes it, and a copier that has it pinned."""

    def __init__(self, size_bytes: int, device: TorchDevice) -> None:
        descriptor = os.memfd_create("gpu-check")
        os.ftruncate(descriptor, size_bytes)
        self.map = mmap.mmap(descriptor, size_bytes)
        os.close(descriptor)
        self.bytes = np.frombuffer(self.map, dtype=np.uint8)
        self.address = int(self.bytes.ctypes.data)
        self.copier = CudaCopier(device)
        self.copier.pin(self.address, size_bytes)


@contextmanager
def arena_of(case: PagedCase, device: TorchDevice) -> Iterator[Arena]:
    """An arena for one case."""
    arena = Arena(case.arena_bytes, device)
    try:
        yield arena
    finally:
        arena.copier.close()


def ignore(_layer: int) -> None:
    """Nobody waits for this layer."""


def exactness(device: TorchDevice) -> dict[str, int]:
    """Caches in random layouts, stored and loaded, against torch's own indexing."""
    wrong = {"cases": 0, "stored_wrong": 0, "loaded_wrong": 0, "judge_slept": 0}
    for seed in range(CASES):
        case = PagedCase(random_shape(seed), DEVICE, seed)
        with arena_of(case, device) as arena:
            plan = case.plan(arena.address)
            arena.copier.store(plan, arena.copier.fence())
            wrong["stored_wrong"] += case.stored_wrong(arena.bytes)
            case.clear()
            wrong["judge_slept"] += plan.total_bytes > 0 and case.loaded_wrong() == 0
            arena.copier.load(plan, arena.copier.fence(), ignore)
            wrong["loaded_wrong"] += case.loaded_wrong()
            wrong["cases"] += 1
    return wrong


def fences(device: TorchDevice) -> dict[str, int]:
    """Copies started while the engine's stream still has work before them.

    The stream multiplies matrices for some milliseconds, then changes the cache; a store that did
    not wait would keep the old bytes, and a load that did not wait would be overwritten. Controls
    are stores with a fence from before that work: they must be early, or the race is none.
    """
    case = PagedCase(plain_page(64 * MIB), DEVICE, 1, skip=0.0)
    busy = torch.ones(BUSY_SIDE, BUSY_SIDE, dtype=torch.bfloat16, device=DEVICE)
    wrong = {"races": RACES, "controls_early": 0, "stores_early": 0, "loads_early": 0}

    def fill() -> None:
        torch.mm(busy, busy)
        for tensor, original in zip(case.tensors, case.original, strict=True):
            tensor.copy_(original)

    with arena_of(case, device) as arena:
        plan = case.plan(arena.address)
        for _ in range(RACES):
            case.clear()
            torch.cuda.synchronize()
            stale = arena.copier.fence()
            fill()
            arena.copier.store(plan, stale)
            wrong["controls_early"] += case.stored_wrong(arena.bytes) > 0
            case.clear()
            fill()
            arena.copier.store(plan, arena.copier.fence())
            wrong["stores_early"] += case.stored_wrong(arena.bytes) > 0
            torch.mm(busy, busy)
            case.clear()
            arena.copier.load(plan, arena.copier.fence(), ignore)
            wrong["loads_early"] += case.loaded_wrong() > 0
    return wrong


def seconds_of(
    work: Callable[[], object], settle: Callable[[], None] = torch.cuda.synchronize
) -> float:
    """Median seconds of rounds of `work`, each over when `settle` returns."""
    times = []
    for _ in range(ROUNDS):
        settle()
        begin = time.perf_counter()
        work()
        settle()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def together(*work: Callable[[], object]) -> None:
    """Everything in `work` at the same time; what fails there fails here."""
    with ThreadPoolExecutor(len(work)) as threads:
        for running in [threads.submit(one) for one in work]:
            running.result()


def rates(device: TorchDevice, size_bytes: int) -> dict[str, float]:
    """GB/s of stores, loads and both at once, beside plain copies of pinned memory."""
    case = PagedCase(plain_page(size_bytes), DEVICE, 2, skip=0.0)
    other = PagedCase(plain_page(size_bytes), DEVICE, 3, skip=0.0)
    moved = case.plan(0).total_bytes
    host = torch.empty(moved, dtype=torch.uint8, pin_memory=True)
    gpu = torch.empty(moved, dtype=torch.uint8, device=DEVICE)
    with arena_of(case, device) as arena, arena_of(other, device) as second:
        plan, back = case.plan(arena.address), other.plan(second.address)

        def store() -> None:
            arena.copier.store(plan, arena.copier.fence())

        def load() -> None:
            second.copier.load(back, second.copier.fence(), ignore)

        begin = time.perf_counter()
        store()
        load()
        cold = time.perf_counter() - begin
        one = {
            "plain_store": seconds_of(lambda: host.copy_(gpu, non_blocking=True)),
            "plain_load": seconds_of(lambda: gpu.copy_(host, non_blocking=True)),
            "store": seconds_of(store),
            "load": seconds_of(load),
        }
        both = seconds_of(lambda: together(store, load))
    gb = {f"{name}_gb_s": moved / seconds / 1e9 for name, seconds in one.items()}
    return {
        **gb,
        "both_gb_s": 2 * moved / both / 1e9,
        "overlap": (one["store"] + one["load"]) / both,
        "store_of_plain": one["plain_store"] / one["store"],
        "load_of_plain": one["plain_load"] / one["load"],
        "pinning_and_first_touch_gb_s": 2 * moved / cold / 1e9,
    }


def layers(device: TorchDevice, size_bytes: int) -> dict[str, float]:
    """When the first and the last layer of a load have arrived, in milliseconds."""
    case = PagedCase(plain_page(size_bytes), DEVICE, 4, skip=0.0)
    arrived: list[float] = []
    with arena_of(case, device) as arena:
        plan = case.plan(arena.address)
        for _ in range(2):
            arrived.clear()
            begin = time.perf_counter()
            arena.copier.load(
                plan, arena.copier.fence(), lambda _layer: arrived.append(time.perf_counter())
            )
    return {"first_ms": (arrived[0] - begin) * 1e3, "last_ms": (arrived[-1] - begin) * 1e3}


def tax(device: TorchDevice, size_bytes: int) -> dict[str, float]:
    """How much longer the engine's own work takes while stores run beside it, as a fraction."""
    case = PagedCase(plain_page(size_bytes), DEVICE, 5, skip=0.0)
    busy = torch.ones(BUSY_SIDE, BUSY_SIDE, dtype=torch.bfloat16, device=DEVICE)
    stop = threading.Event()

    def compute() -> None:
        for _ in range(20):
            torch.mm(busy, busy)

    with arena_of(case, device) as arena:
        plan = case.plan(arena.address)
        fence = arena.copier.fence()

        def copy() -> None:
            while not stop.is_set():
                arena.copier.store(plan, fence)

        arena.copier.store(plan, fence)
        alone = seconds_of(compute)
        with ThreadPoolExecutor(1) as threads:
            copying = threads.submit(copy)
            try:
                beside = seconds_of(compute, torch.cuda.current_stream().synchronize)
            finally:
                stop.set()
            copying.result()
    return {"compute_ms": alone * 1e3, "beside_copies": beside / alone - 1}


def machine() -> dict[str, Any]:
    """What this was measured on."""
    import triton

    free, total = torch.cuda.mem_get_info()
    return {
        "gpu": torch.cuda.get_device_name(0),
        "gpu_memory_bytes": total,
        "gpu_free_bytes": free,
        "capability": torch.cuda.get_device_capability(0),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "triton": triton.__version__,
        "python": platform.python_version(),
        "kernel": platform.release(),
    }


def main() -> int:
    """Run everything and print what was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--size-mib", type=int, default=512, help="bytes of each timed copy")
    size_bytes = parser.parse_args().size_mib * MIB
    device = TorchDevice(0)
    found: dict[str, Any] = {"machine": machine(), "size_bytes": size_bytes}
    found["exactness"] = exactness(device)
    found["fences"] = fences(device)
    found["rates"] = rates(device, size_bytes)
    found["layers"] = layers(device, size_bytes)
    found["tax"] = tax(device, size_bytes)
    print(json.dumps(found, indent=2))
    exact, races = found["exactness"], found["fences"]
    wrong = [exact["stored_wrong"], exact["loaded_wrong"], exact["judge_slept"]]
    wrong += [races["stores_early"], races["loads_early"], races["controls_early"] == 0]
    return int(any(wrong))


if __name__ == "__main__":
    sys.exit(main())
