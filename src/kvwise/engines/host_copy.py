"""The copier for devices whose KV lies in this process's memory (CPU engines).

It checks no address: a plan is trusted to come from `copying.Planner` over registered layers. How
bytes are streamed is `streaming`'s business; the way without a compiler is here.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kvwise.engines.copying import Addresses, CopyPlan, Fence
from kvwise.engines.first_touch import FirstTouch
from kvwise.engines.streaming import CALL_BYTES, compiled_streams
from kvwise.units import MIB

_HOST_FENCE: Fence = object()

KEEP_BYTES = 1 * MIB
"""numpy's way: so many bytes are moved without letting go of the GIL, 100 us or so; larger pieces
let go."""

KEEP_JOB_BYTES = 8 * MIB
"""Compiled: a shorter job keeps the GIL, 1 ms or so in several calls. Letting go can cost 5 ms."""

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
    """Moves many pieces with one call wherever it can: compiled where Numba is, else with numpy.

    Letting go of the GIL is a trap: beside a busy thread (an engine that spins while it waits for
    this load) who let go waits 5 ms for its turn. Done for each piece of 24 KiB, 46 MB took 2.2 s
    instead of 15 ms. So short jobs keep it, and the interpreter takes it away between two calls
    where others want it. A job that is waited for layer by layer would let go once for each layer,
    and keeps it too. Long ones let go, and the engine goes on meanwhile.

    Host engines have finished their writes when they say so, hence a fence has nothing to mark.
    """

    _touch = FirstTouch()
    """Knows no arena before `pin`."""

    def __init__(self, *, compiled: bool = True) -> None:
        """Compile what moves, once in a process; `compiled` may forbid it."""
        self._streams = compiled_streams() if compiled else None

    @property
    def kind(self) -> Literal["compiled", "numpy"]:
        """What moves the bytes."""
        return "compiled" if self._streams else "numpy"

    def pin(self, address: int, size_bytes: int) -> None:
        """Remember where the arena is; its memory is mapped as it comes into use."""
        self._touch = FirstTouch(address, size_bytes)

    def fence(self) -> Fence:
        """The same mark every time: host work is over when the call that did it returns."""
        return _HOST_FENCE

    def load(self, plan: CopyPlan, fence: Fence, on_layer: Callable[[int], None]) -> None:
        """Arena to device, layer by layer."""
        self._touch.map(plan.arena, plan.sizes)
        keep_bytes = KEEP_JOB_BYTES if len(plan.bounds) == 2 else CALL_BYTES
        for layer, (first, last) in enumerate(pairwise(plan.bounds)):
            part = slice(first, last)
            self._move(plan.device[part], plan.arena[part], plan.sizes[part], keep_bytes)
            on_layer(layer)

    def store(self, plan: CopyPlan, fence: Fence) -> None:
        """Device to arena."""
        self._touch.map(plan.arena, plan.sizes)
        self._move(plan.arena, plan.device, plan.sizes, KEEP_JOB_BYTES)

    def close(self) -> None:
        """Nothing was taken, nothing is given back."""

    def _move(
        self, targets: Addresses, sources: Addresses, sizes: Addresses, keep_bytes: int
    ) -> None:
        """Pieces in order; compiled, jobs shorter than `keep_bytes` keep the GIL."""
        if self._streams:
            self._streams.move(targets, sources, sizes, keep_gil=int(sizes.sum()) < keep_bytes)
        else:
            _move(targets, sources, sizes)


def _move(targets: Addresses, sources: Addresses, sizes: Addresses) -> None:
    """Pieces in order, as many in one call of numpy's as go together.

    A call of `memmove` from Python for each piece costs more than its 0.4 us: the memory idles
    between two calls, and pieces of 24 KiB came at three quarters of the speed of one large copy.
    Pieces that lie evenly spaced at their source therefore go together wherever their targets are,
    and those whose targets have no gap wherever their sources are. Of the arena's side and the
    device's side at least one is nearly always like that.
    """
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
