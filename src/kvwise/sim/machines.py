"""Machines: how long a device computes, a link copies and a drive works. They hold no policy.

Speeds are laws with a few parameters, not tables: they give the brain something true to learn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from kvwise.core.elements import Coding
from kvwise.sim.dice import Dice
from kvwise.sim.timeline import Timeline
from kvwise.units import NS_PER_S

FREED_MAX = 8
FREED_RETURNS = 0.3
"""Records freed last, and the probability of each to come back when power fails before a sync."""

Part = tuple[bytes, int]
"""What a page holds: the object of this key, page number so-and-so of it."""


@dataclass(frozen=True, slots=True)
class GpuLaw:
    """Seconds of one engine step: a + b * tokens + g * pairs, and a little for every other request.

    Attributes:
        step_s: a, whatever the step computes.
        token_s: b, for each token: the dense layers.
        pair_s: g, for each pair of a new token and one it attends to.
        crowd: fraction by which each further request in the batch lengthens the step.
        step_tokens: most new tokens in one step.
        running_max: most requests that run at once.
    """

    step_s: float
    token_s: float
    pair_s: float
    crowd: float
    step_tokens: int = 512
    running_max: int = 6

    def seconds(self, work: Sequence[tuple[int, int]]) -> float:
        """How long a step takes; `work` is (new tokens, tokens before them) of each request."""
        tokens = sum(new for new, _ in work)
        pairs = sum(new * (before + new / 2) for new, before in work)
        alone = self.step_s + self.token_s * tokens + self.pair_s * pairs
        return alone * (1 + self.crowd * max(0, len(work) - 1))


class Link:
    """One direction of a host link: copies go one after another."""

    def __init__(self, timeline: Timeline, *, rate_bytes_per_s: float, latency_ns: int) -> None:
        """An idle link."""
        self._timeline = timeline
        self._rate_bytes_per_s = rate_bytes_per_s
        self._latency_ns = latency_ns
        self._free_ns = 0

    def finish_ns(self, size_bytes: int) -> int:
        """Take the link for a copy of this size; when that copy will be complete."""
        begin_ns = max(self._timeline.now_ns, self._free_ns)
        self._free_ns = begin_ns + self.took_ns(size_bytes)
        return self._free_ns

    def took_ns(self, size_bytes: int) -> int:
        """How long a copy of this size takes, once it has the link."""
        return self._latency_ns + int(size_bytes / self._rate_bytes_per_s * NS_PER_S)


class Arena:
    """The pages that everybody shares, as names of what they hold instead of bytes.

    A page being written holds nothing that can be told, until the write is complete. Every change
    counts, so that a reader can tell whether a page stayed the same while it was copied.
    """

    def __init__(self, count: int) -> None:
        """`count` pages of nothing."""
        self._holds: list[Part | None] = [None] * count
        self._changes = [0] * count

    def begin(self, pages: Sequence[int]) -> None:
        """Somebody starts to write these pages."""
        for page in pages:
            self._holds[page] = None
            self._changes[page] += 1

    def complete(self, pages: Sequence[int], key: bytes) -> None:
        """The pages hold an object now."""
        for part, page in enumerate(pages):
            self._holds[page] = (key, part)
            self._changes[page] += 1

    def holds(self, pages: Sequence[int], key: bytes) -> bool:
        """Whether the pages hold this object, whole and in order."""
        return all(self._holds[page] == (key, part) for part, page in enumerate(pages))

    def changes(self, pages: Sequence[int]) -> int:
        """A number that differs once any of these pages was written to."""
        return sum(self._changes[page] for page in pages)


@dataclass(frozen=True, slots=True)
class DriveLaw:
    """Speed of a drive.

    Attributes:
        latency_ns: of one operation, however small.
        read_bytes_per_s, write_bytes_per_s: of the whole drive, shared among what is under way.
        mixed: share of its rate a drive keeps while it reads and writes at once.
        depth: operations under way at once.
    """

    latency_ns: int
    read_bytes_per_s: float
    write_bytes_per_s: float
    mixed: float
    depth: int

    def took_ns(self, size_bytes: int, *, write: bool, reads: int, writes: int) -> int:
        """How long an operation takes, with so many under way, itself included."""
        rate = self.write_bytes_per_s if write else self.read_bytes_per_s
        rate /= reads + writes
        if reads and writes:
            rate *= self.mixed
        return self.latency_ns + int(size_bytes / rate * NS_PER_S)


@dataclass(slots=True)
class Record:
    """One object on a medium. A rotten one is found, and turns out to be damaged when read."""

    key: bytes
    parent: bytes
    space: bytes
    raw_bytes: int
    stored_bytes: int
    rotten: bool = False
    coding: Coding = Coding.PLAIN


class Medium:
    """What a drive keeps when everything else is gone, and its ailments.

    Attributes:
        slow_until_ns, full_until_ns, dead_until_ns: time of the world, set from outside.
    """

    def __init__(self, capacity_bytes: int) -> None:
        """An empty medium that may hold so many bytes."""
        self.capacity_bytes = capacity_bytes
        self.records: dict[int, Record] = {}
        self.used_bytes = 0
        self.slow_until_ns = self.full_until_ns = self.dead_until_ns = 0
        self._number = 0
        self._freed: deque[tuple[int, Record]] = deque(maxlen=FREED_MAX)

    def add(self, record: Record) -> int:
        """Keep a record; where it is."""
        self._number += 1
        self.records[self._number] = record
        self.used_bytes += record.stored_bytes
        return self._number

    def free(self, location: int) -> None:
        """Give up the record at a location; one that was lost before is gone already."""
        record = self.lose(location)
        if record is not None:
            self._freed.append((location, record))

    def lose(self, location: int) -> Record | None:
        """The record at a location vanishes; it is returned, if there was one."""
        record = self.records.pop(location, None)
        if record is not None:
            self.used_bytes -= record.stored_bytes
        return record

    def power_off(self, dice: Dice) -> None:
        """Of what was freed last, some was not freed for good: it is there again."""
        for location, record in self._freed:
            if dice.chance(FREED_RETURNS):
                self.records[location] = record
                self.used_bytes += record.stored_bytes
        self._freed.clear()
