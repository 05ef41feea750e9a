"""Ghost: keys of blocks that are not here, and when they were last used. It holds no bytes.

It tells a block that comes back from one that is new: what was evicted or never taken in is learned
from as well. A key takes some 30 bytes; keys that came longest ago are forgotten first, so those of
a chain should come from its end to its beginning.
"""

from __future__ import annotations

import struct
from array import array

from kvwise.core.table import EMPTY, Table

GHOSTS_MAX = 1 << 18
_KEY = struct.Struct("<QQ")


class Ghost:
    """A ring of keys with the stamp of their last use; a key that came again left a gap behind."""

    def __init__(self, keys_max: int = GHOSTS_MAX) -> None:
        """No keys."""
        self._max = keys_max
        self._hi, self._lo, self._stamp = array("Q"), array("Q"), array("I")
        self._table = Table(self._hi, self._lo)
        self._next = 0

    def __len__(self) -> int:
        return sum(self._table.counts)

    def put(self, hi: int, lo: int, stamp: int) -> int:
        """Remember a key by its halves; the stamp of one that is forgotten for it, or 0."""
        table = self._table
        row = table.find(hi, lo)
        if row != EMPTY:
            table.remove(row)
            self._stamp[row] = 0
        row, lost = self._next, 0
        if row == len(self._stamp):
            self._hi.append(hi)
            self._lo.append(lo)
            self._stamp.append(stamp)
        else:
            lost = self._stamp[row]
            if lost:
                table.remove(row)
            self._hi[row], self._lo[row], self._stamp[row] = hi, lo, stamp
        table.insert(row, hi, lo)
        self._next = (row + 1) % self._max
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
