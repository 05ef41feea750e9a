"""Stack distances against an LRU that is simulated block by block, and against published curves."""

from __future__ import annotations

from array import array
from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwise.sim.trace.assembly import Options
from kvwise.sim.trace.distance import Reuse
from kvwise.sim.trace.prefix import PrefixTree
from kvwise.sim.trace.records import Request, Trace
from tests.sim.trace.support import load, published, reuse_of

K, M = 1_000, 1_000_000
PROMPTS = st.lists(st.lists(st.integers(0, 2), max_size=7), max_size=25)


def trace_of(prompts: list[list[int]]) -> Trace:
    """A trace of prompts, one a second."""
    tree = PrefixTree()
    paths = [tree.path(0, ids) for ids in prompts]
    requests = tuple(Request(n, len(path), 1, path) for n, path in enumerate(paths))
    return Trace("made", 1, requests, tree.parents, ())


def simulated(trace: Trace, capacity: int) -> list[int]:
    """Hits of every request in an LRU of a capacity, block by block."""
    held: OrderedDict[int, None] = OrderedDict()
    found = []
    for request in trace.requests:
        hits = 0
        for block in request.blocks:
            if block not in held:
                break
            hits += 1
        found.append(hits)
        for block in reversed(request.blocks):
            held[block] = None
            held.move_to_end(block)
        while len(held) > capacity:
            held.popitem(last=False)
    return found


def by_request(trace: Trace, reuse: Reuse, capacity: int) -> list[int]:
    """Hits of every request by stack distances."""
    hits = np.zeros(len(trace.requests), dtype=np.int64)
    np.add.at(hits, reuse.request, reuse.hits(capacity))
    return [int(one) for one in hits]


@given(PROMPTS)
def test_every_capacity_hits_what_an_lru_hits(prompts: list[list[int]]) -> None:
    """At every capacity each request hits exactly the blocks that a simulated LRU holds."""
    trace = trace_of(prompts)
    reuse = reuse_of(trace)

    assert reuse.input_blocks == sum(map(len, prompts))
    for capacity in range(len(trace.parents) + 2):
        assert by_request(trace, reuse, capacity) == simulated(trace, capacity)


@given(PROMPTS, st.floats(0, 1))
def test_the_least_capacity_for_a_share(prompts: list[list[int]], share: float) -> None:
    """The capacity for a share of the hits has that share, and one block less has not."""
    reuse = reuse_of(trace_of(prompts))
    capacity = reuse.capacity_for(share)
    wanted = share * reuse.hit_blocks

    assert reuse.hits(capacity).sum() >= wanted
    assert capacity == 0 or reuse.hits(capacity - 1).sum() < wanted


def test_nothing_is_reused_in_nothing() -> None:
    """A trace without blocks has no hits, and no capacity is needed for all of them."""
    requests = (Request(0, 5, 5, array("i")),)
    reuse = reuse_of(Trace("made", 0, requests, array("i"), ()))

    assert (reuse.hit_blocks, reuse.hit_ratio(10), reuse.capacity_for(1.0)) == (0, 0.0, 0)


def test_blocks_that_are_used_once() -> None:
    """Blocks of one prompt only are counted, however often others come back."""
    reuse = reuse_of(trace_of([[0, 0, 0], [0, 1], [0, 1], [2]]))

    assert (reuse.distinct_blocks, reuse.once_blocks, reuse.hit_blocks) == (5, 3, 3)


MOONCAKE = "mooncake_conversation_trace.jsonl.gz"
CURVES = [
    pytest.param(
        MOONCAKE,
        Options(),
        {
            100 * K: 0.0419,
            300 * K: 0.0423,
            1 * M: 0.0533,
            3 * M: 0.1361,
            10 * M: 0.2852,
            30 * M: 0.3588,
            100 * M: 0.3664,
        },
        (4_246_528, 10_713_600, 16_094_208, 19_251_712, 43_631_616),
        id="mooncake",
    ),
    pytest.param(
        "ragpulse",
        Options(),
        {10 * K: 0.2818, 30 * K: 0.3058, 100 * K: 0.3136, 300 * K: 0.3158, 1 * M: 0.3160},
        (784, 4_992, 10_912, 21_072, 86_496),
        id="ragpulse",
    ),
    pytest.param(
        "weka",
        Options(models_apart=False, in_turn=True),
        {30 * K: 0.2781, 100 * K: 0.7358, 300 * K: 0.9241, 1 * M: 0.9557, 30 * M: 0.9557},
        (54_720, 107_264, 154_240, 251_008, 423_680),
        id="weka-in-turn",
    ),
    pytest.param(
        "weka",
        Options(models_apart=False, start_every_s=600),
        {30 * K: 0.1042, 100 * K: 0.3221, 300 * K: 0.6971, 1 * M: 0.9340, 3 * M: 0.9547},
        (162_496, 368_768, 524_224, 693_632, 1_290_176),
        id="weka-600",
    ),
    pytest.param(
        "weka",
        Options(models_apart=False, start_every_s=200),
        {30 * K: 0.0389, 100 * K: 0.1273, 300 * K: 0.3799, 1 * M: 0.8381, 10 * M: 0.9552},
        (384_256, 771_904, 1_114_688, 1_539_712, 2_872_064),
        id="weka-200",
    ),
    pytest.param(
        "weka",
        Options(models_apart=False),
        {30 * K: 0.0229, 100 * K: 0.0735, 300 * K: 0.1915, 1 * M: 0.4894, 10 * M: 0.9486},
        (966_848, 2_419_776, 3_807_360, 5_036_160, 9_278_336),
        id="weka-0",
    ),
]


@pytest.mark.parametrize(("name", "options", "curve", "distances"), CURVES)
def test_published_curves_are_met(
    name: str, options: Options, curve: dict[int, float], distances: tuple[int, ...]
) -> None:
    """Hit ratios to four digits, and the distance, in tokens, of the hit at certain ranks.

    A hit at a distance needs a capacity of one block more, so ranks and capacities go together.
    """
    trace = load(published(name), options=options)
    reuse = reuse_of(trace)
    ratios = {at: round(reuse.hit_ratio(at // trace.block_tokens), 4) for at in curve}
    each = np.repeat(reuse.distance, reuse.blocks) + np.concatenate(
        [np.arange(n) for n in reuse.blocks.tolist()]
    )
    each.sort()
    ranks = [int(share * len(each)) for share in (0.5, 0.8, 0.9, 0.95, 0.99)]

    assert ratios == curve
    assert tuple(int(each[rank]) * trace.block_tokens for rank in ranks) == distances


@pytest.mark.parametrize(
    ("capacity_tokens", "whole", "half"),
    [((1 << 40) // 327_680, 0.1529, 0.1531), ((4 << 40) // 327_680, 0.3199, 0.3300),
     (10**9, 0.3736, 0.3981)],
)  # fmt: skip
def test_another_simulator_agrees(capacity_tokens: int, whole: float, half: float) -> None:
    """Weighted by tokens, the hits are those of another tool, over all and over the second half."""
    trace = load(published(MOONCAKE))
    reuse = reuse_of(trace)
    size = trace.block_tokens
    blocks = by_request(trace, reuse, capacity_tokens // size)
    hits = [min(n * size, r.input_tokens) for n, r in zip(blocks, trace.requests, strict=True)]
    inputs = [r.input_tokens for r in trace.requests]
    middle = len(inputs) // 2

    assert sum(hits) / sum(inputs) == pytest.approx(whole, abs=1e-4)
    assert sum(hits[middle:]) / sum(inputs[middle:]) == pytest.approx(half, abs=1e-4)
