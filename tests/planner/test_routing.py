"""Routing of requests to hosts with caches of their own: known tables, and a plain model."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwise.planner.routing import FADE, LOAD_SHARE, ROUTES, SEED, Cache, Fleet, route
from kvwise.sim.dice import Dice
from tests.sim.replay.support import made, trace_of
from tests.sim.trace.support import load, published, quiet

PROMPTS = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=6), min_size=1, max_size=30)

TABLE = {
    300_000: (0.050, 0.100, 0.102, 0.103),
    1_000_000: (0.079, 0.247, 0.259, 0.261),
    3_000_000: (0.113, 0.341, 0.353, 0.354),
    10_000_000: (0.135, 0.354, 0.366, 0.366),
}
"""Hit ratios of a published chat trace on eight hosts with so many tokens each: in turn, by hash,
by what is cached, and in one cache of eight times the size."""


@pytest.mark.parametrize("tokens", TABLE)
def test_the_known_table(tokens: int) -> None:
    """Every way hits what is known of it, and knowing what is cached is nearly one large cache."""
    trace = load(published("mooncake_conversation_trace.jsonl.gz"))
    blocks = tokens // trace.block_tokens
    found = [route(trace, name, 8, blocks, quiet).hit_ratio for name in ROUTES]
    shared = route(trace, "round_robin", 1, 8 * blocks, quiet).hit_ratio

    assert (*found, shared) == pytest.approx(TABLE[tokens], abs=0.005)


def test_knowing_what_is_cached_is_best() -> None:
    """It hits what one cache of all hosts' size does, without leaving any of them idle."""
    trace = made(1_500)
    found = {name: route(trace, name, 4, 4_000, quiet) for name in ROUTES}
    pooled = route(trace, "round_robin", 1, 16_000, quiet)

    assert found["kv_aware"].hit_ratio == pytest.approx(pooled.hit_ratio, rel=0.01)
    assert found["kv_aware"].hit_ratio > 1.3 * found["round_robin"].hit_ratio
    assert found["kv_aware"].imbalance < 1.2
    assert route(trace, "kv_aware", 4, 4_000, quiet) == found["kv_aware"]


def test_one_host_is_one_cache() -> None:
    """Where there is no choice, no way to choose makes a difference."""
    trace = made(300)

    assert len({route(trace, name, 1, 500, quiet).hit_ratio for name in ROUTES}) == 1


@given(PROMPTS, st.integers(1, 12), st.integers(1, 5))
def test_the_host_is_that_of_asking_all(
    prompts: list[list[int]], capacity: int, hosts: int
) -> None:
    """Asking only hosts that may have something chooses as asking every one of them does."""
    fleet, choose = Fleet(hosts, capacity), ROUTES["kv_aware"]()
    dice, loads = Dice(SEED), [0.0] * hosts
    for number, request in enumerate(trace_of(prompts).requests):
        path = request.blocks
        held = [cache.cached(path) for cache in fleet.caches]
        costs = [
            len(path) - cached + LOAD_SHARE * load for cached, load in zip(held, loads, strict=True)
        ]
        equal = [host for host, cost in enumerate(costs) if cost == min(costs)]
        host = choose(fleet, number, path)

        assert host == dice.pick(equal)
        fleet.take(host, path)
        loads = [FADE * load for load in loads]
        loads[host] += len(path) - held[host]


def test_a_fleet_of_thousands(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hosts that are asked for a request are few, however many there are."""
    asked, cached = [0], Cache.cached

    def counted(cache: Cache, path: Sequence[int]) -> int:
        asked[0] += 1
        return cached(cache, path)

    monkeypatch.setattr(Cache, "cached", counted)
    trace = made(500, ("agent",))
    found = route(trace, "kv_aware", 10_000, 4_000, quiet)

    assert asked[0] < 100 * len(trace.requests)
    assert found.hit_ratio > 0.3


@given(
    PROMPTS,
    st.integers(1, 12),
)
def test_a_cache_is_a_list_of_prefixes(prompts: list[list[int]], capacity: int) -> None:
    """It holds the youngest so many blocks, ordered by last use, deepest first in each prompt."""
    trace = trace_of(prompts)
    cache, young = Cache(capacity), list[int]()
    for request in trace.requests:
        path = list(request.blocks)
        held = young[-capacity:]
        expected = next((n for n, block in enumerate(path) if block not in held), len(path))

        assert cache.cached(path) == expected
        cache.touch(path)
        young = [block for block in young if block not in path] + path[::-1]
