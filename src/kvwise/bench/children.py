"""Owns processes that the demo starts: each has a log, a deadline to get ready, and an end.

It knows nothing of what runs in them. A child is stopped by asking, then, past its deadline, by
killing its whole process group, so that its own children go too.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self

from kvwise.bench.places import SetupError
from kvwise.bench.progress import Progress

_POLL_S = 0.05
_KILL_WAIT_S = 10
_LOG_TAIL_LINES = 12


class Child:
    """A program in a session of its own; a context manager that stops it."""

    def __init__(
        self, name: str, command: list[str], *, log: Path, env: Mapping[str, str], stop_s: float
    ) -> None:
        """Start it.

        Args:
            name: what to call it in messages.
            command: the program and its arguments.
            log: file that gets its output, appended.
            env: its whole environment.
            stop_s: how long it may take to end after it was asked to.
        """
        self.name = name
        self.log = log
        self._stop_s = stop_s
        leash = [sys.executable, "-m", "kvwise.bench.leash", str(os.getpid())]
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [*leash, *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(env),
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """Its process id, which is also the id of its process group."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self._process.poll() is None

    def wait_until(
        self, ready: Callable[[], bool], deadline_s: float, progress: Progress, doing: str
    ) -> None:
        """Wait until `ready()` says so.

        Raises:
            SetupError: it ended, or was not ready in time; the message ends with its log's tail.
        """
        deadline = time.monotonic() + deadline_s
        while not ready():
            if not self.alive:
                code = self._process.returncode
                raise SetupError(f"{self.name} ended with code {code} while {doing}{self._tail()}")
            if time.monotonic() > deadline:
                raise SetupError(
                    f"{self.name} was not ready within {deadline_s:.0f} s of {doing}{self._tail()}"
                )
            progress.now(doing)
            time.sleep(_POLL_S)

    def stop(self) -> None:
        """Ask it to end, wait, then end whatever is left of its process group; idempotent."""
        try:
            if self.alive:
                self._process.terminate()
                self._process.wait(self._stop_s)
        except subprocess.TimeoutExpired:
            pass
        finally:
            self._kill_group()

    def _kill_group(self) -> None:
        """Leave nothing of the group, not even when a second Ctrl-C cuts the wait short."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        self._process.wait(_KILL_WAIT_S)

    def _tail(self) -> str:
        """The last lines of its log, for an error message."""
        lines = self.log.read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:]
        return f"; the end of {self.log}:\n" + "\n".join(f"  {line}" for line in lines)
