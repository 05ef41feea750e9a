"""Runs: frames that lie side by side and move in one call. Built and judged here, not moved.

A frame in memory is a header block, the payload where it already is, and for the bytes after the
last whole block a block of its own: neither stale memory nor a neighbour's page reaches the medium.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from kvwise.codecs import frame
from kvwise.codecs.base import BLOCK_BYTES, Buffers, Codec, scratch, total_bytes
from kvwise.codecs.frame import HEADER_BYTES, Header
from kvwise.codecs.plain import PLAIN
from kvwise.errors import FailureKind, FrameError, TierError
from kvwise.tiers.base import Record, Want
from kvwise.tiers.segments import Extent

SPARE_BYTES = HEADER_BYTES + BLOCK_BYTES
"""Memory a frame needs beside its payload: the header, and the block that ends it."""


@dataclass(slots=True)
class WriteRun:
    """Frames to append to one directory.

    Attributes:
        pieces: all memory to write, in order.
        sizes: bytes of each frame.
        indexes: which object of the call each frame is.
    """

    pieces: list[memoryview] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    indexes: list[int] = field(default_factory=list)
    size_bytes: int = 0

    def add(self, index: int, pieces: Iterable[memoryview], size_bytes: int) -> None:
        """Put one more frame at the end."""
        self.pieces += pieces
        self.sizes.append(size_bytes)
        self.indexes.append(index)
        self.size_bytes += size_bytes


def write_pieces(
    record: Record, stored: Buffers, codec_id: int, spare: memoryview
) -> list[memoryview]:
    """The memory of a frame; `spare` is zeroed and holds `SPARE_BYTES`."""
    header = Header(
        codec=codec_id,
        key=record.key,
        parent=record.parent,
        space=record.space,
        layout=record.layout,
        raw_bytes=record.raw_bytes,
        stored_bytes=total_bytes(stored),
        payload_checksum=frame.checksum(stored),
    )
    spare[:HEADER_BYTES] = frame.pack(header)
    body, tail = _split(stored)
    pieces = [spare[:HEADER_BYTES], *body]
    if tail is not None:
        spare[HEADER_BYTES : HEADER_BYTES + tail.nbytes] = tail
        pieces.append(spare[HEADER_BYTES:])
    return pieces


def _split(stored: Buffers) -> tuple[list[memoryview], memoryview | None]:
    """The pieces up to the last whole block, and the bytes after it if there are any."""
    pieces = [piece for piece in stored if piece.nbytes]
    beyond = pieces[-1].nbytes % BLOCK_BYTES if pieces else 0
    if not beyond:
        return pieces, None
    last = pieces.pop()
    whole = last.nbytes - beyond
    if whole:
        pieces.append(last[:whole])
    return pieces, last[whole:]


class Part:
    """One frame to read: where its bytes go, and whether they are what was wanted.

    `spare` holds `SPARE_BYTES` for the header and the end.

    Attributes:
        index: which want of the call it is.
        extent: where the frame is.
        pieces: memory to read into, header first.
    """

    def __init__(self, index: int, want: Want, extent: Extent, spare: memoryview) -> None:
        self.index = index
        self.extent = extent
        self._want = want
        plain = want.stored_bytes == frame.frame_bytes(want.raw_bytes)
        self._stored: Buffers = (
            want.buffers if plain else [scratch(want.stored_bytes - HEADER_BYTES)]
        )
        self._header = spare[:HEADER_BYTES]
        self._last = spare[HEADER_BYTES:]
        body, self._tail = _split(self._stored)
        self.pieces = [self._header, *body]
        if self._tail is not None:
            self.pieces.append(self._last)

    def judge(self, codecs: Mapping[int, Codec]) -> TierError | None:
        """Verify a frame that was read whole, and decode it into the buffers of the want."""
        try:
            self._verify(codecs)
        except FrameError as error:
            if not any(self._header):
                return TierError(FailureKind.MISSING, f"nothing is left at {self.extent}")
            return TierError(FailureKind.CORRUPT, f"{self.extent}: {error}")
        return None

    def _verify(self, codecs: Mapping[int, Codec]) -> None:
        """Raise `FrameError` unless these are the bytes that were wanted."""
        header, want = frame.unpack(self._header), self._want
        found = (header.key, header.space, header.raw_bytes, header.frame_bytes)
        if found != (want.key, want.space, want.raw_bytes, want.stored_bytes):
            raise FrameError("the frame is of another object")
        in_place = self._stored is want.buffers
        codec = codecs.get(header.codec)
        if codec is None or in_place != (codec.id == PLAIN.id):
            raise FrameError(f"codec {header.codec} was not expected here")
        if self._tail is not None:
            self._tail[:] = self._last[: self._tail.nbytes]
        stored = self._stored if in_place else [self._stored[0][: header.stored_bytes]]
        if frame.checksum(stored) != header.payload_checksum:
            raise FrameError("the payload's checksum does not hold")
        codec.decode(stored, want.buffers)


@dataclass(slots=True)
class ReadRun:
    """Frames of one directory that are read in one call."""

    directory: int
    parts: list[Part]

    @property
    def extent(self) -> Extent:
        """All of its bytes."""
        first, last = self.parts[0].extent, self.parts[-1].extent
        return Extent(first.segment, first.offset, last.end - first.offset)

    @property
    def pieces(self) -> list[memoryview]:
        """All of its memory, in order."""
        return [piece for part in self.parts for piece in part.pieces]

    def takes(self, directory: int, extent: Extent, size_bytes_max: int) -> bool:
        """Whether a frame lies right behind and the run stays within the size."""
        whole = self.extent
        return (
            directory == self.directory
            and (extent.segment, extent.offset) == (whole.segment, whole.end)
            and whole.size_bytes + extent.size_bytes <= size_bytes_max
        )


def read_runs(parts: Iterable[tuple[int, Part]], size_bytes_max: int) -> Iterator[ReadRun]:
    """Cut (directory, part) pairs into runs; parts keep their order within a directory."""
    growing: dict[int, ReadRun] = {}
    for directory, part in parts:
        run = growing.get(directory)
        if run and run.takes(directory, part.extent, size_bytes_max):
            run.parts.append(part)
            continue
        if run:
            yield run
        growing[directory] = ReadRun(directory, [part])
    yield from growing.values()
