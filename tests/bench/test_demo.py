"""The demo as a user runs it: its options, its exit codes, and a short run on a real engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from kvwise.bench import demo, machine
from kvwise.bench.demo import DemoOptions, run_demo
from kvwise.bench.places import SetupError
from kvwise.bench.result import Report
from kvwise.cli import demo as verb
from kvwise.live.events import Verdict
from tests.bench import runs
from tests.bench.engines import mentioning, require_engine
from tests.bench.fakes import Notes


def _run(monkeypatch: pytest.MonkeyPatch, report: Report, *arguments: str) -> tuple[int, str]:
    """Run the verb on a report that is already there; exit code and output."""
    monkeypatch.setattr(verb, "run_demo", lambda *_: report)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    result = CliRunner().invoke(verb.command, list(arguments), standalone_mode=False)
    assert result.exception is None
    return result.return_value, result.stdout


def test_the_summary_has_every_source_and_goal(monkeypatch: pytest.MonkeyPatch) -> None:
    """What matters fits a terminal."""
    code, output = _run(monkeypatch, runs.report())

    assert code == 0
    assert "tokens from all sources: equal" in output
    assert "2,605 events, same commands" in output
    assert output.count("met: ") == 3
    assert "27.0 x faster" in output


def test_a_busy_machine_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever wonders about the times finds why, and the exit code says that all is right."""
    code, output = _run(monkeypatch, runs.report(load_average=9.5))

    assert code == 0
    assert "note: the machine was busy before the run began (load average 9.5 on 2 cores)" in output


def test_other_tokens_fail_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """A script notices without reading."""
    report = runs.report(changed=runs.with_other_tokens("dram-1-1"))
    code, output = _run(monkeypatch, report)

    assert code == 1
    assert "NOT EQUAL" in output
    assert "dram-1-1: its tokens differ" in output


def test_json_is_all_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard output can be piped into a JSON reader."""
    _, output = _run(monkeypatch, runs.report(), "--json")

    assert json.loads(output)["tokens_equal"] is True


def test_too_little_memory_is_refused_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is installed for a run that cannot succeed."""
    monkeypatch.setattr(machine, "memory_bytes", lambda _: 1024**3)
    with pytest.raises(SetupError, match=r"1\.0 GiB of memory are available"):
        run_demo(DemoOptions(tmp_path), Notes())


def test_too_little_disk_is_refused_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon would leave the disk tier empty, which the run would take for a fault."""
    monkeypatch.setattr(demo, "DISK_MIN_FREE_BYTES", 1024**6)
    with pytest.raises(SetupError, match="hint: choose another folder with --out"):
        run_demo(DemoOptions(tmp_path), Notes())


def test_two_runs_do_not_share_a_folder(tmp_path: Path) -> None:
    """The second one is refused, and touches nothing of the first."""
    with demo._alone(tmp_path):
        (tmp_path / "engine.log").touch()
        with pytest.raises(SetupError, match="another demo is writing"), demo._alone(tmp_path):
            pass

        assert (tmp_path / "engine.log").exists()


def test_what_a_killed_run_left_is_removed(tmp_path: Path) -> None:
    """Its disk tier and its logs go; what is not the demo's stays."""
    for name in ("demo-disk-x1", "disk-of-mine"):
        (tmp_path / name).mkdir()
    for name in ("engine.log", "events-2.kvlog", "report.json"):
        (tmp_path / name).touch()
    with demo._alone(tmp_path):
        left = {path.name for path in tmp_path.iterdir()}

    assert left == {"demo.lock", "disk-of-mine", "report.json"}


def test_the_machine_is_described(tmp_path: Path) -> None:
    """A number without its machine means nothing."""
    facts = machine.describe(tmp_path)

    assert facts["cores"] == len(os.sched_getaffinity(0))
    assert facts["memory"].endswith("GiB")
    assert facts["filesystem"] != "unknown"


def test_a_divergence_is_cut_to_a_readable_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An event holds kilobytes of keys; the report names the command that shows them."""
    verdict = Verdict(False, 7, complete=True, divergence="x" * 9000, version="0.1.0")
    monkeypatch.setattr(demo, "replay", lambda _: (verdict, None))
    replayed = demo._replayed(tmp_path / "events-1.kvlog")

    assert len(replayed.divergence) < 500
    assert f"kvwise explain --log {tmp_path / 'events-1.kvlog'} --replay" in replayed.divergence


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_short_run_on_a_real_engine(tmp_path: Path) -> None:
    """Equal tokens from every source, every source proven, replay equal, nothing left running."""
    require_engine()
    command = [sys.executable, "-m", "kvwise", "demo", "--documents", "1", "--json"]
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "out")],
        capture_output=True,
        text=True,
        timeout=840,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert "step 7 of 7" in done.stderr
    assert report["problems"] == []
    assert report["tokens_equal"] is True
    assert report["replay"]["equal"] is True
    assert report["prefix_tokens"] == 2048
    assert (tmp_path / "out" / "report.html").stat().st_size > 10_000
    assert list((tmp_path / "out").glob("demo-disk-*")) == []
    assert mentioning(str(tmp_path)) == []
