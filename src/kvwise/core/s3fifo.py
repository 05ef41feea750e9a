"""S3-FIFO: evicts from two queues, a small one for newcomers. It proposes; the shelf decides.

After Yang et al., FIFO Queues Are All You Need for Cache Eviction, 2023, with two differences: only
blocks without children are candidates, and what counts is whether one was used since it was queued,
not how often. What comes back soon after it left goes past the small queue.
"""

from __future__ import annotations

from array import array
from collections import deque

from kvwise.core.index import NONE, Index
from kvwise.core.reuse import Reuse

_SMALL_SHARE = 0.1
_OUT, _SMALL, _MAIN = 0, 1, 2


class S3Fifo:
    """A policy in which what is used once leaves soon."""

    def __init__(self, index: Index, reuse: Reuse) -> None:
        """No candidates."""
        self._index = index
        self._reuse = reuse
        self._small: deque[tuple[int, int]] = deque()
        self._main: deque[tuple[int, int]] = deque()
        self._where = array("B")
        self._aside: list[int] = []
        self._proposed = self._small

    def add(self, row: int) -> None:
        """`row` became a candidate."""
        where = self._where
        if row >= len(where):
            where.frombytes(bytes(row + 1 - len(where)))
        if where[row] == _OUT:
            self._enqueue(row, _MAIN if self._reuse.was_here(row) else _SMALL)

    def add_all(self, rows: array[int]) -> None:
        """Many rows became candidates."""
        for row in rows:
            self.add(row)

    def _enqueue(self, row: int, where: int) -> None:
        self._where[row] = where
        queue = self._main if where == _MAIN else self._small
        queue.append((row, self._index.stamp[row]))

    def restamped(self) -> None:
        """Take the stamps anew."""
        stamps = self._index.stamp
        for queue in (self._small, self._main):
            rows = [row for row, _ in queue]
            queue.clear()
            queue.extend((row, stamps[row]) for row in rows)

    def propose(self) -> int:
        """The candidate that was queued first and not used since, or NONE."""
        small, main, stamps = self._small, self._main, self._index.stamp
        while small or main:
            share = _SMALL_SHARE * (len(small) + len(main))
            queue = small if small and (not main or len(small) > share) else main
            row, stamp = queue[0]
            if stamps[row] == stamp:
                self._proposed = queue
                return row
            queue.popleft()
            self._enqueue(row, _MAIN)
        return NONE

    def accept(self) -> None:
        """Forget the last proposal."""
        row, _ = self._proposed.popleft()
        self._where[row] = _OUT

    def waiting(self, stamp: int) -> array[int] | None:
        """None: what is added comes last."""

    def yields_to(self, stamp: int) -> bool:
        """Yes: newcomers have a queue of their own."""
        return True

    def set_aside(self) -> None:
        """Keep the last proposal out of the order until `restore`."""
        row, _ = self._proposed.popleft()
        self._aside.append(row)

    def restore(self) -> None:
        """Queue rows set aside again, where they were."""
        for row in self._aside:
            self._enqueue(row, self._where[row])
        self._aside.clear()
