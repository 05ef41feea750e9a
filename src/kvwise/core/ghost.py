"""Ghost: keys of blocks that are not here, and when they were last used. It holds no bytes.

It tells a block that comes back from one that is new: what was evicted or never taken in is learned
from as well. A key takes some 40 bytes; keys that came longest ago are forgotten first, so those of
a chain should come from its end to its beginning.
"""

from __future__ import annotations

import struct
from array import array

from kvwise.core.table import EMPTY, Table

GHOSTS_MAX = 1 << 18
_KEY = struct.Struct("<QQ")


class Ghost:
    """Keys with the stamp of their last use, in the order in which they came."""

    def __init__(self, keys_max: int = GHOSTS_MAX) -> None:
        """No keys."""
        self._max = keys_max
        self._hi, self._lo, self._stamp = array("Q"), array("Q"), array("I")
        self._older, self._newer = array("I"), array("I")
        self._table = Table(self._hi, self._lo)
        self._oldest = self._newest = EMPTY

    def __len__(self) -> int:
        return len(self._stamp)

    def put(self, hi: int, lo: int, stamp: int) -> int:
        """Remember a key by its halves; the stamp of one that is forgotten for it, or 0."""
        row, lost = self._table.find(hi, lo), 0
        if row != EMPTY:
            self._unlink(row)
            self._stamp[row] = stamp
        else:
            row = len(self._stamp)
            if row < self._max:
                for column in (self._hi, self._lo, self._stamp, self._older, self._newer):
                    column.append(0)
            else:
                row = self._oldest
                lost = self._stamp[row]
                self._unlink(row)
                self._table.remove((row,))
            self._hi[row], self._lo[row], self._stamp[row] = hi, lo, stamp
            self._table.put(row, hi, lo)
        self._older[row], self._newer[row] = self._newest, EMPTY
        if self._newest != EMPTY:
            self._newer[self._newest] = row
        else:
            self._oldest = row
        self._newest = row
        return lost

    def _unlink(self, row: int) -> None:
        older, newer = self._older[row], self._newer[row]
        if older != EMPTY:
            self._newer[older] = newer
        else:
            self._oldest = newer
        if newer != EMPTY:
            self._older[newer] = older
        else:
            self._newest = older

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
        parts = (self._hi, self._lo, self._stamp, self._older, self._newer)
        return sum(part.itemsize * len(part) for part in parts) + self._table.size_bytes()
