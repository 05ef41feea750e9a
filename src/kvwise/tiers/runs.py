"""Runs: frames that lie side by side and move in one call. Built and judged here, not moved.

A frame in memory is a header block, the payload where it already is, and for the bytes after the
last whole block a block of its own: neither stale memory nor a neighbour's page reaches the medium.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from kvwise.codecs import frame
from kvwise.codecs.base import BLOCK_BYTES, Buffers, total_bytes
from kvwise.codecs.forms import Codecs, coding_of
from kvwise.codecs.frame import HEADER_BYTES, Header
from kvwise.codecs.plain import PLAIN
from kvwise.core.timing import Work
from kvwise.errors import FailureKind, FrameError, TierError
from kvwise.tiers.base import Record, Want
from kvwise.tiers.extents import Extent
from kvwise.tiers.meters import Meters

SPARE_BYTES = HEADER_BYTES + BLOCK_BYTES
"""Memory a frame needs beside its payload: the header, and the block that ends it."""


class Draft:
    """An object that is about to be written.

    Attributes:
        size_bytes: of its frame.
        body: its payload up to the last whole block.
    """

    header: Header
    """Known once `pieces` was called."""

    def __init__(self, record: Record, stored: Buffers, codec_id: int) -> None:
        self._record = record
        self._stored = stored
        self._codec_id = codec_id
        self._stored_bytes = total_bytes(stored)
        self.size_bytes = frame.frame_bytes(self._stored_bytes)
        self.body, self._tail = _split(stored)

    def pieces(self, spare: memoryview) -> list[memoryview]:
        """The memory of the whole frame, with `SPARE_BYTES` of spare memory for what is added."""
        self.header = Header(
            codec=self._codec_id,
            key=self._record.key,
            parent=self._record.parent,
            space=self._record.space,
            layout=self._record.layout,
            raw_bytes=self._record.raw_bytes,
            stored_bytes=self._stored_bytes,
            payload_checksum=frame.checksum(self._stored),
        )
        spare[:HEADER_BYTES] = frame.pack(self.header)
        pieces = [spare[:HEADER_BYTES], *self.body]
        if self._tail is not None:
            last = spare[HEADER_BYTES:]
            last[: self._tail.nbytes] = self._tail
            last[self._tail.nbytes :] = bytes(BLOCK_BYTES - self._tail.nbytes)
            pieces.append(last)
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

    Attributes:
        index: which want of the call it is.
        extent: where the frame is.
    """

    def __init__(self, index: int, want: Want, extent: Extent) -> None:
        self.index = index
        self.extent = extent
        self._want = want
        self._stored: Buffers = want.buffers
        self._header = self._last = memoryview(b"")
        self._tail: memoryview | None = None

    @property
    def encoded_bytes(self) -> int:
        """Bytes of memory that the stored payload needs until it is decoded.

        None for a plain one, told by its size: it goes straight to where it is wanted.
        """
        if self._want.stored_bytes == frame.frame_bytes(self._want.raw_bytes):
            return 0
        return self._want.stored_bytes - HEADER_BYTES

    def pieces(self, spare: memoryview, encoded: memoryview) -> list[memoryview]:
        """Memory to read the frame into.

        Args:
            spare: `SPARE_BYTES` for header and end.
            encoded: `encoded_bytes`, good until the part is judged.
        """
        if encoded.nbytes:
            self._stored = [encoded]
        self._header, self._last = spare[:HEADER_BYTES], spare[HEADER_BYTES:]
        body, self._tail = _split(self._stored)
        pieces = [self._header, *body]
        if self._tail is not None:
            pieces.append(self._last)
        return pieces

    def judge(self, codecs: Codecs, meters: Meters) -> TierError | None:
        """Verify a frame that was read whole, and decode it into the buffers of the want."""
        try:
            self._verify(codecs, meters)
        except TierError as error:
            return error
        except FrameError as error:
            if not any(self._header):
                return TierError(FailureKind.MISSING, f"nothing is left at {self.extent}")
            return TierError(FailureKind.CORRUPT, f"{self.extent}: {error}")
        return None

    def _verify(self, codecs: Codecs, meters: Meters) -> None:
        """Raise `FrameError` unless these are the bytes that were wanted, `TierError` unread."""
        header, want = frame.unpack(self._header), self._want
        found = (header.key, header.space, header.raw_bytes, header.frame_bytes)
        if found != (want.key, want.space, want.raw_bytes, want.stored_bytes):
            raise FrameError("the frame is of another object")
        in_place = self._stored is want.buffers
        codec = codecs.reader(header.codec)
        if in_place != (codec.id == PLAIN.id):
            raise FrameError(f"codec {header.codec} was not expected here")
        if self._tail is not None:
            self._tail[:] = self._last[: self._tail.nbytes]
        stored = self._stored if in_place else [self._stored[0][: header.stored_bytes]]
        if frame.checksum(stored) != header.payload_checksum:
            raise FrameError("the payload's checksum does not hold")
        if not in_place:
            codecs.require(codec.id, stored)
            with meters.coding(Work.DECODE, partial(coding_of, codec.id, stored), want.raw_bytes):
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

    def takes(self, extent: Extent, run_bytes: int) -> bool:
        """Whether a frame lies right behind, and the run is not long enough yet."""
        whole = self.extent
        follows = (extent.segment, extent.offset) == (whole.segment, whole.end)
        return follows and whole.size_bytes < run_bytes


def read_runs(parts: Iterable[tuple[int, Part]], run_bytes: int) -> Iterator[ReadRun]:
    """Cut (directory, part) pairs into runs; parts keep their order within a directory."""
    growing: dict[int, ReadRun] = {}
    for directory, part in parts:
        run = growing.get(directory)
        if run and run.takes(part.extent, run_bytes):
            run.parts.append(part)
            continue
        if run:
            yield run
        growing[directory] = ReadRun(directory, [part])
    yield from growing.values()
