"""Index: which blocks exist, by key and by place in the prefix tree. It knows no tier and no bytes.

Every block is a row in columns of machine integers, never a Python object: a million rows cost tens
of bytes each and give the garbage collector nothing to visit. The hash table is split into shards
that grow one at a time, so that no insertion ever pays for rehashing everything.
"""

from __future__ import annotations

import struct
from array import array

NONE = 0xFFFFFFFF
"""No row: end of a list, absent parent, failed look-up."""

_SHARDS = 1024
_SHARD_ROWS_MIN = 8
_ROWS_MORE_MIN = 64
_KEY = struct.Struct("<QQ")


class Index:
    """Rows with a key, a namespace, a parent, children, a pin count and a last-use stamp."""

    def __init__(self) -> None:
        """An empty index."""
        self._shards = [array("I", [NONE]) * _SHARD_ROWS_MIN for _ in range(_SHARDS)]
        self._counts = array("I", [0]) * _SHARDS
        self._free = array("I")
        self.hi = array("Q")
        self.lo = array("Q")
        self.space = array("H")
        self.parent = array("I")
        self._child = array("I")
        self._next = array("I")
        self._previous = array("I")
        self.pins = array("H")
        self.stamp = array("I")
        self.rows = 0

    @property
    def capacity(self) -> int:
        """Rows that have storage, in use or free."""
        return len(self.hi)

    def find(self, key: bytes) -> int:
        """The row of `key`, or NONE."""
        return self._find(*_KEY.unpack(key))

    def _find(self, hi: int, lo: int) -> int:
        table = self._shards[lo & (_SHARDS - 1)]
        mask = len(table) - 1
        place = hi & mask
        his, los = self.hi, self.lo
        while (row := table[place]) != NONE:
            if his[row] == hi and los[row] == lo:
                return row
            place = (place + 1) & mask
        return NONE

    def key(self, row: int) -> bytes:
        """The 16-byte key of a row."""
        return _KEY.pack(self.hi[row], self.lo[row])

    def add(self, key: bytes, parent: int, space: int) -> int:
        """Make a row for a key that has none, below `parent` (NONE for the first of a chain)."""
        if not self._free:
            self._grow()
        row = self._free.pop()
        hi, lo = _KEY.unpack(key)
        self.hi[row], self.lo[row] = hi, lo
        self.space[row], self.parent[row] = space, parent
        self._child[row] = self._next[row] = self._previous[row] = NONE
        self.pins[row] = self.stamp[row] = 0
        if parent != NONE:
            self._link(row, parent)
        shard = lo & (_SHARDS - 1)
        if self._counts[shard] * 3 >= len(self._shards[shard]) * 2:
            self._rehash(shard)
        self._place(self._shards[shard], hi, row)
        self._counts[shard] += 1
        self.rows += 1
        return row

    def remove(self, row: int) -> None:
        """Forget a row that has no children and no pins.

        Raises:
            ValueError: it still has children or pins; nothing changes then.
        """
        if self._child[row] != NONE or self.pins[row]:
            raise ValueError(f"row {row} has children or {self.pins[row]} pins")
        self._unplace(self.hi[row], self.lo[row], row)
        if self.parent[row] != NONE:
            self._unlink(row, self.parent[row])
        self.parent[row] = NONE
        self._free.append(row)
        self.rows -= 1

    def has_children(self, row: int) -> bool:
        """Whether any row names this one as its parent."""
        return self._child[row] != NONE

    def children(self, row: int) -> list[int]:
        """Rows whose parent is `row`."""
        found, child = [], self._child[row]
        while child != NONE:
            found.append(child)
            child = self._next[child]
        return found

    def subtree(self, row: int) -> list[int]:
        """`row` and everything below it, every row after all of its ancestors."""
        found = [row]
        for member in found:
            found.extend(self.children(member))
        return found

    def length(self, keys: bytes, last: int) -> int:
        """How many of the first `last` keys are present, by galloping then binary search."""
        find, unpack, size = self._find, _KEY.unpack_from, _KEY.size

        def present(i: int) -> bool:
            return find(*unpack(keys, i * size)) != NONE

        good, step = 0, 1
        while good + step <= last and present(good + step - 1):
            good += step
            step *= 2
        bad = min(good + step, last + 1)
        while bad - good > 1:
            middle = (good + bad) // 2
            if present(middle - 1):
                good = middle
            else:
                bad = middle
        return good

    def size_bytes(self) -> int:
        """Bytes of all columns and of the hash table."""
        columns = [self.hi, self.lo, self.space, self.parent, self._child, self._next]
        columns += [self._previous, self.pins, self.stamp, self._free, self._counts]
        return sum(c.itemsize * len(c) for c in [*columns, *self._shards])

    def check(self) -> None:
        """Verify that table, columns and links agree.

        Raises:
            AssertionError: they do not.
        """
        assert sum(self._counts) == self.rows == self.capacity - len(self._free)
        for table, count in zip(self._shards, self._counts, strict=True):
            for row in table if count else ():
                if row == NONE:
                    continue
                assert self._find(self.hi[row], self.lo[row]) == row
                for child in self.children(row):
                    assert self.parent[child] == row

    def _grow(self) -> None:
        """Make room for an eighth more rows at once, so that adding one costs no allocation."""
        have = self.capacity
        more = max(_ROWS_MORE_MIN, have // 8)
        columns = (self.hi, self.lo, self.space, self.parent, self._child, self._next)
        for column in (*columns, self._previous, self.pins, self.stamp):
            column.frombytes(bytes(column.itemsize * more))
        self._free.extend(range(have + more - 1, have - 1, -1))

    def _link(self, row: int, parent: int) -> None:
        head = self._child[parent]
        self._next[row] = head
        if head != NONE:
            self._previous[head] = row
        self._child[parent] = row

    def _unlink(self, row: int, parent: int) -> None:
        before, after = self._previous[row], self._next[row]
        if before == NONE:
            self._child[parent] = after
        else:
            self._next[before] = after
        if after != NONE:
            self._previous[after] = before

    def _place(self, table: array[int], hi: int, row: int) -> None:
        mask = len(table) - 1
        place = hi & mask
        while table[place] != NONE:
            place = (place + 1) & mask
        table[place] = row

    def _rehash(self, shard: int) -> None:
        old = self._shards[shard]
        table = array("I", [NONE]) * (len(old) * 2)
        for row in old:
            if row != NONE:
                self._place(table, self.hi[row], row)
        self._shards[shard] = table

    def _unplace(self, hi: int, lo: int, row: int) -> None:
        """Delete from linear probing by moving later rows back, so that no tombstones pile up."""
        shard = lo & (_SHARDS - 1)
        table = self._shards[shard]
        mask = len(table) - 1
        hole = hi & mask
        while table[hole] != row:
            hole = (hole + 1) & mask
        place = hole
        while True:
            place = (place + 1) & mask
            mover = table[place]
            if mover == NONE:
                break
            home = self.hi[mover] & mask
            if (place - home) & mask >= (place - hole) & mask:
                table[hole] = mover
                hole = place
        table[hole] = NONE
        self._counts[shard] -= 1
