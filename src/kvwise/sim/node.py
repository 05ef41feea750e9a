"""Node: the daemon's twin. It feeds one brain, carries out its commands on drives, and restarts.

Every event passes `handle`, and there the ledger hears it, the digest takes it in and the audit
follows. It decides nothing.
"""

from __future__ import annotations

import hashlib
import struct
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, replace

import msgspec

from kvwise.core.balance import Balance
from kvwise.core.brain import Brain
from kvwise.core.layout import Layout
from kvwise.core.timing import Equipped
from kvwise.core.words import (
    DRAM,
    Budgeted,
    Cleared,
    Command,
    Drop,
    Ended,
    Event,
    Granted,
    Joined,
    Left,
    Load,
    Namespace,
    Planned,
    Progress,
    Recovered,
    Space,
    Store,
    Tick,
)
from kvwise.core.world import BrainConfig
from kvwise.sim.checkers import audit
from kvwise.sim.dice import Dice
from kvwise.sim.drive import Drive, DriveSpec, Report, Yard
from kvwise.sim.faults import Injector
from kvwise.sim.ledger import Ledger
from kvwise.sim.machines import Arena, Medium, Record
from kvwise.sim.timeline import Act, Timeline
from kvwise.units import NS_PER_MS

TICK_NS = 250 * NS_PER_MS
SPACE_TICKS = 8
RECORDS_AT_ONCE = 16
"""Few, so that a recovery takes several events and parents come after their children."""

EVENTS_KEPT = 400
"""Last events that a report can show."""

Answer = Planned | Granted


@dataclass(slots=True)
class Slot:
    """What a client can see of a lease without asking: a word in shared memory."""

    ready: int = 0
    failed: bool = False
    ended: bool = False


@dataclass(frozen=True, slots=True)
class Hall:
    """What a node and its engines share.

    Attributes:
        audit_every: the whole state is audited after every so many events.
    """

    timeline: Timeline
    injector: Injector
    dice: Dice
    audit_every: int = 1


class Node:
    """One brain at work, over the lives of its daemon.

    Attributes:
        generation: grows with each restart; a lease of another generation means nothing.
        media: what outlives a restart, by tier.
    """

    def __init__(self, config: BrainConfig, drives: tuple[DriveSpec, ...], hall: Hall) -> None:
        """A node that starts for the first time."""
        self.config = config
        self.generation = 0
        self.media = {n: Medium(spec.tier.capacity_bytes) for n, spec in enumerate(drives, 1)}
        self.events = self.commands = 0
        self.recent: deque[tuple[Event, list[Command]]] = deque(maxlen=EVENTS_KEPT)
        self.reasons: Counter[str] = Counter()
        self.offset_ns = 0
        self.is_up = False
        self.layouts: dict[bytes, Layout] = {}
        self.restarted: list[Act] = []
        self._drive_specs = drives
        self._hall = hall
        self._digest = hashlib.blake2b(digest_size=8, person=b"kvwise-sim-1")
        self._encode = msgspec.msgpack.Encoder().encode
        self._clients = 0
        self._ticks = 0
        self._balances: dict[int, Balance] = {}
        self._start()
        hall.timeline.after(TICK_NS, self._tick)

    # --- life ---

    def _start(self) -> None:
        """A fresh daemon over whatever the media hold."""
        self.generation += 1
        self.brain = Brain(self.config)
        self.arena = Arena(self.config.tiers[DRAM].capacity_bytes // self.config.page_bytes)
        self.ledger = Ledger(self.config, self.arena, self.layouts)
        self.slots: dict[int, Slot] = {}
        self._watchers: dict[int, list[Act]] = {}
        yard = Yard(
            timeline=self._hall.timeline,
            injector=self._hall.injector,
            arena=self.arena,
            report=self._report,
            clear=self.clear,
            clock_ns=self.clock_ns,
            dice=self._hall.dice,
        )
        self.drives = {
            number: Drive(number, spec, self.media[number], yard)
            for number, spec in enumerate(self._drive_specs, 1)
        }
        for number, balance in self._balances.items():
            spent = replace(balance, level_bytes=0.0)  # nobody knows what was written at the end
            self.handle(Budgeted(self.clock_ns(), number, spent))
        self._recover()
        self.handle(Equipped(self.clock_ns(), self.config.codings))
        self.is_up = True

    def crash(self, *, down_ns: int, capacity_share: float = 1.0) -> None:
        """The daemon dies, and starts again after a while, perhaps with smaller lower tiers."""
        if not self.is_up:
            return
        self.is_up = False
        self._balances = self.brain.balances()
        dice = self._hall.dice.named("crash", self.generation)
        for drive in self.drives.values():
            drive.crash(dice)
        tiers = [self.config.tiers[DRAM]]
        for number, spec in enumerate(self.config.tiers[1:], 1):
            capacity_bytes = int(spec.capacity_bytes * capacity_share)
            tiers.append(replace(spec, capacity_bytes=capacity_bytes))
            self.media[number].capacity_bytes = capacity_bytes
        self.config = replace(self.config, tiers=tuple(tiers))
        self._hall.timeline.after(down_ns, self._restart)

    def _restart(self) -> None:
        self._start()
        for act in self.restarted:
            act()

    def _recover(self) -> None:
        """Tell the brain what each medium holds, in any order, then that this was all."""
        for number, medium in self.media.items():
            groups: dict[tuple[bytes, int], list[tuple[int, Record]]] = {}
            found = self._hall.dice.named("scan", self.generation, number).shuffled(
                list(medium.records.items())
            )
            for location, record in found:
                groups.setdefault((record.space, record.raw_bytes), []).append((location, record))
            for (space, raw_bytes), records in groups.items():
                for first in range(0, len(records), RECORDS_AT_ONCE):
                    few = records[first : first + RECORDS_AT_ONCE]
                    self.handle(self._recovered(number, space, raw_bytes, few))
            self.handle(Recovered(self.clock_ns(), number, b"", b"", b"", b"", b"", 0))

    def _recovered(
        self, tier: int, space: bytes, raw_bytes: int, records: list[tuple[int, Record]]
    ) -> Recovered:
        return Recovered(
            now_ns=self.clock_ns(),
            tier=tier,
            space=space,
            keys=b"".join(record.key for _, record in records),
            parents=b"".join(record.parent for _, record in records),
            locations=struct.pack(f"<{len(records)}Q", *(location for location, _ in records)),
            stored_bytes=struct.pack(f"<{len(records)}I", *(r.stored_bytes for _, r in records)),
            raw_bytes=raw_bytes,
        )

    # --- who is here ---

    def join(self, spaces: Iterable[Namespace]) -> int:
        """A client attaches and opens namespaces; its number."""
        self._clients += 1
        for space in spaces:
            self.layouts[space.digest] = space.layout
            self.handle(Joined(self.clock_ns(), self._clients, space))
        return self._clients

    def leave(self, client: int) -> None:
        """A client is gone."""
        self.handle(Left(self.clock_ns(), client))

    def clear(self) -> None:
        """Somebody has everything dropped that is not in use, if a daemon is there to hear it."""
        if self.is_up:
            self.handle(Cleared(self.clock_ns()))

    def watch(self, lease: int, act: Act) -> None:
        """Have something happen whenever the word of a lease changes, once."""
        self._watchers.setdefault(lease, []).append(act)

    # --- time ---

    def clock_ns(self) -> int:
        """The clock of this node: it runs with the world's, and jumps when it is told to."""
        return self._hall.timeline.now_ns + self.offset_ns

    def _tick(self) -> None:
        """Time passes: late reads are given up, media tell their room, leases expire."""
        self._hall.timeline.after(TICK_NS, self._tick)
        self._ticks += 1
        if not self.is_up:
            return
        for number, drive in self.drives.items():
            for failed in drive.expire():
                self.handle(failed)
            if self._ticks % SPACE_TICKS == 0 and drive.settled:
                self.handle(Space(self.clock_ns(), number, drive.free_bytes))
        self.handle(Tick(self.clock_ns()))

    # --- the brain ---

    @property
    def digest(self) -> str:
        """Names everything that was said so far: equal digests, equal runs."""
        return self._digest.copy().hexdigest()

    def handle(self, event: Event) -> Answer | None:
        """Feed an event, check what comes out, carry it out; the answer if there is one."""
        self.events += 1
        commands = self.brain.handle(event)
        self.commands += len(commands)
        self.recent.append((event, commands))
        said = [(type(word).__name__, word) for word in (event, *commands)]
        self._digest.update(self._encode(said))
        self.ledger.note(event, commands)
        if not self.ledger.recovering and self.events % self._hall.audit_every == 0:
            audit(self.brain, self.ledger)
        answer: Answer | None = None
        for command in commands:
            if isinstance(command, Planned | Granted):
                answer = command
            if isinstance(command, Planned):
                self.reasons[command.decision.why.value] += 1
            self._carry_out(command)
        return answer

    def _report(self, outcome: Report) -> None:
        """A drive tells what became of an item, and what that took."""
        self.handle(outcome)

    def _carry_out(self, command: Command) -> None:
        match command:
            case Load() | Store():
                self.drives[command.tier].submit(command)
            case Drop() if command.tier != DRAM:
                self.drives[command.tier].submit(command)
            case Progress():
                slot = self.slots.setdefault(command.lease, Slot())
                slot.ready, slot.failed = command.ready, command.failed
                self._look(command.lease)
            case Ended():
                self.slots.setdefault(command.lease, Slot()).ended = True
                self._look(command.lease)
            case _:
                pass

    def _look(self, lease: int) -> None:
        for watcher in self._watchers.pop(lease, ()):
            watcher()
