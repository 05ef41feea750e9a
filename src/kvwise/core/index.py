"""Index: which blocks exist, by key and by place in the prefix tree. It knows no tier and no bytes.

Every block is a row in columns of machine integers, never a Python object: a million rows cost tens
of bytes each and give the garbage collector nothing to visit.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence

from kvwise.core import columns
from kvwise.core.table import EMPTY, Table

NONE = EMPTY
"""No row: end of a list, absent parent, failed look-up."""

MANY = 192
"""From so many rows on, doing it to all at once is quicker than to one after the other."""

_ROWS_MORE_MIN = 64
_KEY = struct.Struct("<QQ")


class Index:
    """Rows with a key, a namespace, a parent, children, a pin count and a last-use stamp."""

    def __init__(self) -> None:
        """An empty index."""
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
        self._table = Table(self.hi, self.lo)

    @property
    def capacity(self) -> int:
        """Rows that have storage, in use or free."""
        return len(self.hi)

    def find(self, key: bytes) -> int:
        """The row of `key`, or NONE."""
        return self._table.find(*_KEY.unpack(key))

    def key(self, row: int) -> bytes:
        """The 16-byte key of a row."""
        return _KEY.pack(self.hi[row], self.lo[row])

    def keys(self, rows: Sequence[int]) -> bytes:
        """The keys of rows, joined."""
        his, los, pack = self.hi, self.lo, _KEY.pack
        return b"".join([pack(his[row], los[row]) for row in rows])

    def add_chain(
        self, keys: bytes, parent: int, space: int, stamp: int = 0, pins: int = 0
    ) -> array[int]:
        """Make rows for the first of the keys, up to one that has a row.

        Each is below the one before it, and the first below `parent` (NONE for the first of a
        chain).
        """
        rows, halves, left = array("I"), _KEY.iter_unpack(keys), len(keys) // _KEY.size
        while left:
            if not self._free:
                self._grow(max(_ROWS_MORE_MIN, self.capacity // 8))
            some = self._free[-left:]
            some.reverse()
            count = self._table.put_chain(some, halves)
            left = left - count if count == len(some) else 0
            del self._free[len(self._free) - count :]
            rows += some[:count]
        self._set(rows, parent, (space, stamp, pins))
        self.rows += len(rows)
        return rows

    def reserve(self, keys: Sequence[bytes]) -> None:
        """Prepare for adding all of these keys, so that nothing has to grow meanwhile."""
        self._table.reserve(keys)
        need = sum(map(len, keys)) // _KEY.size - len(self._free)
        if need > 0:
            self._grow(max(_ROWS_MORE_MIN, need))

    def add_many(self, keys: bytes, space: int, stamp: int) -> tuple[array[int], array[int]]:
        """Make rows, as yet without parents, for those of the keys that have none.

        The stamps are counted from `stamp` on. Returns the new rows, and the place of each of them
        among the keys; of keys that come twice it is the first.
        """
        self.reserve([keys])
        places = columns.newcomers(self._table, keys)
        count = len(places)
        if not count:
            return places, places
        rows = self._free[-count:]
        del self._free[-count:]
        rows.reverse()
        columns.spread_keys(self._table, rows, columns.pick(keys, _KEY.size, places))
        columns.fill(self.space, rows, space)
        columns.fill(self.pins, rows, 0)
        for column in (self.parent, self._child, self._next, self._previous):
            columns.fill(column, rows, NONE)
        columns.spread(self.stamp, rows, columns.numbers(stamp, count))
        self._table.insert_many(rows)
        self.rows += count
        return rows, places

    def parents(self, keys: bytes) -> array[int]:
        """The row of each parent's key: NONE for `keys.ROOT`, `columns.LOST` for one without."""
        return columns.parents(self._table, keys)

    def link_many(self, rows: array[int], parents: array[int]) -> None:
        """Put rows that `add_many` made below their parents."""
        columns.spread(self.parent, rows, parents)
        columns.link((self._child, self._next, self._previous), rows, parents)

    def remove(self, row: int) -> None:
        """Forget a row that has no children and no pins.

        Raises:
            ValueError: it still has children or pins; nothing changes then.
        """
        self.remove_run((row,))

    def remove_run(self, rows: Sequence[int]) -> None:
        """Forget rows without pins, each the parent and only relative of the one before it.

        Raises:
            ValueError: one has other children or pins; nothing changes then.
        """
        child, pins, parents, below = self._child, self.pins, self.parent, NONE
        after, before = self._next, self._previous
        for row in rows:
            if child[row] != below or pins[row]:
                raise ValueError(f"row {row} has children or {pins[row]} pins")
            if below != NONE and not after[below] == NONE == before[below]:
                raise ValueError(f"row {row} has children other than {below}")
            below = row
        self._table.remove(rows)
        if (parent := parents[below]) != NONE:
            self._unlink(below, parent)
        his, los = self.hi, self.lo
        for row in rows:
            parents[row] = NONE
            his[row] = los[row] = 0  # neighbours are read without the table: no stale keys
        self._free.extend(rows)
        self.rows -= len(rows)

    @property
    def siblings(self) -> tuple[array[int], array[int]]:
        """For every row the next one with its parent and the one before; NONE where none is."""
        return self._next, self._previous

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
        find, unpack, size = self._table.find, _KEY.unpack_from, _KEY.size

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

    def chain(self, keys: bytes) -> array[int]:
        """The rows of the last of these keys, which is present, and of all of its ancestors.

        They come from the root down. Those of a prompt are the rows of its keys, so those are
        looked up together; whether each is the next one's parent shows if they are.
        """
        if len(keys) >= MANY * _KEY.size:
            rows = self._find_chain(keys)
            if columns.is_chain(self.parent, rows):
                return rows
        rows, parent = array("I"), self.parent
        row = self.find(keys[-_KEY.size :])
        while row != NONE:
            rows.append(row)
            row = parent[row]
        rows.reverse()
        return rows

    def size_bytes(self) -> int:
        """Bytes of all columns and of the hash table."""
        parts = [self.hi, self.lo, self.space, self.parent, self._child, self._next]
        parts += [self._previous, self.pins, self.stamp, self._free]
        return sum(part.itemsize * len(part) for part in parts) + self._table.size_bytes()

    def check(self) -> None:
        """Verify that table, columns and links agree.

        Raises:
            AssertionError: they do not.
        """
        assert self.rows == self.capacity - len(self._free)
        self._table.check(self.rows)
        free = set(self._free)
        for row in range(self.capacity):
            if row in free:
                continue
            for child in self.children(row):
                assert self.parent[child] == row

    def _find_chain(self, keys: bytes) -> array[int]:
        """The row of each key, or NONE. What was added together lies together, often all of it."""
        rows = array("I")
        run = MANY
        while run >= MANY and len(keys) >= MANY * _KEY.size:
            row = self.find(keys[: _KEY.size])
            if row == NONE:
                break
            run = columns.neighbours(self._table, keys, row)
            rows += columns.numbers(row, run)
            keys = keys[run * _KEY.size :]
        return rows + columns.find(self._table, keys)

    def _grow(self, more: int) -> None:
        """Make room for so many rows more at once, so that adding one costs no allocation."""
        have = self.capacity
        parts = (self.hi, self.lo, self.space, self.parent, self._child, self._next)
        for column in (*parts, self._previous, self.pins, self.stamp):
            column.frombytes(bytes(column.itemsize * more))
        fresh = columns.numbers(have, more)
        fresh.reverse()
        self._free[:0] = fresh

    def _set(self, rows: array[int], parent: int, values: tuple[int, int, int]) -> None:
        """Give new rows, a chain below a parent, its links, its space, stamp and pins."""
        spaces, parents, counts, stamps = self.space, self.parent, self.pins, self.stamp
        child, after, before = self._child, self._next, self._previous
        (space, stamp, pins), above, below = values, parent, NONE
        for row in rows:
            spaces[row], stamps[row], counts[row] = space, stamp, pins
            parents[row], above = above, row
            after[row] = before[row] = NONE
        for row in reversed(rows):
            child[row], below = below, row
        if rows and parent != NONE:
            self._link(below, parent)

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
