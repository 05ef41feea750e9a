"""Exact LRU stack distances of a trace, and so hit ratios at any capacity. It evicts nothing.

Definitions: requests come in order. The hits of a request are decided against the state before it;
then all its blocks are touched, the last one first, so that a suffix is older than its prefix. A
block hits in a cache of n blocks if fewer than n different blocks were touched since its own last
touch. Because a block is never touched without the blocks before it, one that hits has all of them.

Touching whole paths makes this cheap. Say a block belongs to the request that touched it last.
Along a path from the root the owners get older, and the blocks of one owner stand side by side in
the LRU order as they do on the path. So a path falls into few runs, as in a link-cut tree (Sleator
and Tarjan, 1983): O(log n) of them, amortised. The first block of a run has the distance that
counts the blocks of all younger owners, and each next block has one more. A Fenwick tree over
requests keeps those counts, which makes O(log n) for a run and O(n log n) for n touches at most.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvwise.sim.trace.assembly import Report
from kvwise.sim.trace.records import Trace

REPORT_EVERY = 1_000
Column = npt.NDArray[np.int64]


class _Counts:
    """How many blocks each request owns, summed from any request on: a Fenwick tree."""

    def __init__(self, requests: int) -> None:
        """Nobody owns anything."""
        self._sums = [0] * (requests + 1)
        self._total = 0

    def add(self, request: int, blocks: int) -> None:
        """A request owns more blocks, or fewer."""
        self._total += blocks
        at, sums = request + 1, self._sums
        while at < len(sums):
            sums[at] += blocks
            at += at & -at

    def younger(self, request: int) -> int:
        """Blocks that requests after this one own."""
        at, older, sums = request + 1, 0, self._sums
        while at:
            older += sums[at]
            at &= at - 1
        return self._total - older


@dataclass(frozen=True, slots=True)
class Reuse:
    """What a trace uses again, in runs of blocks that were last touched by the same request.

    Attributes:
        request: who uses a run again, by its place in the trace.
        owner: who touched it last.
        blocks: how long the run is.
        distance: how many different blocks were touched since its first block; the next ones have
            one more each.
        input_blocks: blocks of all prompts.
        distinct_blocks: different ones.
        once_blocks: those that no request but one has.
    """

    request: Column
    owner: Column
    blocks: Column
    distance: Column
    input_blocks: int
    distinct_blocks: int
    once_blocks: int

    @property
    def hit_blocks(self) -> int:
        """Hits in a cache that never evicts."""
        return int(self.blocks.sum())

    def hits(self, capacity_blocks: int) -> Column:
        """Of each run, the blocks that hit at a capacity."""
        return np.clip(capacity_blocks - self.distance, 0, self.blocks)

    def hit_ratio(self, capacity_blocks: int) -> float:
        """Hit blocks over input blocks, the cold start included."""
        return int(self.hits(capacity_blocks).sum()) / max(1, self.input_blocks)

    def capacity_for(self, share: float) -> int:
        """The least capacity, in blocks, with this share of the hits of one that never evicts."""
        wanted = share * self.hit_blocks
        low, high = 0, self.distinct_blocks
        while low < high:
            middle = (low + high) // 2
            if int(self.hits(middle).sum()) >= wanted:
                high = middle
            else:
                low = middle + 1
        return low


def measure_reuse(trace: Trace, report: Report) -> Reuse:
    """The runs of a trace."""
    owner = np.full(len(trace.parents), -1, dtype=np.int32)
    touches = np.zeros(len(trace.parents), dtype=np.int64)
    counts = _Counts(len(trace.requests))
    rows: list[tuple[int, int, int, int]] = []
    input_blocks = 0
    for number, request in enumerate(trace.requests):
        if number % REPORT_EVERY == 0:
            report(f"measuring reuse: {number} of {len(trace.requests)} requests")
        if not request.blocks:
            continue
        path = np.frombuffer(request.blocks, dtype=np.int32)
        input_blocks += len(path)
        before = owner[path]
        starts = [0, *(np.flatnonzero(before[1:] != before[:-1]) + 1).tolist(), len(path)]
        olds = before[starts[:-1]].tolist()
        runs = [
            (number, owned, end - start, counts.younger(owned))
            for owned, start, end in zip(olds, starts, starts[1:], strict=False)
            if owned >= 0
        ]
        for _, owned, blocks, _ in runs:
            counts.add(owned, -blocks)
        counts.add(number, len(path))
        owner[path] = number
        touches[path] += 1
        rows += runs
    columns = np.array(rows, dtype=np.int64).reshape(-1, 4)
    return Reuse(
        request=columns[:, 0],
        owner=columns[:, 1],
        blocks=columns[:, 2],
        distance=columns[:, 3],
        input_blocks=input_blocks,
        distinct_blocks=len(trace.parents),
        once_blocks=int(np.count_nonzero(touches == 1)),
    )
