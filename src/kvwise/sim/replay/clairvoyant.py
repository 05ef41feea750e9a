"""The most that any cache could hit: Belady's MIN on a trace, with bypass. It evicts nothing real.

A block that is used again at requests s and t occupies a place from s to t if it is to hit at t. So
a cache of n blocks is a choice of such spans of which no more than n overlap, and the most spans
are had by giving up, whenever there are too many, those that end last (Belady, 1966, with the
freedom not to keep a block at all). A block is never used before the blocks before it, so of two on
one path the deeper one ends no earlier, and what is kept has no holes.

Spans with both ends in common are counted together. They are the runs of `trace.distance`, which
makes this as quick for millions of touches as for thousands.
"""

from __future__ import annotations

import heapq
from collections import defaultdict

from kvwise.sim.trace.distance import Reuse


def clairvoyant_hits(reuse: Reuse, capacity_blocks: int) -> int:
    """Hit blocks of the best choice at a capacity, decided against the state before each request.

    Args:
        reuse: the runs of a trace.
        capacity_blocks: how many blocks may be kept from one request to the next.
    """
    spans: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    columns = (reuse.owner.tolist(), reuse.request.tolist(), reuse.blocks.tolist())
    for begin, end, blocks in zip(*columns, strict=True):
        spans[begin].append((end, blocks))
    kept: dict[int, int] = {}
    ends: list[int] = []
    hits = held = 0
    for now in sorted({*spans, *columns[1]}):
        found = kept.pop(now, 0)
        hits += found
        held -= found
        for end, blocks in spans.get(now, ()):
            if end not in kept:
                heapq.heappush(ends, -end)
            kept[end] = kept.get(end, 0) + blocks
            held += blocks
        while held > capacity_blocks:
            last = -ends[0]
            given_up = min(kept[last], held - capacity_blocks)
            held -= given_up
            kept[last] -= given_up
            if not kept[last]:
                del kept[last]
                heapq.heappop(ends)
    return hits
