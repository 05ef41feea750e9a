"""Owns the cold tax: what requests pay for kvwise when it has nothing to give them.

It starts nothing. Every prompt is a new one. Two sides are asked in turns, one request at a time or
one burst, and only the engine whose turn it is runs. Each request of one side is compared with the
two of the other side around it, because a machine that others share is another one a few seconds
later. There are four comparisons:

- an engine with kvwise against one without it, which holds all that kvwise costs, and also what
  two processes of the same program may differ by from one start to the next, unless both are
  started several times;
- the engine with kvwise against itself when told to leave a request alone, which is free of that
  and holds what storing costs, but not what merely having a connector does;
- once more the first comparison, as operators meet it: by default prompts of a kind that never
  comes back are soon no longer stored;
- for control each request without kvwise against the two of its kind around it: what they differ by
  is the machine's, and so may be as much of what the others come to.

A turn begins when all that kvwise deferred is written, so that the engine without it never pays for
that. Writing beside the next request is therefore no part of a request's time, but of a burst's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from kvwise.bench.engine_load import Burst, Load, Timed
from kvwise.bench.engine_prompts import Prompts
from kvwise.bench.engine_quiet import Others
from kvwise.bench.engine_rig import Rig
from kvwise.bench.engine_stats import median, ratio, unrest
from kvwise.bench.rows import Row
from kvwise.bench.server import Engine

SHORT_ANSWER_TOKENS = 4
"""Answers of single requests: the first token is what counts, and copies come before the second."""

T = TypeVar("T", Timed, Burst)
IDLE_PROMPTS = 5
"""So many in a row that are not stored show that the daemon has learned its lesson."""

_ALONE = {"no_load": True, "no_store": True}
_TIMES = ("ttft_ms", "request_ms", "cpu_ms", "waited_ms")


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to measure.

    Attributes:
        requests: cold requests with kvwise in each comparison; one more of the other side.
        bursts: bursts with kvwise, two at least; one more without it.
        burst_requests, at_a_time: requests in a burst, and how many of them are under way at once.
        hits: prompts that are asked again.
        repeats: how often each of them is asked from memory.
        restarts: of the daemon, after each of which they are asked from disk.
    """

    requests: int
    bursts: int
    burst_requests: int
    at_a_time: int
    hits: int
    repeats: int
    restarts: int


@dataclass(frozen=True, slots=True)
class Ready:
    """What is asked of two engines that are warm, and how.

    Attributes:
        bare, cached: the engine without kvwise, and the one with it.
    """

    plan: Plan
    prompts: Prompts
    bare: Load
    cached: Load


@dataclass(slots=True)
class _Side:
    """What one engine did, told these hints."""

    engine: Engine
    load: Load
    hints: dict[str, bool] | None = None
    requests: list[Timed] = field(default_factory=list)
    bursts: list[Burst] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Start:
    """Cold requests and bursts with kvwise in one start of both engines, and what is beside each.

    Attributes:
        over, under: requests with kvwise, and those without it around each as one.
        bursts, base_bursts: likewise.
    """

    over: list[Timed]
    under: list[Timed]
    bursts: list[Burst]
    base_bursts: list[Burst]


def cold_start(rig: Rig, ready: Ready) -> Start:
    """Measure cold requests in one start of both engines, and nothing else.

    Raises:
        EngineError: an engine refused a request or fell silent.
        SetupError: the disk is too slow for this bench.
    """
    without, with_ = _Side(rig.bare, ready.bare), _Side(rig.cached, ready.cached)
    _requests(rig, ready.plan, ready.prompts, without, with_)
    _bursts(rig, ready.plan, ready.prompts, without, with_)
    return _start(without, with_)


def cold_tax(rig: Rig, ready: Ready, earlier: Sequence[Start] = ()) -> list[Row]:
    """Measure new requests where all is stored: `cold_tax.all`, `store_tax` and `control`.

    The first of them holds what `earlier` starts of both engines came to as well.

    Raises:
        EngineError: an engine refused a request or fell silent.
        SetupError: the disk is too slow for this bench.
    """
    plan, prompts, cached = ready.plan, ready.prompts, ready.cached
    alone, storing = _Side(rig.cached, cached, _ALONE), _Side(rig.cached, cached)
    tax = _compared(rig, ready, "cold_tax.all", earlier)
    before = cached.stored_tokens()
    _requests(rig, plan, prompts, alone, storing)
    stored_tokens = cached.stored_tokens() - before
    _bursts(rig, plan, prompts, alone, storing)
    store: Row = {
        "path": "store_tax",
        "against": "the same engine, told to leave a request alone",
        **request_columns(storing.requests, _means(alone.requests, 1)),
        **burst_columns(storing.bursts, _means(alone.bursts, 1)),
        "stored_tokens_per_request": round(stored_tokens / plan.requests),
    }
    control: Row = {
        "path": "control",
        "against": "itself, just before and after",
        **request_columns(tax.without.requests[1:-1], _means(tax.without.requests, 2)),
        **burst_columns(tax.without.bursts[1:-1], _means(tax.without.bursts, 2)),
    }
    rows = [tax.row, store, control]
    for row in rows:
        _tell(rig, row)
    return rows


def usual_tax(rig: Rig, ready: Ready, learn: int) -> Row:
    """Measure the same as operators meet it, `cold_tax`: with a daemon that has default settings.

    First it may learn from so many prompts at most that none like them comes back.

    Raises:
        EngineError: an engine refused a request or fell silent.
        SetupError: the disk is too slow for this bench.
    """
    learned = _teach(rig, ready, learn)
    row = _compared(rig, ready, "cold_tax").row
    row["learned_prompts"] = learned
    _tell(rig, row)
    return row


def _teach(rig: Rig, ready: Ready, most: int) -> int:
    """Send prompts until none of some in a row was stored, `most` of them; how many it took."""
    rig.only(rig.cached)
    sent = idle = 0
    while sent < most and idle < IDLE_PROMPTS:
        rig.progress.now(f"prompt {sent + 1} of {most} at most, until no more are stored")
        before = ready.cached.stored_tokens()
        ready.cached.one(ready.prompts.next(), 1)
        sent += 1
        idle = idle + 1 if ready.cached.stored_tokens() == before else 0
    return sent


@dataclass(frozen=True, slots=True)
class _Compared:
    """A row of the engine with kvwise against the one without, and what the latter did."""

    row: Row
    without: _Side


def _compared(rig: Rig, ready: Ready, path: str, earlier: Sequence[Start] = ()) -> _Compared:
    """Ask both engines in turns; the row holds what `earlier` starts came to as well."""
    plan, prompts, cached = ready.plan, ready.prompts, ready.cached
    without, with_ = _Side(rig.bare, ready.bare), _Side(rig.cached, cached)
    others, begin_s, begin_held_s = Others(rig.sessions), rig.daemon_cpu_s(), cached.held_s()
    before = cached.stored_tokens()
    _requests(rig, plan, prompts, without, with_)
    cpu_s, held_s = rig.daemon_cpu_s() - begin_s, cached.held_s() - begin_held_s
    stored_tokens = cached.stored_tokens() - before
    drain_s = _bursts(rig, plan, prompts, without, with_)
    waited = [one.waited_ms / one.request_ms for one in without.requests]
    starts = [*earlier, _start(without, with_)]
    row: Row = {
        "path": path,
        "against": "the engine without kvwise",
        **_of_starts(starts),
        "prompt_tokens": prompts.tokens,
        "cached_tokens": max(one.cached_tokens for one in with_.requests),
        "stored_tokens_per_request": round(stored_tokens / plan.requests),
        "held_ms_per_request": round(1000 * held_s / plan.requests, 1),
        "daemon_cpu_ms_per_request": round(1000 * cpu_s / plan.requests, 1),
        "drain_after_burst_ms": round(1000 * drain_s, 1),
        "unrest": round(unrest([one.ttft_ms for one in without.requests]), 3),
        "waited": round(median(waited), 3),
        "others_cores": round(others.cores(), 3),
    }
    return _Compared(row, without)


def _tell(rig: Rig, row: Row) -> None:
    """Say what a row came to."""
    low, high = row["ttft_ratio_interval"]
    ratio_ = f"{row['ttft_ratio']} of the time ({low} to {high})"
    rig.progress.done(f"{row['path']}: first token in {ratio_}")


def _start(without: _Side, with_: _Side) -> Start:
    """What both sides came to."""
    return Start(
        over=with_.requests,
        under=_means(without.requests, 1),
        bursts=with_.bursts,
        base_bursts=_means(without.bursts, 1),
    )


def _of_starts(starts: Sequence[Start]) -> Row:
    """Columns of all starts together, and the first token's ratio in each of them."""
    over = [one for start in starts for one in start.over]
    under = [one for start in starts for one in start.under]
    bursts = [one for start in starts for one in start.bursts]
    base_bursts = [one for start in starts for one in start.base_bursts]
    each = [request_columns(start.over, start.under)["ttft_ratio"] for start in starts]
    return {
        **request_columns(over, under, [len(start.over) for start in starts]),
        **burst_columns(bursts, base_bursts, [len(start.bursts) for start in starts]),
        "ttft_ratio_of_starts": each,
    }


def _requests(rig: Rig, plan: Plan, prompts: Prompts, base: _Side, other: _Side) -> None:
    """Ask both sides in turns, a request at a time."""
    for number, side in enumerate(_turns(base, other, plan.requests)):
        rig.progress.now(f"cold request {number + 1} of {2 * plan.requests + 1}")
        rig.only(side.engine)
        side.requests.append(side.load.one(prompts.next(), SHORT_ANSWER_TOKENS, side.hints))


def _bursts(rig: Rig, plan: Plan, prompts: Prompts, base: _Side, other: _Side) -> float:
    """The same with bursts; how many seconds it took to write what one of them left."""
    drains_s = []
    for number, side in enumerate(_turns(base, other, plan.bursts)):
        rig.progress.now(f"cold burst {number + 1} of {2 * plan.bursts + 1}")
        burst = [prompts.next() for _ in range(plan.burst_requests)]
        rig.only(side.engine)
        side.bursts.append(side.load.burst(burst, plan.at_a_time, side.hints))
        if side is other:
            drains_s.append(rig.settle())
    return median(drains_s)


def _turns(base: _Side, other: _Side, count: int) -> Iterator[_Side]:
    """The other side so many times, always between two turns of the base."""
    yield base
    for _ in range(count):
        yield other
        yield base


def _means(values: Sequence[T], apart: int) -> list[T]:
    """Each value and the one so many places later, as the one thing between them."""
    return [one.mean(other) for one, other in zip(values, values[apart:], strict=False)]


def request_columns(
    over: list[Timed], under: list[Timed], counts: Sequence[int] | None = None
) -> Row:
    """Times to the first token, of whole requests and of processors: `over` against `under`.

    `counts` says how many of them are of each start of the engines.
    """
    row: Row = {}
    for name in ("ttft", "request", "cpu"):
        mine = [getattr(one, f"{name}_ms") for one in over]
        base = [getattr(one, f"{name}_ms") for one in under]
        found = ratio(mine, base, counts)
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


def burst_columns(
    over: list[Burst], under: list[Burst], counts: Sequence[int] | None = None
) -> Row:
    """Tokens per second of bursts: `over` against `under`, in starts of so many."""
    mine = [one.tokens_per_s for one in over]
    base = [one.tokens_per_s for one in under]
    found = ratio(mine, base, counts)
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
