"""Owns a cache daemon for benches: `kvwise serve` as a user starts it, and a client to ask it.

It holds no data itself. Stopping it writes what was deferred, as for any user.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
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
        dram_bytes: memory for its arena.
        log: file that gets its output.
        disk: directory of its disk tier; None for none.
        disk_bytes: cap on its disk tier.
        event_log: file that records its events; None for none.
        settings: environment variables with more settings.
        program: module that is run, and its own arguments.
    """

    socket: Path
    dram_bytes: int
    log: Path
    disk: Path | None = None
    disk_bytes: int = 0
    event_log: Path | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    program: tuple[str, ...] = ("kvwise",)


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
        command = [sys.executable, "-m", *options.program]
        command += ["serve", "--socket", str(options.socket)]
        command += ["--dram", str(options.dram_bytes), "--metrics", ""]
        if options.disk is not None:
            command += ["--disk", str(options.disk), "--disk-size", str(options.disk_bytes)]
        if options.event_log is not None:
            command += ["--event-log", str(options.event_log)]
        env = os.environ | options.settings
        child = Child("kvwise serve", command, log=options.log, env=env, stop_s=STOP_S)
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

    @property
    def session(self) -> int:
        """Id of the session that all its processes are in."""
        return self._child.pid

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

    def written_bytes(self) -> int:
        """Bytes that it has written to disk, or has begun to, in this life.

        Raises:
            CacheUnavailable: it did not answer.
        """
        with self._client() as client:
            return int(client.status()["counters"]["written_bytes"].get("disk", 0))

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
