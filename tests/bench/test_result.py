"""What a run showed: medians, ratios, goals, and everything that makes it doubtful."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from kvwise.bench.measure import Phase
from kvwise.bench.result import Replay, conclude
from tests.bench import runs


def test_a_good_run() -> None:
    """Medians by phase, ratios of medians, no problem."""
    report = runs.report()

    assert report.ttft_ms["recompute"] == 2395.1
    assert report.speedup == {"dram": 26.97, "disk": 17.17}
    assert report.tokens_equal
    assert report.distinct_answers == 3
    assert report.prefix_tokens == 2048
    assert report.problems == []
    assert [goal.met for goal in report.goals] == [True, True, True]


def test_the_file_has_what_others_read() -> None:
    """Names in report.json are a promise."""
    content = json.loads(runs.report().to_json())

    assert set(content["ttft_ms"]) == {phase.value for phase in Phase}
    assert content["tokens_equal"] is True
    assert set(content["speedup"]) == {"dram", "disk"}
    assert content["replay"]["equal"] is True
    assert len(content["samples"]["disk_after_restart"]) == 3
    assert content["decisions"][0]["tiers"] == {"dram": 2048}
    assert content["decisions"][0]["why"] == "faster"
    assert {"engine", "model", "machine", "prefix_tokens", "goals"} <= set(content)


@pytest.mark.parametrize("name", ["dram-1-1", "device-0-1", "disk-after-restart-2-1"])
def test_one_other_token_is_found(name: str) -> None:
    """A single answer that differs is named."""
    report = runs.report(changed=runs.with_other_tokens(name))

    assert not report.tokens_equal
    assert f"{name}: its tokens differ from those of computing the same prompt" in report.problems


def test_a_hit_that_was_computed_is_found() -> None:
    """A quick phase whose request the engine computed is not a hit."""
    changed = {s.name: replace(s, cached_tokens=0) for s in runs.samples() if s.name == "dram-0-1"}
    report = runs.report(changed=changed)

    assert "dram-0-1: 0 tokens came from a cache, not 2048" in report.problems


def test_a_computation_that_was_cached_is_found() -> None:
    """A slow phase that a cache helped is no baseline."""
    changed = {
        s.name: replace(s, cached_tokens=2048) for s in runs.samples() if s.name == "recompute-0-1"
    }
    report = runs.report(changed=changed)

    assert "recompute-0-1: 2048 tokens came from a cache" in report.problems


def test_another_tier_than_promised_is_found() -> None:
    """The disk phase has to come from disk."""
    decisions = [replace(d, tiers={"dram": 2048}) for d in runs.decisions()]
    report = conclude(runs.SETTING, runs.samples(), decisions, list(runs.REPLAYS))

    assert "disk-after-restart-0-1: kvwise loaded from dram, not disk" in report.problems
    assert not any(problem.startswith("dram-") for problem in report.problems)


def test_a_load_that_kvwise_knows_nothing_of_is_found() -> None:
    """Without a decision there is no proof of a source."""
    report = conclude(runs.SETTING, runs.samples(), [], list(runs.REPLAYS))

    assert any("nowhere that it knows of" in problem for problem in report.problems)


def test_requests_with_similar_names_are_told_apart() -> None:
    """Document 1 is not document 11, and memory is not memory after a restart."""
    report = runs.report()
    pairs = [(row.sample, row.decision) for row in report.rows if row.decision]

    assert len(pairs) == 9
    assert all(d.request == f"chatcmpl-{s.name}-9f2c" for s, d in pairs)


def test_missed_goals_are_missed() -> None:
    """A goal is compared with what was measured, not with what was hoped for."""
    changed = {s.name: replace(s, ttft_ms=2000.0) for s in runs.samples() if s.phase is Phase.DRAM}
    report = runs.report(changed=changed)

    assert [goal.met for goal in report.goals] == [False, True, False]


def test_a_replay_that_diverges_is_a_problem() -> None:
    """An event log that leads elsewhere is evidence, not noise."""
    replays = [Replay("events-1.kvlog", False, 12, "event 12 now leads to []")]
    report = conclude(runs.SETTING, runs.samples(), runs.decisions(), replays)

    assert any("event 12 now leads to []" in problem for problem in report.problems)
    assert json.loads(report.to_json())["replay"]["equal"] is False


def test_an_empty_run_concludes_nothing() -> None:
    """No measurement, no ratio, no division by zero."""
    report = conclude(runs.SETTING, [], [], [])

    assert report.speedup == {"dram": 0.0, "disk": 0.0}
    assert not any(goal.met for goal in report.goals)
