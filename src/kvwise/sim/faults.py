"""Faults: what can go wrong, drawn per scenario and per operation. It breaks nothing itself.

Swarm testing (Groce et al., 2012): every seed first chooses which faults exist at all, then how
often; most seeds have few kinds, in rates that differ by orders of magnitude. A single mixture in
which everything fails a little would never show what happens when one thing fails all the time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from kvwise.errors import FailureKind
from kvwise.sim.dice import Dice
from kvwise.units import NS_PER_MS


class Fault(Enum):
    """Everything that can go wrong."""

    # each time something is done on a tier
    READ_IO = "read io"
    READ_CORRUPT = "read corrupt"
    READ_MISSING = "read missing"
    READ_TIMEOUT = "read timeout"
    READ_CLOSED = "read closed"
    READ_FULL = "read full"
    READ_STALL = "read stall"
    WRITE_IO = "write io"
    WRITE_FULL = "write full"
    WRITE_CLOSED = "write closed"
    WRITE_STALL = "write stall"
    # each time a client does something
    PARTIAL_FILL = "partial fill"
    ABORT = "abort"
    UNUSED_PLAN = "unused plan"
    FEWER_CHUNKS = "fewer chunks"
    ASK_AGAIN = "ask again"
    STRAY_WORD = "stray word"
    WILD_TIMING = "wild timing"
    STALE_CLOCK = "stale clock"
    DEATH_IN_TRANSFER = "client death in a transfer"
    FREEZE_IN_TRANSFER = "client freeze in a transfer"
    # at a time of its own
    CLIENT_DEATH = "client death"
    CLIENT_FREEZE = "client freeze"
    CLEAR = "clear"
    CLEAR_SPACE = "clear one namespace"
    RESTART = "daemon restart"
    SMALLER_CAP = "daemon restart, smaller cap"
    SLOW_TIER = "slow tier"
    FULL_TIER = "full tier"
    DEAD_TIER = "dead tier"
    LOST_RECORDS = "lost records"
    ROTTEN_RECORDS = "rotten records"
    CLOCK_JUMP = "clock jump"
    # each time a client of several ranks moves something, or something is read from a tier
    RANK_LAGS = "rank lags"
    CLEAR_IN_READ = "clear during a read"


READ_KINDS: dict[Fault, FailureKind] = {
    Fault.READ_IO: FailureKind.IO,
    Fault.READ_CORRUPT: FailureKind.CORRUPT,
    Fault.READ_MISSING: FailureKind.MISSING,
    Fault.READ_TIMEOUT: FailureKind.TIMEOUT,
    Fault.READ_CLOSED: FailureKind.CLOSED,
    Fault.READ_FULL: FailureKind.FULL,
}
"""How a read fails."""

WRITE_KINDS: dict[Fault, FailureKind] = {
    Fault.WRITE_IO: FailureKind.IO,
    Fault.WRITE_FULL: FailureKind.FULL,
    Fault.WRITE_CLOSED: FailureKind.CLOSED,
}
"""How a write fails."""

UPSETS = (
    Fault.CLIENT_DEATH,
    Fault.CLIENT_FREEZE,
    Fault.CLEAR,
    Fault.CLEAR_SPACE,
    Fault.RESTART,
    Fault.SMALLER_CAP,
    Fault.SLOW_TIER,
    Fault.FULL_TIER,
    Fault.DEAD_TIER,
    Fault.LOST_RECORDS,
    Fault.ROTTEN_RECORDS,
    Fault.CLOCK_JUMP,
)
"""Faults that happen at a time of their own; the others happen to operations."""

RATES = (0.01, 0.05, 0.2, 0.6)
LASTS_MS = (20, 200, 1500)
UPSETS_MAX = 3
"""Most upsets of one kind in one scenario."""


@dataclass(frozen=True, slots=True)
class Upset:
    """Something that goes wrong at a time of its own.

    Attributes:
        target: number of an engine, a tier or a namespace, taken modulo how many there are.
        lasts_ns: how long it lasts, for what lasts.
        share: part of the records that are harmed, or of its capacity that a tier keeps.
    """

    at_ns: int
    kind: Fault
    target: int = 0
    lasts_ns: int = 0
    share: float = 0.5


@dataclass(frozen=True, slots=True)
class Plan:
    """Which faults exist in one scenario.

    Attributes:
        rates: probability of each fault that happens to operations.
        upsets: those with a time of their own, in order.
    """

    rates: Mapping[Fault, float] = field(default_factory=dict)
    upsets: tuple[Upset, ...] = ()


def draw_plan(dice: Dice, span_ns: int) -> Plan:
    """Choose which faults exist, then how often; `span_ns` is when the last request arrives."""
    if dice.chance(0.1):
        return Plan()
    density = dice.pick((0.1, 0.3, 0.6))
    rates, upsets = {}, []
    for kind in Fault:
        if not dice.chance(density):
            continue
        if kind not in UPSETS:
            rates[kind] = dice.pick(RATES)
            continue
        for _ in range(dice.between(1, UPSETS_MAX)):
            lasts_ns = int(dice.wait(dice.pick(LASTS_MS)) * NS_PER_MS)
            upsets.append(Upset(dice.below(span_ns + 1), kind, dice.below(1 << 16), lasts_ns))
    return Plan(rates, tuple(sorted(upsets, key=lambda upset: upset.at_ns)))


class Injector:
    """Says whether a fault happens now, and counts those that did.

    A draw depends on what is being done and how often it was done before, so that the same read
    fails again when another request is taken out of the scenario.
    """

    def __init__(self, dice: Dice, rates: Mapping[Fault, float]) -> None:
        """Faults that `rates` does not name never strike."""
        self._dice = dice
        self._rates = rates
        self._times: Counter[tuple[Fault, str | bytes]] = Counter()
        self.seen: Counter[Fault] = Counter()

    def strikes(self, fault: Fault, name: str | bytes) -> bool:
        """Whether a fault happens to the thing of this name, this time."""
        rate = self._rates.get(fault, 0.0)
        if not rate:
            return False
        self._times[fault, name] += 1
        struck = self._dice.named(fault.value, name, self._times[fault, name]).chance(rate)
        if struck:
            self.seen[fault] += 1
        return struck

    def dice(self, fault: Fault, name: str | bytes) -> Dice:
        """Draws for the details of a fault that just struck."""
        return self._dice.named("detail", fault.value, name, self._times[fault, name])

    def count(self, fault: Fault) -> None:
        """A fault with a time of its own happened."""
        self.seen[fault] += 1
