"""Owns the cold tax: what requests pay for kvwise when it has nothing to give them.

It starts nothing. Every prompt is a new one. The two engines take turns in short blocks, in an
order drawn by seed, and each pair of requests is compared for itself. The first request of a block
is not counted: it comes into caches of the processor that belonged to the other engine. Within a
block kvwise writes to disk whenever it likes, beside the next request; between blocks everything is
written, so that the engine without kvwise never pays for the other one's writes.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from kvwise.bench.engine_load import Burst, Load, Timed
from kvwise.bench.engine_prompts import Prompts
from kvwise.bench.engine_rig import Rig
from kvwise.bench.engine_stats import median, ratio, unrest
from kvwise.bench.rows import Row

PER_BLOCK = 3
"""Requests of a block that count."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to measure.

    Attributes:
        requests: cold requests of each engine that count.
        bursts: bursts of each engine.
        burst_requests, at_a_time: requests in a burst, and how many of them are under way at once.
        hits: prompts that are asked again.
        seed: draws orders and prompts.
    """

    requests: int
    bursts: int
    burst_requests: int
    at_a_time: int
    hits: int
    seed: int


@dataclass(slots=True)
class _Side:
    """What one engine did."""

    load: Load
    requests: list[Timed] = field(default_factory=list)
    bursts: list[Burst] = field(default_factory=list)


def cold_tax(rig: Rig, plan: Plan, prompts: Prompts, bare: Load, cached: Load) -> Row:
    """Measure requests that nobody has sent before, with and without kvwise.

    Raises:
        EngineError: an engine refused a request or fell silent.
        SetupError: the disk is too slow for this bench.
    """
    draw = random.Random(plan.seed)  # noqa: S311  an order, not a secret
    without, with_ = _Side(bare), _Side(cached)
    begin_s, begin_held_s, drains_s = rig.daemon_cpu_s(), cached.held_s(), []
    blocks = -(-plan.requests // PER_BLOCK)
    for number in range(blocks):
        rig.progress.now(f"cold requests, block {number + 1} of {blocks}")
        for side in draw.sample((without, with_), 2):
            side.load.one(prompts.next())
            side.requests += [side.load.one(prompts.next()) for _ in range(PER_BLOCK)]
            if side is with_:
                rig.settle()
    cpu_s, held_s = rig.daemon_cpu_s() - begin_s, cached.held_s() - begin_held_s
    count = blocks * (PER_BLOCK + 1)
    requests = request_columns(with_.requests, without.requests)
    rig.progress.done(
        f"{requests['n']} cold requests with kvwise and as many without: first token in "
        f"{requests['ttft_ratio']} of the time"
    )
    for number in range(plan.bursts):
        rig.progress.now(f"cold bursts, pair {number + 1} of {plan.bursts}")
        for side in draw.sample((without, with_), 2):
            burst = [prompts.next() for _ in range(plan.burst_requests)]
            side.bursts.append(side.load.burst(burst, plan.at_a_time))
            if side is with_:
                drains_s.append(rig.settle())
    bursts = burst_columns(with_.bursts, without.bursts)
    rig.progress.done(
        f"{plan.bursts} cold bursts with kvwise and as many without: "
        f"{bursts['throughput_ratio']} of the tokens per second"
    )
    return {
        "path": "cold_tax",
        "against": "the engine without kvwise",
        **requests,
        **bursts,
        "prompt_tokens": prompts.tokens,
        "held_ms_per_request": round(1000 * held_s / count, 1),
        "daemon_cpu_ms_per_request": round(1000 * cpu_s / count, 1),
        "drain_after_burst_ms": round(1000 * median(drains_s), 1),
        "unrest": round(unrest([one.ttft_ms for one in without.requests]), 3),
        "waited": round(median([one.waited_ms / one.request_ms for one in without.requests]), 3),
    }


def request_columns(over: list[Timed], under: list[Timed]) -> Row:
    """Times to the first token, of whole requests and of processors: `over` against `under`."""
    row: Row = {}
    for name in ("ttft", "request", "cpu"):
        mine = [getattr(one, f"{name}_ms") for one in over]
        base = [getattr(one, f"{name}_ms") for one in under]
        found = ratio(mine, base)
        row[f"{name}_ratio"] = round(found.median, 4)
        row[f"{name}_ratio_interval"] = [round(found.low, 4), round(found.high, 4)]
        row[f"{name}_ms"] = _spread(mine)
        row[f"base_{name}_ms"] = _spread(base)
        row["n"] = found.n
    return row


def burst_columns(over: list[Burst], under: list[Burst]) -> Row:
    """Tokens per second of bursts: `over` against `under`."""
    mine = [one.tokens_per_s for one in over]
    base = [one.tokens_per_s for one in under]
    found = ratio(mine, base)
    return {
        "throughput_ratio": round(found.median, 4),
        "throughput_ratio_interval": [round(found.low, 4), round(found.high, 4)],
        "tokens_per_s": _spread(mine),
        "base_tokens_per_s": _spread(base),
        "n_bursts": found.n,
    }


def _spread(values: list[float]) -> dict[str, float]:
    """Median, least and most."""
    named = {"median": median(values), "low": min(values), "high": max(values)}
    return {name: round(value, 2) for name, value in named.items()}
