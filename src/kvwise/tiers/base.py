"""The contract of a tier: a place below the arena that keeps framed objects. It decides nothing.

The caller (the pump) guarantees: pages handed over stay valid and unchanged until the call returns;
calls for one object do not overlap; `free` is called once for each location that `put` returned.
The implementer guarantees: bytes that `get` returns were verified, or a `TierError` says why not;
a `put` that failed left nothing visible; the cap holds at every moment; calls are thread-safe.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from kvwise.core.elements import AS_IS, Coding, Form
from kvwise.core.timing import Work
from kvwise.errors import TierError

Buffers = Sequence[memoryview]
"""Writable, page-aligned pieces of the arena that together hold one object's payload, in order."""


@dataclass(frozen=True, slots=True)
class Record:
    """What identifies an object on a tier, in the frame header and verified on load; and its form.

    Attributes:
        key: 16 bytes.
        parent: 16 bytes, key of the chunk before it.
        space: 16 bytes, namespace digest.
        layout: 16 bytes, layout digest.
        raw_bytes: payload bytes.
        form: how it is to be written down; nothing that is verified.
    """

    key: bytes
    parent: bytes
    space: bytes
    layout: bytes
    raw_bytes: int
    form: Form = AS_IS


@dataclass(frozen=True, slots=True)
class Placed:
    """Where a tier put an object: an opaque token, and the bytes it spent (padding included)."""

    location: int
    stored_bytes: int


FOUND_MAX = 1 << 16
"""Records in one `Found`."""

FOUND_BYTES_MAX = (1 << 32) - 1
"""No record that a scan finds takes more: what is larger does not outlive the process."""


@dataclass(frozen=True, slots=True)
class Found:
    """Records of an earlier life that have namespace, layout and size in common, as columns.

    Attributes:
        space, layout, raw_bytes: as in `Record`.
        keys, parents: 16 bytes for each record.
        locations: 8 bytes for each, little-endian; as `put` would have returned them.
        stored_bytes: 4 bytes for each, little-endian; likewise.
    """

    space: bytes
    layout: bytes
    raw_bytes: int
    keys: bytes
    parents: bytes
    locations: bytes
    stored_bytes: bytes


@dataclass(frozen=True, slots=True)
class Want:
    """One object to read back.

    Attributes:
        key: 16 bytes it must have.
        space: namespace digest it must have.
        raw_bytes: payload bytes it must have.
        location, stored_bytes: as `put` returned them.
        buffers: where the payload goes.
    """

    key: bytes
    space: bytes
    raw_bytes: int
    location: int
    stored_bytes: int
    buffers: Buffers


@dataclass(frozen=True, slots=True)
class Spent:
    """What some work took, see `timing.Timed`."""

    work: Work
    coding: Coding
    size_bytes: int
    elapsed_ns: int


class Tier(Protocol):
    """A place that keeps objects. Every call may block and runs on a worker thread."""

    name: str

    def put(self, objects: Sequence[tuple[Record, Buffers]]) -> list[Placed | TierError]:
        """Write objects, as few large writes as possible; one answer for each, in order.

        An answer is an error where that object could not be written (kind FULL: over the cap or
        the free-space watermark).
        """
        ...

    def get(self, wants: Sequence[Want]) -> Iterator[tuple[int, TierError | None]]:
        """Read objects into their buffers, neighbours in one read; yields (index, error) when done.

        An error is MISSING when nothing is there, CORRUPT when it is not those bytes. A caller
        that stops early must close the iterator: until then the buffers may still be written.
        """
        ...

    def free(self, placed: Sequence[Placed]) -> None:
        """Give the space of these objects back to the medium."""
        ...

    def scan(self) -> Iterator[Found]:
        """Every whole record that an earlier process left, in batches; called once, before use.

        Payloads are not read. A key may come twice: the caller frees the copy it does not want.
        """
        ...

    @property
    def used_bytes(self) -> int:
        """Bytes the tier holds now, as the medium counts them."""
        ...

    @property
    def free_bytes(self) -> int:
        """Bytes that may still be written before the cap or the watermark."""
        ...

    @property
    def down(self) -> Sequence[str]:
        """Why parts of its medium were given up until the next start, one line for each."""
        ...

    def spent(self) -> Sequence[Spent]:
        """What its work took since this was asked last."""
        ...

    def close(self) -> None:
        """Finish what is under way and give up every resource; idempotent."""
        ...
