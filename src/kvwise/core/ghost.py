"""Ghost: keys of blocks that are not here, and when they were last used. It holds no bytes.

It tells a block that comes back from one that is new: what was evicted or never taken in is learned
from as well. A key takes some 30 bytes; the keys that came first are forgotten first.
"""

from __future__ import annotations

import struct
from array import array

from kvwise.core.table import EMPTY, Table

GHOSTS_MAX = 1 << 18
_KEY = struct.Struct("<QQ")


class Ghost:
    """A ring of keys with the stamp of their last use."""

    def __init__(self, keys_max: int = GHOSTS_MAX) -> None:
        """No keys."""
        self._max = keys_max
        self._hi, self._lo, self._stamp = array("Q"), array("Q"), array("I")
        self._table = Table(self._hi, self._lo)
        self._next = 0

    def __len__(self) -> int:
        return len(self._stamp)

    def put(self, hi: int, lo: int, stamp: int) -> int:
        """Remember a key by its halves; the stamp of one that is forgotten for it, or 0."""
        stamps, row, table = self._stamp, self._next, self._table
        is_full = row < len(stamps)
        known = table.find(hi, lo) if is_full else table.put(row, hi, lo)
        if known != EMPTY:
            stamps[known] = stamp
            return 0
        self._next = (row + 1) % self._max
        if not is_full:
            self._hi.append(hi)
            self._lo.append(lo)
            stamps.append(stamp)
            return 0
        lost = stamps[row]
        table.remove((row,))
        self._hi[row], self._lo[row], stamps[row] = hi, lo, stamp
        table.put(row, hi, lo)
        return lost

    def has(self, hi: int, lo: int) -> bool:
        """Whether a key is remembered, by its halves."""
        return self._table.find(hi, lo) != EMPTY

    @staticmethod
    def halves(keys: bytes, place: int) -> tuple[int, int]:
        """The halves of the key at a place among joined keys."""
        hi, lo = _KEY.unpack_from(keys, place * _KEY.size)
        return hi, lo

    def stamp(self, keys: bytes, place: int) -> int:
        """The stamp of the key at a place among joined keys; 0 if it is not known."""
        row = self._table.find(*_KEY.unpack_from(keys, place * _KEY.size))
        return self._stamp[row] if row != EMPTY else 0

    def length(self, keys: bytes, first: int) -> int:
        """Of joined keys, how many from place `first` on are known, by galloping and halving."""
        good, step, last = first, 1, len(keys) // _KEY.size
        while good + step <= last and self.stamp(keys, good + step - 1):
            good += step
            step *= 2
        bad = min(good + step, last + 1)
        while bad - good > 1:
            middle = (good + bad) // 2
            if self.stamp(keys, middle - 1):
                good = middle
            else:
                bad = middle
        return good - first

    def size_bytes(self) -> int:
        """Bytes of everything here."""
        parts = (self._hi, self._lo, self._stamp)
        return sum(part.itemsize * len(part) for part in parts) + self._table.size_bytes()
