"""Checkers: compare what the brain holds with the ledger, copy by copy. They change nothing.

The ledger refuses wrong commands as they come. What is compared here is state: it catches what the
brain gets wrong without saying so, and what the ledger itself got wrong.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from kvwise.core.audit import Holding
from kvwise.core.brain import Brain
from kvwise.core.keep import SHARE_MAX
from kvwise.core.keys import ROOT
from kvwise.core.shelf import State
from kvwise.core.stores import JOBS_MAX
from kvwise.core.words import DRAM
from kvwise.sim.accounts import Life
from kvwise.sim.ledger import Ledger
from kvwise.sim.machines import Medium
from kvwise.sim.rules import require

_MAY_BE: dict[State, set[Life | None]] = {
    State.ABSENT: {None},
    State.STORING: {Life.COMING},
    State.MOVING: {Life.COMING},
    State.READY: {Life.WHOLE},
    State.EVICTING: {None, Life.COMING, Life.WHOLE},
}
"""What the ledger may say of a copy in each state."""


def audit(brain: Brain, ledger: Ledger) -> None:
    """Compare everything, after any event but the ones inside a recovery.

    Raises:
        AssertionError: the brain is not consistent in itself, or does not agree with the ledger.
    """
    brain.check()
    snapshot = brain.snapshot()
    _levels(snapshot["levels"], ledger)
    _counters(snapshot["counters"], ledger)
    _holdings({holding.key: holding for holding in brain.holdings()}, ledger)


def _holdings(holdings: dict[bytes, Holding], ledger: Ledger) -> None:
    """Every copy, pin and parent."""
    copies: Counter[int] = Counter()
    for key, holding in holdings.items():
        for tier, state in enumerate(holding.states):
            copies[tier] += _copy(tier, holding, state, ledger)
        balanced = holding.pins == ledger.pins[key]
        require("pins balance", (holding, ledger.pins[key]), held=balanced)
        if holding.parent == ROOT:
            continue
        above = holdings.get(holding.parent)
        require("no suffix without its prefix", holding, held=above is not None)
        if above is not None:
            hidden = State.EVICTING in above.states
            fair = not hidden or State.EVICTING in holding.states
            require("no suffix without its prefix", (holding, above), held=fair)
    for tier, found in enumerate(ledger.tiers):
        unknown = [key.hex() for key in found if key not in holdings]
        require("every copy is known", (tier, unknown), held=copies[tier] == len(found))


def _copy(tier: int, holding: Holding, state: State, ledger: Ledger) -> bool:
    """Compare one copy; whether the ledger has it."""
    copy = ledger.tiers[tier].get(holding.key)
    life = copy.life if copy is not None else None
    require("states agree", (tier, holding, life), held=life in _MAY_BE[state])
    if copy is not None and state is State.READY:
        here = copy.pages[0] if copy.pages else copy.location
        require("places agree", (tier, holding, copy), held=here == holding.locations[tier])
        whole = tier != DRAM or ledger.arena.holds(copy.pages, holding.key)
        require("no READY without bytes", (tier, holding), held=whole)
    return copy is not None


def _levels(levels: dict[str, Any], ledger: Ledger) -> None:
    """Sizes and numbers of things."""
    for tier, spec in enumerate(ledger.config.tiers):
        said = levels["tiers"][spec.name]
        used_bytes = ledger.used_bytes[tier]
        require(
            "used bytes agree", (spec.name, said, used_bytes), held=said["used_bytes"] == used_bytes
        )
        require("caps hold", (spec.name, used_bytes), held=used_bytes <= spec.capacity_bytes)
        if tier:
            bounded = said["queued_bytes"] <= ledger.config.queue_bytes
            require("queues are bounded", said, held=bounded)
    page_bytes = ledger.config.page_bytes
    share = levels["hint_pinned_bytes"] <= ledger.config.tiers[DRAM].capacity_bytes * SHARE_MAX
    require("hints keep no more than their share", levels, held=share)
    pages = (ledger.config.tiers[DRAM].capacity_bytes - ledger.used_bytes[DRAM]) // page_bytes
    require("free pages agree", (levels, pages), held=levels["pages_free"] == pages)
    pins = sum(ledger.pins.values())
    require("pins are counted", (levels, pins), held=levels["pins"] == pins)
    leases = {"load": len(ledger.promises), "store": len(ledger.grants)}
    require("leases balance", (levels, leases), held=levels["leases"] == leases)
    busy = levels["jobs"]["store"]
    require("jobs are bounded", levels["jobs"], held=busy <= JOBS_MAX)
    jobs = sum(levels["jobs"].values())
    require("jobs balance", (levels, len(ledger.jobs)), held=jobs == len(ledger.jobs))


def _counters(counters: dict[str, Any], ledger: Ledger) -> None:
    """What both have counted."""
    mine = ledger.tallies
    names = ["hit_tokens", "read_bytes", "written_bytes", "failures", "dropped"]
    pairs = [(name, counters[name], getattr(mine, name)) for name in names]
    pairs.append(("leases_expired", {"": counters["leases_expired"]}, {"": mine.leases_expired}))
    refused = {why: n for why, n in counters["refused"].items() if why.startswith("dram|")}
    pairs.append(("refused", refused, mine.refused))
    if mine.remembers_all:
        pairs.append(("decisions", counters["decisions"], mine.decisions))
        pairs.append(("asked_tokens", {"": counters["asked_tokens"]}, {"": mine.asked_tokens}))
    for name, said, counted in pairs:
        agree = +Counter(said) == +Counter(counted)
        require(f"{name} agree", (said, dict(counted)), held=agree)


def at_rest(ledger: Ledger, media: dict[int, Medium]) -> None:
    """Nothing is under way any more: nothing may be held, and media hold what is known, no more.

    Raises:
        AssertionError: something leaked.
    """
    require("leases end", ledger.promises, held=not ledger.promises)
    require("store leases end", ledger.grants, held=not ledger.grants)
    require("jobs end", ledger.jobs, held=not ledger.jobs)
    require("pins end", ledger.pins, held=not ledger.pins)
    for tier, medium in media.items():
        known = {copy.location for copy in ledger.tiers[tier].values()}
        leaked = [at for at in medium.records if at not in known]
        require("no record is forgotten", (tier, leaked), held=not leaked)
        fits = medium.used_bytes <= medium.capacity_bytes
        require("caps hold on the medium", (tier, medium.used_bytes), held=fits)


def empty(brain: Brain, ledger: Ledger, media: dict[int, Medium]) -> None:
    """Everything was cleared and everybody left.

    Raises:
        AssertionError: something stayed.
    """
    audit(brain, ledger)
    levels = brain.snapshot()["levels"]
    require("a cleared cache is empty", levels, held=not levels["blocks"])
    require("everybody left", levels, held=not levels["clients"])
    for medium in media.values():
        require("a cleared medium is empty", medium.records, held=not medium.records)
