"""Pricing: puts what is known of speeds and queues to a request, and has the best cut chosen.

It keeps no state but what it passed over, see `explore`.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from kvwise.core.cost import Burden, Recompute
from kvwise.core.layout import Layout
from kvwise.core.plan import Computing, Cut, Question, Transfer, choose, look, runs
from kvwise.core.words import Asked, Why
from kvwise.core.world import Space, World

COMING = 0x80
"""Set in the tier of a row that somebody else is reading from it already."""

LATENESS = 1.25
"""A load that is expected to take more than its longest wait divided by this is not begun."""


PASSED_OVER = (Why.SLOWER, Why.TAIL_SLOWER, Why.TOO_LATE)
"""Reasons why something that was found on a tier is not loaded, though it could be."""


@dataclass(frozen=True, slots=True)
class Match:
    """Where an `Asked` request stands: rows to load from, their tiers, and what was matched.

    Attributes:
        storing_tokens: beyond what can be loaded, tokens that are being stored just now.
    """

    rows: array[int] = field(default_factory=lambda: array("I"))
    tiers: bytes = b""
    match_tokens: int = 0
    storing_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Found:
    """What may be loaded: rows, and the tier of each, marked where a read is under way already."""

    rows: array[int]
    tiers: bytes


def backlog_s(world: World, event: Asked, space: Space) -> float:
    """Seconds that the engine is busy with earlier prompts."""
    if not event.backlog_tokens and not event.backlog_pairs:
        return 0.0
    costs = world.costs.recompute[space.number]
    work_s = costs.work_s(event.backlog_tokens, event.backlog_pairs)
    return work_s * costs.crowding(event.requests)


def price(world: World, event: Asked, space: Space, layout: Layout, found: Found) -> Cut:
    """The best cut of what was found.

    Now and then it is one chunk more, to measure a tier that would not be loaded from.
    """
    tiers, costs, config = found.tiers, world.costs, world.config
    sources = runs(tiers)
    each_bytes = [
        world.blocks.mean_bytes(tier, found.rows) or space.raw_bytes
        for tier in range(len(config.tiers))
    ]
    question = Question(
        sources=sources,
        chunk_tokens=layout.chunk_tokens,
        skip_tokens=event.local_tokens % layout.chunk_tokens,
        local_tokens=event.local_tokens,
        total_tokens=event.total_tokens,
        policy=config.policy,
        margin=config.margin,
        backlog_s=backlog_s(world, event, space),
        layers=event.layers,
        limit_s=config.load_timeout_ns / 1e9 / LATENESS,
    )

    def transfer(chunks: int) -> Transfer:
        burden = _burden(sources, chunks, each_bytes, chunks * space.raw_bytes)
        return costs.transfer(space.number, event.client, burden, world.now_ns)

    computing = _computing(costs.recompute[space.number], event.requests)
    cut = choose(question, transfer, computing)
    if cut.why not in PASSED_OVER or tiers[cut.chunks] & COMING:
        return cut
    tier, cached = tiers[cut.chunks], event.local_tokens
    costs.explorer.passed(tier, computing.seconds(event.total_tokens - cached, cached))
    more = look(question, transfer, computing, cut.chunks + 1)
    gain_s = cut.recompute_s - cut.exposed_s if cut.chunks else 0.0
    cost_s = max(0.0, gain_s - (more.recompute_s - more.exposed_s))
    fits = more.transfer.total_s <= question.limit_s
    return more if fits and costs.explorer.may_look(tier, cost_s) else cut


def _computing(recompute: Recompute, requests: int) -> Computing:
    """How long an engine takes to compute, with so many requests in a step."""
    crowding = recompute.crowding(requests)

    def seconds(new: int, cached: int) -> float:
        return recompute.seconds(new, cached) * crowding

    def deviation_s(new: int, cached: int) -> float:
        return recompute.deviation_s(new, cached) * crowding

    return Computing(seconds, deviation_s)


def _burden(
    sources: tuple[tuple[int, int], ...], chunks: int, each_bytes: list[int], copied_bytes: int
) -> Burden:
    """What the first `chunks` chunks have to move, with the bytes of one on each tier."""
    burden, left = Burden([0] * len(each_bytes), set(), copied_bytes), chunks
    for tier, count in sources:
        some = min(count, left)
        left -= some
        if tier & COMING:
            burden.awaited.add(tier & ~COMING)
        else:
            burden.read_bytes[tier] += some * each_bytes[tier]
        if not left:
            break
    return burden
