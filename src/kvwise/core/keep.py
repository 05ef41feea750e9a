"""Keep: blocks that callers asked to keep in the arena for a while, and blocks that end by a time.

It only remembers: eviction asks it, and what is over is told to whoever asks. What is kept may take
a share of the arena and no more, so that hints can never starve those who give none.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

SHARE_MAX = 0.25
"""Of the arena that hints may keep."""

GROUPS_MAX = 8192
"""Requests whose hints are remembered at once, of each kind."""


class _Times:
    """Rows with a time each, and which of them are due. A row's latest time counts."""

    def __init__(self) -> None:
        """No rows."""
        self.until: dict[int, int] = {}
        self._groups: list[tuple[int, int, Sequence[int]]] = []
        self._number = 0

    @property
    def is_full(self) -> bool:
        """Whether no more groups may be added."""
        return len(self._groups) >= GROUPS_MAX

    def add(self, rows: Sequence[int], until_ns: int) -> None:
        """Give rows a time, if they have no later one."""
        for row in rows:
            self.until[row] = max(until_ns, self.until.get(row, 0))
        self._number += 1
        heapq.heappush(self._groups, (until_ns, self._number, rows))

    def due(self, now_ns: int) -> list[int]:
        """Take out the rows whose time is over, in the order in which they came."""
        over: list[int] = []
        while self._groups and self._groups[0][0] <= now_ns:
            _, _, rows = heapq.heappop(self._groups)
            for row in rows:
                if self.until.get(row, now_ns + 1) <= now_ns:
                    del self.until[row]
                    over.append(row)
        return over


class Keep:
    """Rows kept by hint, and rows that end by hint.

    Attributes:
        kept_bytes: of the arena, for the rows that are kept.
        refused: hints that were not followed, because their share was used up.
    """

    def __init__(self, arena_bytes: int) -> None:
        """Nothing is kept, nothing ends."""
        self.limit_bytes = int(arena_bytes * SHARE_MAX)
        self.kept_bytes = 0
        self.refused = 0
        self._kept = _Times()
        self._sizes: dict[int, int] = {}
        self._ending = _Times()

    # --- kept ---

    def hold(self, rows: Sequence[int], size_bytes: int, until_ns: int) -> None:
        """Keep rows of `size_bytes` each until a time, or none of them if they are too many."""
        fresh = [row for row in rows if row not in self._sizes]
        if self._kept.is_full or self.kept_bytes + len(fresh) * size_bytes > self.limit_bytes:
            self.refused += 1
            return
        self._kept.add(rows, until_ns)
        self._sizes |= dict.fromkeys(fresh, size_bytes)
        self.kept_bytes += len(fresh) * size_bytes

    @property
    def has_kept(self) -> bool:
        """Whether any row is kept."""
        return bool(self._sizes)

    def holds(self, row: int) -> bool:
        """Whether a row is kept."""
        return row in self._sizes

    def let_go(self, now_ns: int) -> list[int]:
        """The rows that are kept no longer."""
        over = self._kept.due(now_ns)
        for row in over:
            self.kept_bytes -= self._sizes.pop(row)
        return over

    # --- ending ---

    @property
    def has_ending(self) -> bool:
        """Whether any row ends by hint."""
        return bool(self._ending.until)

    def end(self, rows: Sequence[int], at_ns: int) -> None:
        """New rows are worthless after a time."""
        if not self._ending.is_full:
            self._ending.add(rows, at_ns)

    def spare(self, rows: Sequence[int]) -> None:
        """Rows are of use to somebody who named no end."""
        for row in rows:
            self._ending.until.pop(row, None)

    def extend(self, rows: Sequence[int], at_ns: int) -> None:
        """Those of the rows that end are of use until a later time."""
        ending = [row for row in rows if row in self._ending.until]
        if ending:
            self.end(ending, at_ns)

    def ended(self, now_ns: int) -> list[int]:
        """The rows that are worthless from now on."""
        return self._ending.due(now_ns)

    # --- both ---

    def forget(self, rows: Sequence[int]) -> None:
        """These rows are no blocks any more."""
        if not self._sizes and not self._ending.until:
            return
        for row in rows:
            self._ending.until.pop(row, None)
            if row in self._sizes:
                self.kept_bytes -= self._sizes.pop(row)
                del self._kept.until[row]

    def rows(self) -> set[int]:
        """Every row that is remembered."""
        return {*self._kept.until, *self._ending.until}

    def check(self) -> None:
        """Verify that the sums are right.

        Raises:
            AssertionError: they are not.
        """
        assert self._sizes.keys() == self._kept.until.keys()
        assert self.kept_bytes == sum(self._sizes.values()) <= self.limit_bytes
