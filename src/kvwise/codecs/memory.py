"""Memory as codecs see it: pieces as few arrays, and rooms that are used again.

It owns how pieces are looked at. It knows no format, and holds no payload beyond a call.
"""

from __future__ import annotations

import ctypes
import weakref
from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from kvwise.codecs.base import Buffers, scratch
from kvwise.units import round_up

Bytes = NDArray[np.uint8]
Span = tuple[Bytes, Sequence[Bytes]]
"""Memory in one piece, and what it is a copy of; nothing when it is the memory itself."""

WORD_BYTES = 8
ROOMS_KEPT = 4
"""Rooms that wait for their next use."""

_ROOM_GRAIN_BYTES = 64 * 1024


class Rooms:
    """Page-aligned memory that comes back by itself once nothing looks at it any more.

    Memory fresh from the kernel costs a fault for each page, more than writing to it. A room is
    lent as an array; whatever is made of that array keeps it lent. Threads may share this.
    """

    def __init__(self) -> None:
        """Nothing is held yet."""
        self._free: deque[memoryview] = deque(maxlen=ROOMS_KEPT)

    def take(self, size_bytes: int) -> Bytes:
        """A room of at least that size; it holds what its last user wrote."""
        try:
            memory = self._free.pop()
        except IndexError:
            memory = memoryview(b"")
        if memory.nbytes < size_bytes:
            memory = scratch(round_up(size_bytes, _ROOM_GRAIN_BYTES))
        room = np.frombuffer(memory, dtype=np.uint8)
        weakref.finalize(room, self._free.append, memory).atexit = False
        return room


def merged(pieces: Buffers) -> list[Bytes]:
    """The pieces as arrays, those that are neighbours in memory as one.

    They are valid as long as the pieces are, and writable: who was given memory to read only must
    not write to them.
    """
    filled = [piece for piece in pieces if piece.nbytes]
    if len(filled) == 1 and not filled[0].readonly:
        return [np.frombuffer(filled[0], np.uint8)]
    runs: list[list[int]] = []
    for piece in filled:
        address = _address(piece)
        if runs and sum(runs[-1]) == address:
            runs[-1][1] += piece.nbytes
        else:
            runs.append([address, piece.nbytes])
    return [_array(*run) for run in runs]


def joined(pieces: Buffers) -> Bytes:
    """The pieces as one array of whole words, copied unless they lie like that."""
    runs = merged(pieces)
    if len(runs) == 1 and _aligned(runs[0]):
        return runs[0]
    return np.concatenate(runs) if runs else np.empty(0, np.uint8)


def cut(runs: Sequence[Bytes], at_bytes: int) -> tuple[list[Bytes], list[Bytes]]:
    """The arrays up to a place, and those behind it."""
    before: list[Bytes] = []
    behind: list[Bytes] = []
    for run in runs:
        here = min(run.size, max(at_bytes, 0))
        before += [run[:here]] if here else []
        behind += [run[here:]] if here < run.size else []
        at_bytes -= run.size
    return before, behind


def spans(runs: Sequence[Bytes], unit_bytes: int) -> Iterator[Span]:
    """All memory in order, in arrays of whole units and words; the last may end in a part of one.

    Only a unit that lies in several arrays, or beside whole words, is given as a copy: its bytes
    are not there yet, and nobody writes them back (see `fill` and `scatter`).
    """
    if len(runs) == 1 and _aligned(runs[0]):
        yield runs[0], ()
        return
    copy, parts, held = np.empty(unit_bytes, np.uint8), list[Bytes](), 0
    for number, run in enumerate(runs):
        start = 0
        while start < run.size:
            if not held and _aligned(run[start:]):
                left = run.size - start
                whole = left if number == len(runs) - 1 else left // unit_bytes * unit_bytes
                if whole:
                    yield run[start : start + whole], ()
                    start += whole
                    continue
            part = run[start : start + unit_bytes - held]
            parts.append(part)
            held += part.size
            start += part.size
            if held == unit_bytes:
                yield copy, parts
                parts, held = [], 0
    if held:
        yield copy[:held], parts


def fill(array: Bytes, parts: Sequence[Bytes]) -> None:
    """Copy parts into an array that is just as long, if there are any."""
    if parts:
        np.concatenate(parts, out=array)


def scatter(array: Bytes, parts: Sequence[Bytes]) -> None:
    """Copy an array into parts that are just as long."""
    start = 0
    for part in parts:
        part[:] = array[start : start + part.size]
        start += part.size


def _array(address: int, size_bytes: int) -> Bytes:
    """Memory that somebody else keeps valid."""
    memory = memoryview((ctypes.c_uint8 * size_bytes).from_address(address))
    return np.frombuffer(memory, dtype=np.uint8)


def _aligned(array: Bytes) -> bool:
    return _address(array.data) % WORD_BYTES == 0


def _address(memory: memoryview) -> int:
    """Where memory lies that is not empty. Asking ctypes takes a fourth of the time of numpy."""
    try:
        return ctypes.addressof(ctypes.c_char.from_buffer(memory))
    except TypeError:
        return int(np.frombuffer(memory, np.uint8).ctypes.data)
