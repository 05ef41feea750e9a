"""Extents: some bytes of one segment, and the token that names a frame. It touches no file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kvwise.codecs.base import BLOCK_BYTES
from kvwise.errors import BugError

_OFFSET_BITS = 24
_SEGMENT_BITS = 32
SEGMENT_BYTES_MAX = BLOCK_BYTES << _OFFSET_BITS
SEGMENTS_MAX = 1 << _SEGMENT_BITS
DIRECTORIES_MAX = 256


@dataclass(frozen=True, slots=True, order=True)
class Extent:
    """Some bytes of one segment."""

    segment: int
    offset: int
    size_bytes: int

    @property
    def end(self) -> int:
        """Offset of the first byte after it."""
        return self.offset + self.size_bytes


def pack_location(directory: int, extent: Extent) -> int:
    """The 64-bit token for a frame: directory, segment, block number in the segment.

    Raises:
        BugError: it would be the token of another place.
    """
    possible = 0 <= directory < DIRECTORIES_MAX and 0 <= extent.segment < SEGMENTS_MAX
    if not possible or extent.offset not in range(0, SEGMENT_BYTES_MAX, BLOCK_BYTES):
        raise BugError(f"no location can say directory {directory}, {extent}")
    high = directory << _SEGMENT_BITS | extent.segment
    return high << _OFFSET_BITS | extent.offset // BLOCK_BYTES


def unpack_location(location: int, size_bytes: int) -> tuple[int, Extent]:
    """The directory and the extent that a token and a size stand for."""
    high, blocks = location >> _OFFSET_BITS, location & (1 << _OFFSET_BITS) - 1
    segment = high % SEGMENTS_MAX
    return high >> _SEGMENT_BITS, Extent(segment, blocks * BLOCK_BYTES, size_bytes)


def merged(extents: Iterable[Extent]) -> Iterator[Extent]:
    """The same bytes in as few extents as possible."""
    waiting: Extent | None = None
    for extent in sorted(extents):
        if waiting and (extent.segment, extent.offset) == (waiting.segment, waiting.end):
            joined = waiting.size_bytes + extent.size_bytes
            waiting = Extent(waiting.segment, waiting.offset, joined)
            continue
        if waiting:
            yield waiting
        waiting = extent
    if waiting:
        yield waiting
