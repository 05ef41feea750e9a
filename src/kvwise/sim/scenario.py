"""Scenario: everything that one seed means, as plain data. It runs nothing.

A scenario can be cut: requests, kinds of faults and upsets may be taken out, and what is left goes
on as before, because every later draw is named (see `dice`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from kvwise.core.coding import CODECS
from kvwise.core.elements import Elements, Kind
from kvwise.core.layout import Group, GroupKind, Layout
from kvwise.core.policies import POLICIES
from kvwise.core.words import Namespace, TierSpec
from kvwise.core.world import BrainConfig
from kvwise.sim.codecs import LAWS
from kvwise.sim.dice import Dice
from kvwise.sim.drive import DriveSpec
from kvwise.sim.engine import BLOCK_TOKENS, EngineSpec
from kvwise.sim.faults import WRITE_KINDS, Fault, Plan, Upset, draw_plan
from kvwise.sim.machines import DriveLaw, GpuLaw
from kvwise.sim.workload import CHUNK_TOKENS, Request, Traffic, draw_requests
from kvwise.units import KIB, MIB, NS_PER_MS, NS_PER_S, round_up

PAGE_BYTES = 128 * KIB
UNIT_BYTES = 4 * KIB
HEADER_BYTES = 4 * KIB
READING_PAGES = 24
READING_OBJECTS = 60
POWER_CUTS = 5
"""Sizes where much is read from below the arena: it holds eight objects, the tiers below sixty."""

REQUESTS = 60
"""Requests of a scenario, unless asked otherwise: a few hundred events."""

BF16 = Elements(Kind.BF16, 512, 1, 512)
LARGE = Namespace(
    b"sim: large model",
    "large",
    Layout(BLOCK_TOKENS, CHUNK_TOKENS, (Group(GroupKind.FULL, (40 * KIB, 35 * KIB)),)),
    elements=BF16,
)
SMALL = Namespace(
    b"sim: small model",
    "small",
    Layout(BLOCK_TOKENS, CHUNK_TOKENS, (Group(GroupKind.FULL, (14 * KIB, 14 * KIB)),)),
    elements=BF16,
)
HYBRID = Namespace(
    b"sim: two windows",
    "hybrid",
    Layout(
        BLOCK_TOKENS,
        2 * CHUNK_TOKENS,
        (
            Group(GroupKind.FULL, (6 * KIB, 7 * KIB)),
            Group(GroupKind.WINDOW, (5 * KIB,), window_tokens=3 * BLOCK_TOKENS),
        ),
        ranks=2,
    ),
)
"""Two groups, larger chunks, two ranks whose parts of an object meet within a page, and numbers of
which nothing is known."""

OBJECT_BYTES = round_up(LARGE.layout.object_bytes + HEADER_BYTES, UNIT_BYTES)
"""What the largest object takes on a lower tier."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One node, its engines, what is asked of them, and what goes wrong."""

    seed: int
    brain: BrainConfig
    drives: tuple[DriveSpec, ...]
    engines: tuple[EngineSpec, ...]
    requests: tuple[Request, ...]
    plan: Plan = field(default_factory=Plan)


def draw(seed: int, requests: int = REQUESTS) -> Scenario:
    """The scenario of a seed."""
    dice = Dice(seed).named("scenario")
    engines = _engines(dice.named("engines"))
    traffic = Traffic(requests, engines=len(engines), gap_ms=dice.pick((5.0, 40.0, 200.0)))
    asked = draw_requests(traffic, dice.named("requests"))
    drives = _drives(dice.named("drives"))
    scenario = Scenario(
        seed=seed,
        brain=_brain(dice.named("brain"), drives),
        drives=drives,
        engines=engines,
        requests=asked,
        plan=draw_plan(dice.named("faults"), asked[-1].at_ns if asked else 0),
    )
    reading = dice.named("reading")
    return _reading(scenario, reading) if reading.chance(0.3) else scenario


def _reading(scenario: Scenario, dice: Dice) -> Scenario:
    """The same where much is read from below the arena: engines keep nothing and always load.

    What keeps objects from getting there does not happen, so that all else happens to reads.
    """
    engines = tuple(replace(engine, device_chunks=0) for engine in scenario.engines)
    brain = scenario.brain
    arena = replace(brain.tiers[0], capacity_bytes=READING_PAGES * PAGE_BYTES)
    tiers = tuple(
        replace(tier, capacity_bytes=max(tier.capacity_bytes, READING_OBJECTS * OBJECT_BYTES))
        for tier in brain.tiers[1:]
    )
    pairs = zip(scenario.drives, tiers, strict=True)
    spared = {*WRITE_KINDS, Fault.FULL_TIER, Fault.DEAD_TIER}
    rates = {fault: rate for fault, rate in scenario.plan.rates.items() if fault not in spared}
    upsets = [upset for upset in scenario.plan.upsets if upset.kind not in spared]
    if dice.chance(0.5):
        rates[Fault.CLEAR_IN_READ] = 0.1
        upsets += _power_cuts(
            dice, max((request.at_ns for request in scenario.requests), default=0)
        )
    return replace(
        scenario,
        brain=replace(brain, policy="load", tiers=(arena, *tiers), tokens_min=0, chance_min=0.0),
        drives=tuple(replace(drive, tier=tier) for drive, tier in pairs),
        engines=engines,
        plan=Plan(rates, tuple(sorted(upsets, key=lambda upset: upset.at_ns))),
    )


def _power_cuts(dice: Dice, span_ns: int) -> Iterator[Upset]:
    """Clears, each followed by a power cut: what was freed may be there beside what was stored."""
    for _ in range(POWER_CUTS):
        at_ns = dice.below(span_ns + 1)
        yield Upset(at_ns, Fault.CLEAR)
        later_ns = int(dice.wait(1000.0) * NS_PER_MS)
        yield Upset(at_ns + later_ns, Fault.RESTART, lasts_ns=20 * NS_PER_MS)


def _engines(dice: Dice) -> tuple[EngineSpec, ...]:
    """One or two engines, of one model or of two."""
    count = dice.between(1, 2)
    spaces = [dice.pick((LARGE, LARGE, SMALL)) for _ in range(count)]
    spaces = [
        HYBRID if dice.named("hybrid", number).chance(0.3) else space
        for number, space in enumerate(spaces)
    ]
    return tuple(
        EngineSpec(
            space=space,
            gpu=GpuLaw(
                step_s=dice.pick((1e-3, 8e-3)),
                token_s=dice.pick((2e-6, 5e-5, 4e-4)),
                pair_s=dice.pick((0.0, 2e-9, 5e-8)),
                crowd=dice.pick((0.0, 0.05)),
            ),
            link_bytes_per_s=dice.pick((1e8, 2e9, 25e9)),
            link_latency_ns=dice.pick((5_000, 200_000)),
            device_chunks=dice.pick((0, 2, 12)),
        )
        for space in spaces
    )


def _drives(dice: Dice) -> tuple[DriveSpec, ...]:
    """No, one or two tiers below the arena."""
    names = ("disk", "far")[: dice.pick((0, 1, 1, 1, 2))]
    drives = []
    for far, name in enumerate(names):
        rate = dice.pick((5e7, 1e9, 6e9)) / (1 + 3 * far)
        law = DriveLaw(
            latency_ns=dice.pick((80_000, 2_000_000)),
            read_bytes_per_s=rate,
            write_bytes_per_s=rate / dice.between(1, 3),
            mixed=dice.pick((0.5, 0.9)),
            depth=dice.pick((1, 2, 8)),
        )
        tier = TierSpec(
            name=name,
            capacity_bytes=dice.pick((3, 20, 200)) * OBJECT_BYTES + dice.below(OBJECT_BYTES),
            unit_bytes=UNIT_BYTES,
            overhead_bytes=HEADER_BYTES,
            rate_bytes_per_s=1e9,
            latency_s=5e-4,
        )
        drives.append(DriveSpec(law, tier, shrinks=dice.chance(0.3)))
    return tuple(drives)


def _brain(dice: Dice, drives: tuple[DriveSpec, ...]) -> BrainConfig:
    """Settings as users make them, small ones more often."""
    pages = dice.pick((6, 12, 24, 60))
    arena = TierSpec("dram", pages * PAGE_BYTES, PAGE_BYTES, 0, 1e10, 0.0)
    hour_bytes = dice.pick((0, 0, 0, 6 * OBJECT_BYTES))
    return BrainConfig(
        page_bytes=PAGE_BYTES,
        tiers=(arena, *(drive.tier for drive in drives)),
        policy=dice.pick(("auto", "auto", "auto", "load", "load", "recompute")),
        margin=dice.pick((0.0, 0.1, 0.5)),
        load_timeout_ns=dice.pick((300 * NS_PER_MS, 10 * NS_PER_S)),
        lease_ttl_ns=dice.pick((400 * NS_PER_MS, 3 * NS_PER_S, 30 * NS_PER_S)),
        tokens_min=dice.pick((0, 0, 0, 150)),
        queue_bytes=dice.pick((1, 4, 256)) * MIB,
        write_bytes_per_day=24 * hour_bytes,
        eviction=dice.pick(tuple(POLICIES)),
        chance_min=dice.named("chance").pick((0.0, 0.0, 0.02, 0.3)),
        codec=dice.named("codec").pick(CODECS),
        codings=tuple(LAWS),
    )
