"""Headers of frames, and segments full of them, as hostile bytes would have them.

A checksum would refuse nearly every change, so most inputs get theirs made right: what is tried is
what an attacker or a newer version could write. It owns no format.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import pairwise
from unittest import mock

import xxhash

from kvwise.codecs import frame
from kvwise.codecs.base import BLOCK_BYTES
from kvwise.codecs.frame import HEADER_BYTES, STORED_BYTES_MAX, Header
from kvwise.tiers import directio, footer, walk
from kvwise.tiers.footer import Entries
from kvwise.tiers.walk import Walked
from kvwise.units import round_up

_CODECS = frozenset((0, 7))
_PIECE = struct.Struct("<BH")
_FILE_BYTES_MAX = 1 << 19
RAW, SEALED, HOLE, GOOD, CUT, FOOTER, BAD_FOOTER = range(7)
"""What a piece of a segment is, see `segment`."""


def sealed(body: bytes) -> bytes:
    """A header block that begins with these bytes and whose checksum holds."""
    covered = body[: HEADER_BYTES - 8].ljust(HEADER_BYTES - 8, b"\0")
    return covered + xxhash.xxh3_64_intdigest(covered, frame._HEADER_SEED).to_bytes(8, "little")


def sealed_footer(body: bytes, start: int) -> bytes:
    """A footer of these columns and of the numbers that its last bytes say; its checksum holds."""
    columns, numbers = body[:-6], body[-6:].ljust(6, b"\1")
    kinds, frames = (number % 300 for number in struct.unpack("<HI", numbers))
    block = columns.ljust(footer.size_bytes(frames, kinds), b"\0")
    block = block[: footer.size_bytes(frames, kinds)]
    said = struct.pack("<8sHHIIIQ", footer.MAGIC, 1, frame.VERSION, kinds, frames, 0, start)
    block = block[: -len(said) - 8] + said
    return block + xxhash.xxh3_64_intdigest(block, footer._SEED).to_bytes(8, "little")


def header(stored_bytes: int, *, codec: int = 0) -> Header:
    """A good header."""
    return Header(codec, b"k" * 16, b"p" * 16, b"s" * 16, b"l" * 16, 9000, stored_bytes, 12345)


# --- one header ----------------------------------------------------------------------------------


def open_frame(stack: ExitStack) -> Callable[[bytes], None]:
    """The first byte says what is done to the rest: nothing, or a checksum that holds."""
    del stack

    def attempt(data: bytes) -> None:
        block = data[1:] if data[:1] == b"\xff" else sealed(data[1:])
        read = frame.unpack(block)
        assert frame.pack(read) == block
        assert frame.unpack(frame.pack(read)) == read
        assert HEADER_BYTES <= read.frame_bytes <= HEADER_BYTES + STORED_BYTES_MAX

    return attempt


def frames() -> list[bytes]:
    """Good headers, less the zeros at their end."""
    blocks = [frame.pack(header(size)) for size in (0, 1, 4096, 9000, STORED_BYTES_MAX)]
    return [b"\0" + block[:110] for block in blocks] + [b"\xff" + blocks[3]]


# --- a segment -----------------------------------------------------------------------------------


def segment(data: bytes) -> tuple[bytes, list[tuple[int, int]]]:
    """Content of a file, and the holes in it, that an input describes piece by piece.

    A piece is a kind, a number and that many bytes: raw bytes, a header sealed over them, a hole of
    so many blocks, a good header for an object of so many bytes, a cut of the file's end, a footer
    for all good headers so far, or one of any content whose checksum holds.
    """
    content, holes, at = bytearray(), [], 0
    good: list[tuple[Header, int]] = []
    while at + _PIECE.size <= len(data) and len(content) < _FILE_BYTES_MAX:
        kind, number = _PIECE.unpack_from(data, at)
        at += _PIECE.size
        match kind % 7:
            case 0:
                content += data[at : at + number]
                content += bytes(-len(content) % BLOCK_BYTES)
                at += number
            case 1:
                content += sealed(data[at : at + number])
                at += number
            case 2:
                holes.append((len(content), number % 40 * BLOCK_BYTES))
                content += bytes(number % 40 * BLOCK_BYTES)
            case 3:
                good.append((header(number, codec=number % 3 * 7), len(content)))
                content += frame.pack(good[-1][0])
                content += b"x" * round_up(number, BLOCK_BYTES)
            case 4:
                del content[max(0, len(content) - number) :]
            case 5:
                entries = Entries.of(good or [(header(number), 0)])
                content += footer.pack(entries, number % 2, len(content))
            case _:
                content += sealed_footer(data[at : at + number], len(content))
                at += number
    return bytes(content), holes


def open_segment(stack: ExitStack) -> Callable[[bytes], None]:
    """A walk over a file in memory; it may find anything but must not contradict the file."""
    fd = os.memfd_create("segment")
    stack.callback(os.close, fd)
    stack.enter_context(mock.patch.object(walk, "_SEARCH_BYTES", 1 << 15))

    def attempt(data: bytes) -> None:
        content, holes = segment(data)
        os.ftruncate(fd, 0)
        os.pwrite(fd, content, 0)
        for start, size in holes:
            if size and start + size <= len(content):
                directio.punch(fd, start, size)
        _check(walk.walk(fd, 0, _CODECS), content)

    return attempt


def _check(found: Walked, content: bytes) -> None:
    """What was found is in the file, in order, and nothing is claimed twice."""
    if found.unknown:
        return
    entries = found.entries
    if not found.footer_bytes:
        for row, offset in enumerate(entries.offsets.tolist()):
            read, kind = frame.unpack(content[offset : offset + HEADER_BYTES]), entries.kind[row]
            said = (read.space, read.layout, read.raw_bytes, read.codec)
            assert said == tuple(entries.kinds[kind])
            assert (read.key, read.parent) == (
                bytes(entries.keys[row]),
                bytes(entries.parents[row]),
            )
            assert read.frame_bytes == entries.sizes[row]
    assert {kind.codec for kind, _ in entries.by_kind()} <= _CODECS
    ranges = sorted(_ranges(found))
    assert all(end <= start for (_, end), (start, _) in pairwise(ranges))
    assert not ranges or ranges[-1][1] <= round_up(len(content), BLOCK_BYTES)
    assert all(start % BLOCK_BYTES == 0 < size for start, size in found.dead)
    assert found.end <= round_up(len(content), BLOCK_BYTES)


def _ranges(found: Walked) -> Iterator[tuple[int, int]]:
    """Every range that is spoken of."""
    rows = zip(found.entries.offsets.tolist(), found.entries.sizes.tolist(), strict=True)
    yield from ((offset, offset + size) for offset, size in rows)
    yield from ((offset, offset + size) for offset, size in found.dead)
    if found.footer_bytes:
        yield found.end, found.end + found.footer_bytes


def segments() -> list[bytes]:
    """Good segments: frames in a row, with holes, with damage, cut short."""

    def piece(kind: int, number: int, data: bytes = b"") -> bytes:
        return _PIECE.pack(kind, number) + data

    body = frame.pack(header(5000))[:110]
    long = b"".join(piece(GOOD, 60_000) for _ in range(5))
    row = b"".join(piece(GOOD, size) for size in (0, 100, 4096, 9000))
    newer = body[:8] + b"\2\0" + body[10:]
    return [
        row,
        row + piece(HOLE, 3) + row,
        row + piece(RAW, 50, b"?" * 50) + row,
        row + piece(SEALED, len(body), body) + piece(CUT, 5000),
        piece(SEALED, len(newer), newer) + row,
        piece(RAW, 8, frame.MAGIC) * 20 + row,
        piece(HOLE, 39) + row + piece(CUT, 100),
        row + long + piece(FOOTER, 0),
        row + long + piece(HOLE, 9) + piece(FOOTER, 0),
        row + long + piece(FOOTER, 1),
        row + long + piece(BAD_FOOTER, 100, bytes(94) + b"\1\0\1\0\0\0"),
    ]
