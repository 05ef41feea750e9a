"""The contract of a codec: payload bytes to stored bytes and back. It never touches a medium.

The caller guarantees: buffers stay valid and unchanged during a call; `decode` is given bytes whose
checksum held. The implementer guarantees: `decode` undoes `encode` (exactly, when `lossless`), and
bytes that are not its own raise `FrameError`, whatever they are; calls are thread-safe.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from typing import Protocol

BLOCK_BYTES = 4096
"""Unit of everything that leaves memory: headers, padding, alignment of direct I/O."""

Buffers = Sequence[memoryview]
"""Pieces of memory that together hold one object's bytes, in order."""


class Codec(Protocol):
    """One way to write a payload down."""

    @property
    def name(self) -> str:
        """What configuration and metrics call it."""
        ...

    @property
    def id(self) -> int:
        """Its number in frame headers, 0..65535; never given to another codec."""
        ...

    @property
    def lossless(self) -> bool:
        """Whether `decode` restores the very bytes that `encode` was given."""
        ...

    def encode(self, payload: Buffers) -> Buffers:
        """The bytes to store.

        Either `payload` itself or new page-aligned memory (see `scratch`), all pieces but the last
        a multiple of `BLOCK_BYTES`. When the result would not save at least one block, the answer
        must be `payload` itself: the frame then says `plain`.
        """
        ...

    def decode(self, stored: Buffers, payload: Buffers) -> None:
        """Fill `payload` from the stored bytes.

        Raises:
            FrameError: these bytes were not made by `encode` from a payload of that size.
        """
        ...


def scratch(size_bytes: int) -> memoryview:
    """Fresh page-aligned memory, zeroed; it lives as long as a view of it."""
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    return memoryview(mmap.mmap(-1, max(size_bytes, 1), flags=private))[:size_bytes]


def total_bytes(buffers: Buffers) -> int:
    """Bytes that the pieces hold together."""
    return sum(piece.nbytes for piece in buffers)
