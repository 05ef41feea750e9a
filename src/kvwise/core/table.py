"""Table: rows by key. It knows no more of a row than the two halves of its key.

Open addressing in shards that grow one at a time, so that no insertion ever pays for rehashing
everything. All shards lie in one array, where a look-up of many keys reaches them at once; what a
shard leaves behind when it grows is kept for others to grow into.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

from kvwise.core import columns

EMPTY = columns.EMPTY
_SHARDS = 1024
_LAST = _SHARDS - 1
_SHARD_SLOTS_MIN = 8


class Table:
    """Slots that hold row numbers.

    Attributes:
        slots: every shard's slots; EMPTY where there is no row.
        base, mask: where a shard begins, and its size less one.
        counts: rows in each shard.
        hi, lo: the halves of every row's key. The index owns them.
    """

    def __init__(self, hi: array[int], lo: array[int]) -> None:
        """No rows."""
        self.hi, self.lo = hi, lo
        self.slots = array("I", [EMPTY]) * (_SHARDS * _SHARD_SLOTS_MIN)
        self.base = array("Q", range(0, _SHARDS * _SHARD_SLOTS_MIN, _SHARD_SLOTS_MIN))
        self.mask = array("Q", [_SHARD_SLOTS_MIN - 1]) * _SHARDS
        self.counts = array("Q", [0]) * _SHARDS
        self._spare: dict[int, array[int]] = {}

    def find(self, hi: int, lo: int) -> int:
        """The row of a key, or EMPTY."""
        shard = lo & _LAST
        base, mask = self.base[shard], self.mask[shard]
        place = hi & mask
        slots, his, los = self.slots, self.hi, self.lo
        while (row := slots[base + place]) != EMPTY:
            if his[row] == hi and los[row] == lo:
                return row
            place = (place + 1) & mask
        return EMPTY

    def put(self, row: int, hi: int, lo: int) -> int:
        """The row of a key, or EMPTY: then this row has a slot for it now."""
        shard = lo & _LAST
        base, mask = self.base[shard], self.mask[shard]
        place = hi & mask
        slots, his, los = self.slots, self.hi, self.lo
        while (other := slots[base + place]) != EMPTY:
            if his[other] == hi and los[other] == lo:
                return other
            place = (place + 1) & mask
        count = self.counts[shard]
        if 3 * count < 2 * mask + 2:
            slots[base + place] = row
        else:
            self._double(shard)
            self._place(shard, hi, row)
        self.counts[shard] = count + 1
        return EMPTY

    def put_chain(self, rows: array[int], halves: Iterator[tuple[int, int]]) -> int:
        """Give rows their keys, one after the other, up to a key that has a row; how many it were.

        `halves` are the keys; it is read up to that one, or as far as there are rows.
        """
        slots, his, los, bases, masks = self.slots, self.hi, self.lo, self.base, self.mask
        counts, done = self.counts, 0
        for row, (hi, lo) in zip(rows, halves, strict=False):
            shard = lo & _LAST
            base, mask = bases[shard], masks[shard]
            place = base + (hi & mask)
            while (other := slots[place]) != EMPTY:
                if his[other] == hi and los[other] == lo:
                    return done
                place = base + ((place - base + 1) & mask)
            count = counts[shard]
            if 3 * count < 2 * mask + 2:
                slots[place] = row
            else:
                self._double(shard)
                self._place(shard, hi, row)
            his[row], los[row] = hi, lo
            counts[shard] = count + 1
            done += 1
        return done

    def insert_many(self, rows: array[int]) -> None:
        """Give rows, whose keys are new and different, the slots that `reserve` made."""
        columns.insert(self, rows)
        columns.count(self.counts, columns.shards_of(self, rows))

    def remove(self, rows: Sequence[int]) -> None:
        """Delete rows by moving later ones back, so that no tombstones pile up."""
        his, los, slots, bases, masks = self.hi, self.lo, self.slots, self.base, self.mask
        counts = self.counts
        for row in rows:
            shard = los[row] & _LAST
            base, mask = bases[shard], masks[shard]
            hole = his[row] & mask
            while slots[base + hole] != row:
                hole = (hole + 1) & mask
            counts[shard] -= 1
            place = (hole + 1) & mask
            if slots[base + place] == EMPTY:
                slots[base + hole] = EMPTY
                continue
            while (mover := slots[base + place]) != EMPTY:
                home = his[mover] & mask
                if (place - home) & mask >= (place - hole) & mask:
                    slots[base + hole] = mover
                    hole = place
                place = (place + 1) & mask
            slots[base + hole] = EMPTY

    def reserve(self, keys: Sequence[bytes]) -> None:
        """Make room for all of these keys at once, so that adding them moves nothing."""
        counts = self.counts[:]
        for some in keys:
            columns.count(counts, columns.shards_of_keys(some, _SHARDS))
        self._make_room(counts)

    def size_bytes(self) -> int:
        """Bytes of everything here."""
        parts = [self.slots, self.base, self.mask, self.counts, *self._spare.values()]
        return sum(part.itemsize * len(part) for part in parts)

    def check(self, rows: int) -> None:
        """Verify that each of `rows` rows is found where it lies.

        Raises:
            AssertionError: one is not.
        """
        assert sum(self.counts) == len(columns.occupied(self.slots)) == rows
        for shard, count in enumerate(self.counts):
            if count:
                base = self.base[shard]
                mine = self.slots[base : base + self.mask[shard] + 1]
                found = [row for row in mine if row != EMPTY]
                assert len(found) == count
                assert all(self.find(self.hi[row], self.lo[row]) == row for row in found)
        spare = sum(size * len(bases) for size, bases in self._spare.items())
        assert sum(self.mask) + _SHARDS + spare == len(self.slots)

    # --- growing ---

    def _place(self, shard: int, hi: int, row: int) -> None:
        slots, base, mask = self.slots, self.base[shard], self.mask[shard]
        place = hi & mask
        while slots[base + place] != EMPTY:
            place = (place + 1) & mask
        slots[base + place] = row

    def _double(self, shard: int) -> None:
        """Move one shard to twice the room."""
        base, size = self.base[shard], self.mask[shard] + 1
        rows = self.slots[base : base + size]
        bases = self._spare.get(2 * size)
        if bases:
            self.base[shard] = bases.pop()
        else:
            self.base[shard] = len(self.slots)
            self.slots.extend(array("I", [EMPTY]) * (2 * size))
        self.mask[shard] = 2 * size - 1
        self.slots[base : base + size] = array("I", [EMPTY]) * size
        self._spare.setdefault(size, array("Q")).append(base)
        for row in rows:
            if row != EMPTY:
                self._place(shard, self.hi[row], row)

    def _make_room(self, counts: array[int]) -> None:
        """Let shards hold so many rows; where one must grow all move, so that none leaves a gap."""
        sizes = [mask + 1 for mask in self.mask]
        for shard, count in enumerate(counts):
            while not _fits(count, sizes[shard]):
                sizes[shard] *= 2
        if all(size == mask + 1 for size, mask in zip(sizes, self.mask, strict=True)):
            return
        rows = columns.occupied(self.slots)
        self.slots = array("I", [EMPTY]) * sum(sizes)
        self._spare.clear()
        base = 0
        for shard, size in enumerate(sizes):
            self.base[shard], self.mask[shard] = base, size - 1
            base += size
        columns.insert(self, rows)


def _fits(count: int, size: int) -> bool:
    """Whether so many rows leave a shard room enough for short ways: two thirds are full then."""
    return 3 * (count - 1) < 2 * size
