"""The search on the command line: what it prints, what it may spend, what it says of nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.test_plan import ran

ASKED = ("plan", "--model", "llama-3.1-8b", "--gpu", "l40s", "--tp", "2", "--hosts", "2")


@pytest.fixture
def few(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """A short trace of chats."""
    path = tmp_path / "few.jsonl"
    code, _, _ = ran(capsys, "trace", "make", "chat", "--requests", "150", "-o", path)
    assert code == 0
    return path


def test_the_best_is_one_of_those_that_ran(few: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """JSON has every trial; the best one costs least, and none costs more than the budget."""
    asked = (*ASKED, "--trace", few, "--search", "--budget", "900", "--jobs", "2")
    code, out, _ = ran(capsys, *asked, "--json")
    told = json.loads(out)

    assert code == 0
    assert told["combinations"] > 50
    assert told["best"] in told["trials"]
    costs = [one["usd_per_million_tokens"] for one in told["trials"]]
    assert told["best"]["usd_per_million_tokens"] == min(costs)
    assert all(one["costs_usd_per_month"] <= 900 for one in told["trials"] if not one["shared"])
    assert all(one["gpu_s"] <= 1.05 * one["gpu_s_without"] for one in told["trials"])


def test_where_nothing_is_quick_enough(few: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No trial keeps to an impossible time: that is said, and it is no success."""
    asked = (*ASKED, "--trace", few, "--search", "--ttft-max", "0.001", "--jobs", "2")
    code, out, _ = ran(capsys, *asked)

    assert code == 1
    assert "None of them keeps to the time to first token." in out


def test_a_budget_for_nothing(few: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is refused with what to do about it."""
    code, _, err = ran(capsys, *ASKED, "--trace", few, "--search", "--budget", "0")

    assert code == 2
    assert "hint: a larger --budget" in err
