"""Keep: blocks that callers asked to keep in the arena for a while, and blocks that end by a time.

It only remembers: eviction asks it, and what is over is told to whoever asks. What is kept may take
a share of the arena and no more, so that hints can never starve those who give none. What it holds
itself grows with the blocks that are there, never with how often somebody asks.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvwise.core.index import NONE

SHARE_MAX = 0.25
"""Of the arena that hints may keep."""

_DEAD_MIN = 1024
"""Rows that may be listed without being remembered, before the lists are made anew."""


class _Times:
    """Rows with a time each, and which of them are due. A row's latest time counts.

    Rows that came together are listed together, under a time that is not after theirs. A row that
    gets a later time stays on its list and moves when the list is due, so that to move it is to
    write one number; lists with too many rows that are gone are made anew.

    Attributes:
        until: the time of each row.
    """

    def __init__(self) -> None:
        """No rows."""
        self.until: dict[int, int] = {}
        self._list: dict[int, int] = {}
        self._lists: list[tuple[int, int, array[int]]] = []
        self._listed = self._number = 0

    def add(self, rows: Sequence[int], until_ns: int) -> None:
        """Give rows a time, if they have no later one."""
        until = self.until
        until |= dict.fromkeys([row for row in rows if until.get(row, 0) < until_ns], until_ns)
        fresh = [row for row in rows if row not in self._list]
        if fresh:
            self._put(fresh, until_ns)

    def extend(self, rows: Sequence[int], until_ns: int) -> None:
        """Give those of the rows that have a time a later one."""
        until = self.until
        mine = [row for row in rows if until.get(row, until_ns) < until_ns]
        until |= dict.fromkeys(mine, until_ns)

    def remove(self, rows: Iterable[int]) -> None:
        """Forget rows."""
        for row in rows:
            if self.until.pop(row, None) is not None:
                del self._list[row]
        if self._listed > 2 * len(self.until) + _DEAD_MIN:
            self._make_anew()

    def due(self, now_ns: int) -> list[int]:
        """Take out the rows whose time is over."""
        over: list[int] = []
        while self._lists and self._lists[0][0] <= now_ns:
            _, number, rows = heapq.heappop(self._lists)
            self._listed -= len(rows)
            later: dict[int, list[int]] = {}
            for row in rows:
                if self._list.get(row) != number:
                    continue
                del self._list[row]
                if self.until[row] <= now_ns:
                    del self.until[row]
                    over.append(row)
                else:
                    later.setdefault(self.until[row], []).append(row)
            for until_ns, some in later.items():
                self._put(some, until_ns)
        return over

    def _put(self, rows: Sequence[int], until_ns: int) -> None:
        """List rows that are on no list."""
        self._number += 1
        self._list |= dict.fromkeys(rows, self._number)
        self._listed += len(rows)
        heapq.heappush(self._lists, (until_ns, self._number, array("I", rows)))

    def _make_anew(self) -> None:
        """Let go of the memory of rows that are gone."""
        self.until, self._list = dict(self.until), dict(self._list)
        lists, member = [], self._list
        for until_ns, number, rows in self._lists:
            alive = array("I", [row for row in rows if member.get(row) == number])
            if alive:
                lists.append((until_ns, number, alive))
        heapq.heapify(lists)
        self._lists, self._listed = lists, sum(len(rows) for _, _, rows in lists)


@dataclass(slots=True)
class _Held:
    """A row that is kept: its bytes, the row above it, and how many things hold it."""

    size_bytes: int
    above: int
    holders: int = 0


class Keep:
    """Rows kept by hint, and rows that end by hint.

    A hint keeps a row and all that are above it. So the time stands at the row only, and what is
    above is kept for as long as something kept hangs from it.

    Attributes:
        kept_bytes: of the arena, for the rows that are kept.
        refused: hints that were not followed, because their share was used up.
    """

    def __init__(self, arena_bytes: int) -> None:
        """Nothing is kept, nothing ends."""
        self.limit_bytes = int(arena_bytes * SHARE_MAX)
        self.kept_bytes = 0
        self.refused = 0
        self._held: dict[int, _Held] = {}
        self._hints = _Times()
        self._ending = _Times()

    # --- kept ---

    def hold(self, path: Iterable[int], size_bytes: int, until_ns: int) -> bool:
        """Keep the rows of a path of `size_bytes` each until a time, or none if they are too many.

        The path goes from the row that is meant up to the root; it is walked to the first row that
        is kept anyway. The answer is whether they are kept.
        """
        fresh: list[int] = []
        above = NONE
        for row in path:
            if row in self._held:
                above = row
                break
            fresh.append(row)
            if self.kept_bytes + len(fresh) * size_bytes > self.limit_bytes:
                self.refused += 1
                return False
        end = fresh[0] if fresh else above
        for row in reversed(fresh):
            self._held[row] = _Held(size_bytes, above)
            self._lean(above, 1)
            above = row
        self.kept_bytes += len(fresh) * size_bytes
        self._hint(end, until_ns)
        return True

    @property
    def has_kept(self) -> bool:
        """Whether any row is kept."""
        return bool(self._held)

    def holds(self, row: int) -> bool:
        """Whether a row is kept."""
        return row in self._held

    def let_go(self, now_ns: int) -> list[int]:
        """The rows that are kept no longer, each before what is above it."""
        over: list[int] = []
        for end in self._hints.due(now_ns):
            self._lean(end, -1)
            row = end
            while row != NONE and not self._held[row].holders:
                over.append(row)
                row = self._release(row)
        return over

    def _hint(self, row: int, until_ns: int) -> None:
        """A kept row is kept for its own sake until a time."""
        if row not in self._hints.until:
            self._lean(row, 1)
        self._hints.add((row,), until_ns)

    def _lean(self, row: int, count: int) -> None:
        """So many more hold a row, if it is one."""
        if row != NONE:
            self._held[row].holders += count

    def _release(self, row: int) -> int:
        """A row is kept no longer; the one above it, which is held by one fewer."""
        gone = self._held.pop(row)
        self.kept_bytes -= gone.size_bytes
        self._lean(gone.above, -1)
        return gone.above

    # --- ending ---

    @property
    def has_ending(self) -> bool:
        """Whether any row ends by hint."""
        return bool(self._ending.until)

    def end(self, rows: Sequence[int], at_ns: int) -> None:
        """New rows are worthless after a time."""
        self._ending.add(rows, at_ns)

    def spare(self, rows: Sequence[int]) -> None:
        """Rows are of use to somebody who named no end."""
        self._ending.remove(rows)

    def extend(self, rows: Sequence[int], at_ns: int) -> None:
        """Those of the rows that end are of use until a later time."""
        self._ending.extend(rows, at_ns)

    def end_ns(self, row: int) -> int:
        """When a row ends; 0 if it does not."""
        return self._ending.until.get(row, 0)

    def ended(self, now_ns: int) -> list[int]:
        """The rows that are worthless from now on."""
        return self._ending.due(now_ns)

    # --- both ---

    def forget(self, rows: Sequence[int]) -> None:
        """These rows are no blocks any more; each came after what was below it.

        What was kept for the sake of one that is gone stays kept for as long.
        """
        if self._ending.until:
            self._ending.remove(rows)
        if not self._held:
            return
        for row in rows:
            if row in self._held:
                until_ns = self._hints.until[row]
                self._hints.remove((row,))
                above = self._release(row)
                if above != NONE:
                    self._hint(above, until_ns)

    def rows(self) -> set[int]:
        """Every row that is remembered."""
        return {*self._held, *self._ending.until}

    def check(self) -> None:
        """Verify that the sums are right.

        Raises:
            AssertionError: they are not.
        """
        holders = dict.fromkeys(self._held, 0)
        for row in (*self._hints.until, *(one.above for one in self._held.values())):
            if row != NONE:
                holders[row] += 1
        assert holders == {row: one.holders for row, one in self._held.items()}
        assert all(holders.values())
        sizes_bytes = sum(one.size_bytes for one in self._held.values())
        assert self.kept_bytes == sizes_bytes <= self.limit_bytes
