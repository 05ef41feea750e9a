"""Embedded daemons: one is started for a configuration when an engine needs it and none runs.

Engines of one user with equal configurations share it; it leaves when its last client does. It is
a process of its own, so that it serves every process of an engine and outlives none by mistake.
"""

from __future__ import annotations

import fcntl
import os
import selectors
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from kvwise.config import KEYS, Config, digest, environment, render, runtime_directory
from kvwise.errors import CacheUnavailable
from kvwise.live.client import Client
from kvwise.live.clock import deadline_after, seconds_until
from kvwise.live.place import safe_directory

START_S = 60.0
"""How long a daemon may take to start: its disk is scanned first."""

LOOK_S = 0.05
LOG_TAIL_BYTES = 2000


def connect(config: Config, engine: str) -> Client:
    """Attach to the daemon at `client.url`; without a url, to one of our own, started if need be.

    Raises:
        CacheUnavailable: there is none and none could be started.
        ConfigError: the directory of the socket is not safe.
    """
    if config.client.url:
        return Client(config.client.url, engine, timeout_s=config.client.timeout_s)
    path = socket_path(config)
    deadline_ns, pause = deadline_after(START_S), threading.Event()
    while True:
        start(config, path)
        try:
            return Client(
                str(path),
                engine,
                timeout_s=config.client.timeout_s,
                revive=lambda: start(config, path),
            )
        except CacheUnavailable:  # it was just leaving
            if not seconds_until(deadline_ns):
                raise
        pause.wait(LOOK_S)


def socket_path(config: Config) -> Path:
    """Where the daemon of this configuration listens when it is embedded."""
    return runtime_directory() / f"embedded-{digest(config)}.sock"


def start(config: Config, path: Path) -> None:
    """See that a daemon listens at `path`; of several callers one starts it.

    Raises:
        CacheUnavailable: it did not start; the message tells what it said.
        ConfigError: the directory is not safe.
    """
    safe_directory(path.parent)
    with _alone(path.with_suffix(".start"), START_S):
        if not _listens(path):
            _spawn(config, path)


@contextmanager
def _alone(path: Path, timeout_s: float) -> Iterator[None]:
    """Hold a lock file that only one process at a time can hold."""
    deadline_ns, pause = deadline_after(timeout_s), threading.Event()
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if not seconds_until(deadline_ns):
                    raise CacheUnavailable("another process is starting the daemon") from error
            pause.wait(LOOK_S)
        yield
    finally:
        os.close(handle)


def _listens(path: Path) -> bool:
    """Whether somebody accepts connections at a socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


def _spawn(config: Config, path: Path) -> None:
    """Start a daemon and wait until it is ready."""
    settings = path.with_suffix(".toml")
    settings.touch(mode=0o600)
    settings.write_text(render(_quiet(config)), encoding="utf-8")
    command = [sys.executable, "-m", "kvwise", "serve", "--json", "--exit-when-idle"]
    command += ["--config", str(settings), "--socket", str(path)]
    log_path = path.with_suffix(".log")
    with ThreadPoolExecutor(1, "kvwise-spawn", initializer=_unbind) as spawner:
        child = spawner.submit(_start, command, log_path).result()
    # Somebody must collect its exit status, whenever that comes.
    threading.Thread(target=child.wait, name="kvwise-embedded", daemon=True).start()
    try:
        if not _is_ready(child, START_S):
            child.kill()
            tail = log_path.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace").strip()
            raise CacheUnavailable(f"the cache daemon did not start: {tail or 'it said nothing'}")
    finally:
        if child.stdout is not None:
            child.stdout.close()
        settings.unlink(missing_ok=True)


def _unbind() -> None:
    """Let this thread, and what it starts, run wherever the process that started ours may.

    The thread of an engine that computes on processors is bound to one core, on which it computes.
    A daemon that inherited this would hold up every step of that engine, and have one core for all
    its threads while others are idle.
    """
    cores = os.sched_getaffinity(0)
    with suppress(OSError):  # the process that started ours is out of sight
        cores |= os.sched_getaffinity(os.getppid())
    with suppress(OSError):  # not allowed here: then it shares our core
        os.sched_setaffinity(0, cores)


def _start(command: list[str], log_path: Path) -> subprocess.Popen[bytes]:
    """Start a process that says on its standard output when it is ready."""
    with log_path.open("wb") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
            env=environment(),
        )


def _is_ready(child: subprocess.Popen[bytes], timeout_s: float) -> bool:
    """Wait for the line that a daemon prints when it listens."""
    if child.stdout is None:
        return False
    with selectors.DefaultSelector() as selector:
        selector.register(child.stdout, selectors.EVENT_READ)
        return bool(selector.select(timeout_s)) and bool(child.stdout.readline())


def _quiet(config: Config) -> Config:
    """Without the default metrics address: several embedded daemons would fight over it."""
    default = next(key.default for key in KEYS if key.name == "serve.metrics")
    if config.serve.metrics != default:
        return config
    return replace(config, serve=replace(config.serve, metrics=""))
