"""Evict: which block to give up next, per tier. It proposes; the shelf decides what may go.

A policy sees only candidates: rows that are READY on its tier and have no child there, so a suffix
always goes before its prefix. A row that stops being a candidate is not reported; a policy must
expect stale proposals, which the shelf refuses.
"""

from __future__ import annotations

import heapq
from array import array
from typing import Protocol

from kvwise.core.index import NONE, Index


class Eviction(Protocol):
    """The order in which a tier gives up blocks."""

    def add(self, row: int) -> None:
        """`row` became a candidate. Adding it again changes nothing."""
        ...

    def add_all(self, rows: array[int]) -> None:
        """Many rows became candidates."""
        ...

    def propose(self) -> int:
        """The candidate to give up first, or NONE; it stays known until `refuse` or `accept`."""
        ...

    def accept(self) -> None:
        """The last proposal was evicted, or is no candidate any more."""
        ...

    def waiting(self, stamp: int) -> array[int] | None:
        """For every row whether it waits, if none with the stamp of the one last accepted does.

        A row with that stamp that does not wait would come next, were it added. None where that is
        not so.
        """
        ...

    def yields_to(self, stamp: int) -> bool:
        """Whether what would leave next is worth no more than a newcomer of this use."""
        ...

    def set_aside(self) -> None:
        """The last proposal is in use: do not propose it until `restore`."""
        ...

    def restore(self) -> None:
        """Rows set aside may be proposed again."""
        ...

    def restamped(self) -> None:
        """Every stamp changed, but not which is older; nothing is set aside."""
        ...


class Lru:
    """Least recently used first, by the index's last-use stamps.

    A heap holds candidates only, about one per cached conversation, as (stamp << 32 | row)
    integers. A stamp that moved after the row was queued is noticed when the row comes up: it is
    queued again, so that touching a long prefix costs one column write per block and no list
    surgery.
    """

    def __init__(self, index: Index) -> None:
        """An empty order over the rows of `index`."""
        self._index = index
        self._heap: list[int] = []
        self._queued = array("B")
        self._aside: list[int] = []

    def add(self, row: int) -> None:
        """`row` became a candidate."""
        queued = self._queued
        if row >= len(queued):
            queued.frombytes(bytes(self._index.capacity - len(queued)))
        if not queued[row]:
            queued[row] = 1
            heapq.heappush(self._heap, self._index.stamp[row] << 32 | row)

    def add_all(self, rows: array[int]) -> None:
        """Many rows became candidates: the heap is made once for all of them."""
        heap, queued, stamp = self._heap, self._queued, self._index.stamp
        queued.frombytes(bytes(max(0, self._index.capacity - len(queued))))
        for row in rows:
            if not queued[row]:
                queued[row] = 1
                heap.append(stamp[row] << 32 | row)
        heapq.heapify(heap)

    def restamped(self) -> None:
        """Take the stamps anew."""
        stamp = self._index.stamp
        self._heap = [stamp[entry & NONE] << 32 | entry & NONE for entry in self._heap]
        heapq.heapify(self._heap)

    def propose(self) -> int:
        """The candidate with the oldest stamp, or NONE."""
        heap, stamp = self._heap, self._index.stamp
        while heap:
            row = heap[0] & NONE
            if heap[0] >> 32 == stamp[row]:
                return row
            heapq.heapreplace(heap, stamp[row] << 32 | row)
        return NONE

    def accept(self) -> None:
        """Forget the last proposal."""
        self._queued[heapq.heappop(self._heap) & NONE] = 0

    def waiting(self, stamp: int) -> array[int] | None:
        """Which rows wait, if none with the stamp does."""
        if self._aside or (self._heap and self._heap[0] >> 32 == stamp):
            return None
        self._queued.frombytes(bytes(self._index.capacity - len(self._queued)))
        return self._queued

    def yields_to(self, stamp: int) -> bool:
        """Yes: a newcomer was used last."""
        return True

    def set_aside(self) -> None:
        """Keep the last proposal out of the order until `restore`."""
        self._aside.append(heapq.heappop(self._heap))

    def restore(self) -> None:
        """Queue rows set aside again."""
        for entry in self._aside:
            heapq.heappush(self._heap, entry)
        self._aside.clear()
