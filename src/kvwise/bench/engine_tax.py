"""Owns the cold tax: what requests pay for kvwise when it has nothing to give them.

It starts nothing. Every prompt is a new one. Two sides are asked in turns, one request at a time or
one burst, and only the engine whose turn it is runs. Each request of one side is compared with the
two of the other side around it, because a machine that others share is another one a few seconds
later. There are four comparisons:

- one engine with kvwise against itself when kvwise is taken away from it (`engine_switch`): as
  operators meet it, because by default prompts of a kind that never comes back are soon no longer
  stored;
- the same where everything is stored;
- an engine with kvwise against another one that was started without, which holds what vLLM itself
  does otherwise for any connector, and also what two processes of the same program may differ by
  from one start to the next, unless both are started several times;
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
from kvwise.bench.engine_stats import Ratio, median, ratio, unrest
from kvwise.bench.rows import Row
from kvwise.bench.server import Engine

SHORT_ANSWER_TOKENS = 4
"""Answers of single requests: the first token is what counts, and copies come before the second."""

T = TypeVar("T", Timed, Burst)
IDLE_PROMPTS = 5
"""So many in a row that are not stored show that the daemon has learned its lesson."""

ITSELF = "the same engine with kvwise taken away"
ANOTHER = "an engine that was started without kvwise"

_TIMES = ("ttft_ms", "request_ms", "cpu_ms", "waited_ms")


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to measure.

    Attributes:
        usual: cold requests with kvwise as operators meet it; one more of the other side.
        usual_bursts: likewise bursts, two at least.
        requests, bursts: the same in each of the other comparisons.
        burst_requests, at_a_time: requests in a burst, and how many of them are under way at once.
        hits: prompts that are asked again.
        repeats: how often each of them is asked from memory.
        restarts: of the daemon, after each of which they are asked from disk.
    """

    usual: int
    usual_bursts: int
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

    rig: Rig
    plan: Plan
    prompts: Prompts
    bare: Load
    cached: Load


@dataclass(slots=True)
class _Side:
    """What one engine did, with or without kvwise."""

    engine: Engine
    load: Load
    has_kvwise: bool
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


def cold_start(ready: Ready) -> Start:
    """Measure cold requests in one start of both engines, and nothing else.

    Raises:
        EngineError: an engine refused a request or fell silent.
        SetupError: the disk is too slow for this bench.
    """
    without = _Side(ready.rig.bare, ready.bare, has_kvwise=False)
    with_ = _Side(ready.rig.cached, ready.cached, has_kvwise=True)
    _requests(ready, ready.plan.requests, without, with_)
    _bursts(ready, ready.plan.bursts, without, with_)
    return _start(without, with_)


def cold_tax(ready: Ready, earlier: Sequence[Start] = ()) -> list[Row]:
    """Measure new requests where all is stored: `cold_tax.all`, `cold_tax.engines` and `control`.

    The second of them holds what `earlier` starts of both engines came to as well.

    Raises:
        EngineError: an engine refused a request or fell silent.
        SetupError: the disk is too slow for this bench.
    """
    counts = ready.plan.requests, ready.plan.bursts
    itself = _Side(ready.rig.cached, ready.cached, has_kvwise=False)
    bare = _Side(ready.rig.bare, ready.bare, has_kvwise=False)
    all_ = _compared(ready, "cold_tax.all", itself, counts)
    engines = _compared(ready, "cold_tax.engines", bare, counts, earlier)
    control: Row = {
        "path": "control",
        "against": "itself, just before and after",
        **request_columns(bare.requests[1:-1], _means(bare.requests, 2)),
        **burst_columns(bare.bursts[1:-1], _means(bare.bursts, 2)),
    }
    _tell(ready, control)
    return [all_, engines, control]


def usual_tax(ready: Ready, learn: int) -> Row:
    """Measure new requests as operators meet them, `cold_tax`: with default settings.

    First the daemon may learn from so many prompts at most that none like them comes back.

    Raises:
        EngineError: an engine refused a request or fell silent.
        SetupError: the disk is too slow for this bench.
    """
    learned = _teach(ready, learn)
    counts = ready.plan.usual, ready.plan.usual_bursts
    without = _Side(ready.rig.cached, ready.cached, has_kvwise=False)
    return _compared(ready, "cold_tax", without, counts) | {"learned_prompts": learned}


def _teach(ready: Ready, most: int) -> int:
    """Send prompts until none of some in a row was stored, `most` of them; how many it took."""
    ready.rig.only(ready.rig.cached)
    sent = idle = 0
    while sent < most and idle < IDLE_PROMPTS:
        ready.rig.progress.now(f"prompt {sent + 1} of {most} at most, until no more are stored")
        before = ready.cached.stored_tokens()
        ready.cached.one(ready.prompts.next(), 1)
        sent += 1
        idle = idle + 1 if ready.cached.stored_tokens() == before else 0
    return sent


def _compared(
    ready: Ready,
    path: str,
    without: _Side,
    counts: tuple[int, int],
    earlier: Sequence[Start] = (),
) -> Row:
    """Ask the engine with kvwise and `without` in turns, so many requests and bursts.

    The row holds what `earlier` starts came to as well.
    """
    (requests, bursts), rig, cached = counts, ready.rig, ready.cached
    with_ = _Side(rig.cached, cached, has_kvwise=True)
    others, begin_s, begin_held_s = Others(rig.sessions), rig.daemon_cpu_s(), cached.held_s()
    before = cached.stored_tokens()
    _requests(ready, requests, without, with_)
    cpu_s, held_s = rig.daemon_cpu_s() - begin_s, cached.held_s() - begin_held_s
    stored_tokens = cached.stored_tokens() - before
    drain_s = _bursts(ready, bursts, without, with_)
    waited = [one.waited_ms / one.request_ms for one in without.requests]
    row: Row = {
        "path": path,
        "against": ITSELF if without.engine is with_.engine else ANOTHER,
        **_of_starts([*earlier, _start(without, with_)]),
        "prompt_tokens": ready.prompts.tokens,
        "cached_tokens": max(one.cached_tokens for one in with_.requests),
        "stored_tokens_per_request": round(stored_tokens / requests),
        "held_ms_per_request": round(1000 * held_s / requests, 1),
        "daemon_cpu_ms_per_request": round(1000 * cpu_s / requests, 1),
        "drain_after_burst_ms": round(1000 * drain_s, 1),
        "unrest": round(unrest([one.ttft_ms for one in without.requests]), 3),
        "waited": round(median(waited), 3),
        "others_cores": round(others.cores(), 3),
    }
    _tell(ready, row)
    return row


def _tell(ready: Ready, row: Row) -> None:
    """Say what a row came to."""
    low, high = row["ttft_ratio_interval"]
    ratio_ = f"{row['ttft_ratio']} of the time ({low} to {high})"
    ratio_ += f", {row['throughput_ratio']} of the tokens a second"
    ready.rig.progress.done(f"{row['path']}: first token in {ratio_}")


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


def _requests(ready: Ready, count: int, base: _Side, other: _Side) -> None:
    """Ask both sides in turns, a request at a time."""
    for number, side in enumerate(_turns(base, other, count)):
        ready.rig.progress.now(f"cold request {number + 1} of {2 * count + 1}")
        ready.rig.only(side.engine, has_kvwise=side.has_kvwise)
        side.requests.append(side.load.one(ready.prompts.next(), SHORT_ANSWER_TOKENS))


def _bursts(ready: Ready, count: int, base: _Side, other: _Side) -> float:
    """The same with bursts; how many seconds it took to write what one of them left."""
    drains_s = []
    for number, side in enumerate(_turns(base, other, count)):
        ready.rig.progress.now(f"cold burst {number + 1} of {2 * count + 1}")
        burst = [ready.prompts.next() for _ in range(ready.plan.burst_requests)]
        ready.rig.only(side.engine, has_kvwise=side.has_kvwise)
        side.bursts.append(side.load.burst(burst, ready.plan.at_a_time))
        if side is other:
            drains_s.append(ready.rig.settle())
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
        row |= _named(f"{name}_ratio", found)
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
        **_named("throughput_ratio", found),
        "tokens_per_s": _spread(mine),
        "base_tokens_per_s": _spread(base),
        "n_bursts": found.n,
        "burst_pairs": [[round(one, 2) for one in pair] for pair in zip(mine, base, strict=True)],
    }


def _named(name: str, found: Ratio) -> Row:
    """A ratio and its interval."""
    interval = [round(found.low, 4), round(found.high, 4)]
    return {name: round(found.median, 4), f"{name}_interval": interval}


def _spread(values: list[float]) -> dict[str, float]:
    """Median, least and most."""
    named = {"median": median(values), "low": min(values), "high": max(values)}
    return {name: round(value, 2) for name, value in named.items()}
