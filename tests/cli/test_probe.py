"""Owns the tests of `kvwise probe` as a whole: its file, its refusals, and that it leaves no trace.

What its parts measure is tested with them.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvwise import cli
from kvwise.bench.probe import memory, run
from kvwise.bench.probe.limits import Found
from kvwise.planner.hardware import read_hardware
from kvwise.units import MIB
from tests.tiers.mounts import mounted

WAIT_S = 60.0


def arguments(folder: Path, out: Path, *more: str) -> list[str]:
    """A short probe of a folder; room is kept on no filesystem here."""
    given = ["probe", "--seconds", "6", "--bytes", "128MiB", "--disk", str(folder)]
    return [*given, "--out", str(out), *more]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to measure, on a host whose disk may become as full as it likes."""
    monkeypatch.setenv("KVWISE_DISK_MIN_FREE", "0")
    monkeypatch.setattr(memory, "working_set_bytes", lambda *, copies: 16 * MIB // copies)
    made = tmp_path / "nvme"
    made.mkdir()
    return made


def test_a_probe_writes_what_the_planner_reads(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file holds the figures of the run, the folder holds nothing, and a second run refuses."""
    out = tmp_path / "host.toml"

    assert cli.run(arguments(folder, out, "--json")) == 0

    said = capsys.readouterr()
    rows = json.loads(said.out)["rows"]
    (read,) = (
        row for row in rows if (row.get("way"), row.get("depth")) == ("read", 4)
        and row["block_bytes"] == 2 * MIB
    )  # fmt: skip
    disk = read_hardware(out).tiers["host-disk"]
    assert disk.read_gb_per_s == pytest.approx(read["gbps"], rel=1e-3)
    assert {"memory", "disk", "loopback"} <= {row["part"] for row in rows}
    assert "measured: memory" in said.err
    assert list(folder.iterdir()) == []
    before = out.read_text()
    assert cli.run(arguments(folder, out)) == cli.EXIT_USAGE
    assert "--force" in capsys.readouterr().err
    assert out.read_text() == before


def test_too_little_is_refused_before_anything_is_written(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A filesystem without room, too few bytes and a folder that is none end with a hint."""
    out = tmp_path / "host.toml"
    with mounted(tmp_path / "small", "-t", "tmpfs", "-o", "size=16M", "none") as small:
        assert cli.run(arguments(small, out)) == cli.EXIT_USAGE
        assert "16.0 MiB free, and the probe would take 64.0 MiB" in capsys.readouterr().err
        assert list(small.iterdir()) == []
    assert cli.run(arguments(folder, out, "--bytes", "1MiB")) == cli.EXIT_USAGE
    assert cli.run(arguments(folder / "none", out)) == cli.EXIT_USAGE
    assert "hint: `mkdir -p" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--disk", "."], "names a folder twice"),
        (["--disk", ""], "it is empty"),
        (["--out", "pipe", "--force"], "pipe is no regular file"),
        (["--out", "link", "--force"], "link is no regular file"),
        (["--out", "/proc/q.toml"], "cannot write /proc/q.toml"),
        (["--config", "pipe"], "pipe is a pipe"),
    ],
)
def test_what_cannot_be_written_or_read_is_refused_first(
    options: list[str],
    said: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Before anything is measured, and devices and pipes stay what they are."""
    monkeypatch.chdir(folder)
    os.mkfifo("pipe")
    Path("link").symlink_to("/dev/null")
    code = cli.run(arguments(folder, folder / "host.toml", *options))

    assert code == cli.EXIT_USAGE
    assert said in capsys.readouterr().err
    assert Path("pipe").is_fifo()
    assert Path("/dev/null").is_char_device()


def test_a_probe_without_a_drive_says_so(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Folders come first; where no figure of one comes of it, the next command is not advised."""
    asked = list[str]()
    for name in ("disk", "memory", "loopback", "gpu", "codecs_within"):

        def part(*_: object, name: str = name) -> Found:
            asked.append(name)
            return Found()

        monkeypatch.setattr(run, f"measure_{name}", part)
    code = cli.run(arguments(folder, tmp_path / "host.toml"))
    said = capsys.readouterr()

    assert code == cli.EXIT_FAILED
    assert asked == ["disk", "memory", "loopback", "gpu", "codecs_within"]
    assert f"warning: {folder} is no drive in" in said.err.replace("\n", " ")
    assert "next:" not in said.out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_probe_leaves_nothing(
    folder: Path, tmp_path: Path, number: signal.Signals
) -> None:
    """Whichever way it is ended while it measures a folder, nothing is left in it or beside it."""
    out = tmp_path / "out" / "host.toml"
    out.parent.mkdir()
    command = [sys.executable, "-m", "kvwise", *arguments(folder, out, "--seconds", "8")]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, env=os.environ | PATHS) as probe:
        deadline = time.monotonic() + WAIT_S
        while not holds(probe.pid, folder):
            assert time.monotonic() < deadline
            assert probe.poll() is None
            time.sleep(0.02)
        probe.send_signal(number)
        code = probe.wait(WAIT_S)

    assert code == (-number if number is signal.SIGKILL else cli.EXIT_INTERRUPTED)
    assert list(folder.iterdir()) == []
    assert list(out.parent.iterdir()) == []


PATHS = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
"""Children find the same kvwise."""


def holds(pid: int, folder: Path) -> bool:
    """Whether a process has a file without a name open in a folder."""
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = str(entry.readlink())
        except OSError:
            continue
        if target.startswith(f"{folder}/") and target.endswith("(deleted)"):
            return True
    return False
