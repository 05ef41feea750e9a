"""Plan: the chosen cut is the best of all cuts, and every reason is given where it should be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwise.core.plan import Cut, Question, choose, runs
from kvwise.core.words import Choice, Why

CHUNK = 32


def question(
    *sources: tuple[int, int],
    policy: str = "auto",
    local: int = 0,
    total: int = 0,
    margin: float = 0.1,
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
    )


def answer(
    asked: Question, *, tier_s: dict[int, float], token_s: float, pair_s: float = 0.0
) -> Cut:
    """Choose with `tier_s` seconds for a chunk of each tier."""
    tiers = [tier for tier, count in asked.sources for _ in range(count)]

    def load_s(chunks: int) -> float:
        return sum(tier_s[tier] for tier in tiers[:chunks])

    def recompute_s(new: int, cached: int) -> float:
        return token_s * new + pair_s * new * (cached + new / 2)

    return choose(asked, load_s, recompute_s)


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
    assert cut.load_s == pytest.approx(0.006)
    assert cut.recompute_s == pytest.approx(6 * CHUNK * 1e-3)


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 6)), min_size=1, max_size=4),
    st.tuples(st.floats(1e-4, 0.1), st.floats(1e-4, 0.1), st.floats(1e-4, 0.1)),
    st.floats(1e-5, 2e-3),
    st.floats(0, 1e-6),
    st.integers(0, 100),
)
def test_no_other_cut_is_faster(
    sources: list[tuple[int, int]],
    chunk_s: tuple[float, float, float],
    token_s: float,
    pair_s: float,
    local: int,
) -> None:
    """Trying every number of chunks finds nothing better than the few cuts that are priced."""
    tiers = [tier for tier, count in sources for _ in range(count)]
    asked = question(*runs(bytes(tiers)), local=local, margin=0.0)
    cut = answer(asked, tier_s=dict(enumerate(chunk_s)), token_s=token_s, pair_s=pair_s)

    def total_s(chunks: int) -> float:
        covered = local + chunks * CHUNK - asked.skip_tokens if chunks else local
        left = asked.total_tokens - covered
        computed = token_s * left + pair_s * left * (covered + left / 2)
        return sum(chunk_s[t] for t in tiers[:chunks]) + computed

    best = min(total_s(k) for k in range(len(tiers) + 1))
    assert total_s(cut.chunks) == pytest.approx(best, rel=1e-9, abs=1e-12)


def test_runs() -> None:
    """Neighbouring chunks of one tier are one run."""
    assert runs(bytes([0, 0, 1, 1, 1, 0])) == ((0, 2), (1, 3), (0, 1))
    assert runs(b"") == ()
