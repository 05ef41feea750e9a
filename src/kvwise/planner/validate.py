"""A plan held against an engine: what is predicted from few measurements, and what then came.

Loading takes a fixed time and so much for each token; computing is read off times of other lengths.
From these follow the length of a prefix from which loading is quicker at some rate, and the time to
first token of requests of which a cache has a part. Pure arithmetic: it runs no engine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import log
from statistics import median
from typing import Any

import numpy as np

from kvwise.errors import TraceError
from kvwise.planner.families import family_of_each
from kvwise.planner.oracle import Row, Times
from kvwise.sim.dice import Dice
from kvwise.sim.trace.assembly import Report
from kvwise.sim.trace.distance import measure_reuse
from kvwise.sim.trace.make import PARAMETERS, make_rows
from kvwise.sim.trace.mooncake import MOONCAKE_BLOCK_TOKENS
from kvwise.sim.trace.prefix import PrefixTree
from kvwise.sim.trace.records import Request, Trace

BREAK_EVEN_OFF, HITS_OFF, TTFT_OFF = 0.20, 0.01, 0.15
"""How far a prediction may be off: of the length, in the ratio itself, of the time."""

CHAT = {"system_tokens": 4_096.0, "turn_tokens": 1_500.0}
"""What conversations that are made up have more of than usual: room for blocks."""

SHARE = 0.6
"""Of the hits of a cache that never forgets, what memory is given for."""

LENGTHS_MIN = 3
"""A parabola takes as many."""

STEPS = 512
"""Lengths at which a break-even is looked for, before it is narrowed down."""

Sampled = Mapping[int, Sequence[float]]
"""Times that were measured, by length."""


@dataclass(frozen=True, slots=True)
class Line:
    """Seconds of a load: some for any, and some for each token."""

    fixed_s: float
    token_s: float

    def seconds(self, tokens: float, token_s_min: float = 0.0) -> float:
        """To load so many tokens, each in no less than so long."""
        return self.fixed_s + tokens * max(self.token_s, token_s_min)

    @classmethod
    def through(cls, times: Sampled) -> Line:
        """The line through the medians of at least two lengths; neither part is negative."""
        tokens = np.array(sorted(times), dtype=float)
        seconds = np.array([median(times[int(n)]) for n in tokens])
        token_s, fixed_s = (float(part) for part in np.polyfit(tokens, seconds, 1))
        if fixed_s < 0:
            return cls(0.0, float((tokens * seconds).sum() / (tokens * tokens).sum()))
        return cls(fixed_s, token_s) if token_s > 0 else cls(float(seconds.mean()), 0.0)


@dataclass(frozen=True, slots=True)
class Host:
    """What was measured of an engine and what it loads from."""

    oracle: Times
    memory: Line
    disk: Line
    token_bytes: int

    def from_disk_s(self, tokens: float, bytes_per_s: float) -> float:
        """Until the first token of a prompt that is on a disk of this rate but for its end."""
        return self.disk.seconds(tokens, self.token_bytes / bytes_per_s)

    def break_even_tokens(self, bytes_per_s: float, low: int, high: int) -> float | None:
        """The prefix from which on loading is quicker, between two lengths; None for none."""

        def gain_s(tokens: float) -> float:
            return self.oracle.smooth(tokens) - self.from_disk_s(tokens, bytes_per_s)

        points = np.linspace(low, high, STEPS).tolist()
        gains = [gain_s(point) for point in points]
        if gains[-1] <= 0 or min(gains) > 0:
            return None
        last = max(at for at, gain in enumerate(gains) if gain <= 0)
        part = -gains[last] / (gains[last + 1] - gains[last])
        return float(points[last] + part * (points[last + 1] - points[last]))

    def rate_for(self, tokens: int) -> float:
        """Bytes a second at which loading so many tokens takes as long as computing them."""
        left_s = self.oracle.smooth(tokens) - self.disk.fixed_s
        return tokens * self.token_bytes / left_s if left_s > 0 else float("inf")

    def ttft_s(self, cached: int, rest: int) -> float:
        """Until the first token, with a part loaded from memory and the rest computed."""
        if not cached:
            return self.oracle.seconds(rest)
        before, whole = self.oracle.seconds(cached), self.oracle.seconds(cached + rest)
        return self.memory.seconds(cached) + whole - before


def crossing(loaded: Sampled, computed: Sampled) -> float | None:
    """The length from which on loading is quicker, as measured; None where it is nowhere.

    The logarithm of how much longer a load takes is a smooth function of the length: a parabola
    through what was measured one after the other, at three lengths or more.
    """
    tokens, ratios = [], []
    for length in sorted(loaded):
        for one, other in zip(loaded[length], computed[length], strict=True):
            tokens.append(float(length))
            ratios.append(log(one / other))
    if len(loaded) < LENGTHS_MIN:
        return None
    curve = np.polynomial.Polynomial.fit(tokens, ratios, 2)
    points = np.linspace(min(tokens), max(tokens), STEPS)
    found = curve(points)
    if found[-1] >= 0 or found.max() <= 0:
        return None
    last = int(np.flatnonzero(found > 0)[-1])
    part = found[last] / (found[last] - found[last + 1])
    return float(points[last] + part * (points[last + 1] - points[last]))


@dataclass(frozen=True, slots=True)
class Check:
    """A prediction, and what was measured.

    Attributes:
        off_max: how far they may be apart.
        is_ratio: whether that is a part of what was measured, instead of a difference.
    """

    name: str
    unit: str
    predicted: float | None
    measured: float | None
    off_max: float
    is_ratio: bool = True

    @property
    def off(self) -> float | None:
        """How far they are apart; None where one of them is missing."""
        if self.predicted is None or self.measured is None:
            return None
        apart = self.predicted - self.measured
        return apart / self.measured if self.is_ratio else apart

    @property
    def holds(self) -> bool:
        """Whether the plan was right; it was not where anything is missing."""
        return self.off is not None and abs(self.off) <= self.off_max

    def row(self) -> dict[str, Any]:
        """As plain values."""
        names = ("name", "unit", "predicted", "measured", "off", "off_max", "holds")
        return {name: getattr(self, name) for name in names}


def times_of(source: str, measured: Sampled) -> Times:
    """An oracle from medians of what was measured.

    A busy machine may take longer for a shorter prompt: two such lengths count as one between them.
    """
    knots: list[tuple[float, float, int]] = []
    for tokens in sorted(measured):
        knots.append((float(tokens), median(measured[tokens]), 1))
        while len(knots) > 1 and knots[-2][1] >= knots[-1][1]:
            long, short = knots.pop(), knots.pop()
            parts = short[2] + long[2]
            middle = [(short[2] * short[at] + long[2] * long[at]) / parts for at in (0, 1)]
            knots.append((middle[0], middle[1], parts))
    return Times(source, [Row(round(tokens), seconds) for tokens, seconds, _ in knots])


# --- the shape of a trace ---


def invented(requests: int, seed: int) -> Trace:
    """Conversations, where no trace is given."""
    settings = {"chat": {name: one.default for name, one in PARAMETERS["chat"].items()} | CHAT}
    tree, found, sessions = PrefixTree(), list[Request](), dict[str, int]()
    for row in islice(make_rows({"chat": 1.0}, settings, seed), requests):
        path = tree.path(0, row.hash_ids)
        session = sessions.setdefault(row.session_id, len(sessions))
        found.append(
            Request(row.timestamp * 1_000_000, row.input_length, row.output_length, path, session)
        )
    return Trace("made", MOONCAKE_BLOCK_TOKENS, tuple(found), tree.parents, tuple(sessions))


def scaled(trace: Trace, requests: int, block_tokens: int, blocks_max: int, seed: int) -> Trace:
    """So many requests of a trace, each block one of another size, and long prompts cut off.

    Whole families of prompts are drawn, so that what comes back still does. Every prompt ends one
    token after its last block: an engine always computes one.
    """
    usable = [request for request in trace.requests if request.blocks]
    families = family_of_each(usable)
    order = Dice(seed).shuffled(sorted(set(families)))
    sizes, chosen, taken = Counter(families), set[int](), 0
    for family in order:
        if taken >= requests:
            break
        chosen.add(family)
        taken += sizes[family]
    kept = [one for one, family in zip(usable, families, strict=True) if family in chosen]
    return Trace(
        trace.format,
        block_tokens,
        tuple(_resized(one, block_tokens, blocks_max) for one in kept[:requests]),
        trace.parents,
        trace.sessions,
    )


@dataclass(frozen=True, slots=True)
class Shape:
    """Requests as an engine is asked them, and what an exact LRU hits of them.

    Attributes:
        prompts: the blocks of each.
        hits: how many of them are there before it.
        capacity_blocks: of the LRU.
    """

    prompts: tuple[tuple[int, ...], ...]
    hits: tuple[int, ...]
    capacity_blocks: int

    @property
    def blocks(self) -> int:
        """Of all prompts."""
        return sum(map(len, self.prompts))

    @property
    def hit_ratio(self) -> float:
        """Hit blocks over all blocks."""
        return sum(self.hits) / max(1, self.blocks)

    @classmethod
    def of(cls, trace: Trace, report: Report) -> Shape:
        """Of a trace that was scaled down, in memory that has most of what could be hit.

        Raises:
            TraceError: it tells nothing of blocks.
        """
        if not any(request.blocks for request in trace.requests):
            raise TraceError("this trace tells nothing of blocks, and so nothing of hits")
        reuse = measure_reuse(trace, report)
        longest = max(len(request.blocks) for request in trace.requests)
        capacity = max(longest, reuse.capacity_for(SHARE))
        hits = [0] * len(trace.requests)
        runs = reuse.hits(capacity).tolist()
        for owner, run in zip(reuse.request.tolist(), runs, strict=True):
            hits[owner] += run
        prompts = tuple(tuple(request.blocks) for request in trace.requests)
        return cls(prompts, tuple(hits), capacity)


def _resized(request: Request, block_tokens: int, blocks_max: int) -> Request:
    """A request with blocks of another size, at most so many, and one token more."""
    blocks = request.blocks[:blocks_max]
    return Request(
        request.arrival_ns, len(blocks) * block_tokens + 1, 1, blocks, request.session, request.turn
    )
