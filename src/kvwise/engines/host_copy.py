"""The copier for devices whose KV lies in this process's memory (CPU engines). Plain memory moves.

It checks no address: a plan is trusted to come from `copying.Planner` over registered layers.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from kvwise.engines.copying import CopyPlan, Fence

_HOST_FENCE: Fence = object()


class HostCopier:
    """Moves bytes with `memmove`, one call for each joined piece; each call releases the GIL.

    A loop over pieces of 24 KiB runs at the speed of one large copy: a call costs about 0.4 us,
    the piece about 3 us. Host engines have finished their writes when they say so, hence a fence
    has nothing to mark.
    """

    def pin(self, address: int, size_bytes: int) -> None:
        """Nothing to prepare: host memory is reachable as it is."""

    def fence(self) -> Fence:
        """The same mark every time: host work is over when the call that did it returns."""
        return _HOST_FENCE

    def load(self, plan: CopyPlan, fence: Fence, on_layer: Callable[[int], None]) -> None:
        """Arena to device, layer by layer."""
        device, arena, sizes = plan.device.tolist(), plan.arena.tolist(), plan.sizes.tolist()
        for layer, (first, last) in enumerate(zip(plan.bounds, plan.bounds[1:], strict=False)):
            _move(device[first:last], arena[first:last], sizes[first:last])
            on_layer(layer)

    def store(self, plan: CopyPlan, fence: Fence) -> None:
        """Device to arena."""
        _move(plan.arena.tolist(), plan.device.tolist(), plan.sizes.tolist())

    def close(self) -> None:
        """Nothing was taken, nothing is given back."""


def _move(targets: list[int], sources: list[int], sizes: list[int]) -> None:
    """One `memmove` for each piece."""
    memmove = ctypes.memmove
    for target, source, size in zip(targets, sources, sizes, strict=True):
        memmove(target, source, size)
