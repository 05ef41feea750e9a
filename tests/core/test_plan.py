"""Plan: the chosen cut is the best of all cuts, and every reason is given where it should be."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwise.core.plan import (
    DOUBT,
    HIDDEN,
    RELIEF,
    Computing,
    Cut,
    Question,
    Transfer,
    choose,
    pipelined,
    runs,
)
from kvwise.core.words import Choice, Why

CHUNK = 32


def question(
    *sources: tuple[int, int],
    policy: str = "auto",
    local: int = 0,
    total: int = 0,
    margin: float = 0.1,
    backlog_s: float = 0.0,
    layers: int = 0,
    limit_s: float = math.inf,
) -> Question:
    """A question about these sources."""
    chunks = sum(count for _, count in sources)
    return Question(
        sources=sources,
        chunk_tokens=CHUNK,
        skip_tokens=local % CHUNK,
        local_tokens=local,
        total_tokens=total or local - local % CHUNK + chunks * CHUNK + 7,
        policy=policy,
        margin=margin,
        backlog_s=backlog_s,
        layers=layers,
        limit_s=limit_s,
    )


def answer(
    asked: Question,
    *,
    tier_s: dict[int, float],
    token_s: float,
    pair_s: float = 0.0,
    queue_s: float = 0.0,
    deviation_s: float = 0.0,
) -> Cut:
    """Choose with `tier_s` seconds for a chunk of each tier, and some for what is ahead."""
    tiers = [tier for tier, count in asked.sources for _ in range(count)]

    def transfer(chunks: int) -> Transfer:
        own_s = sum(tier_s[tier] for tier in tiers[:chunks])
        return Transfer(queue_s + own_s, own_s, deviation_s)

    def recompute_s(new: int, cached: int) -> float:
        return token_s * new + pair_s * new * (cached + new / 2)

    return choose(asked, transfer, Computing(recompute_s, lambda _new, _cached: deviation_s))


@pytest.mark.pain("P1", "P10")
@pytest.mark.parametrize(
    ("policy", "chunk_s", "choice", "why", "chunks"),
    [
        ("auto", 0.001, Choice.LOAD, Why.FASTER, 10),
        ("auto", 0.100, Choice.RECOMPUTE, Why.SLOWER, 0),
        ("auto", 0.031, Choice.RECOMPUTE, Why.SLOWER, 0),
        ("load", 0.100, Choice.LOAD, Why.FORCED, 10),
        ("recompute", 0.001, Choice.RECOMPUTE, Why.FORCED, 0),
    ],
)
def test_choices(policy: str, chunk_s: float, choice: Choice, why: Why, chunks: int) -> None:
    """Each policy on each side of the break-even of 32 ms a chunk, and within the margin of it."""
    cut = answer(question((1, 10), policy=policy), tier_s={1: chunk_s}, token_s=1e-3)
    assert (cut.choice, cut.why, cut.chunks) == (choice, why, chunks)


def test_a_slow_tail_is_left_to_recompute() -> None:
    """The fast tier's leading part is loaded, the slow rest is not."""
    cut = answer(question((0, 6), (1, 4)), tier_s={0: 0.001, 1: 0.5}, token_s=1e-3)
    assert (cut.choice, cut.why, cut.chunks) == (Choice.LOAD_PART, Why.TAIL_SLOWER, 6)
    assert cut.transfer.total_s == pytest.approx(0.006)
    assert cut.recompute_s == pytest.approx(6 * CHUNK * 1e-3)


@pytest.mark.pain("P1")
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 6)), min_size=1, max_size=4),
    st.tuples(st.floats(1e-4, 0.1), st.floats(1e-4, 0.1), st.floats(1e-4, 0.1)),
    st.tuples(st.floats(1e-5, 2e-3), st.floats(0, 1e-6), st.floats(0, 2), st.floats(0, 2)),
    st.integers(0, 100),
    st.sampled_from([0, 0, 1, 30]),
)
def test_no_other_cut_is_faster(
    sources: list[tuple[int, int]],
    chunk_s: tuple[float, float, float],
    seconds: tuple[float, float, float, float],
    local: int,
    layers: int,
) -> None:
    """Trying every number of chunks finds nothing better than the few cuts that are priced."""
    tiers = [tier for tier, count in sources for _ in range(count)]
    token_s, pair_s, queue_s, backlog_s = seconds
    asked = question(
        *runs(bytes(tiers)), local=local, margin=0.0, backlog_s=backlog_s, layers=layers
    )
    cut = answer(
        asked, tier_s=dict(enumerate(chunk_s)), token_s=token_s, pair_s=pair_s, queue_s=queue_s
    )

    def total_s(chunks: int) -> float:
        covered = local + chunks * CHUNK - asked.skip_tokens if chunks else local
        left = asked.total_tokens - covered
        computed = token_s * left + pair_s * left * (covered + left / 2)
        if not chunks:
            return backlog_s + computed
        load_s = queue_s + sum(chunk_s[t] for t in tiers[:chunks])
        if layers and not any(tiers[:chunks]):
            return backlog_s + _recursion(load_s / layers, computed / layers, layers)
        return backlog_s + max(0.0, load_s - HIDDEN * backlog_s) + computed

    best = min(total_s(k) for k in range(len(tiers) + 1))
    relief_s = cut.relief_s if cut.chunks else 0.0
    assert total_s(cut.chunks) - relief_s <= best * 1.011


def _recursion(load_s: float, compute_s: float, layers: int) -> float:
    """When the last of `layers` layers is computed, layer by layer."""
    loaded = computed = 0.0
    for _ in range(layers):
        loaded += load_s
        computed = max(computed, loaded) + compute_s
    return computed


@given(st.floats(0, 10), st.floats(0, 10), st.integers(1, 100))
def test_layers_overlap(load_s: float, compute_s: float, layers: int) -> None:
    """The closed form is the recursion over layers."""
    found = pipelined(layers * load_s, layers * compute_s, layers)
    assert found == pytest.approx(_recursion(load_s, compute_s, layers), abs=1e-9)


def test_a_load_hides_behind_earlier_prompts() -> None:
    """What loses on an idle engine wins on a busy one, until the link is as busy."""
    slow = {1: 0.05}
    idle = answer(question((1, 10)), tier_s=slow, token_s=1e-3)
    busy = answer(question((1, 10), backlog_s=0.7), tier_s=slow, token_s=1e-3)
    both = answer(question((1, 10), backlog_s=0.6), tier_s=slow, token_s=1e-3, queue_s=1.8)
    assert (idle.chunks, busy.chunks, both.chunks) == (0, 10, 0)
    assert (busy.exposed_s, both.why) == (0.0, Why.SLOWER)


def test_loads_under_way_are_not_held_up() -> None:
    """A queue on the link is no reason to compute unless it is long: loads end meanwhile."""
    fast = {1: 0.005}
    short = answer(question((1, 10)), tier_s=fast, token_s=1e-3, queue_s=0.5)
    long = answer(question((1, 10)), tier_s=fast, token_s=1e-3, queue_s=1.5)
    assert (short.chunks, long.chunks) == (10, 0)
    assert short.relief_s == pytest.approx(RELIEF * short.recompute_s)


def test_a_backlog_hides_as_much_as_fits() -> None:
    """Where computing is faster, just as much is loaded as is there in time for the engine."""
    cut = answer(question((1, 100), backlog_s=1.0), tier_s={1: 0.05}, token_s=1e-3)
    assert (cut.choice, cut.why, cut.chunks) == (Choice.LOAD_PART, Why.TAIL_SLOWER, 15)


def test_a_load_must_win_by_what_is_not_known() -> None:
    """The less certain the estimates, the more a load must win by."""
    asked = question((1, 10), margin=0.0)
    sure = answer(asked, tier_s={1: 0.03}, token_s=1e-3, deviation_s=0.01)
    unsure = answer(asked, tier_s={1: 0.03}, token_s=1e-3, deviation_s=0.1)
    assert (sure.chunks, unsure.chunks) == (10, 0)
    assert unsure.doubt_s == pytest.approx(DOUBT * math.hypot(0.1, 0.1))


def test_equal_times_go_to_less_computing() -> None:
    """Of two cuts that are equally fast, the one is taken that leaves the engine to others."""
    cut = answer(question((1, 10), margin=0.0), tier_s={1: 32e-3 - 1e-6}, token_s=1e-3)
    assert cut.chunks == 10


def test_a_load_that_would_be_given_up_is_not_begun() -> None:
    """Beyond the longest wait nothing is loaded, however busy the engine is."""
    asked = question((1, 10), backlog_s=60.0, limit_s=2.0)
    late = answer(asked, tier_s={1: 0.001}, token_s=1e-3, queue_s=3.0)
    assert (late.choice, late.why, late.chunks) == (Choice.RECOMPUTE, Why.TOO_LATE, 0)
    part = answer(asked, tier_s={1: 0.3}, token_s=1e-3)
    assert (part.choice, part.chunks) == (Choice.LOAD_PART, 6)


def test_runs() -> None:
    """Neighbouring chunks of one tier are one run."""
    assert runs(bytes([0, 0, 1, 1, 1, 0])) == ((0, 2), (1, 3), (0, 1))
    assert runs(b"") == ()
