"""Owns the cache daemon of the demo: `kvwise serve` as a user starts it, and a client to ask it.

It holds no data itself. Stopping it writes what was deferred, as for any user.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from kvwise.bench.children import Child
from kvwise.bench.progress import Progress
from kvwise.core.words import Decision
from kvwise.errors import CacheUnavailable
from kvwise.live.client import Client

START_DEADLINE_S = 30
STOP_S = 30
"""A daemon that is told to stop writes deferred objects for up to 20 s."""

_ASK_S = 5.0


@dataclass(frozen=True, slots=True)
class DaemonOptions:
    """What a daemon is started with.

    Attributes:
        socket: where it listens; a short path.
        disk: directory of its disk tier.
        dram_bytes: memory for its arena.
        disk_bytes: cap on its disk tier.
        event_log: file that records its events; None records none.
        log: file that gets its output.
    """

    socket: Path
    disk: Path
    dram_bytes: int
    disk_bytes: int
    event_log: Path | None
    log: Path


class Daemon:
    """A running daemon; a context manager that stops it."""

    def __init__(self, child: Child, options: DaemonOptions) -> None:
        self._child = child
        self.options = options

    @classmethod
    def start(cls, options: DaemonOptions, progress: Progress) -> Self:
        """Start a daemon and wait until it answers.

        Raises:
            SetupError: it ended or was not ready in time; the message says where its log is.
        """
        command = [sys.executable, "-m", "kvwise", "serve", "--socket", str(options.socket)]
        command += ["--dram", str(options.dram_bytes), "--disk", str(options.disk)]
        command += ["--disk-size", str(options.disk_bytes), "--metrics", ""]
        if options.event_log is not None:
            command += ["--event-log", str(options.event_log)]
        child = Child("kvwise serve", command, log=options.log, env=os.environ, stop_s=STOP_S)
        daemon = cls(child, options)
        try:
            child.wait_until(
                daemon.answers, START_DEADLINE_S, progress, "starting the cache daemon"
            )
        except BaseException:
            child.stop()
            raise
        return daemon

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def answers(self) -> bool:
        """Whether it serves its socket."""
        if not self.options.socket.exists():
            return False
        try:
            with self._client():
                return True
        except CacheUnavailable:
            return False

    def decisions(self, limit: int) -> list[Decision]:
        """Its last decisions, newest last.

        Raises:
            CacheUnavailable: it did not answer.
        """
        with self._client() as client:
            return client.explain(limit)

    def written(self, deadline_s: float) -> bool:
        """Wait until everything deferred is on disk; False when time ran out.

        Raises:
            CacheUnavailable: it did not answer.
        """
        with self._client() as client:
            return client.flush(deadline_s)

    def stop(self) -> None:
        """Let it write what was deferred and end; idempotent."""
        self._child.stop()

    @contextmanager
    def _client(self) -> Iterator[Client]:
        """A connection for one question."""
        client = Client(str(self.options.socket), f"demo-{os.getpid()}", timeout_s=_ASK_S)
        try:
            yield client
        finally:
            client.close()
