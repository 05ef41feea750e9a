"""What a trace asks of engines and caches: tokens, seconds, and what a cache would save.

It knows sizes and times on paper, plays nothing through, and decides nothing.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from kvwise.errors import ConfigError
from kvwise.planner.oracle import Oracle
from kvwise.planner.routing import Report, Routed, route
from kvwise.planner.spill import Spill, spill
from kvwise.sim.trace.distance import Reuse
from kvwise.sim.trace.records import Trace
from kvwise.units import NS_PER_S

KNOTS = 96
"""Lengths at which computing is estimated; those in between are read off."""

SPAN_S_MIN = 1.0
"""No rate can be told of requests that come within less."""

DAY_S = 86_400.0
Seconds = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Saving:
    """What an LRU of a size would bring.

    Attributes:
        capacity_tokens: its size.
        hit_ratio: hit blocks over all input blocks.
        share: hits over those of a cache that never forgets.
        saved_s: seconds of computing that its hits are, over the whole trace.
        hit_tokens: tokens of the middle request among those with hits.
    """

    capacity_tokens: float
    hit_ratio: float
    share: float
    saved_s: float
    hit_tokens: float


@dataclass(frozen=True, slots=True)
class Cached:
    """Requests that have hits, apart from those of other lengths.

    Attributes:
        label: which lengths.
        requests: how many.
        cached_tokens, new_tokens: of their prompts together.
        ratios: cached over new tokens of each that has hits.
    """

    label: str
    requests: int
    cached_tokens: float
    new_tokens: float
    ratios: Seconds


class Demand:
    """A trace on one kind of engine."""

    def __init__(self, trace: Trace, reuse: Reuse, oracle: Oracle) -> None:
        """Nothing is assumed of how many engines there are: seconds are those of one.

        Raises:
            ConfigError: requests come all at once, so that there are no rates.
        """
        self._trace = trace
        self._reuse = reuse
        self.slower = self.again = 1.0
        self._savings: dict[int, Saving] = {}
        self._spills: dict[tuple[int, int], Spill] = {}
        self._routes: dict[tuple[str, int, int], Routed] = {}
        self._capacities: dict[float, int] = {}
        self._tokens = np.array([r.input_tokens for r in trace.requests], dtype=np.float64)
        longest = max(float(self._tokens.max()), 2.0)
        self._lengths = np.unique(np.geomspace(1.0, longest, KNOTS).round())
        self._seconds = np.array([oracle.seconds(int(count)) for count in self._lengths])
        first, last = trace.requests[0].arrival_ns, trace.requests[-1].arrival_ns
        self.span_s = (last - first) / NS_PER_S
        _require_span(self.span_s, len(trace.requests))
        self.compute_s = float(self.computing(self._tokens).sum())

    def scaled(self, *, slower: float = 1.0, again: float = 1.0) -> Demand:
        """The same, were computing so many times as slow, and hits so many times as frequent."""
        other = copy(self)
        other.slower *= slower
        other.again *= again
        other.compute_s *= slower
        return other

    def on(self, oracle: Oracle) -> Demand:
        """The same trace on another kind of engine."""
        return Demand(self._trace, self._reuse, oracle)

    @property
    def longest_tokens(self) -> int:
        """Length of the longest prompt."""
        return int(self._tokens.max())

    @property
    def engines(self) -> float:
        """How many such engines prefill alone would keep busy without a cache."""
        return self.compute_s / self.span_s

    @property
    def typical_tokens(self) -> int:
        """Length of the median prompt."""
        return int(np.median(self._tokens))

    @property
    def millions_per_s(self) -> float:
        """Millions of tokens of prompts that arrive in a second."""
        return float(self._tokens.sum()) / 1e6 / self.span_s

    @property
    def new_tokens_per_day(self) -> float:
        """Tokens of blocks that were not there before: what a cache would have to write."""
        return self._reuse.distinct_blocks * self._trace.block_tokens / self.span_s * DAY_S

    @property
    def new_tokens_per_request(self) -> float:
        """Tokens of a request that were not there before, in the mean."""
        return self._reuse.distinct_blocks * self._trace.block_tokens / len(self._tokens)

    @property
    def twice_tokens_per_day(self) -> float:
        """The same of blocks that come a second time."""
        again = self._reuse.distinct_blocks - self._reuse.once_blocks
        return again * self._trace.block_tokens / self.span_s * DAY_S

    @property
    def reuse(self) -> float:
        """Share of input blocks that a cache that never forgets would hit."""
        return self.again * self._reuse.hit_blocks / max(1, self._reuse.input_blocks)

    def computing(self, tokens: Seconds) -> Seconds:
        """Seconds to compute prompts of these lengths, each alone."""
        found: Seconds = self.slower * np.interp(tokens, self._lengths, self._seconds)
        return np.where(tokens > 0, found, 0.0)

    def computing_one(self, tokens: float) -> float:
        """Seconds to compute one prompt of this length."""
        return float(self.computing(np.array([tokens]))[0])

    def saving(self, capacity_tokens: float) -> Saving:
        """What an LRU of a size brings, if its hits cost nothing."""
        blocks = self._blocks(capacity_tokens)
        found = self._savings.get(blocks)
        if found is None:
            found = self._savings[blocks] = self._saving(blocks)
        return replace(
            found,
            capacity_tokens=capacity_tokens,
            hit_ratio=found.hit_ratio * self.again,
            saved_s=found.saved_s * self.again * self.slower,
        )

    def _blocks(self, tokens: float) -> int:
        """Whole blocks of so many tokens, as far as the trace has any."""
        return int(min(tokens / self._trace.block_tokens, self._reuse.distinct_blocks))

    def _hit_tokens(self, blocks: int) -> Seconds:
        """Tokens of each request that an LRU of so many blocks hits."""
        runs = self._reuse.hits(blocks)
        each = np.bincount(self._reuse.request, runs, minlength=len(self._tokens))
        return np.minimum(each * self._trace.block_tokens, self._tokens)

    def _saving(self, blocks: int) -> Saving:
        """The same of the trace as it is."""
        hit_tokens = self._hit_tokens(blocks)
        some = hit_tokens[hit_tokens > 0]
        hits = int(self._reuse.hits(blocks).sum())
        return Saving(
            capacity_tokens=0.0,
            hit_ratio=hits / max(1, self._reuse.input_blocks),
            share=hits / max(1, self._reuse.hit_blocks),
            saved_s=float(self.computing(hit_tokens).sum()) / self.slower,
            hit_tokens=float(np.median(some)) if some.size else 0.0,
        )

    def spill(self, memory_tokens: float, all_tokens: float) -> Spill:
        """What is hit between two sizes, block by block."""
        sizes = self._blocks(memory_tokens), self._blocks(all_tokens)
        found = self._spills.get(sizes)
        if found is None:
            found = self._spills[sizes] = spill(self._trace, self._reuse, *sizes)
        return found

    def blocks_in_trace(self, tokens_per_day: float) -> float:
        """Blocks that such a pace comes to over the whole trace."""
        return tokens_per_day * self.span_s / DAY_S / self._trace.block_tokens

    def classes(self, capacity_tokens: float, bounds: tuple[int, ...]) -> list[Cached]:
        """Requests by length, with what an LRU of a size gives each; empty classes are left out."""
        cached = self._hit_tokens(self._blocks(capacity_tokens))
        new = np.maximum(self._tokens - cached, 1.0)
        found = []
        edges = (0, *bounds, np.inf)
        for low, high in pairwise(edges):
            inside = (self._tokens > low) & (self._tokens <= high)
            if not inside.any():
                continue
            label = f"up to {high:,} tokens" if high != np.inf else f"over {low:,} tokens"
            some = inside & (cached > 0)
            found.append(
                Cached(
                    label,
                    int(inside.sum()),
                    float(cached[inside].sum()),
                    float(new[inside].sum()),
                    cached[some] / new[some],
                )
            )
        return found

    def routed(self, name: str, hosts: int, tokens_per_host: float, report: Report) -> Routed:
        """What hosts with caches of their own hit, by a way to send requests to them."""
        blocks = self._blocks(tokens_per_host)
        found = self._routes.get((name, hosts, blocks))
        if found is None:
            found = route(self._trace, name, hosts, blocks, report)
            self._routes[name, hosts, blocks] = found
        return replace(found, tokens_per_host=tokens_per_host)

    def hit_tokens_per_s(self, saving: Saving) -> float:
        """Tokens that hits of a cache are, each second of the trace."""
        return saving.hit_ratio * float(self._tokens.sum()) / self.span_s

    def saved_by(self, hit_ratio: float) -> float:
        """Seconds saved by a hit ratio, as if hits were spread like those of one large cache."""
        whole = self.saving(float("inf"))
        return whole.saved_s * hit_ratio / whole.hit_ratio if whole.hit_ratio else 0.0

    def capacity_for(self, share: float) -> int:
        """Tokens that bring this share of the hits of a cache that never forgets."""
        found = self._capacities.get(share)
        if found is None:
            found = self._capacities[share] = self._reuse.capacity_for(share)
        return found * self._trace.block_tokens


def _require_span(span_s: float, requests: int) -> None:
    """Refuse requests from whose times no rate can be told."""
    if span_s < SPAN_S_MIN:
        raise ConfigError(
            f"the times of this trace span {span_s:.3g} s over {requests:,} requests: there are no "
            "rates to plan for; hint: a trace with arrival times, of an hour or more; "
            "'kvwise trace info' tells of its reuse without them"
        )
