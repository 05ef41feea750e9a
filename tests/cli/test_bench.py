"""The bench verb on the command line: what is offered, what is refused, and both outputs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kvwise import cli
from kvwise.bench import tiers
from kvwise.cli.bench import BENCHES
from kvwise.engines.host_copy import HostCopier
from tests.live.support import eventually


@pytest.mark.parametrize("bench", BENCHES)
def test_every_bench_helps_itself(bench: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each bench has a help page with an example that names it, and a --json option."""
    assert cli.run(["bench", bench, "--help"]) == 0

    page = capsys.readouterr().out
    assert f"kvwise bench {bench}" in page
    assert "Examples:" in page
    assert "--json" in page


def test_help_lists_every_bench(capsys: pytest.CaptureFixture[str]) -> None:
    """The verb's page shows each bench with its one line."""
    assert cli.run(["bench", "--help"]) == 0

    page = capsys.readouterr().out
    assert [bench for bench in BENCHES if f"\n  {bench} " not in page] == []


def test_a_mistyped_bench_is_answered_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    """The hint is a command that exists."""
    assert cli.run(["bench", "tires"]) == cli.EXIT_USAGE
    assert "hint: did you mean 'kvwise bench tiers'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--objects", "3MiB"], "'720KiB', '2MiB', '16MiB'"),
        (["--part", "cloud"], "'dram'"),
        (["--passes", "-1"], "0<=x<=1000"),
        (["--disk", "/no/such/folder"], "does not exist"),
    ],
)
def test_wrong_flags_are_refused(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message names what may be written, the hint the help page."""
    assert cli.run(["bench", "tiers", *arguments]) == cli.EXIT_USAGE

    complaint = capsys.readouterr().err
    assert said in complaint
    assert "hint: kvwise bench tiers --help" in complaint


def test_rows_are_printed_for_people_and_for_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same run as a table and as JSON; progress never mixes with either."""
    monkeypatch.setattr(tiers, "working_set_bytes", lambda **_: 8 << 20)
    monkeypatch.setattr(tiers, "BLOCKS_QUICK", 640)
    command = ["bench", "tiers", "--disk", str(tmp_path), "--objects", "720KiB", "--passes", "1"]
    command += ["--quick", "--part", "dram", "--part", "index"]

    assert cli.run(command) == 0
    text = capsys.readouterr()
    assert "dram.put" in text.out
    assert "…" not in text.out
    assert "bytes_per_block" in text.out
    assert "measured: dram" in text.err
    assert text.out.count("not judged") == 4
    assert "met " not in text.out.replace("missed", "met")

    assert cli.run([*command, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [row["path"] for row in told["rows"]] == ["dram.put", "dram.get", "index"]
    assert told["command"].startswith("kvwise bench tiers --disk")
    assert told["machine"]["cores"] > 0


def test_a_part_that_fails_takes_no_other_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was measured is printed, what went wrong is told, and the exit code is not 0."""
    monkeypatch.setattr(tiers, "working_set_bytes", lambda **_: 8 << 20)
    monkeypatch.setattr(tiers, "BLOCKS_QUICK", 640)
    monkeypatch.setattr(HostCopier, "_move", lambda *_: None)
    command = ["bench", "tiers", "--disk", str(tmp_path), "--objects", "720KiB", "--passes", "1"]
    command += ["--quick", "--part", "dram", "--part", "index", "--json"]

    assert cli.run(command) == 1
    told = capsys.readouterr()
    assert "error: dram: the arena gave back other bytes" in told.err
    found = json.loads(told.out)
    assert [row["path"] for row in found["rows"]] == ["index"]
    assert found["failed"] == ["dram: the arena gave back other bytes than it was given"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_bench_in_order(tmp_path: Path, number: signal.Signals) -> None:
    """It exits as one that was interrupted, and neither a daemon nor a file stays."""
    disk, scratch = tmp_path / "disk", tmp_path / "s"
    disk.mkdir()
    scratch.mkdir()
    command = [sys.executable, "-m", "kvwise", "bench", "tiers", "--disk", str(disk), "--quick"]
    with subprocess.Popen(
        [*command, "--part", "lookup", "--part", "index"],
        env=os.environ | {"TMPDIR": str(scratch)},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as bench:
        try:
            started = eventually(lambda: any(scratch.rglob("lookup.sock")), 60)
            bench.send_signal(number)
            _, said = bench.communicate(timeout=60)
        finally:
            bench.kill()

    assert started
    assert bench.returncode == cli.EXIT_INTERRUPTED
    assert said.endswith("interrupted\n")
    assert [*disk.iterdir(), *scratch.iterdir()] == []
    with pytest.raises(ProcessLookupError):
        os.killpg(bench.pid, 0)


def test_signals_are_handed_back(capsys: pytest.CaptureFixture[str]) -> None:
    """After a bench a signal means again what it meant before."""
    before = signal.getsignal(signal.SIGTERM)

    assert cli.run(["bench", "tiers", "--part", "cloud"]) == cli.EXIT_USAGE
    assert signal.getsignal(signal.SIGTERM) is before
