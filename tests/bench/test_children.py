"""Processes that the demo starts: readiness, messages, and that nothing of them stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kvwise.bench.children import Child
from kvwise.bench.places import SetupError
from tests.bench.fakes import Notes
from tests.processes import is_gone


def _child(folder: Path, script: str, stop_s: float = 10) -> Child:
    """A Python script as a child."""
    command = [sys.executable, "-c", script]
    return Child("the script", command, log=folder / "log", env=os.environ, stop_s=stop_s)


def _eventually(check: Callable[[], bool], seconds: float = 10) -> bool:
    """Whether `check` holds within some seconds."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if check():
            return True
        time.sleep(0.02)
    return check()


def test_a_child_is_asked_to_end_first(tmp_path: Path) -> None:
    """It may tidy up before it goes."""
    script = (
        "import signal, time, sys\n"
        "def end(*_):\n    print('tidied up', flush=True); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, end)\nprint('ready', flush=True)\ntime.sleep(60)"
    )
    with _child(tmp_path, script) as child:
        ready = lambda: "ready" in child.log.read_text()  # noqa: E731
        child.wait_until(ready, 20, Notes(), "starting")

    assert "tidied up" in child.log.read_text()
    assert not child.alive


def test_a_child_that_does_not_listen_is_killed_with_its_own_children(tmp_path: Path) -> None:
    """The whole group goes, not just the process that was started."""
    script = (
        "import signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "sleeper = subprocess.Popen(['sleep', '60'])\n"
        "print('sleeper', sleeper.pid, flush=True)\ntime.sleep(60)"
    )
    child = _child(tmp_path, script, stop_s=0.2)
    child.wait_until(lambda: "sleeper" in child.log.read_text(), 20, Notes(), "starting")
    sleeper = int(child.log.read_text().split()[1])
    child.stop()
    child.stop()

    assert not child.alive
    assert _eventually(lambda: is_gone(sleeper))


def test_one_that_ends_early_shows_its_last_words(tmp_path: Path) -> None:
    """Waiting does not go on for a process that is gone."""
    with (
        _child(tmp_path, "raise SystemExit('no such model')") as child,
        pytest.raises(SetupError, match=r"(?s)ended with code 1 while starting.*no such model"),
    ):
        child.wait_until(lambda: False, 20, Notes(), "starting")


def test_one_that_is_never_ready_is_given_up(tmp_path: Path) -> None:
    """Readiness has a deadline."""
    with (
        _child(tmp_path, "import time; time.sleep(60)") as child,
        pytest.raises(SetupError, match="was not ready within 0 s"),
    ):
        child.wait_until(lambda: False, 0.1, Notes(), "starting")


def test_nothing_outlives_a_demo_that_was_killed(tmp_path: Path) -> None:
    """A parent without a chance to tidy up leaves no process behind."""
    script = (
        "import os, sys, time\n"
        "from pathlib import Path\n"
        "from kvwise.bench.children import Child\n"
        "child = Child('x', ['sleep', '60'], log=Path(sys.argv[1]), env=os.environ, stop_s=1)\n"
        "print(child.pid, flush=True)\ntime.sleep(60)"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "log")], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    became_sleep = _eventually(
        lambda: Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"sleep")
    )
    parent.send_signal(signal.SIGKILL)
    parent.wait(10)
    parent.stdout.close()

    assert became_sleep
    assert _eventually(lambda: is_gone(pid))


def test_a_child_whose_parent_is_already_gone_does_not_start() -> None:
    """The moment between start and the kernel's promise is covered."""
    command = [sys.executable, "-m", "kvwise.bench.leash", "1", "touch", "/nowhere/file"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)

    assert (done.returncode, done.stderr) == (1, "")
