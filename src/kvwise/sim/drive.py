"""Drive: one tier below the arena at work, in virtual time. It decides the order and nothing else.

It keeps the promises of the live workers: reads go before drops and drops before writes, no write
starts while a read waits or space is being given back, every item is answered once, and a read that
waited past its deadline is given up. It breaks whatever the scenario says.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from kvwise.core.elements import Coding
from kvwise.core.timing import Timed, Work
from kvwise.core.words import Done, Drop, Failed, Item, Load, Store, TierSpec
from kvwise.errors import FailureKind
from kvwise.sim.codecs import LAWS
from kvwise.sim.dice import Dice
from kvwise.sim.faults import READ_KINDS, WRITE_KINDS, Fault, Injector
from kvwise.sim.machines import Arena, DriveLaw, Medium, Record
from kvwise.sim.rules import require
from kvwise.sim.timeline import Act, Timeline
from kvwise.units import NS_PER_MS, NS_PER_S, round_up

Outcome = Done | Failed
Report = Outcome | Timed
_STALL = 200
"""How many times longer an operation takes on a slow tier, or when it stalls."""

_DROP_NS = NS_PER_MS // 20
"""Time to give back the space of one record."""


@dataclass(frozen=True, slots=True)
class Yard:
    """What all drives of a node work with.

    Attributes:
        report: tells the node what became of an item, and what that took.
        clear: has somebody clear the cache.
        clock_ns: the node's clock, which is not the world's.
        dice: for what is no fault: the size of a record.
    """

    timeline: Timeline
    injector: Injector
    arena: Arena
    report: Callable[[Report], None]
    clear: Act
    clock_ns: Callable[[], int]
    dice: Dice


@dataclass(frozen=True, slots=True)
class DriveSpec:
    """A drive: how fast it is, what the brain knows of it, and whether objects shrink on it."""

    law: DriveLaw
    tier: TierSpec
    shrinks: bool = False


@dataclass(frozen=True, slots=True)
class _Read:
    """One item of a load."""

    job: Load
    number: int

    @property
    def item(self) -> Item:
        """The item itself."""
        return self.job.items[self.number]


@dataclass(frozen=True, slots=True)
class _Write:
    """One item of a store."""

    job: Store
    number: int

    @property
    def item(self) -> Item:
        """The item itself."""
        return self.job.items[self.number]


class Drive:
    """A queue before a medium."""

    def __init__(self, tier: int, spec: DriveSpec, medium: Medium, yard: Yard) -> None:
        """An idle drive."""
        self._tier = tier
        self._spec = spec
        self._medium = medium
        self._yard = yard
        self._reads: deque[_Read] = deque()
        self._drops: deque[Drop] = deque()
        self._writes: deque[_Write] = deque()
        self._reading: list[_Read] = []
        self._writing: list[tuple[_Write, Record]] = []
        self._dropping = 0
        self._on = True

    @property
    def settled(self) -> bool:
        """Whether the medium holds what the brain thinks: no write or drop is still to end."""
        return not (self._writes or self._drops or self._writing or self._dropping)

    @property
    def free_bytes(self) -> int:
        """What the medium says of its room."""
        now_ns = self._yard.timeline.now_ns
        if now_ns < max(self._medium.full_until_ns, self._medium.dead_until_ns):
            return 0
        return max(0, self._medium.capacity_bytes - self._medium.used_bytes)

    def submit(self, command: Load | Store | Drop) -> None:
        """Take a command."""
        match command:
            case Load():
                self._reads.extend(_Read(command, n) for n in range(len(command.items)))
            case Store():
                self._writes.extend(_Write(command, n) for n in range(len(command.items)))
            case Drop():
                read = {work.item.location for work in [*self._reading, *self._reads]}
                idle = read.isdisjoint(command.locations)
                require("what is to be read is not given back", command, held=idle)
                self._drops.append(command)
        self._begin()

    def expire(self) -> list[Failed]:
        """Give up reads that waited beyond their deadline."""
        now_ns = self._yard.clock_ns()
        late = [work for work in self._reads if now_ns >= work.job.deadline_ns]
        for work in late:
            self._reads.remove(work)
        return [Failed(now_ns, work.job.job, work.number, FailureKind.TIMEOUT) for work in late]

    def crash(self, dice: Dice) -> None:
        """Power off: what is being written is on the medium whole, or torn and so not at all."""
        self._on = False
        self._medium.power_off(dice)
        for _, record in self._writing:
            if dice.chance(0.5):
                self._medium.add(record)
        for drop in self._drops:
            if dice.chance(0.5):
                for location in drop.locations:
                    self._medium.free(location)

    # --- inside ---

    def _begin(self) -> None:
        """Start what may start."""
        while self._on and self._under_way() < self._spec.law.depth:
            if self._reads:
                self._read(self._reads.popleft())
            elif self._drops:
                self._give_back(self._drops.popleft())
            elif self._writes and not self._dropping and len(self._writing) < self._writing_max:
                self._write(self._writes.popleft())
            else:
                return

    def _under_way(self) -> int:
        return len(self._reading) + len(self._writing) + self._dropping

    @property
    def _writing_max(self) -> int:
        return max(1, self._spec.law.depth // 2)

    def _report(self, outcome: Report) -> None:
        """Answer for an item, unless nobody is there to hear it."""
        if self._on:
            self._yard.report(outcome)

    def _now_ns(self, key: bytes) -> int:
        """When a worker says that it is done: sometimes others are heard before it is."""
        now_ns, injector = self._yard.clock_ns(), self._yard.injector
        if injector.strikes(Fault.STALE_CLOCK, key):
            return max(0, now_ns - injector.dice(Fault.STALE_CLOCK, key).below(NS_PER_S))
        return now_ns

    def _took_ns(self, size_bytes: int, fault: Fault, key: bytes, *, write: bool) -> int:
        """How long an operation takes now."""
        law, yard = self._spec.law, self._yard
        reads, writes = len(self._reading), len(self._writing)
        took_ns = law.took_ns(size_bytes, write=write, reads=reads, writes=writes)
        slow = (
            yard.injector.strikes(fault, key) or yard.timeline.now_ns < self._medium.slow_until_ns
        )
        return took_ns * _STALL if slow else took_ns

    def _time(self, work: Work, coding: Coding, size_bytes: int, elapsed_ns: int) -> None:
        """Tell what some work took."""
        now_ns = self._yard.clock_ns()
        self._report(Timed(now_ns, self._tier, work, coding, size_bytes, elapsed_ns))

    def _read(self, work: _Read) -> None:
        """Start a read."""
        if self._yard.clock_ns() >= work.job.deadline_ns:
            late = Failed(self._yard.clock_ns(), work.job.job, work.number, FailureKind.TIMEOUT)
            self._yard.timeline.after(0, lambda: self._report(late))
            return
        self._reading.append(work)
        self._yard.arena.begin(work.item.pages)
        size_bytes, key = work.item.stored_bytes, work.item.key
        moved_ns = self._took_ns(size_bytes, Fault.READ_STALL, key, write=False)
        share_ns = moved_ns // len(self._reading)
        decoded_ns = self._decode_ns(work)
        took_ns = moved_ns + decoded_ns

        def done() -> None:
            self._read_done(work, took_ns)
            self._time(Work.READ, Coding.PLAIN, size_bytes, share_ns)

        self._yard.timeline.after(took_ns, done)
        if self._yard.injector.strikes(Fault.CLEAR_IN_READ, key):
            detail = self._yard.injector.dice(Fault.CLEAR_IN_READ, key)
            self._yard.timeline.after(detail.below(took_ns + 1), self._yard.clear)

    def _decode_ns(self, work: _Read) -> int:
        """How long restoring takes what is read, if it has to be."""
        record = self._medium.records.get(work.item.location)
        if record is None or record.coding is Coding.PLAIN:
            return 0
        return LAWS[record.coding].decode_ns(record.raw_bytes)

    def _read_done(self, work: _Read, took_ns: int) -> None:
        if not self._on:
            return
        self._reading.remove(work)
        kind = self._read_failure(work)
        if kind is None:
            self._yard.arena.complete(work.item.pages, work.item.key)
        now_ns, job = self._now_ns(work.item.key), work.job.job
        if kind is None:
            self._report(Done(now_ns, job, work.number, elapsed_ns=took_ns))
        else:
            self._report(Failed(now_ns, job, work.number, kind))
        self._begin()

    def _read_failure(self, work: _Read) -> FailureKind | None:
        """How a read fails, if it does."""
        item, yard = work.item, self._yard
        if yard.timeline.now_ns < self._medium.dead_until_ns:
            return FailureKind.IO
        for fault, kind in READ_KINDS.items():
            if yard.injector.strikes(fault, item.key):
                if fault is Fault.READ_MISSING:
                    self._medium.lose(item.location)
                return kind
        record = self._medium.records.get(item.location)
        if record is None:
            return FailureKind.MISSING
        asked = (item.key, work.job.space, work.job.raw_bytes)
        same = asked == (record.key, record.space, record.raw_bytes)
        require("a load asks for what was written there", (item, record), held=same)
        return FailureKind.CORRUPT if record.rotten else None

    def _give_back(self, drop: Drop) -> None:
        """Start giving space back."""
        self._dropping += 1
        self._yard.timeline.after(_DROP_NS * len(drop.locations), lambda: self._dropped(drop))

    def _dropped(self, drop: Drop) -> None:
        if not self._on:
            return
        self._dropping -= 1
        for location in drop.locations:
            self._medium.free(location)
        self._begin()

    def _write(self, work: _Write) -> None:
        """Start a write."""
        item, job, spec = work.item, work.job, self._spec.tier
        size_bytes = job.raw_bytes + spec.overhead_bytes
        coding = job.form.coding
        if coding is not Coding.PLAIN:
            size_bytes -= int(job.raw_bytes * (1 - LAWS[coding].share))
        elif self._spec.shrinks:
            size_bytes -= self._yard.dice.named("shrinks", item.key).below(job.raw_bytes)
        stored_bytes = round_up(size_bytes, spec.unit_bytes)
        record = Record(
            item.key, item.parent, job.space, job.raw_bytes, stored_bytes, coding=coding
        )
        used_bytes = self._medium.used_bytes + sum(r.stored_bytes for _, r in self._writing)
        fits = used_bytes + stored_bytes <= self._medium.capacity_bytes
        require("no write beyond the cap", (self._tier, used_bytes, stored_bytes), held=fits)
        self._writing.append((work, record))
        took_ns = self._took_ns(stored_bytes, Fault.WRITE_STALL, item.key, write=True)
        before = self._yard.arena.changes(item.pages)
        law = LAWS.get(coding)
        took_ns += law.encode_ns(job.raw_bytes) if law else 0

        def done() -> None:
            self._write_done(work, record, before)
            self._time_codec(job)

        self._yard.timeline.after(took_ns, done)

    def _time_codec(self, job: Store) -> None:
        """Tell what writing a payload down took, and restoring it if that was tried."""
        coding, law = job.form.coding, LAWS.get(job.form.coding)
        if law is not None:
            self._time(Work.ENCODE, coding, job.raw_bytes, law.encode_ns(job.raw_bytes))
        if law is not None and job.form.trial:
            self._time(Work.DECODE, coding, job.raw_bytes, law.decode_ns(job.raw_bytes))

    def _write_done(self, work: _Write, record: Record, before: int) -> None:
        if not self._on:
            return
        self._writing.remove((work, record))
        arena, item = self._yard.arena, work.item
        kept = arena.holds(item.pages, item.key) and arena.changes(item.pages) == before
        require("pages stay as they are while they are written out", item, held=kept)
        kind = self._write_failure(item.key)
        now_ns, job = self._now_ns(item.key), work.job.job
        if kind is None:
            location = self._medium.add(record)
            self._report(Done(now_ns, job, work.number, location, record.stored_bytes))
        else:
            self._report(Failed(now_ns, job, work.number, kind))
        self._begin()

    def _write_failure(self, key: bytes) -> FailureKind | None:
        """How a write fails, if it does."""
        now_ns = self._yard.timeline.now_ns
        if now_ns < self._medium.dead_until_ns:
            return FailureKind.IO
        if now_ns < self._medium.full_until_ns:
            return FailureKind.FULL
        for fault, kind in WRITE_KINDS.items():
            if self._yard.injector.strikes(fault, key):
                return kind
        return None
