"""Foresight: no choice of what to keep hits more, tried out in full on tiny traces."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwise.sim.replay.clairvoyant import clairvoyant_hits
from kvwise.sim.trace.records import Trace
from tests.sim.replay.support import trace_of
from tests.sim.trace.support import load, published, reuse_of

M = 1_000_000


def most(trace: Trace, capacity: int) -> int:
    """The most hits of any cache: every choice of what to keep after every request is tried."""
    best: dict[frozenset[int], int] = {frozenset(): 0}
    for request in trace.requests:
        path = frozenset(request.blocks)
        after: dict[frozenset[int], int] = {}
        for held, hits in best.items():
            found = 0
            for block in request.blocks:
                if block not in held:
                    break
                found += 1
            known = sorted(held | path)
            for size in range(min(capacity, len(known)) + 1):
                for kept in combinations(known, size):
                    state = frozenset(kept)
                    after[state] = max(after.get(state, 0), hits + found)
        best = after
    return max(best.values())


@given(
    st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=3), min_size=1, max_size=6),
    st.integers(1, 3),
)
def test_nothing_hits_more(prompts: list[list[int]], capacity: int) -> None:
    """The bound is what the best of all caches hits, even of those with holes."""
    trace = trace_of(prompts)

    assert clairvoyant_hits(reuse_of(trace), capacity) == most(trace, capacity)


@given(st.lists(st.lists(st.integers(0, 2), max_size=6), max_size=20))
def test_it_lies_above_lru_and_grows(prompts: list[list[int]]) -> None:
    """It never hits less than LRU, never less with more room, and everything with room for all."""
    reuse = reuse_of(trace_of(prompts))
    found = [clairvoyant_hits(reuse, blocks) for blocks in range(reuse.distinct_blocks + 1)]

    assert found == sorted(found)
    assert all(hits >= reuse.hits(blocks).sum() for blocks, hits in enumerate(found))
    assert found[-1] == reuse.hit_blocks
    assert found[0] == 0


def test_the_published_trace_has_its_bounds() -> None:
    """The conversation trace of Mooncake has the ratios that another simulator gave for it."""
    reuse = reuse_of(load(published("mooncake_conversation_trace.jsonl.gz")))
    for tokens, expected in {300_000: 0.148, M: 0.253, 3 * M: 0.353, 10 * M: 0.366}.items():
        hits = clairvoyant_hits(reuse, tokens // 512)

        assert hits / reuse.input_blocks == pytest.approx(expected, abs=0.005)
