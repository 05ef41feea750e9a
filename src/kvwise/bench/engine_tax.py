"""Owns the cold tax: what requests pay for kvwise when it has nothing to give them.

It starts nothing. Every prompt is a new one. The engine with kvwise, the one without, and the one
without once more take turns, in an order drawn by seed. The two turns of the same engine are the
control: whatever they differ by is the machine's, and so may be as much of what the tax comes to.

Only the engine whose turn it is runs. A turn begins when all that kvwise deferred is written, so
that the engine without it never pays for that; within a turn kvwise writes to disk whenever it
likes, beside the next request. Turns are short, because a machine that others share is another one
a few seconds later. Requests are compared with those at the same place of their turn.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from kvwise.bench.engine_load import Burst, Load, Timed
from kvwise.bench.engine_prompts import Prompts
from kvwise.bench.engine_quiet import Others
from kvwise.bench.engine_rig import Rig
from kvwise.bench.engine_stats import median, ratio, unrest
from kvwise.bench.rows import Row
from kvwise.bench.server import Engine

PER_TURN = 2
"""Requests of one turn: nothing is written beside the first of them."""

_TIMES = ("ttft_ms", "request_ms", "cpu_ms", "waited_ms")


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
    """What one engine did, in one of its parts."""

    engine: Engine
    load: Load
    requests: list[Timed] = field(default_factory=list)
    bursts: list[Burst] = field(default_factory=list)


def cold_tax(rig: Rig, plan: Plan, prompts: Prompts, bare: Load, cached: Load) -> list[Row]:
    """Measure requests that nobody has sent before, with and without kvwise; tax and control.

    Raises:
        EngineError: an engine refused a request or fell silent.
        SetupError: the disk is too slow for this bench.
    """
    draw = random.Random(plan.seed)  # noqa: S311  an order, not a secret
    without, again, with_ = sides = (
        _Side(rig.bare, bare),
        _Side(rig.bare, bare),
        _Side(rig.cached, cached),
    )
    others, begin_s, begin_held_s = Others(rig.sessions), rig.daemon_cpu_s(), cached.held_s()
    rounds, drains_s = -(-plan.requests // PER_TURN), []
    for number in range(rounds):
        rig.progress.now(f"cold requests, round {number + 1} of {rounds}")
        for side in draw.sample(sides, len(sides)):
            rig.only(side.engine)
            side.requests += [side.load.one(prompts.next()) for _ in range(PER_TURN)]
    rig.settle()
    cpu_s, held_s = rig.daemon_cpu_s() - begin_s, cached.held_s() - begin_held_s
    for number in range(plan.bursts):
        rig.progress.now(f"cold bursts, round {number + 1} of {plan.bursts}")
        for side in draw.sample(sides, len(sides)):
            burst = [prompts.next() for _ in range(plan.burst_requests)]
            rig.only(side.engine)
            side.bursts.append(side.load.burst(burst, plan.at_a_time))
            if side is with_:
                drains_s.append(rig.settle())
    tax, control = _compared(with_, without), _compared(again, without)
    for name, row in (("with kvwise", tax), ("without, once more,", control)):
        rig.progress.done(
            f"{row['n']} cold requests {name} against as many without: first token in "
            f"{row['ttft_ratio']} of the time, {row['throughput_ratio']} of the tokens per second"
        )
    count, waited = rounds * PER_TURN, [one.waited_ms / one.request_ms for one in without.requests]
    return [
        {
            "path": "cold_tax",
            "against": "the engine without kvwise",
            **tax,
            "prompt_tokens": prompts.tokens,
            "held_ms_per_request": round(1000 * held_s / count, 1),
            "daemon_cpu_ms_per_request": round(1000 * cpu_s / count, 1),
            "drain_after_burst_ms": round(1000 * median(drains_s), 1),
            "unrest": round(unrest([one.ttft_ms for one in without.requests]), 3),
            "waited": round(median(waited), 3),
            "others_cores": round(others.cores(), 3),
        },
        {"path": "control", "against": "itself, at another time", **control},
    ]


def _compared(over: _Side, under: _Side) -> Row:
    """All that is compared of two sides."""
    requests = request_columns(over.requests, under.requests, PER_TURN)
    return requests | burst_columns(over.bursts, under.bursts)


def request_columns(over: list[Timed], under: list[Timed], together: int = 1) -> Row:
    """Times to the first token, of whole requests and of processors: `over` against `under`.

    So many neighbours were measured in one go.
    """
    row: Row = {}
    for name in ("ttft", "request", "cpu"):
        mine = [getattr(one, f"{name}_ms") for one in over]
        base = [getattr(one, f"{name}_ms") for one in under]
        found = ratio(mine, base, together)
        row[f"{name}_ratio"] = round(found.median, 4)
        row[f"{name}_ratio_interval"] = [round(found.low, 4), round(found.high, 4)]
        row[f"{name}_ms"] = _spread(mine)
        row[f"base_{name}_ms"] = _spread(base)
        row["n"] = found.n
    row["pairs"] = [
        {name: [round(getattr(one, name), 2) for one in pair] for name in _TIMES}
        for pair in zip(over, under, strict=True)
    ]
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
        "burst_pairs": [[round(one, 2) for one in pair] for pair in zip(mine, base, strict=True)],
    }


def _spread(values: list[float]) -> dict[str, float]:
    """Median, least and most."""
    named = {"median": median(values), "low": min(values), "high": max(values)}
    return {name: round(value, 2) for name, value in named.items()}
