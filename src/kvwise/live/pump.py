"""The pump: feeds events to the brain one at a time and sees that its commands are carried out.

It holds the one lock around the brain. It decides nothing, waits for no tier, and never calls
anything that blocks while it holds the lock.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from kvwise.core.brain import Brain
from kvwise.core.words import (
    DRAM,
    Command,
    Done,
    Drop,
    Ended,
    Event,
    Granted,
    Judged,
    Load,
    Offered,
    Planned,
    Progress,
    Space,
    Store,
    Tick,
)
from kvwise.core.world import BrainConfig
from kvwise.errors import CacheUnavailable
from kvwise.live.clock import deadline_after, now_ns, seconds_until
from kvwise.live.decisions import DecisionLog
from kvwise.live.events import EventLog
from kvwise.live.stats import Latencies
from kvwise.live.workers import Report, Workers
from kvwise.tiers.base import Tier
from kvwise.tiers.dram import Arena, SlotState
from kvwise.units import NS_PER_S

TICK_S = 0.25
"""Time between ticks: leases and throttled writes are looked at this often."""

SPACE_TICKS = 8
"""A tier's filesystem is asked for its free space every so many ticks."""

FLUSH_LOOK_S = 0.005
FLUSH_STALL_S = 2.0
"""A flush gives up after so long without a write under way: the write budget may be spent."""

Answer = Planned | Granted
T = TypeVar("T")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Plant:
    """What the pump drives. Who made it closes it, after the pump.

    Attributes:
        tiers: by index; the arena is not among them.
        threads: how many work on the tiers.
        log, decisions: what is written down, where that is asked for.
    """

    arena: Arena
    tiers: Mapping[int, Tier]
    threads: int
    latencies: Latencies
    log: EventLog | None = None
    decisions: DecisionLog | None = None


class Pump:
    """One brain at work. Every method may be called from any thread."""

    def __init__(self, config: BrainConfig, plant: Plant) -> None:
        """Start the workers; ticks begin with `start`."""
        self._brain = Brain(config)
        self._plant = plant
        self._lock = threading.Lock()
        self._sound = True
        self._stop = threading.Event()
        self._workers = Workers(plant.tiers, plant.arena, self._report, threads=plant.threads)
        self._ticker = threading.Thread(target=self._tick, name="kvwise-tick", daemon=True)

    def start(self) -> None:
        """Begin to tick; call it once everything recovered has been told."""
        self._ticker.start()

    @property
    def is_sound(self) -> bool:
        """Whether the brain still works. It does not after it broke one of its own promises."""
        return self._sound

    def handle(self, events: Sequence[Event], *, wake: bool = True) -> list[Answer]:
        """Feed events in order; the answers come back, the other commands are under way.

        Without `wake` the workers begin when `wake` is called.

        Raises:
            CacheUnavailable: the brain broke earlier.
        """
        with self._lock:
            if not self._sound:
                raise CacheUnavailable("the store stopped after an internal error, see its log")
            answers = self._feed(events)
        if wake:
            self._workers.wake()
        return answers

    def wake(self) -> None:
        """Let the workers begin what was handled without waking them."""
        self._workers.wake()

    def query(self, question: Callable[[Brain], T]) -> T:
        """Ask the brain something that changes nothing."""
        with self._lock:
            return question(self._brain)

    def check(self) -> None:
        """Verify the brain's invariants.

        Raises:
            AssertionError: one is broken.
        """
        self.query(Brain.check)

    def waiting_writes(self) -> int:
        """Objects that are still to be written to a lower tier."""
        return self.query(Brain.waiting_writes)

    def pages_used(self) -> int:
        """Pages of the arena that objects have."""
        free: int = self.query(Brain.snapshot)["levels"]["pages_free"]
        return self._plant.arena.shape.page_count - free

    def flush(self, timeout_s: float) -> bool:
        """Wait until nothing is left to be written; False when time ran out or nothing moves."""
        deadline_ns = deadline_after(timeout_s)
        left, moved_ns = self.waiting_writes(), now_ns()
        while left:
            if not seconds_until(deadline_ns) or now_ns() - moved_ns > FLUSH_STALL_S * NS_PER_S:
                return False
            self._stop.wait(FLUSH_LOOK_S)
            before, left = left, self.waiting_writes()
            if left != before or self._workers.is_writing:
                moved_ns = now_ns()
        return True

    def close(self, timeout_s: float) -> None:
        """Stop ticking and working. What waits to be read or written fails; flush first."""
        self._stop.set()
        if not self._workers.close(timeout_s):
            _log.warning("a worker is stuck in a tier and is left behind")
        if self._ticker.is_alive():
            self._ticker.join(timeout_s)
        with self._lock:
            for log in (self._plant.log, self._plant.decisions):
                if log is not None:
                    log.close()

    # --- under the lock ---

    def _feed(self, events: Sequence[Event]) -> list[Answer]:
        """Feed events and what follows from them at once."""
        answers: list[Answer] = []
        queue = deque(events)
        while queue:
            event = queue.popleft()
            try:
                commands = self._brain.handle(event)
            except BaseException:
                self._sound = False  # for good; it is read without the lock, so never in between
                raise
            if self._plant.log is not None:
                self._plant.log.add(event, commands)
            for command in commands:
                if isinstance(command, Planned | Granted):
                    answers.append(command)
                queue.extend(self._carry_out(event, command))
        return answers

    def _carry_out(self, event: Event, command: Command) -> Sequence[Event]:
        """Start a command; what failed at once comes back as events."""
        arena = self._plant.arena
        match command:
            case Progress():
                state = SlotState.FAILED if command.failed else SlotState.ACTIVE
                arena.progress_write(command.lease, command.ready, state)
            case Ended():
                arena.progress_write(command.lease, 0, SlotState.ENDED)
            case Granted() if command.lease and isinstance(event, Offered):
                arena.progress_write(command.lease, 0, SlotState.ACTIVE)
            case Judged() if self._plant.decisions is not None:
                self._plant.decisions.add(command.decision)
            case Load() | Store():
                return self._workers.submit(command)
            case Drop() if command.tier != DRAM:
                return self._workers.submit(command)
            case _:
                pass
        return ()

    # --- from other threads ---

    def _report(self, job: Load | Store, outcomes: Sequence[Report]) -> None:
        """The workers tell what became of items, and what that took."""
        if isinstance(job, Load):
            for outcome in outcomes:
                if isinstance(outcome, Done):
                    self._plant.latencies.read(job.tier, outcome.elapsed_ns)
        with self._lock:
            if self._sound:
                self._feed(outcomes)
        self._workers.wake()

    def _tick(self) -> None:
        """Let time pass until closed."""
        ticks = 0
        while not self._stop.wait(TICK_S):
            events: list[Event] = [*self._workers.expire()]
            mark = self._workers.settled() if ticks % SPACE_TICKS == 0 else None
            spaces = self._space() if mark is not None else []
            ticks += 1
            with self._lock:
                if not self._sound:
                    return
                if mark == self._workers.settled():
                    events += spaces
                self._feed([*events, Tick(now_ns())])
                for log in (self._plant.log, self._plant.decisions):
                    if log is not None:
                        log.flush()
            self._workers.wake()

    def _space(self) -> list[Event]:
        """What the tiers' media say about their room."""
        return [Space(now_ns(), n, tier.free_bytes) for n, tier in self._plant.tiers.items()]
