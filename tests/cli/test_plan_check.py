"""Plans on times of one's own, and what the test of a plan asks of the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from kvwise.bench.reality import Outcome
from kvwise.bench.rows import Rows
from kvwise.cli.plan_check import keep_times, show, verdict_of
from kvwise.errors import ConfigError
from kvwise.planner.oracle import Row, Times, read_times
from kvwise.planner.validate import Check
from tests.cli.test_plan import chats, ran
from tests.tiers.mounts import mounted

__all__ = ["chats"]

ASKED = ("plan", "--model", "llama-3.1-8b", "--gpu", "l40s", "--dram", "64GB")


def test_a_plan_says_whose_times_it_took(
    chats: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Times ten times as long make ten times as many engines, and the file is named."""
    times = tmp_path / "mine.csv"
    figures = {}
    for factor in (1, 10):
        lines = [f"{n},{factor * (0.01 + n / 5000)}" for n in (256, 1024, 4096, 16_384)]
        times.write_text("\n".join(["tokens,seconds", *lines]))
        code, out, _ = ran(capsys, *ASKED, "--trace", chats, "--recompute", times, "--json")
        assert code == 0
        told = json.loads(out)
        figures[factor] = told["engines_busy_with_prefill"]
        assert told["estimate"]["by"] == str(times)
        assert told["estimate"]["error_median"] < 0.05
    assert figures[10] == pytest.approx(10 * figures[1], rel=0.01)

    code, out, _ = ran(capsys, *ASKED, "--trace", chats, "--recompute", times)
    assert code == 0
    assert "mine.csv says at 4 lengths" in out.replace("\n", " ")


def test_a_plan_needs_what_its_test_does_not(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a test, what is missing is an error that names it."""
    code, _, err = ran(capsys, "plan", "--gpu", "l40s")
    assert code == 2
    assert "--model" in err


def test_a_wrong_file_of_times(
    chats: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is named with its line, and nothing is planned."""
    times = tmp_path / "mine.csv"
    times.write_text("tokens,seconds\n1,x\n")
    code, out, err = ran(capsys, *ASKED, "--trace", chats, "--recompute", times)

    assert (code, out) == (2, "")
    assert "mine.csv, line 2: seconds: 'x' is no number" in err.replace("\n", "")


def test_predictions_are_shown_beside_measurements() -> None:
    """Each line says by how much it is off; one that does not hold fails the whole."""
    good = Check("break-even prefix", "tokens", 1100.0, 1000.0, 0.2, between=(950.0, 1030.0))
    bad = Check("hit ratio", "of blocks", 0.50, None, 0.01, is_ratio=False)
    row = {"path": "disk", "fixed_ms": 12.0, "gb_per_s": 1.5}
    rows = Rows("plan-validate", "x", "now", {}, [row])
    times = Times("x", [Row(100, 0.1), Row(200, 0.3)])
    console = Console(record=True, width=100, highlight=False)
    show(Outcome(rows, [good, bad], times), console)
    text = console.export_text()

    assert "10.0%" in text
    assert "1,000 (950 to 1,030)" in text
    assert "none found" in text
    assert "NO" in text
    assert "loading from disk: 12.0 ms, then 1.50 GB/s" in text
    assert "100: 100 ms, 200: 300 ms" in text
    assert (verdict_of([good]), verdict_of([good, bad])) == (0, 1)


def test_times_are_kept_whole_or_as_they_were(tmp_path: Path) -> None:
    """Minutes of measuring leave a file that is read again; without room the old one stays."""
    machine = {"engine": "vLLM", "model": "tiny", "cpu": "this"}
    times = Times("x", [Row(n, n / 100) for n in range(1, 900)])
    outcome = Outcome(Rows("plan-validate", "x", "now", machine, []), [], times)
    keep_times(tmp_path / "out.csv", outcome, "kvwise plan")
    assert read_times(tmp_path / "out.csv").knots == times.knots

    with mounted(tmp_path / "small", "-t", "tmpfs", "-o", "size=8k", "none") as small:
        (small / "out.csv").write_text("mine")
        with pytest.raises(ConfigError, match="No space left"):
            keep_times(small / "out.csv", outcome, "kvwise plan")
        assert [path.read_text() for path in small.iterdir()] == ["mine"]
