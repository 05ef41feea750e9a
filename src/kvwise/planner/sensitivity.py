"""What would change a verdict: inputs turned one at a time, and other hardware in its place.

It decides with the same sequence as the plan and knows no verdict of its own. Requests are not
routed again: where an input changes how much caches hold, nothing is said of router and shared
tier.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from kvwise.planner.advise import decide
from kvwise.planner.bill import chosen, net_usd
from kvwise.planner.demand import Demand
from kvwise.planner.hardware import HOST_MEMORY, Hardware
from kvwise.planner.prices import Prices
from kvwise.planner.routing import Routed
from kvwise.planner.shapes import Precision
from kvwise.planner.site import Change, Decision, Site, Verdict

PREFILL_OFF = 0.26
"""How far nine in ten estimates of computing were off at most."""

REACH = 8.0
STEPS = 6
HALVINGS = 7
"""Inputs are turned up to so many times and down to such a part, in steps; then a change is found
by halving between two steps."""

CXL_BYTES = 2e12
HIGH_DWPD = 3.0
ROUTED = {"shared", "router"}
APART = ROUTED | {"quantise"}
Case = tuple[Site, Demand]


@dataclass(frozen=True, slots=True)
class Knob:
    """One input.

    Attributes:
        name, unit: what it is, and in which unit `value` gives it.
        low, high: how far it may be off, as factors.
        value: what was taken for it.
        turn: the case with so many times of it.
        keeps_room: whether caches hold as much as before.
    """

    name: str
    unit: str
    low: float
    high: float
    value: Callable[[Site, Demand], float]
    turn: Callable[[Site, Demand, float], Case]
    keeps_room: bool = True


@dataclass(frozen=True, slots=True)
class Swing:
    """What levels save beyond their cost when an input is off, in USD a month."""

    knob: Knob
    value: float
    low_usd: float
    high_usd: float


@dataclass(frozen=True, slots=True)
class Other:
    """Other hardware, or another way to keep KV, and what it would make of the plan.

    Attributes:
        name: what is different.
        becomes: verdicts that are others then.
        net_usd: what its levels save in a month beyond their cost.
    """

    name: str
    becomes: Mapping[str, Verdict]
    net_usd: float


def _priced(name: str) -> Callable[[Site, Demand, float], Case]:
    """Turns a price."""

    def turn(site: Site, demand: Demand, factor: float) -> Case:
        price = getattr(site.prices, name)
        turned = replace(price, amount=price.amount * factor)
        return replace(site, prices=replace(site.prices, **{name: turned})), demand

    return turn


def _amount(name: str) -> Callable[[Site, Demand], float]:
    """Tells a price."""

    def amount(site: Site, _: Demand) -> float:
        value: float = getattr(site.prices, name).amount
        return value

    return amount


def _driven(name: str) -> Callable[[Site, Demand, float], Case]:
    """Turns a number of the drives."""

    def turn(site: Site, demand: Demand, factor: float) -> Case:
        turned = replace(site.drive, **{name: getattr(site.drive, name) * factor})
        return replace(site, drive=turned), demand

    return turn


KNOBS = (
    Knob(
        "prefill time",
        "s for the median prompt",
        1 - PREFILL_OFF,
        1 + PREFILL_OFF,
        lambda _, demand: demand.computing_one(demand.typical_tokens),
        lambda site, demand, factor: (site, demand.scaled(slower=factor)),
    ),
    Knob(
        "reuse",
        "of all blocks",
        0.8,
        1.2,
        lambda _, demand: demand.reuse,
        lambda site, demand, factor: (
            site,
            demand.scaled(again=min(factor, 1 / max(demand.reuse, 1e-9))),
        ),
    ),
    Knob(
        "drive rate",
        "GB/s each",
        0.5,
        1.2,
        lambda site, _: site.drive.read_gb_per_s,
        _driven("read_gb_per_s"),
    ),
    Knob(
        "drive rating",
        "drive writes a day",
        0.5,
        3.0,
        lambda site, _: site.drive.dwpd,
        _driven("dwpd"),
    ),
    Knob(
        "GPU memory",
        "GB each",
        0.9,
        1.1,
        lambda site, _: site.hbm_bytes / 1e9,
        lambda site, demand, factor: (replace(site, hbm_bytes=site.hbm_bytes * factor), demand),
        keeps_room=False,
    ),
    Knob("GPU price", "USD an hour", 0.5, 2.0, _amount("gpu_hour"), _priced("gpu_hour")),
    Knob("memory price", "USD a GB", 0.5, 2.5, _amount("dram_gb"), _priced("dram_gb")),
    Knob("drive price", "USD a TB", 0.5, 2.0, _amount("drive_tb"), _priced("drive_tb")),
)


@dataclass(frozen=True, slots=True)
class _Base:
    """What was decided on, with requests routed already."""

    site: Site
    demand: Demand
    decisions: Sequence[Decision]
    routed: Mapping[str, Routed]

    def verdicts(self, knob: Knob, factor: float) -> dict[str, Verdict]:
        """Verdicts when an input is turned; of routing only where levels hold as much as before."""
        case = knob.turn(self.site, self.demand, factor)
        turned = decide(*case, self.routed if knob.keeps_room else {})
        found = _verdicts(turned)
        if _held(turned) != _held(self.decisions):
            before = _verdicts(self.decisions)
            found |= {name: before[name] for name in ROUTED & before.keys()}
        return found


def _held(decisions: Sequence[Decision]) -> dict[str, float]:
    """Bytes of the levels that are to be."""
    levels = chosen(decisions)
    return {one.boundary: one.numbers["bytes"] for one in decisions if one.boundary in levels}


def with_changes(
    site: Site, demand: Demand, decisions: Sequence[Decision], routed: Mapping[str, Routed]
) -> list[Decision]:
    """Decisions with the inputs that would change each, the least change first."""
    found: dict[str, list[Change]] = {one.boundary: [] for one in decisions}
    before, base = _verdicts(decisions), _Base(site, demand, decisions, routed)
    as_one = _verdicts(decide(site, demand, {}))
    for knob in KNOBS:
        if not knob.value(site, demand):
            continue
        watched = {
            name: verdict
            for name, verdict in before.items()
            if knob.keeps_room or as_one.get(name) is verdict
        }
        for direction in (-1, 1):
            for boundary, change in _turned(knob, base, watched, direction).items():
                found[boundary].append(change)
    return [
        replace(one, changes=tuple(sorted(found[one.boundary], key=_distance))) for one in decisions
    ]


def _distance(change: Change) -> float:
    """How far an input must go."""
    return max(change.factor, 1 / change.factor)


def _turned(
    knob: Knob, base: _Base, watched: Mapping[str, Verdict], direction: int
) -> dict[str, Change]:
    """The first change of each verdict when an input is turned one way."""
    steps = [REACH ** (direction * step / STEPS) for step in range(STEPS + 1)]
    found: dict[str, Change] = {}
    for near, far in pairwise(steps):
        verdicts = base.verdicts(knob, far)
        for boundary, before in watched.items():
            if boundary not in found and verdicts.get(boundary, Verdict.NO) is not before:
                found[boundary] = _between(knob, base, boundary, near, far)
    return found


def _between(knob: Knob, base: _Base, boundary: str, near: float, far: float) -> Change:
    """Where a verdict changes, between a factor at which it has not and one at which it has."""
    before = base.verdicts(knob, near).get(boundary, Verdict.NO)
    for _ in range(HALVINGS):
        middle = (near * far) ** 0.5
        if base.verdicts(knob, middle).get(boundary, Verdict.NO) is before:
            near = middle
        else:
            far = middle
    return Change(knob.name, far, base.verdicts(knob, far).get(boundary, Verdict.NO))


def _verdicts(decisions: Sequence[Decision]) -> dict[str, Verdict]:
    return {one.boundary: one.verdict for one in decisions}


def swings(site: Site, demand: Demand, decisions: Sequence[Decision]) -> list[Swing]:
    """What the levels that are to be save when each input is off, the widest first.

    The site has what was decided on, so that what is bought stays what it is.
    """
    levels = chosen(decisions)
    found = []
    for knob in KNOBS:
        value = knob.value(site, demand)
        if not value or not levels:
            continue
        low, high = (
            net_usd(decide(*knob.turn(site, demand, factor), {}), levels)
            for factor in (knob.low, knob.high)
        )
        found.append(Swing(knob, value, low, high))
    return sorted(found, key=lambda one: -abs(one.high_usd - one.low_usd))


def others(site: Site, demand: Demand, known: Hardware, gpu: str) -> list[Other]:
    """What other hardware and other precisions would make of the plan, hosts as one cache."""
    base = _verdicts(decide(site, demand, {}))
    found = []
    for name, case in _cases(site, known, gpu).items():
        changed = decide(case, demand, {})
        now = _verdicts(changed)
        becomes = {
            boundary: now.get(boundary, Verdict.NO)
            for boundary, before in base.items()
            if boundary not in APART and now.get(boundary, Verdict.NO) is not before
        }
        found.append(Other(name, becomes, net_usd(changed, chosen(changed))))
    return found


def _cases(site: Site, known: Hardware, gpu: str) -> dict[str, Site]:
    """Sites that differ in one thing."""
    cases = {}
    for precision in (Precision.FP8, Precision.NVFP4):
        if precision.value < site.kept.kv.value:
            kept = replace(site.kept, kv=precision)
            cases[f"KV in {precision.name}"] = replace(site, kept=kept)
    for name, tier in known.tiers.items():
        prices = Prices.of(known, gpu, name)
        if tier.per_gpu and name not in {site.dram.name, HOST_MEMORY}:
            cases[f"memory behind {name}"] = replace(site, dram=tier)
        elif tier.dwpd and name != site.drive.name and site.drives:
            cases[f"drives of {name}"] = replace(site, drive=tier, prices=prices)
    if site.drive.dwpd and site.drives:
        rated = replace(site.drive, dwpd=HIGH_DWPD)
        cases[f"drives for {HIGH_DWPD:g} writes a day"] = replace(site, drive=rated)
        cases["twice as many drives"] = replace(site, drives=2 * site.drives)
    cxl = known.tiers.get("cxl")
    if cxl is not None and cxl.name != site.drive.name:
        prices = Prices.of(known, gpu, cxl.name)
        cases[f"{CXL_BYTES / 1e12:g} TB of CXL memory a host, no drives"] = replace(
            site, drive=cxl, drives=1, drive_bytes=CXL_BYTES, prices=prices
        )
    return cases
