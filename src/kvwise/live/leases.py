"""Leases and page lists as they travel between store and clients. It knows neither."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence

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
