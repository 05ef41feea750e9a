"""Leases and page lists as they travel between store and clients. It knows neither."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence

import numpy as np

from kvwise.errors import ProtocolError

_NUMBER_BITS = 32


def join_lease(epoch: int, number: int) -> int:
    """A lease as clients know it: whose it is, and its number there."""
    return epoch << _NUMBER_BITS | number


def split_lease(lease: int) -> tuple[int, int]:
    """(epoch, number) of a lease as clients know it."""
    return lease >> _NUMBER_BITS, lease & ((1 << _NUMBER_BITS) - 1)


def pack_pages(pages: Sequence[int]) -> bytes:
    """Page numbers as little-endian u32."""
    numbers = array("I", pages)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def unpack_pages(packed: bytes) -> tuple[int, ...]:
    """Page numbers from little-endian u32."""
    numbers = array("I", packed)
    if sys.byteorder == "big":
        numbers.byteswap()
    return tuple(numbers)


def require_pages(packed: bytes, chunks: int, page_count: int) -> None:
    """Refuse pages that are not the same number for every chunk, or lie beyond the arena.

    Whoever copies trusts them: a page too far would be memory of somebody else.

    Raises:
        ProtocolError: these are no pages of such an arena.
    """
    if len(packed) % (4 * chunks or 4) or bool(packed) != bool(chunks):
        raise ProtocolError(f"{len(packed)} bytes of page numbers for {chunks} chunks")
    if packed and np.frombuffer(packed, "<u4").max() >= page_count:
        raise ProtocolError(f"a page beyond the {page_count} of the arena")
