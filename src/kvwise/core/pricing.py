"""Pricing: puts what is known of speeds and queues to a request, and has the best cut chosen.

It changes nothing.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from kvwise.core.cost import Burden
from kvwise.core.layout import Layout
from kvwise.core.plan import Cut, Question, Transfer, choose, runs
from kvwise.core.words import Asked
from kvwise.core.world import Space, World

COMING = 0x80
"""Set in the tier of a row that somebody else is reading from it already."""

LATENESS = 1.25
"""A load that is expected to take more than its longest wait divided by this is not begun."""


@dataclass(frozen=True, slots=True)
class Match:
    """Where an `Asked` request stands: rows to load from, their tiers, and what was matched."""

    rows: array[int] = field(default_factory=lambda: array("I"))
    tiers: bytes = b""
    match_tokens: int = 0


def backlog_s(world: World, event: Asked, space: Space) -> float:
    """Seconds that the engine is busy with earlier prompts."""
    return world.costs.recompute[space.number].work_s(event.backlog_tokens, event.backlog_pairs)


def price(world: World, event: Asked, space: Space, layout: Layout, tiers: bytes) -> Cut:
    """The best cut of chunks that come from `tiers`, marked where a read is under way already."""
    sources, costs, config = runs(tiers), world.costs, world.config
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
        burden = _burden(sources, chunks, space.raw_bytes, len(config.tiers))
        return costs.transfer(space.number, event.client, burden, world.now_ns)

    return choose(question, transfer, costs.recompute[space.number].seconds)


def _burden(
    sources: tuple[tuple[int, int], ...], chunks: int, raw_bytes: int, tiers: int
) -> Burden:
    """What the first `chunks` chunks have to move."""
    burden, left = Burden([0] * tiers, set(), chunks * raw_bytes), chunks
    for tier, count in sources:
        some = min(count, left)
        left -= some
        if tier & COMING:
            burden.awaited.add(tier & ~COMING)
        else:
            burden.read_bytes[tier] += some * raw_bytes
        if not left:
            break
    return burden
