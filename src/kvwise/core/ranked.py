"""Ranked: evicts by what is learned of reuse. It proposes; the shelf decides what may go.

Candidates of one class (`reuse`) wait in one queue, the longest unused first. The class whose first
one has the lowest score gives it up. Looking at one candidate of each class is enough because what
waits longer is seldom worth more, and it makes a proposal as cheap as there are classes.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Callable
from math import exp

from kvwise.core.hazards import Hazards, bucket_of
from kvwise.core.index import NONE, Index
from kvwise.core.reuse import Reuse, Stay

SURE_USES = 512
"""Uses from which on newcomers are held against what is there."""

Score = Callable[[Hazards, float, float], float]
"""Of a class, seconds since the use, and how long blocks stay on this tier at present."""


def worth(hazards: Hazards, age_s: float, _: float) -> float:
    """Uses to expect for each second a block is kept, over its best horizon."""
    return hazards.density[bucket_of(age_s)]


def wild(hazards: Hazards, age_s: float, stay_s: float) -> float:
    """Probability of the next use within the stay, were times between uses exponential.

    From KVCache Cache in the Wild (Wang et al., 2025), section 4: by category, no frequency.
    """
    return exp(-hazards.rate * age_s) * (1 - exp(-hazards.rate * stay_s))


class Ranked:
    """A policy that gives up what has the lowest score."""

    def __init__(self, index: Index, reuse: Reuse, stay: Stay, score: Score) -> None:
        """No candidates."""
        self._index = index
        self._reuse = reuse
        self._score = score
        self._queues: dict[int, list[int]] = {}
        self._queued = array("I")
        """The stamp under which each row is queued; 0 if it is not."""

        self._aside: list[int] = []
        self._best = -1
        self._looked_s = -1.0
        self._stamp = 0
        self._stay = stay

    def add(self, row: int) -> None:
        """`row` became a candidate."""
        queued = self._queued
        if row >= len(queued):
            queued.frombytes(bytes(queued.itemsize * (self._index.capacity - len(queued))))
        if queued[row] != self._index.stamp[row]:
            self._enqueue(row)

    def add_all(self, rows: array[int]) -> None:
        """Many rows became candidates."""
        for row in rows:
            self.add(row)

    def _enqueue(self, row: int) -> None:
        """Queue a row by its last use; entries for earlier ones will be skipped."""
        stamp = self._queued[row] = self._index.stamp[row]
        number = self._reuse.hazards(stamp).number
        heapq.heappush(self._queues.setdefault(number, []), stamp << 32 | row)
        if number != self._best:
            self._best = -1

    def restamped(self) -> None:
        """Take the stamps anew."""
        entries = [entry for queue in self._queues.values() for entry in queue]
        rows = {entry & NONE for entry in entries if self._queued[entry & NONE] == entry >> 32}
        self._queues.clear()
        self._best = -1
        for row in sorted(rows):
            self._enqueue(row)

    def propose(self) -> int:
        """The candidate with the lowest score, or NONE.

        Blocks of one use have one score, so the queues are looked at anew only when another use
        comes first in the one that was chosen.
        """
        queue = self._queues.get(self._best)
        if queue and self._looked_s == self._reuse.uses.now_s:
            entry = queue[0]
            row = entry & NONE
            if entry >> 32 == self._stamp == self._index.stamp[row] == self._queued[row]:
                return row
        self._best = self._look()
        if self._best < 0:
            return NONE
        self._stamp = self._queues[self._best][0] >> 32
        return self._queues[self._best][0] & NONE

    def _look(self) -> int:
        """The class whose first candidate has the lowest score, or -1."""
        self._looked_s = now_s = self._reuse.uses.now_s
        stamps, queued = self._index.stamp, self._queued
        moved = True
        while moved:  # what moved to another queue may be the first one there
            moved = False
            for number, queue in tuple(self._queues.items()):
                row = queue[0] & NONE if queue else NONE
                if row == NONE or not stamps[row] == queue[0] >> 32 == queued[row]:
                    moved |= not self._settle(number)
        best, least = -1, float("inf")
        hazards, age_s = self._reuse.hazards, self._reuse.uses.age_s
        score_of, stay_s = self._score, self._stay.seconds(now_s)
        for number, queue in self._queues.items():
            stamp = queue[0] >> 32
            score = score_of(hazards(stamp), age_s(stamp), stay_s)
            if score < least:
                best, least = number, score
        return best

    def _settle(self, number: int) -> bool:
        """Put candidates that were used since where they belong, until the first was not.

        The answer is whether all stayed in this queue.
        """
        queue, stamps, stayed = self._queues[number], self._index.stamp, True
        while queue:
            row, stamp = queue[0] & NONE, queue[0] >> 32
            if stamps[row] == stamp == self._queued[row]:
                return stayed
            heapq.heappop(queue)
            if self._queued[row] == stamp:
                self._enqueue(row)
                stayed &= self._reuse.hazards(stamps[row]).number == number
        del self._queues[number]
        return stayed

    def accept(self) -> None:
        """Forget the last proposal."""
        entry = heapq.heappop(self._queues[self._best])
        self._queued[entry & NONE] = 0

    def waiting(self, stamp: int) -> array[int] | None:
        """Under which stamp each row waits, if none does under this one."""
        queue, queued = self._queues[self._best], self._queued
        if self._aside or (queue and queue[0] >> 32 == stamp):
            return None
        queued.frombytes(bytes(queued.itemsize * (self._index.capacity - len(queued))))
        return queued

    def yields_to(self, stamp: int) -> bool:
        """Whether the candidate with the lowest score has none above that of a newcomer.

        Before much was learned, newcomers are taken to be worth as much as anything.
        """
        if self._reuse.known[0].seen < SURE_USES or self.propose() == NONE:
            return True
        hazards, age_s = self._reuse.hazards, self._reuse.uses.age_s
        stay_s = self._stay.seconds(self._reuse.uses.now_s)
        score, least = (
            self._score(hazards(one), age_s(one), stay_s) for one in (stamp, self._stamp)
        )
        return least <= score

    def set_aside(self) -> None:
        """Keep the last proposal out of the order until `restore`."""
        self._aside.append(heapq.heappop(self._queues[self._best]) & NONE)

    def restore(self) -> None:
        """Queue rows set aside again."""
        for row in self._aside:
            self._enqueue(row)
        self._aside.clear()
