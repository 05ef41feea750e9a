"""A tier in plain memory: the reference for the conformance suite. It is no place for real KV.

Its medium is a `Shelf`, which outlives the tier, so that restarts and damage can be played through.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from kvwise.codecs import frame
from kvwise.codecs.base import total_bytes
from kvwise.codecs.frame import HEADER_BYTES, Header
from kvwise.codecs.plain import PLAIN
from kvwise.errors import FailureKind, FrameError, TierError
from kvwise.testing.codecs import scatter
from kvwise.tiers.base import Buffers, Found, Placed, Record, Spent, Want


@dataclass(slots=True)
class Shelf:
    """What a `MemoryTier` keeps its frames on."""

    frames: dict[int, bytes] = field(default_factory=dict)

    def open(self, capacity_bytes: int) -> MemoryTier:
        """A tier on this shelf."""
        return MemoryTier(self, capacity_bytes)

    def used_bytes(self) -> int:
        """Bytes of all frames."""
        return sum(len(data) for data in self.frames.values())

    def overwrite(self, placed: Placed, offset: int, data: bytes) -> None:
        """Change bytes of a frame."""
        old = self.frames[placed.location]
        self.frames[placed.location] = old[:offset] + data + old[offset + len(data) :]

    def cut(self, placed: Placed, keep_bytes: int) -> None:
        """Lose the end of a frame."""
        self.frames[placed.location] = self.frames[placed.location][:keep_bytes]


class MemoryTier:
    """A `Tier` that keeps frames in a dictionary."""

    name = "memory"
    down: Sequence[str] = ()

    def __init__(self, shelf: Shelf, capacity_bytes: int) -> None:
        self._shelf = shelf
        self._capacity_bytes = capacity_bytes
        self._lock = threading.Lock()
        self._numbers = itertools.count(max(shelf.frames, default=0) + 1)
        self._closed = False

    @property
    def used_bytes(self) -> int:
        """Bytes of all frames."""
        with self._lock:
            return self._shelf.used_bytes()

    @property
    def free_bytes(self) -> int:
        """Bytes below the cap."""
        return self._capacity_bytes - self.used_bytes

    def put(self, objects: Sequence[tuple[Record, Buffers]]) -> list[Placed | TierError]:
        """Copy objects onto the shelf; see `Tier.put`."""
        return [self._put(record, buffers) for record, buffers in objects]

    def get(self, wants: Sequence[Want]) -> Iterator[tuple[int, TierError | None]]:
        """Copy objects back; see `Tier.get`."""
        for index, want in enumerate(wants):
            yield index, self._get(want)

    def free(self, placed: Sequence[Placed]) -> None:
        """Take frames off the shelf."""
        with self._lock:
            for one in placed:
                del self._shelf.frames[one.location]

    def scan(self) -> Iterator[Found]:
        """Every frame on the shelf with a good header, as far as the cap allows."""
        kept = 0
        for location, data in list(self._shelf.frames.items()):
            header = _header(data)
            if header is None or kept + len(data) > self._capacity_bytes:
                del self._shelf.frames[location]
                continue
            kept += len(data)
            yield Found(
                header.space,
                header.layout,
                header.raw_bytes,
                header.key,
                header.parent,
                location.to_bytes(8, "little"),
                len(data).to_bytes(4, "little"),
            )

    def spent(self) -> Sequence[Spent]:
        """Nothing: no form is heeded here, and memory is no link."""
        return ()

    def close(self) -> None:
        """Answer CLOSED from now on; the shelf stays."""
        self._closed = True

    def _put(self, record: Record, buffers: Buffers) -> Placed | TierError:
        """Store one object."""
        if self._closed:
            return TierError(FailureKind.CLOSED, "the tier is closed")
        data = frame.pack(header_of(record, buffers)) + b"".join(buffers)
        data += bytes(frame.frame_bytes(record.raw_bytes) - len(data))
        with self._lock:
            if self._shelf.used_bytes() + len(data) > self._capacity_bytes:
                return TierError(FailureKind.FULL, "the cap is reached", retryable=True)
            location = next(self._numbers)
            self._shelf.frames[location] = data
        return Placed(location, len(data))

    def _get(self, want: Want) -> TierError | None:
        """Read one object."""
        if self._closed:
            return TierError(FailureKind.CLOSED, "the tier is closed")
        with self._lock:
            data = self._shelf.frames.get(want.location, b"")
        if len(data) < HEADER_BYTES:
            return TierError(FailureKind.MISSING, "nothing is there")
        header, body = _header(data), data[HEADER_BYTES:]
        if header is None or (header.key, header.space, header.raw_bytes, len(data)) != (
            want.key,
            want.space,
            want.raw_bytes,
            want.stored_bytes,
        ):
            return TierError(FailureKind.CORRUPT, "another object is there")
        if frame.checksum([body[: header.stored_bytes]]) != header.payload_checksum:
            return TierError(FailureKind.CORRUPT, "the payload's checksum does not hold")
        scatter(body, want.buffers)
        return None


def header_of(record: Record, buffers: Buffers) -> Header:
    """The header of a plain frame."""
    return Header(
        codec=PLAIN.id,
        key=record.key,
        parent=record.parent,
        space=record.space,
        layout=record.layout,
        raw_bytes=record.raw_bytes,
        stored_bytes=total_bytes(buffers),
        payload_checksum=frame.checksum(buffers),
    )


def _header(data: bytes) -> Header | None:
    """The header in front of a frame, if there is a good one."""
    try:
        return frame.unpack(data[:HEADER_BYTES])
    except FrameError:
        return None
