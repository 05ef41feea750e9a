"""Ghost: keys of blocks that are not here, and when they were last used. It holds no bytes.

It tells a block that comes back from one that is new: what was evicted or never taken in is learned
from as well. A key takes some 40 bytes; keys that came longest ago are forgotten first, so those of
a chain should come from its end to its beginning.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable

from kvwise.core.table import EMPTY, Table

GHOSTS_MAX = 1 << 18
_KEY = struct.Struct("<QQ")


class Ghost:
    """Keys with the stamp of their last use, in the order in which they came."""

    def __init__(self, keys_max: int = GHOSTS_MAX) -> None:
        """No keys."""
        self._max = keys_max
        self._hi, self._lo, self._stamp = array("Q", [0]), array("Q", [0]), array("I", [0])
        self._older, self._newer = array("I", [0]), array("I", [0])
        self._table = Table(self._hi, self._lo)
        self._oldest = self._newest = EMPTY
        self._spare = self._count = 0
        """A row that is free; as many as that are in use."""

    def __len__(self) -> int:
        return self._count

    def put(self, keys: Iterable[tuple[int, int]], stamp: int) -> list[int]:
        """Remember keys by their halves; the stamps of those that are forgotten for them."""
        put, his, los, stamps = self._table.put, self._hi, self._lo, self._stamp
        older, newer, lost = self._older, self._newer, list[int]()
        for hi, lo in keys:
            spare, newest = self._spare, self._newest
            row = put(spare, hi, lo)
            if row != EMPTY:
                self._unlink(row)
                newest = self._newest
            else:
                row, his[spare], los[spare] = spare, hi, lo
            stamps[row], older[row], newer[row] = stamp, newest, EMPTY
            if newest != EMPTY:
                newer[newest] = row
            else:
                self._oldest = row
            self._newest = row
            if row == spare:
                self._take_spare(lost)
        return lost

    def _take_spare(self, lost: list[int]) -> None:
        """The spare row is in use: find another one, that of the oldest key if there are enough."""
        if self._count < self._max:
            self._spare = self._count = self._count + 1
            for column in (self._hi, self._lo, self._stamp, self._older, self._newer):
                column.append(0)
            return
        self._spare = row = self._oldest
        self._oldest = self._newer[row]
        self._older[self._oldest] = EMPTY
        self._table.remove((row,))
        lost.append(self._stamp[row])

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
