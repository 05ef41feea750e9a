"""What there is to know about a trace before it is used: lengths, sessions, reuse, and its price.

Reuse here is what an engine could do with a cache that never forgets, or with an LRU of a size. It
says nothing of whether loading would be faster than computing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvwise.sim.trace.assembly import Report
from kvwise.sim.trace.distance import Column, Reuse, measure_reuse
from kvwise.sim.trace.records import NO_SESSION, Trace
from kvwise.units import NS_PER_S

TURNS = (1, 2, 3, 4, 6, 11, 21, 51)
"""First turns of the groups in which reuse is told."""

SHARES = (0.5, 0.8, 0.9, 0.95, 0.99)
"""Of the hits of a cache that never forgets: how large a cache must be to have these."""

POINTS_MAX = 10
KNEE_GAIN = 0.05
"""Beyond the knee, a cache twice as large brings less than this share of all hits."""

KNEE_STEPS = 8
"""How finely the knee is looked for: steps to double a capacity."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths in tokens."""

    total: int
    mean: float
    p50: float
    p95: float
    max: int


@dataclass(frozen=True, slots=True)
class Turns:
    """Reuse in a group of turns, from the first to the last of them."""

    first: int
    last: int
    requests: int
    input_blocks: int
    reuse: float


@dataclass(frozen=True, slots=True)
class Point:
    """What an LRU of a size would hit.

    Attributes:
        hit_ratio: hit blocks over all input blocks.
        share: hits over those of a cache that never forgets.
    """

    capacity_tokens: int
    hit_ratio: float
    share: float


@dataclass(frozen=True, slots=True)
class Blocks:
    """What a trace with blocks tells about reuse.

    Attributes:
        reuse: share of the input blocks that a cache that never forgets would hit.
        requests_with_hit: share of the requests with at least one such block.
        once: share of the different blocks that only one request has.
        gap_s: how long before a hit the block was last touched: quantiles by name.
        turns: empty where sessions are not told apart.
        curve: at capacities in steps of about three.
        needed: at the capacities that bring certain shares of all hits.
        knee: where twice the capacity begins to bring little.
    """

    block_tokens: int
    input_blocks: int
    distinct_blocks: int
    reuse: float
    requests_with_hit: float
    once: float
    gap_s: dict[str, float]
    turns: tuple[Turns, ...]
    curve: tuple[Point, ...]
    needed: tuple[Point, ...]
    knee: Point


@dataclass(frozen=True, slots=True)
class Summary:
    """A trace in figures.

    Attributes:
        sessions, session_requests_max: 0 where sessions are not told apart.
        unanswered: requests whose answer has no token.
        subagent_requests: those of agents that a session started.
        blocks: None where the trace tells nothing of blocks.
    """

    format: str
    requests: int
    span_s: float
    sessions: int
    session_requests_max: int
    subagent_requests: int
    unanswered: int
    models: dict[str, int]
    input_tokens: Lengths
    output_tokens: Lengths
    blocks: Blocks | None


def summarise(trace: Trace, report: Report) -> Summary:
    """Measure a trace."""
    requests = trace.requests
    sizes = Counter(r.session for r in requests if r.session != NO_SESSION)
    reuse = measure_reuse(trace, report)
    return Summary(
        format=trace.format,
        requests=len(requests),
        span_s=(requests[-1].arrival_ns - requests[0].arrival_ns) / NS_PER_S,
        sessions=len(sizes),
        session_requests_max=max(sizes.values(), default=0),
        subagent_requests=sum(r.agent > 0 for r in requests),
        unanswered=sum(r.output_tokens == 0 for r in requests),
        models=dict(Counter(r.model for r in requests if r.model).most_common()),
        input_tokens=_lengths([r.input_tokens for r in requests]),
        output_tokens=_lengths([r.output_tokens for r in requests]),
        blocks=_blocks(trace, reuse) if reuse.input_blocks else None,
    )


def _lengths(tokens: Sequence[int]) -> Lengths:
    """Lengths in figures."""
    column = np.array(tokens, dtype=np.int64)
    p50, p95 = np.percentile(column, (50, 95)).tolist()
    return Lengths(int(column.sum()), float(column.mean()), p50, p95, int(column.max()))


def _blocks(trace: Trace, reuse: Reuse) -> Blocks:
    """All about reuse."""
    hits = np.bincount(reuse.request, reuse.blocks, minlength=len(trace.requests))
    return Blocks(
        block_tokens=trace.block_tokens,
        input_blocks=reuse.input_blocks,
        distinct_blocks=reuse.distinct_blocks,
        reuse=reuse.hit_blocks / reuse.input_blocks,
        requests_with_hit=int(np.count_nonzero(hits)) / len(trace.requests),
        once=reuse.once_blocks / reuse.distinct_blocks,
        gap_s=_gaps(trace, reuse),
        turns=_turns(trace, hits.astype(np.int64)),
        curve=tuple(_point(trace, reuse, capacity) for capacity in _capacities(trace, reuse)),
        needed=tuple(
            _point(trace, reuse, reuse.capacity_for(share) * trace.block_tokens) for share in SHARES
        ),
        knee=_point(trace, reuse, _knee(reuse) * trace.block_tokens),
    )


def _point(trace: Trace, reuse: Reuse, capacity_tokens: int) -> Point:
    """The hit ratio at a capacity."""
    ratio = reuse.hit_ratio(capacity_tokens // trace.block_tokens)
    share = ratio * reuse.input_blocks / max(1, reuse.hit_blocks)
    return Point(capacity_tokens, ratio, share)


def _gaps(trace: Trace, reuse: Reuse) -> dict[str, float]:
    """Quantiles of the time since the last touch, over all hit blocks."""
    if not reuse.hit_blocks:
        return {}
    arrivals = np.array([r.arrival_ns for r in trace.requests], dtype=np.int64)
    gaps = (arrivals[reuse.request] - arrivals[reuse.owner]) / NS_PER_S
    order = np.argsort(gaps, kind="stable")
    below = np.cumsum(reuse.blocks[order])
    return {
        f"p{percent}": float(gaps[order[np.searchsorted(below, percent / 100 * below[-1])]])
        for percent in (50, 90, 99)
    }


def _turns(trace: Trace, hits: Column) -> tuple[Turns, ...]:
    """Reuse by turn, later ones in groups."""
    turn = np.array([r.turn if r.session != NO_SESSION else 0 for r in trace.requests])
    blocks = np.array([len(r.blocks) for r in trace.requests], dtype=np.int64)
    found = []
    for first, after in zip(TURNS, (*TURNS[1:], int(turn.max()) + 1), strict=True):
        here = (turn >= first) & (turn < after)
        if here.any():
            total = int(blocks[here].sum())
            reuse = int(hits[here].sum()) / max(1, total)
            last = int(turn[here].max())
            found.append(Turns(first, last, int(here.sum()), total, reuse))
    return tuple(found)


def _capacities(trace: Trace, reuse: Reuse) -> list[int]:
    """Round capacities in tokens up to where all is hit: 1, 3, 10, 30 and so on."""
    enough = max(1, reuse.capacity_for(1.0)) * trace.block_tokens
    found = [1]
    while found[-1] < enough:
        found.append(found[-1] * 3 if str(found[-1]).startswith("1") else found[-1] // 3 * 10)
    return [capacity for capacity in found if capacity >= trace.block_tokens][-POINTS_MAX:]


def _knee(reuse: Reuse) -> int:
    """The capacity in blocks from which on no doubling brings `KNEE_GAIN` of all hits."""
    enough, worth = reuse.capacity_for(1.0), KNEE_GAIN * reuse.hit_blocks
    steps = int(np.ceil(np.log2(max(1, enough)) * KNEE_STEPS))
    knee = 0
    for step in range(steps + 1):
        capacity = int(2 ** (step / KNEE_STEPS))
        gain = int(reuse.hits(2 * capacity).sum() - reuse.hits(capacity).sum())
        if gain >= worth:
            knee = capacity
    return min(enough, int(np.ceil(knee * 2 ** (1 / KNEE_STEPS))) if knee else enough)
