"""Owns the measurement of a GPU: copies to and from pinned memory, its own memory, its products.

It needs a torch that is installed and sees the GPU, and says so where there is none.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import util
from typing import Any

from kvwise.bench.probe.limits import Found, Tell, figure, rounds
from kvwise.bench.yardstick import gbps
from kvwise.host import Host
from kvwise.units import MIB

COPY_BYTES = 256 * MIB
PRODUCT = 8192
"""Rows and columns of the matrices that are multiplied."""
REPEATS = 8


def measure_gpu(host: Host, end_s: float, tell: Tell) -> Found:
    """Rates of the first GPU until a moment, or why there are none."""
    found = Found()
    if not host.read("/proc/driver/nvidia/version"):
        found.skipped.append("gpu: this host has no NVIDIA driver")
        return found
    if util.find_spec("torch") is None:
        found.skipped.append(
            "gpu: there is no torch here to reach it with; hint: run kvwise in the environment "
            "of the engine"
        )
        return found
    import torch

    if not torch.cuda.is_available():
        found.skipped.append("gpu: torch sees none")
        return found
    tell("gpu: starting it")
    try:
        figures = rounds(_actions(torch), end_s, lambda name: tell(f"gpu: {name}"))
    except RuntimeError as error:  # torch's only kind, out of memory included
        found.skipped.append(f"gpu: {error}")
        return found
    name, size_bytes = torch.cuda.get_device_name(0), torch.cuda.mem_get_info(0)[1]
    for way, values in figures.items():
        if not values:
            found.skipped.append(f"gpu: {way}: no time left; hint: raise --seconds")
            continue
        row = {"part": "gpu", "name": name, "memory_bytes": size_bytes, "way": way}
        found.rows.append({**row, **figure(values)})
    return found


def _actions(torch: Any) -> dict[str, Callable[[], float]]:
    """What is measured, GB/s each; `products` in units of 10^9 operations a second."""
    pinned = torch.empty(COPY_BYTES, dtype=torch.uint8, pin_memory=True)
    here, there = (torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda") for _ in range(2))
    left = torch.randn(PRODUCT, PRODUCT, dtype=torch.bfloat16, device="cuda")
    out = torch.empty_like(left)
    copied, computed = REPEATS * COPY_BYTES, REPEATS * 2 * PRODUCT**3

    def timed(size: int, action: Callable[[], object]) -> float:
        """The rate of an action that is repeated, by the device's own clock."""
        started, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        started.record()
        for _ in range(REPEATS):
            action()
        ended.record()
        ended.synchronize()
        return gbps(size, started.elapsed_time(ended) / 1e3)

    return {
        "to device": lambda: timed(copied, lambda: here.copy_(pinned, non_blocking=True)),
        "to host": lambda: timed(copied, lambda: pinned.copy_(here, non_blocking=True)),
        # what is copied within is read and written
        "within": lambda: timed(2 * copied, lambda: there.copy_(here)),
        "products": lambda: timed(computed, lambda: torch.matmul(left, left, out=out)),
    }
