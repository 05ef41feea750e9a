"""What is told of a trace, on one small enough to count by hand. Formats are tested elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvwise.sim.trace.assembly import Options
from kvwise.sim.trace.summary import KNEE_GAIN, Summary, summarise
from tests.sim.trace.support import SAMPLE, load, published, quiet


@pytest.fixture(name="told")
def _told(tmp_path: Path) -> Summary:
    """Two sessions of blocks of ten tokens: turns at 0, 10 and 40 s, and at 20 s."""
    rows = [
        (0, 30, 5, [1, 2, 3], "a"),
        (10_000, 40, 0, [1, 2, 3, 4], "a"),
        (20_000, 20, 5, [1, 9], "b"),
        (40_000, 45, 10, [1, 2, 3, 4, 5], "a"),
    ]
    path = tmp_path / "t.jsonl"
    path.write_text(
        "\n".join(
            f'{{"timestamp": {at}, "input_length": {given}, "output_length": {made}, '
            f'"hash_ids": {ids}, "session_id": "{name}"}}'
            for at, given, made, ids, name in rows
        )
    )
    return summarise(load(path, options=Options(block_tokens=10)), quiet)


def test_lengths_and_sessions(told: Summary) -> None:
    """Requests, span, sessions and lengths are counted."""
    assert (told.requests, told.span_s, told.sessions) == (4, 40.0, 2)
    assert (told.session_requests_max, told.unanswered, told.models) == (3, 1, {})
    assert (told.input_tokens.total, told.input_tokens.max) == (135, 45)
    assert (told.input_tokens.mean, told.input_tokens.p50) == (33.75, 35.0)
    assert told.output_tokens.mean == 5.0


def test_reuse_is_counted_in_blocks(told: Summary) -> None:
    """14 input blocks, of which 3, 1 and 4 were there before."""
    assert told.blocks is not None
    assert (told.blocks.input_blocks, told.blocks.distinct_blocks) == (14, 6)
    assert told.blocks.reuse == pytest.approx(8 / 14)
    assert told.blocks.requests_with_hit == 0.75
    assert told.blocks.once == pytest.approx(2 / 6)
    assert [(t.first, t.requests, t.input_blocks) for t in told.blocks.turns] == [
        (1, 2, 5), (2, 1, 4), (3, 1, 5),
    ]  # fmt: skip
    assert [t.reuse for t in told.blocks.turns] == pytest.approx([1 / 5, 3 / 4, 4 / 5])


def test_gaps_are_weighted_by_blocks(told: Summary) -> None:
    """Four blocks come back after 10 s, one after 20 s and three after 30 s."""
    assert told.blocks is not None
    assert told.blocks.gap_s == {"p50": 10.0, "p90": 30.0, "p99": 30.0}


def test_the_curve_ends_with_all_hits(told: Summary) -> None:
    """Capacities rise in round numbers until nothing is missing."""
    assert told.blocks is not None
    assert [point.capacity_tokens for point in told.blocks.curve] == [10, 30, 100]
    assert told.blocks.curve[-1].hit_ratio == told.blocks.reuse
    assert told.blocks.curve[-1].share == 1.0
    assert [point.capacity_tokens for point in told.blocks.needed] == [20, 40, 50, 50, 50]


def test_no_blocks_no_reuse() -> None:
    """A format without blocks is told without reuse."""
    told = summarise(load(SAMPLE["azure"]), quiet)

    assert told.blocks is None
    assert told.sessions == 0


def test_subagents_and_models_are_counted() -> None:
    """Requests of subagents and of every model are counted."""
    told = summarise(load(SAMPLE["weka"]), quiet)

    assert told.subagent_requests == 2
    assert told.models == {"big": 3, "small": 2}


def test_the_knee_is_where_doubling_stops_to_pay() -> None:
    """Twice the knee brings less than its share of the hits, and a bit less of it brought more."""
    trace = load(published("mooncake_conversation_trace.jsonl.gz"))
    told = summarise(trace, quiet).blocks
    assert told is not None
    points = {p.capacity_tokens: p for p in told.curve}

    assert 16_094_208 < told.knee.capacity_tokens < 19_251_712
    assert 1 - told.knee.share < 2 * KNEE_GAIN
    assert points[30_000_000].share - points[10_000_000].share > KNEE_GAIN
    assert told.once == pytest.approx(0.7585, abs=5e-5)
    assert {name: round(gap) for name, gap in told.gap_s.items()} == {
        "p50": 114, "p90": 519, "p99": 1578,
    }  # fmt: skip
