"""What hostile bytes may cost: work and memory grow with the input. No clock is read."""

from __future__ import annotations

import os
import struct

import pytest

from kvwise.codecs import frame
from kvwise.codecs.base import BLOCK_BYTES
from kvwise.errors import ProtocolError
from kvwise.live import wire
from kvwise.live.messages import FRAME_BYTES_MAX
from kvwise.tiers import directio, walk


@pytest.mark.parametrize("every", [1, 2, 3, 9])
def test_false_beginnings_do_not_multiply_reads(
    every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A segment in which many blocks begin like a header and are none is read a few times over."""
    blocks, read_bytes = 600, 0
    read_all = directio.read_all

    def counted(*arguments: object) -> tuple[int, OSError | None]:
        nonlocal read_bytes
        count, fault = read_all(*arguments)  # type: ignore[arg-type]
        read_bytes += count
        return count, fault

    monkeypatch.setattr(directio, "read_all", counted)
    fd = os.memfd_create("segment")
    try:
        for block in range(blocks):
            begin = frame.MAGIC if block % every == 0 else b"?" * 8
            os.pwrite(fd, begin.ljust(BLOCK_BYTES, b"x"), block * BLOCK_BYTES)
        found = walk.walk(fd, 1, frozenset((0,)))
    finally:
        os.close(fd)

    assert sum(size for _, size in found.dead) == blocks * BLOCK_BYTES
    assert read_bytes <= 4 * blocks * BLOCK_BYTES


def test_a_length_alone_allocates_nothing() -> None:
    """A frame that claims the most there may be takes what has arrived of it, and no more."""
    unpacker = wire.requests()
    unpacker.feed(struct.pack("<I", FRAME_BYTES_MAX) + b"x")

    assert unpacker.next() is None
    assert len(unpacker._buffer) == 5
    unpacker = wire.requests()
    unpacker.feed(b"\xff\xff\xff\xff")
    with pytest.raises(ProtocolError, match="exceeds"):
        unpacker.next()


def test_counts_inside_a_message_allocate_nothing() -> None:
    """An array or a map of four billion items, in a message of a few bytes, is refused."""
    for head in (b"\xdd", b"\xdf", b"\xc6", b"\xdb"):
        body = b"\x82\xa4type\xa4step\xa5fills" + head + b"\xff\xff\xff\xff"
        unpacker = wire.requests()
        unpacker.feed(struct.pack("<I", len(body)) + body)
        with pytest.raises(ProtocolError):
            unpacker.next()
