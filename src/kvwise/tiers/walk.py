"""Reading a segment back after a restart: which bytes are frames. It changes nothing.

Headers alone are read; payloads are verified when they are loaded. A frame counts when its header
holds, it ends inside the file, and this process has its codec.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from kvwise.codecs import frame
from kvwise.codecs.base import BLOCK_BYTES, scratch
from kvwise.codecs.frame import HEADER_BYTES, MAGIC, Header
from kvwise.errors import FrameError
from kvwise.tiers import directio
from kvwise.units import MIB, round_up

_SEARCH_BYTES = MIB


@dataclass(slots=True)
class Found:
    """What a segment holds.

    Attributes:
        frames: header and offset of every frame that counts, in order.
        dead: (offset, bytes) of written ranges that are no such frame.
        end: offset after the last frame that counts.
        newer: the segment was written by a newer version; the other attributes say nothing then.
    """

    frames: list[tuple[Header, int]] = field(default_factory=list)
    dead: list[tuple[int, int]] = field(default_factory=list)
    end: int = 0
    newer: bool = False


def walk(fd: int, codecs: frozenset[int]) -> Found:
    """Find the frames of a segment that one of `codecs` can read.

    Raises:
        OSError: the medium failed.
    """
    found = Found()
    size_bytes = os.fstat(fd).st_size
    block = scratch(HEADER_BYTES)
    offset = directio.next_data(fd, 0)
    while offset is not None:
        header = _header_at(fd, offset, block)
        if header is None:
            if not found.end and _is_newer(block):
                return Found(newer=True)
            end = _next_magic(fd, offset + BLOCK_BYTES, size_bytes)
        else:
            end = offset + header.frame_bytes
        if header is not None and end <= size_bytes and header.codec in codecs:
            found.frames.append((header, offset))
            found.end = end
        else:
            end = min(end, round_up(size_bytes, BLOCK_BYTES))
            found.dead.append((offset, end - offset))
        offset = directio.next_data(fd, end)
    return found


def _header_at(fd: int, offset: int, block: memoryview) -> Header | None:
    """The header that starts at an offset, if one does; `block` holds what was read."""
    _fill(fd, block, offset)
    try:
        return frame.unpack(block)
    except FrameError:
        return None


def _is_newer(block: memoryview) -> bool:
    """Whether these bytes are a whole header of a version that came after this one."""
    try:
        return frame.version(block) > frame.VERSION
    except FrameError:
        return False


def _next_magic(fd: int, offset: int, size_bytes: int) -> int:
    """The next block that begins like a header, or the end of the file.

    Only a damaged segment is searched: one block read for each would take minutes, and so would a
    long read for each of many false beginnings, so reads grow with what they did not find.
    """
    window_bytes = BLOCK_BYTES
    while (at := directio.next_data(fd, offset)) is not None:
        window = scratch(window_bytes)
        _fill(fd, window, at)
        for start in range(0, window_bytes, BLOCK_BYTES):
            if window[start : start + len(MAGIC)] == MAGIC:
                return at + start
        offset = at + window_bytes
        window_bytes = min(2 * window_bytes, _SEARCH_BYTES)
    return size_bytes


def _fill(fd: int, window: memoryview, offset: int) -> None:
    """Read into a window; what lies beyond the end of the file reads as zeros."""
    count, fault = directio.read_all(fd, [window], offset)
    if fault is not None:
        raise fault
    window[count:] = bytes(window.nbytes - count)
