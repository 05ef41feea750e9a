"""Uses: the last uses of blocks, one entry for each part of a request. It knows no block.

A stamp in the index is the number of a use. All blocks that a request used in one way have the same
stamp, so what is known of their use is kept once.
"""

from __future__ import annotations

from array import array
from enum import IntEnum
from typing import NamedTuple

from kvwise.core.hazards import BUCKETS, EDGES, FIRST_S, Hazards, bucket_of

USES_MAX = 1 << 17
"""Uses that are remembered; of blocks that were used longer ago only their order is known."""

STAMP_MAX = (1 << 32) - (1 << 28)
"""Stamps have 32 bits; this leaves room for what one event may need."""

_SORT_S = FIRST_S / 4
"""How often uses are sorted into buckets, at most."""


class Way(IntEnum):
    """How a request uses blocks."""

    SEEN = 0
    NEW = 1
    GENERATED = 2
    LAST = 3


class Use(NamedTuple):
    """One way in which a request uses blocks.

    Attributes:
        blocks: how many.
        first: place of the first one in the prompt.
        turn: which turn of its session the request is.
        request: its number.
    """

    hazards: Hazards
    way: Way
    blocks: int
    first: int
    turn: int
    request: int = 0


class Uses:
    """A ring of uses, and the clock that numbers them.

    Attributes:
        now_s: the time, in seconds.
        last: the newest stamp.
    """

    def __init__(self) -> None:
        """No use yet."""
        self.now_s = 0.0
        self.last = 0
        self._first = 1
        self._since_s = 0.0
        self._sorted_s = 0.0
        self._when = array("d")
        self._class: list[Hazards] = []
        self._way = array("B")
        self._size, self._start, self._turn, self._request = (array("I") for _ in range(4))
        self._live = array("d")
        self._edges = [1] * BUCKETS
        """By bucket, the stamp of the first use that has not come into it."""

        self._due_s = [0.0] * BUCKETS
        """By bucket, when to look at that use again."""

    @property
    def is_full(self) -> bool:
        """Whether the clock has to be set back before the next use."""
        return self.last >= STAMP_MAX

    def begin(self, use: Use) -> int:
        """Somebody uses blocks now; the stamp they get."""
        self.last += 1
        place = (self.last - self._first) % USES_MAX
        hazards, way, blocks, start, turn, request = use
        if place == len(self._when):
            self._class.append(hazards)
            for column in self._columns():
                column.append(0)
        self._class[place], self._when[place], self._live[place] = hazards, self.now_s, 1.0
        self._way[place], self._size[place] = way, blocks
        self._start[place], self._turn[place], self._request[place] = start, turn, request
        hazards.wait(0, 1.0)
        return self.last

    def skip(self, count: int) -> int:
        """Take so many stamps of which nothing is known; returns the first one.

        What was remembered is forgotten: this is for recovery, before there is anything.
        """
        first = self.last + 1
        self.last += count
        self._forget()
        return first

    def halve(self) -> None:
        """Stamps were halved: their order stays, what is remembered goes."""
        self.last = self.last // 2 + 1
        self._forget()

    def _forget(self) -> None:
        self._first, self._since_s = self.last + 1, self.now_s
        self._class.clear()
        for column in self._columns():
            del column[:]
        self._edges, self._due_s = [self._first] * BUCKETS, [0.0] * BUCKETS

    def _columns(self) -> tuple[array[float] | array[int], ...]:
        numbers = (self._way, self._size, self._start, self._turn, self._request)
        return self._when, self._live, *numbers

    def _place(self, stamp: int) -> int:
        """Where a use is remembered, or -1."""
        if stamp < self._first or stamp <= self.last - USES_MAX or stamp > self.last:
            return -1
        return (stamp - self._first) % USES_MAX

    def is_known(self, stamp: int) -> bool:
        """Whether more than its stamp is known of a use."""
        return self._place(stamp) >= 0

    def is_seen(self, stamp: int) -> bool:
        """Whether it is remembered as a use of blocks that were seen before."""
        place = self._place(stamp)
        return place >= 0 and self._way[place] == Way.SEEN

    def age_s(self, stamp: int) -> float:
        """Seconds since a use, at most since anything is remembered."""
        place = self._place(stamp)
        return self.now_s - (self._when[place] if place >= 0 else self._since_s)

    def hazards(self, stamp: int) -> Hazards | None:
        """The class of a use, if it is remembered."""
        place = self._place(stamp)
        return self._class[place] if place >= 0 else None

    def request(self, stamp: int) -> int:
        """The number of the request that a use is of; 0 if it is not remembered."""
        place = self._place(stamp)
        return self._request[place] if place >= 0 else 0

    def is_gone_on_with(self, stamp: int, known: int) -> bool:
        """Whether a request goes on from this use whose first `known` blocks end in blocks of it.

        It has to have half of them at least, or it has only its beginning in common.
        """
        place = self._place(stamp)
        return place >= 0 and 2 * (known - self._start[place]) >= self._size[place]

    def next_turn(self, stamp: int, known: int) -> int:
        """Which turn a request is whose first `known` blocks end in blocks of this use."""
        if not self.is_gone_on_with(stamp, known):
            return 1
        place = self._place(stamp)
        return self._turn[place] + (self._way[place] != Way.SEEN)

    def grow(self, stamp: int, blocks: int) -> None:
        """A use turned out to have more blocks."""
        place = self._place(stamp)
        if place >= 0:
            self._size[place] += blocks

    def hit(self, stamp: int, blocks: int) -> None:
        """So many blocks of a use are used again, now."""
        place = self._place(stamp)
        if place >= 0:
            share = min(self._live[place], blocks / max(1, self._size[place]))
            self._live[place] -= share
            self._class[place].hit(bucket_of(self.now_s - self._when[place]), share)

    def lose_sight(self, stamp: int) -> None:
        """Whether one block of a use is used again will not be known."""
        place = self._place(stamp)
        if place >= 0:
            share = 1 / max(1, self._size[place])
            self._live[place] = max(0.0, self._live[place] - share)

    def pass_time(self, now_s: float) -> None:
        """Time goes on: uses come into later buckets."""
        self.now_s = max(self.now_s, now_s)
        if self.now_s < self._sorted_s + _SORT_S:
            return
        self._sorted_s = self.now_s
        oldest = max(self._first, self.last - USES_MAX + 1)
        when, live, classes, edges = self._when, self._live, self._class, self._edges
        first, last, now_s, bucket = self._first, self.last, self.now_s, 0
        due_s = self._due_s
        for edge_s in EDGES:
            bucket += 1
            if due_s[bucket] > now_s:
                continue
            stamp, until_s = max(edges[bucket], oldest), now_s - edge_s
            due_s[bucket] = 0.0
            while stamp <= last:
                place = (stamp - first) % USES_MAX
                if when[place] > until_s:
                    due_s[bucket] = when[place] + edge_s - FIRST_S / 8  # early rather than late
                    break
                classes[place].wait(bucket, live[place])
                stamp += 1
            edges[bucket] = stamp
