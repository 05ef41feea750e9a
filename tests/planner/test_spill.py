"""What drives hit when fewer blocks are written, beside counting it one block at a time."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from kvwise.planner.spill import spill
from kvwise.sim.trace.distance import measure_reuse
from kvwise.sim.trace.records import Trace
from tests.sim.replay.support import made, trace_of
from tests.sim.trace.support import quiet

PROMPTS = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=6), min_size=1, max_size=30)


def counted(trace: Trace, memory: int, whole: int) -> tuple[Counter[int], int]:
    """Hits of each block between two sizes of an LRU, and those of blocks seen twice before."""
    young: list[int] = []
    hits, seen, later = Counter[int](), Counter[int](), 0
    for request in trace.requests:
        path = list(request.blocks)
        for block in path:
            if block in young:
                distance = len(young) - 1 - young.index(block)
                if memory <= distance < whole:
                    hits[block] += 1
                    later += seen[block] >= 2
        seen.update(path)
        young = [block for block in young if block not in path] + path[::-1]
    return hits, later


@given(PROMPTS, st.integers(0, 8), st.integers(0, 12))
def test_hits_are_those_counted_one_by_one(
    prompts: list[list[int]], memory: int, more: int
) -> None:
    """Hits between two sizes, those of old blocks and the best blocks are as counted by hand."""
    trace = trace_of(prompts)
    found = spill(trace, measure_reuse(trace, quiet), memory, memory + more)
    hits, later = counted(trace, memory, memory + more)

    assert found.hits == hits.total()
    assert found.later_hits == later
    best = sorted(hits.values(), reverse=True)
    assert found.best.tolist() == [sum(best[: n + 1]) for n in range(len(best))]


def test_more_writes_leave_more() -> None:
    """Nothing written leaves nothing, all blocks that are hit leave all, and between it rises."""
    trace = made(1_000, ("chat",))
    found = spill(trace, measure_reuse(trace, quiet), 200, 2_000)
    shares = [found.best_share(count) for count in (0, 10, 100, len(found.best), 1e12)]

    assert shares == sorted(shares)
    assert (shares[0], shares[-2], shares[-1]) == (0.0, 1.0, 1.0)
    assert 0 < found.later_share < 1
