"""The copier for devices whose KV lies in this process's memory (CPU engines). Plain memory moves.

It checks no address: a plan is trusted to come from `copying.Planner` over registered layers.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from kvwise.engines.copying import Addresses, CopyPlan, Fence
from kvwise.engines.first_touch import FirstTouch

_HOST_FENCE: Fence = object()

KEEP_BYTES = 512 * 1024
"""So many bytes are moved without letting go of the GIL, 50 us or so; larger pieces let go."""

PIECES_MAX = 256
"""Pieces of one call: numpy lets go of the GIL from 500 elements on."""

TOGETHER_MIN = 4
"""Fewer pieces are moved one by one: preparing a call would cost more than it saves."""

Pieces = NDArray[np.void]

_FIRST = 4096
_memory = memoryview((ctypes.c_char * (sys.maxsize - _FIRST)).from_address(_FIRST))
"""All memory of this process as one buffer, but for the page at address zero; never read whole."""

_keeping = ctypes.PyDLL(None).memmove
_keeping.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_keeping.restype = None


class HostCopier:
    """Moves many pieces with one call wherever it can.

    A call of `memmove` from Python for each piece costs more than its 0.4 us: the memory idles
    between two calls, and pieces of 24 KiB came at three quarters of the speed of one large copy.
    Pieces that lie evenly spaced at their source therefore go together wherever their targets are,
    and those whose targets have no gap wherever their sources are. Of the arena's side and the
    device's side at least one is nearly always like that.

    Letting go of the GIL for so short a time is a trap: beside a busy thread (an engine that spins
    while it waits for this load) every piece would wait for its turn, and 46 MB took 2.2 s instead
    of 15 ms. The interpreter takes the GIL away between two calls where others want it. Host
    engines have finished their writes when they say so, hence a fence has nothing to mark.
    """

    _touch = FirstTouch()
    """Knows no arena before `pin`."""

    def pin(self, address: int, size_bytes: int) -> None:
        """Remember where the arena is; its memory is mapped as it comes into use."""
        self._touch = FirstTouch(address, size_bytes)

    def fence(self) -> Fence:
        """The same mark every time: host work is over when the call that did it returns."""
        return _HOST_FENCE

    def load(self, plan: CopyPlan, fence: Fence, on_layer: Callable[[int], None]) -> None:
        """Arena to device, layer by layer."""
        self._touch.map(plan.arena, plan.sizes)
        for layer, (first, last) in enumerate(zip(plan.bounds, plan.bounds[1:], strict=False)):
            _move(plan.device[first:last], plan.arena[first:last], plan.sizes[first:last])
            on_layer(layer)

    def store(self, plan: CopyPlan, fence: Fence) -> None:
        """Device to arena."""
        self._touch.map(plan.arena, plan.sizes)
        _move(plan.arena, plan.device, plan.sizes)

    def close(self) -> None:
        """Nothing was taken, nothing is given back."""


def _move(targets: Addresses, sources: Addresses, sizes: Addresses) -> None:
    """Pieces in order, as many in one call as go together."""
    ends = [*(np.flatnonzero(sizes[1:] != sizes[:-1]) + 1).tolist(), len(sizes)]
    for first, last in pairwise([0, *ends]):
        part, size = slice(first, last), int(sizes[first]) if last > first else 0
        if last - first < TOGETHER_MIN or size >= KEEP_BYTES:
            _move_each(targets[part].tolist(), sources[part].tolist(), sizes[part].tolist())
        else:
            _move_equal(targets[part], sources[part], size)


def _move_equal(targets: Addresses, sources: Addresses, size: int) -> None:
    """Pieces of `size` bytes: spread from evenly spaced sources, or gathered, or one by one."""
    if len(even := _runs(sources)) * TOGETHER_MIN <= len(sources):
        _spread(targets, sources, size, even)
    elif len(joint := _runs(targets, size)) * TOGETHER_MIN <= len(sources) and not np.any(
        (sources - sources.min()) % size
    ):
        _gather(targets, sources, size, joint)
    else:
        _move_each(targets.tolist(), sources.tolist(), [size] * len(sources))


def _runs(addresses: Addresses, step: int = 0) -> list[tuple[int, int]]:
    """Stretches of pieces that are `step` bytes apart, or evenly apart by whatever it is."""
    steps = np.diff(addresses)
    if step:
        cuts = [0, *(np.flatnonzero(steps != step) + 1).tolist(), len(addresses)]
        return list(pairwise(cuts))
    runs, first = [], 0
    for turn in (np.flatnonzero((steps[1:] != steps[:-1]) | (steps[1:] == 0)) + 2).tolist():
        if turn - first > 1:
            runs.append((first, turn))
            first = turn
    return [*runs, (first, len(addresses))]


def _spread(targets: Addresses, sources: Addresses, size: int, runs: list[tuple[int, int]]) -> None:
    """To wherever the targets are, from sources that are evenly spaced within each run.

    Memory is looked at as overlapping pieces, one at every byte: an index takes the targets among
    them, a step the sources.
    """
    into, low = _every_byte(targets, size)
    out, least = _every_byte(sources, size)
    places, starts = targets - low, (sources - least).tolist()
    at_once = min(PIECES_MAX, max(1, KEEP_BYTES // size))
    for begin, end in runs:
        step = starts[begin + 1] - starts[begin] if end - begin > 1 else 1
        for first in range(begin, end, at_once):
            last = min(first + at_once, end)
            stop = starts[last - 1] + (1 if step > 0 else -1)
            into[places[first:last]] = out[starts[first] : stop if stop >= 0 else None : step]


def _gather(targets: Addresses, sources: Addresses, size: int, runs: list[tuple[int, int]]) -> None:
    """To targets without gaps within each run, from sources that are whole pieces apart."""
    low, least = int(targets.min()), int(sources.min())
    into, _ = _every_byte(targets, size)
    index = (sources - least) // size
    out = np.ndarray((int(index.max()) + 1,), f"V{size}", _memory, least - _FIRST)
    starts = (targets - low).tolist()
    at_once = min(PIECES_MAX, max(1, KEEP_BYTES // size))
    for begin, end in runs:
        for first in range(begin, end, at_once):
            last = min(first + at_once, end)
            place = into[starts[first] : starts[last - 1] + 1 : size]
            np.take(out, index[first:last], out=place, mode="clip")


def _every_byte(addresses: Addresses, size: int) -> tuple[Pieces, int]:
    """A piece of `size` bytes at every byte from the least address to the greatest; the least."""
    low, high = int(addresses.min()), int(addresses.max())
    return np.ndarray((high - low + 1,), f"V{size}", _memory, low - _FIRST, (1,)), low


def _move_each(targets: list[int], sources: list[int], sizes: list[int]) -> None:
    """One `memmove` for each piece."""
    for target, source, size in zip(targets, sources, sizes, strict=True):
        if size < KEEP_BYTES:
            _keeping(target, source, size)
        else:
            ctypes.memmove(target, source, size)
