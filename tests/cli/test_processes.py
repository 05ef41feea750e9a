"""Processes that share work: they end with the command that started them, however that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kvwise import cli
from kvwise.cli.processes import spread
from kvwise.errors import KvwiseError
from tests.live.support import eventually
from tests.processes import is_gone

LONG = {
    "faults": ["--seeds", "16", "--requests", "100000"],
    "grid": ["--grid", "--cell", "131072,64,7", "--cell", "131072,64,1"],
    "trace": [
        "--trace", "{trace}", "--capacity-tokens", "50k,60k,70k,80k", "--policy", "worth,lru",
    ],
}  # fmt: skip


def members(group: int) -> list[int]:
    """Processes of a group that have not ended."""
    found = []
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            try:
                if os.getpgid(int(place.name)) == group:
                    found.append(int(place.name))
            except ProcessLookupError:
                continue
    return [pid for pid in found if not is_gone(pid)]


@pytest.mark.parametrize(
    ("mode", "number"),
    [
        ("faults", signal.SIGTERM),
        ("faults", signal.SIGKILL),
        ("grid", signal.SIGINT),
        ("trace", signal.SIGKILL),
    ],
)
def test_nobody_works_on_for_a_command_that_ended(
    mode: str, number: signal.Signals, tmp_path: Path
) -> None:
    """A signal to the command alone ends it and all its processes, in the middle of their jobs."""
    trace = tmp_path / "trace.jsonl"
    cli.run(["trace", "make", "chat", "--requests", "5000", "-o", str(trace)])
    arguments = [part.format(trace=trace) for part in LONG[mode]]
    with subprocess.Popen(
        [sys.executable, "-m", "kvwise", "sim", *arguments, "--jobs", "2"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as command:
        try:
            spread_out = eventually(lambda: len(members(command.pid)) == 4, 60)
            command.send_signal(number)
            command.wait(timeout=60)
            all_gone = eventually(lambda: not members(command.pid), 60)
        finally:
            for pid in members(command.pid):
                os.kill(pid, signal.SIGKILL)
        said = command.stderr.read() if command.stderr else ""

    assert spread_out
    assert all_gone
    if number == signal.SIGKILL:
        assert command.returncode == -number
    else:
        assert (command.returncode, said.strip()) == (cli.EXIT_INTERRUPTED, "interrupted")


def test_a_process_that_is_killed_is_an_error() -> None:
    """Work that somebody else ended is told with a hint, not waited for."""
    with pytest.raises(KvwiseError, match="in the middle of its work; hint: "):
        list(spread(os._exit, [3, 3], 2))
