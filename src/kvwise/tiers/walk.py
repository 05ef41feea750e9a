"""Reading a segment back after a restart: which bytes are frames. It changes nothing.

A footer that agrees with the file says it at once; else every header is read. Payloads are verified
when they are loaded. A frame counts when its header holds, it lies in the file without a hole, its
place is one that a location can say, and this process has its codec.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

import numpy as np

from kvwise.codecs import frame
from kvwise.codecs.base import BLOCK_BYTES, scratch
from kvwise.codecs.frame import HEADER_BYTES, MAGIC, Header
from kvwise.errors import FrameError
from kvwise.tiers import directio, footer
from kvwise.tiers.base import FOUND_BYTES_MAX
from kvwise.tiers.extents import SEGMENT_BYTES_MAX
from kvwise.tiers.footer import Entries
from kvwise.units import KIB, MIB, round_up

_SEARCH_BYTES = MIB
_TAIL_BYTES = 64 * KIB
"""Read at once from the end of a segment: the footer of 1,500 frames."""


@dataclass(slots=True)
class Walked:
    """What a segment holds.

    Attributes:
        entries: every frame that counts, in order.
        dead: (offset, bytes) of written ranges that are no such frame, and no footer in use.
        end: offset after the last frame that counts.
        footer_bytes: of the footer behind it that was used; 0 where headers were read.
        foreign: how many of the dead are frames whose codec this process does not have.
        unknown: another version wrote the segment; the other attributes say nothing then.
    """

    entries: Entries = field(default_factory=lambda: Entries.of(()))
    dead: list[tuple[int, int]] = field(default_factory=list)
    end: int = 0
    footer_bytes: int = 0
    foreign: int = 0
    unknown: bool = False


def walk(fd: int, segment: int, codecs: frozenset[int]) -> Walked:
    """Find the frames of a segment that one of `codecs` can read.

    Raises:
        OSError: the medium failed.
    """
    try:
        return _by_footer(fd, segment, codecs)
    except FrameError:
        return _by_headers(fd, codecs)


def _by_footer(fd: int, segment: int, codecs: frozenset[int]) -> Walked:
    """What the footer says, where the data in the file is just what it names.

    Raises:
        FrameError: there is no footer, or it does not agree with the file.
        OSError: the medium failed.
    """
    file_bytes = os.fstat(fd).st_size
    entries, start = _footer(fd, segment, file_bytes)
    extents = directio.data_extents(fd)
    if not extents:
        raise FrameError("the file holds nothing")
    starts, ends = (np.array(column, np.int64) for column in zip(*extents, strict=True))
    place = np.searchsorted(starts, entries.offsets, "right") - 1
    live = entries.only((place >= 0) & (entries.offsets < ends[place]))
    place = np.searchsorted(starts, live.offsets, "right") - 1
    data_bytes = int((ends - starts).sum())
    if data_bytes != live.live_bytes + file_bytes - start:
        raise FrameError("the file holds other data than its footer names")
    if not bool((live.offsets + live.sizes <= ends[place]).all()):
        raise FrameError("a frame has a hole in it")
    readable = np.array([kind.codec in codecs for kind in live.kinds])[live.kind]
    readable &= (live.sizes <= FOUND_BYTES_MAX) & (live.offsets < SEGMENT_BYTES_MAX)
    if not bool(readable.all()):
        raise FrameError("the footer names frames that this process cannot use")
    return Walked(live, end=start, footer_bytes=file_bytes - start)


def _footer(fd: int, segment: int, file_bytes: int) -> tuple[Entries, int]:
    """The frames that the footer names, freed ones included, and where the footer starts.

    Raises:
        FrameError: there is no whole footer.
        OSError: the medium failed.
    """
    if file_bytes % BLOCK_BYTES:
        raise FrameError("a file that was cut off has no footer")
    tail = scratch(min(_TAIL_BYTES, file_bytes))
    _fill(fd, tail, file_bytes - tail.nbytes)
    trailer = footer.trailer(tail)
    belongs = (trailer.segment, trailer.start + trailer.size_bytes) == (segment, file_bytes)
    if not belongs or not footer.pays(trailer.size_bytes, trailer.start):
        raise FrameError("the footer is of another file")  # nor read: it may claim any size
    if trailer.size_bytes > tail.nbytes:
        tail = scratch(trailer.size_bytes)
        _fill(fd, tail, trailer.start)
    return footer.unpack(tail[-trailer.size_bytes :], trailer), trailer.start


def _by_headers(fd: int, codecs: frozenset[int]) -> Walked:
    """What the headers say, each read for itself.

    Raises:
        OSError: the medium failed.
    """
    frames: list[tuple[Header, int]] = []
    dead: list[tuple[int, int]] = []
    size_bytes = os.fstat(fd).st_size
    block = scratch(HEADER_BYTES)
    offset, frames_end, foreign = directio.next_data(fd, 0), 0, 0
    while offset is not None:
        header = _header_at(fd, offset, block)
        if header is None:
            if not frames and _is_unknown(block):
                return Walked(unknown=True)
            end = _next_magic(fd, offset + BLOCK_BYTES, size_bytes)
        else:
            end = offset + header.frame_bytes
        known = header is not None and header.codec in codecs and offset < SEGMENT_BYTES_MAX
        if header is not None and known and _is_whole(fd, offset, end):
            frames.append((header, offset))
            frames_end = end
        else:
            end = min(end, round_up(size_bytes, BLOCK_BYTES))
            dead.append((offset, end - offset))
            foreign += header is not None and header.codec not in codecs
        offset = directio.next_data(fd, end)
    return Walked(Entries.of(frames), dead, frames_end, foreign=foreign)


def _is_whole(fd: int, offset: int, end: int) -> bool:
    """Whether a frame was written to its end, and is of a size that a scan can tell.

    A write that was under way when power failed may have lost bytes before those it kept.
    """
    data_end = min(os.fstat(fd).st_size, directio.next_hole(fd, offset))
    return end <= data_end and end - offset <= FOUND_BYTES_MAX


def _header_at(fd: int, offset: int, block: memoryview) -> Header | None:
    """The header that starts at an offset, if one does; `block` holds what was read."""
    _fill(fd, block, offset)
    try:
        return frame.unpack(block)
    except FrameError:
        return None


def _is_unknown(block: memoryview) -> bool:
    """Whether these bytes are a whole header of a version that this reader does not know."""
    try:
        return not 0 < frame.version(block) <= frame.VERSION
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
