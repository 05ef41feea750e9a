"""A plan held against an engine: what is predicted from few measurements, and what then came.

Loading takes a fixed time and so much for each token; computing is read off times of other lengths.
From these follow the length of a prefix from which loading is quicker from some drive, and the time
to first token of requests of which a cache has a part. Pure arithmetic: it runs no engine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvwise.errors import ConfigError, TraceError
from kvwise.planner.families import family_of_each
from kvwise.planner.oracle import Row, Times
from kvwise.sim.dice import Dice
from kvwise.sim.replay.profile import fit
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

STEPS = 512
"""Lengths at which a break-even is looked for, before it is narrowed down."""

LENGTHS_MIN = 3
"""A law has three parts."""

DRAWS = 400
INTERVAL = (5.0, 95.0)
"""How often what was measured is drawn again, and which parts of what comes out are told."""

MISSING_MAX = 0.05
"""Of those draws, how many may have no break-even."""

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
class Drive:
    """A drive that is slowed down: bytes a second, or 0, and the wait for the first of them."""

    bytes_per_s: float
    first_byte_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Host:
    """What was measured of an engine and what it loads from."""

    oracle: Times
    memory: Line
    disk: Line
    token_bytes: float

    def from_disk_s(self, tokens: float, drive: Drive) -> float:
        """Until the first token of a prompt that is on such a drive but for its end."""
        each_s = self.token_bytes / drive.bytes_per_s if drive.bytes_per_s else 0.0
        return drive.first_byte_s + self.disk.seconds(tokens, each_s)

    def break_even_tokens(self, drive: Drive, low: int, high: int) -> float | None:
        """The prefix from which on loading is quicker, between two lengths; None for none."""
        points = np.linspace(low, high, STEPS)
        gains = [self.oracle.smooth(n) - self.from_disk_s(n, drive) for n in points.tolist()]
        return _from_where(points, np.array(gains))

    def drives(self, shares: Sequence[float], tokens: int) -> list[Drive]:
        """Drives that take so much of computing's time for each token, all as far away.

        That is as far as gives the drive in the middle its break-even at this length.

        Raises:
            ConfigError: the disk alone is too slow for that.
        """
        computed_s = self.oracle.smooth(tokens)
        middle = sorted(shares)[len(shares) // 2]
        first_byte_s = computed_s * (1 - middle) - self.disk.fixed_s
        if first_byte_s <= 0 or self.disk.token_s * tokens > computed_s * min(shares):
            raise ConfigError(
                f"loading {tokens} tokens takes {self.disk.seconds(tokens):.2f} s and computing "
                f"them {computed_s:.2f} s: no drive in between can be made; hint: use a faster disk"
            )
        rates = [self.token_bytes * tokens / (share * computed_s) for share in shares]
        return [Drive(rate, first_byte_s) for rate in rates]

    def ttft_s(self, cached: int, rest: int) -> float:
        """Until the first token, with a part loaded from memory and the rest computed."""
        if not cached:
            return self.oracle.seconds(rest)
        before, whole = self.oracle.seconds(cached), self.oracle.seconds(cached + rest)
        return self.memory.seconds(cached) + whole - before


def lengths_around(
    tokens: float, parts: Sequence[float], chunk: int, apart: set[int], most: int
) -> list[int]:
    """Lengths of whole chunks that are these parts of one, up to a longest.

    None of them is one of those that are to be apart: it is a chunk longer then, or shorter where
    it cannot be longer.
    """
    found = set[int]()
    for part in parts:
        length = min(max(1, round(part * tokens / chunk)), most // chunk) * chunk
        step = chunk if length + chunk * len(apart) <= most else -chunk
        while length in apart:
            length += step
        found.add(length)
    return sorted(found)


def crossing(loaded: Sampled, computed: Sampled) -> float | None:
    """The length from which on loading is quicker, as measured; None where it is nowhere.

    It is where a line through the medians of loads meets the law of the medians of computing, or a
    parabola through them where no law has them, not where single lengths do.
    """
    lengths = sorted(loaded)
    if len(lengths) < LENGTHS_MIN:
        return None
    points = np.linspace(lengths[0], lengths[-1], STEPS)
    medians = [median(computed[tokens]) for tokens in lengths]
    try:
        fixed_s, token_s, pair_s = fit(list(zip(lengths, medians, strict=True)))
        taken_s = fixed_s + token_s * points + pair_s * points * points / 2
    except ConfigError:
        parts = [1 / seconds for seconds in medians]
        taken_s = np.polynomial.Polynomial.fit(lengths, medians, 2, w=parts)(points)
    line = Line.through(loaded)
    return _from_where(points, taken_s - (line.fixed_s + line.token_s * points))


def crossings(loaded: Sampled, computed: Sampled, seed: int) -> tuple[float, float] | None:
    """Between which lengths nine in ten of what could have been measured instead would cross.

    What was measured is drawn again, with replacement, loads and computing together. None where
    there is nothing to draw from, or where some draws have no break-even at all.
    """
    if any(len(times) < len(INTERVAL) for times in loaded.values()):
        return None
    dice, found = Dice(seed), list[float]()
    for _ in range(DRAWS):
        one_loaded, one_computed = dict[int, list[float]](), dict[int, list[float]]()
        for tokens, times in loaded.items():
            places = [dice.below(len(times)) for _ in times]
            one_loaded[tokens] = [times[place] for place in places]
            one_computed[tokens] = [computed[tokens][place] for place in places]
        one = crossing(one_loaded, one_computed)
        if one is not None:
            found.append(one)
    if len(found) < DRAWS * (1 - MISSING_MAX):
        return None
    low, high = np.percentile(found, INTERVAL)
    return float(low), float(high)


def _from_where(points: NDArray[np.float64], gains: NDArray[np.float64]) -> float | None:
    """Where gains become positive for good; None where they do not, or always are."""
    if gains[-1] <= 0 or gains.min() > 0:
        return None
    last = int(np.flatnonzero(gains <= 0)[-1])
    part = -gains[last] / (gains[last + 1] - gains[last])
    return float(points[last] + part * (points[last + 1] - points[last]))


@dataclass(frozen=True, slots=True)
class Check:
    """A prediction, and what was measured.

    Attributes:
        off_max: how far they may be apart.
        is_ratio: whether that is a part of what was measured, instead of a difference.
        between: where what was measured might as well have come out; None where that is unknown.
    """

    name: str
    unit: str
    predicted: float | None
    measured: float | None
    off_max: float
    is_ratio: bool = True
    between: tuple[float, float] | None = None

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
        names = ("name", "unit", "predicted", "measured", "off", "off_max", "holds", "between")
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
