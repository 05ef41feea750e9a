"""Pieces of memory are looked at in order, copied only where they must be, and used again."""

from __future__ import annotations

import gc
import random

import numpy as np
import pytest

from kvwise.codecs.base import scratch
from kvwise.codecs.memory import ROOMS_KEPT, Bytes, Rooms, cut, fill, joined, merged, spans

UNIT_BYTES = 512


def address(array: Bytes) -> int:
    """Where it lies."""
    return int(array.ctypes.data)


def test_neighbours_are_one_array() -> None:
    """Pieces that lie behind one another are looked at as one; others, and empty ones, are not."""
    memory = scratch(8192)
    memory[:] = random.Random(1).randbytes(8192)
    pieces = [memory[:4096], memory[4096:4096], memory[4096:6000], memory[7000:], memory[6000:7000]]
    runs = merged(pieces)

    assert [run.size for run in runs] == [6000, 1192, 1000]
    assert address(runs[0]) == address(np.frombuffer(memory, np.uint8))
    assert b"".join(run.tobytes() for run in runs) == b"".join(pieces)
    assert address(joined(pieces[:3])) == address(runs[0])
    assert joined(pieces).tobytes() == b"".join(pieces)
    assert joined([]).size == 0


@pytest.mark.parametrize("seed", range(30))
def test_spans_are_the_memory_in_order(seed: int) -> None:
    """Units come in order, aligned, in place wherever they can, and copies where they cannot."""
    chance = random.Random(seed)
    sizes = [chance.choice((1, 8, 100, 512, 520, 1024, 4096)) for _ in range(8)]
    pieces = [scratch(size + 8)[chance.choice((0, 0, 0, 3)) :][:size] for size in sizes]
    for piece in pieces:
        piece[:] = chance.randbytes(piece.nbytes)
    at_bytes = chance.randrange(sum(sizes) + 1)
    head, tail = cut(merged(pieces), at_bytes)
    seen, ended = b"", False
    for array, parts in spans(head, UNIT_BYTES):
        fill(array, parts)
        assert not ended
        ended = array.size % UNIT_BYTES != 0
        assert address(array) % 8 == 0
        assert not parts or array.size <= UNIT_BYTES
        seen += array.tobytes()

    assert seen == b"".join(pieces)[:at_bytes]
    assert b"".join(part.tobytes() for part in tail) == b"".join(pieces)[at_bytes:]


def test_one_piece_is_not_copied() -> None:
    """What lies in one piece is one span, the memory itself."""
    memory = scratch(10 * UNIT_BYTES + 64)
    (span,) = spans(merged([memory]), UNIT_BYTES)

    assert address(span[0]) == address(np.frombuffer(memory, np.uint8))
    assert span[1] == ()


def test_a_room_is_lent_once_at_a_time() -> None:
    """A room comes back when the last look at it is gone, and is lent to the next."""
    rooms = Rooms()
    first = rooms.take(100_000)
    where, part = address(first), first[5:10].data[1:3]
    del first
    gc.collect()
    other = rooms.take(100_000)

    assert address(other) != where
    del part
    gc.collect()
    assert address(rooms.take(50_000)) == where


def test_few_rooms_are_kept() -> None:
    """However many were lent at a time, few wait for their next use; none is too small for it."""
    rooms = Rooms()
    lent = [rooms.take(70_000) for _ in range(3 * ROOMS_KEPT)]
    lent.clear()
    gc.collect()

    assert len(rooms._free) == ROOMS_KEPT
    assert rooms.take(1 << 20).size >= 1 << 20
