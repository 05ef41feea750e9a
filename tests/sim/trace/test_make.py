"""Traces that are made up: the same for a seed, and shaped as their parameters say."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import pytest

from kvwise.sim.trace.make import KINDS, LONGEST, PARAMETERS, Row, make_rows


def made(requests: int, seed: int = 1, **changes: float | dict[str, float]) -> list[Row]:
    """Requests of the kinds that are named, with a share or with changed parameters."""
    shares = {kind: one if isinstance(one, int | float) else 1.0 for kind, one in changes.items()}
    settings = {
        kind: {name: one.default for name, one in PARAMETERS[kind].items()}
        | (change if isinstance(change, dict) else {})
        for kind, change in changes.items()
    }
    return list(islice(make_rows(shares, settings, seed), requests))


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_makes_a_trace(kind: str) -> None:
    """The same seed gives the same rows, also when fewer are asked for; another gives others."""
    rows = made(60, 7, **{kind: 1.0})

    assert rows == made(60, 7, **{kind: 1.0})
    assert rows[:20] == made(20, 7, **{kind: 1.0})
    assert rows != made(60, 8, **{kind: 1.0})


@pytest.mark.parametrize("seed", range(4))
def test_rows_are_whole(seed: int) -> None:
    """Arrivals are in order, lengths are made by blocks, and an id has one prefix."""
    rows = made(300, seed, chat=1.0, rag=0.5, agent=2.0, oneshot=0.1)
    parents: dict[int, int] = {}

    assert [row.timestamp for row in rows] == sorted(row.timestamp for row in rows)
    for row in rows:
        assert len(row.hash_ids) == -(-row.input_length // 512)
        assert row.output_length > 0
        for parent, block in zip([-1, *row.hash_ids], row.hash_ids, strict=False):
            assert parents.setdefault(block, parent) == parent
    assert sorted(parents) == list(range(len(parents)))


def test_turns_go_on_with_what_was_said() -> None:
    """A later turn has the full blocks of the one before it, its answer, and something new."""
    last: dict[str, Row] = {}
    turns = 0
    for row in made(200, chat={"turns": 8.0, "turn_tokens": 600.0}):
        before = last.get(row.session_id)
        if before is not None:
            turns += 1
            full = before.input_length // 512
            assert row.hash_ids[:full] == before.hash_ids[:full]
            assert row.input_length > before.input_length + before.output_length
            assert row.timestamp >= before.timestamp + 20 * before.output_length - 1
        last[row.session_id] = row

    assert turns > 100


def test_sessions_share_what_all_begin_with() -> None:
    """Whole blocks of the system prompt are the same in all sessions, and no more than those."""
    firsts = {row.session_id: row for row in reversed(made(60, agent={"system_tokens": 2048.0}))}
    beginnings = {tuple(row.hash_ids[:4]) for row in firsts.values()}
    fifths = Counter(row.hash_ids[4] for row in firsts.values() if len(row.hash_ids) > 4)

    assert len(firsts) > 1
    assert len(beginnings) == 1
    assert max(fifths.values()) == 1


def test_popular_documents_come_first() -> None:
    """A steeper law makes fewer different blocks, an even one more."""
    steep, even = (
        made(300, rag={"zipf": zipf, "passages": 1.0, "system_tokens": 0.0, "document_tokens": 5e3})
        for zipf in (2.0, 0.0)
    )
    different = [len({block for row in rows for block in row.hash_ids}) for rows in (steep, even)]

    assert different[0] < different[1] / 2


def test_single_prompts_share_nothing() -> None:
    """No block of a one-shot prompt comes back, and no session has a second request."""
    rows = made(200, oneshot=1.0)
    blocks = [block for row in rows for block in row.hash_ids]

    assert len(set(blocks)) == len(blocks)
    assert len({row.session_id for row in rows}) == 200


def test_parameters_set_means() -> None:
    """Mean lengths and rates are those that were asked for, and nothing is absurdly long."""
    rows = made(4000, oneshot={"turn_tokens": 500.0, "output_tokens": 40.0, "starts": 2.0})
    mean_input = sum(row.input_length for row in rows) / len(rows)
    mean_output = sum(row.output_length for row in rows) / len(rows)

    assert mean_input == pytest.approx(500, rel=0.06)
    assert mean_output == pytest.approx(40, rel=0.06)
    assert rows[-1].timestamp / 1000 == pytest.approx(2000, rel=0.06)
    assert max(row.input_length for row in rows) <= LONGEST * 500 + 1


def test_shares_mix_kinds() -> None:
    """Half the share makes half as many sessions start, and long sessions end at the context."""
    rows = made(3000, 3, oneshot=0.2, rag=0.5)
    kinds = Counter(row.session_id.partition("-")[0] for row in rows)
    long = made(300, agent={"context_tokens": 20_000.0, "turn_tokens": 100.0})

    assert kinds["rag"] / kinds["oneshot"] == pytest.approx(1.0, rel=0.1)
    assert max(row.input_length for row in long) <= 20_000 + LONGEST * 100 + 1
