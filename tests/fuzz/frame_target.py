"""Headers of frames, and segments full of them, as hostile bytes would have them.

A checksum would refuse nearly every change, so most inputs get theirs made right: what is tried is
what an attacker or a newer version could write. It owns no format.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from contextlib import ExitStack
from itertools import pairwise
from unittest import mock

import xxhash

from kvwise.codecs import frame
from kvwise.codecs.base import BLOCK_BYTES, scratch
from kvwise.codecs.frame import HEADER_BYTES, STORED_BYTES_MAX, Header
from kvwise.errors import FrameError
from kvwise.tiers import directio, footer, walk
from kvwise.units import round_up

_CODECS = frozenset((0, 7))
SEGMENT = 3
_PIECE = struct.Struct("<BH")
_FILE_BYTES_MAX = 1 << 19
_TRAILER_BYTES = footer._TRAILER.size - 8
RAW, SEALED, HOLE, GOOD, CUT, FOOTER = range(6)
"""What a piece of a segment is, see `segment`."""


def sealed(body: bytes) -> bytes:
    """A header block that begins with these bytes and whose checksum holds."""
    covered = body[: HEADER_BYTES - 8].ljust(HEADER_BYTES - 8, b"\0")
    return covered + xxhash.xxh3_64_intdigest(covered, frame._HEADER_SEED).to_bytes(8, "little")


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
    so many blocks, a frame for an object of so many bytes, a cut of the file's end, or a footer.
    """
    content, holes, at = bytearray(), [], 0
    while at + _PIECE.size <= len(data) and len(content) < _FILE_BYTES_MAX:
        kind, number = _PIECE.unpack_from(data, at)
        at += _PIECE.size
        match kind % 6:
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
                content += frame.pack(header(number, codec=number % 3 * 7))
                content += b"x" * round_up(number, BLOCK_BYTES)
            case 4:
                del content[max(0, len(content) - number) :]
            case _:
                content += _footer(bytes(content), data[at : at + number % 64])
                at += number % 64
    return bytes(content), holes


def _footer(content: bytes, change: bytes) -> bytes:
    """A footer that names the frames of a file, with some bytes changed and a checksum that holds.

    The first two bytes of the change say where it is made, counted from the end.
    """
    frames, at = [], 0
    while at < len(content):
        try:
            read = frame.unpack(content[at : at + HEADER_BYTES])
        except FrameError:
            at += BLOCK_BYTES
            continue
        frames.append((read, at))
        at += read.frame_bytes
    if not frames:
        return b""
    block = footer.pack(footer.Entries.of(frames), SEGMENT, len(content))
    start = max(0, block.nbytes - 8 - int.from_bytes(change[:2], "little"))
    end = min(block.nbytes - 8, start + len(change[2:]))
    block[start:end] = change[2 : 2 + end - start]
    block[-8:] = footer._checksum(block).to_bytes(8, "little")
    return bytes(block)


def open_segment(stack: ExitStack) -> Callable[[bytes], None]:
    """A walk over a file in memory; it may find anything but must not contradict the file."""
    fd = os.memfd_create("segment")
    stack.callback(os.close, fd)
    stack.enter_context(mock.patch.object(walk, "_SEARCH_BYTES", 1 << 15))
    stack.enter_context(mock.patch.object(footer, "SHARE", 1))  # so that small files have one

    def attempt(data: bytes) -> None:
        content, holes = segment(data)
        os.ftruncate(fd, 0)
        os.pwrite(fd, content, 0)
        for start, size in holes:
            if size and start + size <= len(content):
                directio.punch(fd, start, size)
        _check(walk.walk(fd, SEGMENT, _CODECS), content)

    return attempt


def _check(found: walk.Walked, content: bytes) -> None:
    """What was found is there, in order, and nothing is claimed twice.

    A footer is a hint, so what it names need not be a frame; it lies in the file all the same.
    """
    if found.unknown:
        return
    entries = found.entries
    rows = list(zip(entries.offsets.tolist(), entries.sizes.tolist(), strict=True))
    for place, (offset, size) in enumerate(rows):
        assert offset + size <= len(content)
        assert entries.kinds[int(entries.kind[place])].codec in _CODECS
        if not found.footer_bytes:
            read = frame.unpack(content[offset : offset + HEADER_BYTES])
            assert (read.key, read.frame_bytes) == (entries.keys[place].tobytes(), size)
    ranges = sorted((start, start + size) for start, size in [*rows, *found.dead])
    assert all(end <= start for (_, end), (start, _) in pairwise(ranges))
    assert not ranges or ranges[-1][1] <= round_up(len(content), BLOCK_BYTES)
    assert found.end + found.footer_bytes <= round_up(len(content), BLOCK_BYTES)
    assert all(start % BLOCK_BYTES == 0 < size for start, size in found.dead)


# --- a footer ------------------------------------------------------------------------------------


def open_footer(stack: ExitStack) -> Callable[[bytes], None]:
    """The end of a file: what stands before the checksum of its trailer, then the rest of it."""
    del stack

    def attempt(data: bytes) -> None:
        end, body = data[:_TRAILER_BYTES].ljust(_TRAILER_BYTES, b"\0"), data[_TRAILER_BYTES:]
        tail = scratch(BLOCK_BYTES)
        tail[-_TRAILER_BYTES - 8 : -8] = end
        size_bytes = footer.trailer(tail).size_bytes
        block = scratch(min(size_bytes, _FILE_BYTES_MAX))
        room = block.nbytes - _TRAILER_BYTES - 8
        block[: min(room, len(body))] = body[:room]
        block[-_TRAILER_BYTES - 8 : -8] = end
        block[-8:] = footer._checksum(block).to_bytes(8, "little")
        said = footer.trailer(block)
        read = footer.unpack(block, said)
        packed = footer.pack(read, said.segment, said.start)
        again = footer.unpack(packed, footer.trailer(packed))
        assert again.kinds == read.kinds
        for column in ("keys", "parents", "offsets", "sizes", "kind"):
            assert (getattr(again, column) == getattr(read, column)).all()
        assert all(offset + read.sizes[n] <= said.start for n, offset in enumerate(read.offsets))

    return attempt


def footers() -> list[bytes]:
    """Good footers, of one frame and of several kinds."""
    made = []
    for count in (1, 3, 20):
        frames = [(header(9000, codec=n % 3 * 7), n * 16384) for n in range(count)]
        block = bytes(footer.pack(footer.Entries.of(frames), SEGMENT, count * 16384))
        made.append(block[-_TRAILER_BYTES - 8 : -8] + block[: count * 42 + 3 * 48])
    return made


def segments() -> list[bytes]:
    """Good segments: frames in a row, with holes, with damage, cut short."""

    def piece(kind: int, number: int, data: bytes = b"") -> bytes:
        return _PIECE.pack(kind, number) + data

    body = frame.pack(header(5000))[:110]
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
        row + piece(FOOTER, 0),
        row + piece(HOLE, 2) + row + piece(FOOTER, 0),
        row + piece(FOOTER, 6, b"\x20\x00" + b"\xff" * 4),
        row + piece(FOOTER, 0) + row,
    ]
