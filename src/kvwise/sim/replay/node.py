"""Node: one brain, the drives that carry out what it commands, and who waits for what it loads.

It owns no engine and decides nothing. Drives serve reads and writes in order, several drives as one
of the sum of their rates; what they do at once costs each of them a share.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from kvwise.core.brain import Brain
from kvwise.core.elements import Coding
from kvwise.core.timing import Timed, Work
from kvwise.core.words import Command, Done, Event, Failed, Load, Progress, Store, Tick
from kvwise.errors import FailureKind
from kvwise.sim.codecs import LAWS
from kvwise.sim.replay.brains import Digest
from kvwise.sim.timeline import Timeline
from kvwise.units import NS_PER_S

UNITS = 64
"""Parts of an object that the room of a drive is counted in where codecs make objects smaller."""

Heard = Callable[[Progress], None]
"""Takes word of a load. It may plan things to come, but says nothing to the node at once."""


class Pipe:
    """One direction of a link, or drives in one direction: one thing after another.

    Attributes:
        moved_bytes: everything so far.
        busy_ns: how long it was in use.
    """

    def __init__(self, timeline: Timeline, bytes_per_s: float, latency_s: float) -> None:
        """An idle pipe."""
        self._timeline = timeline
        self._bytes_per_s = bytes_per_s
        self._latency_ns = round(latency_s * NS_PER_S)
        self._free_ns = 0
        self.moved_bytes = 0
        self.busy_ns = 0

    def took_ns(self, size_bytes: int) -> int:
        """How long so many bytes take alone."""
        return round(size_bytes / self._bytes_per_s * NS_PER_S) + 1

    @property
    def is_busy(self) -> bool:
        """Whether anything is under way."""
        return self._free_ns > self._timeline.now_ns

    def finish_ns(self, size_bytes: int, *, slowed: float = 1.0, first: bool = True) -> int:
        """Send bytes; when the last one will be there.

        Args:
            size_bytes: how many.
            slowed: share of the rate that is to be had.
            first: whether the fixed time of an operation has to be waited for.
        """
        begin_ns = max(self._timeline.now_ns, self._free_ns)
        took_ns = round(size_bytes / (self._bytes_per_s * slowed) * NS_PER_S)
        took_ns += self._latency_ns if first else 0
        self._free_ns = begin_ns + took_ns
        self.busy_ns += took_ns
        self.moved_bytes += size_bytes
        return self._free_ns


class Drives:
    """The drives of a tier: objects of a read in order, then the next read; writes beside them."""

    def __init__(
        self,
        timeline: Timeline,
        pipes: tuple[Pipe, Pipe],
        mixed: float,
        say: Callable[[Event], object],
    ) -> None:
        """Idle drives.

        Args:
            timeline: virtual time.
            pipes: for reads and for writes.
            mixed: share of its rate that each direction keeps while both are used.
            say: takes word of what ended.
        """
        self._timeline = timeline
        self.reads, self.writes = pipes
        self._mixed = mixed
        self._say = say
        self._queues: dict[Pipe, deque[tuple[Load | Store, int]]] = {
            pipe: deque() for pipe in pipes
        }
        self._location = 0
        self._coded: dict[int, Coding] = {}

    def take(self, job: Load | Store) -> None:
        """Carry a job out, item after item, behind those that came before."""
        pipe = self.reads if isinstance(job, Load) else self.writes
        queue = self._queues[pipe]
        queue.extend((job, item) for item in range(len(job.items)))
        if len(queue) == len(job.items):
            self._next(pipe)

    def _next(self, pipe: Pipe) -> None:
        """Begin with the item at the head."""
        queue = self._queues[pipe]
        if not queue:
            return
        job, item = queue[0]
        now_ns = self._timeline.now_ns
        if isinstance(job, Load):
            other, size_bytes = self.writes, job.items[item].stored_bytes
            if now_ns >= job.deadline_ns:
                self._timeline.at(now_ns, partial(self._end, pipe, done=False, begun_ns=now_ns))
                return
        else:
            other, size_bytes = self.reads, _stored_bytes(job)
        slowed = self._mixed if other.is_busy else 1.0
        end_ns = pipe.finish_ns(size_bytes, slowed=slowed, first=item == 0)
        self._timeline.at(end_ns, partial(self._end, pipe, done=True, begun_ns=now_ns))

    def _end(self, pipe: Pipe, *, done: bool, begun_ns: int) -> None:
        """The item at the head is over."""
        job, item = self._queues[pipe].popleft()
        now_ns = self._timeline.now_ns
        self._next(pipe)
        if not done:
            self._say(Failed(now_ns, job.job, item, FailureKind.TIMEOUT))
            return
        if isinstance(job, Store):
            self._written(job, item, begun_ns)
            return
        coding = self._coded.get(job.items[item].location, Coding.PLAIN)
        after_ns = LAWS[coding].decode_ns(job.raw_bytes) if coding in LAWS else 0
        if after_ns:
            self._timeline.after(after_ns, partial(self._read, job, item, begun_ns))
        else:
            self._read(job, item, begun_ns)

    def _read(self, job: Load, item: int, begun_ns: int) -> None:
        """An object is in the arena; what is read behind it did not wait for that."""
        now_ns, size_bytes = self._timeline.now_ns, job.items[item].stored_bytes
        self._say(Done(now_ns, job.job, item, elapsed_ns=now_ns - begun_ns))
        if self._coded:
            took_ns = self.reads.took_ns(size_bytes)
            self._say(Timed(now_ns, job.tier, Work.READ, Coding.PLAIN, size_bytes, took_ns))

    def _written(self, job: Store, item: int, begun_ns: int) -> None:
        """An object is on the drives."""
        now_ns, coding = self._timeline.now_ns, job.form.coding
        self._location += 1
        location, took_ns = self._location, now_ns - begun_ns
        self._say(Done(now_ns, job.job, item, location, _stored_bytes(job), took_ns))
        if coding in LAWS:
            self._coded[location] = coding
            took_ns = LAWS[coding].decode_ns(job.raw_bytes)
            self._say(Timed(now_ns, job.tier, Work.DECODE, coding, job.raw_bytes, took_ns))


def _stored_bytes(job: Store) -> int:
    """What an object takes as it is written; units of a drive are parts of an object."""
    law = LAWS.get(job.form.coding)
    if law is None:
        return job.raw_bytes
    unit = max(1, job.raw_bytes // UNITS)
    return -(-int(job.raw_bytes * law.share) // unit) * unit


class Node:
    """What engines talk to.

    Attributes:
        active_ns: when anything but the passing of time was said last, or came of that.
    """

    def __init__(self, timeline: Timeline, brain: Brain) -> None:
        """A node without drives, whose brain may know some speeds already."""
        self.timeline = timeline
        self.brain = brain
        self.digest = Digest()
        self.active_ns = 0
        self._drives: Sequence[Drives] = ()
        self._heard: dict[int, Heard] = {}

    def attach(self, drives: Sequence[Drives]) -> None:
        """Give the node the drives of its lower tiers, in the brain's order."""
        self._drives = drives

    def say(self, event: Event) -> list[Command]:
        """Tell the brain something; have its commands carried out, and answer with them."""
        out = self.brain.handle(event)
        self.digest.add(out)
        if out or not isinstance(event, Tick):
            self.active_ns = self.timeline.now_ns
        for command in out:
            if isinstance(command, Load | Store):
                self._drives[command.tier - 1].take(command)
            elif isinstance(command, Progress) and command.lease in self._heard:
                self._heard[command.lease](command)
        return out

    def hear(self, lease: int, heard: Heard) -> None:
        """Have somebody told of the progress of a lease."""
        self._heard[lease] = heard

    def forget(self, lease: int) -> None:
        """Nobody wants to know of this lease any more."""
        self._heard.pop(lease, None)
