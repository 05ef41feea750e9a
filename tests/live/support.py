"""What tests of the live room share: small stores, objects, daemons. It asserts nothing."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from kvwise import config as configuration
from kvwise.config import Config
from kvwise.core.keys import chain_keys
from kvwise.core.layout import Group, GroupKind, Layout
from kvwise.core.words import Namespace
from kvwise.errors import CacheUnavailable
from kvwise.live.client import Client
from kvwise.live.clock import deadline_after, seconds_until
from kvwise.live.daemon import Daemon
from kvwise.live.messages import Ask
from kvwise.live.node import Node
from kvwise.live.place import SocketPlace

CHUNK = 16
PAGE = 4096
LAYOUT = Layout(CHUNK, CHUNK, (Group(GroupKind.FULL, (6000, 3000)),))
"""Objects of 9000 bytes: three pages, the last one not full."""

SPACE = Namespace(b"s" * 16, "tiny", LAYOUT, 1e-3)
OTHER = Namespace(b"o" * 16, "other", LAYOUT, 1e-3)
READY_S = 30.0


def settings(folder: Path, *, disk: bool = False, **more: object) -> Config:
    """A small store with everything in `folder`, which writes whatever it may.

    `more` has section_key names.
    """
    values: dict[str, object] = {
        "dram.size": "1MiB",
        "dram.page": PAGE,
        "plan.policy": "load",
        "plan.timeout_s": 10.0,
        "serve.socket": str(folder / "kvwise.sock"),
        "serve.metrics": "",
        "client.timeout_s": 5.0,
    }
    if disk:
        values |= {
            "disk.paths": [str(folder / "disk")],
            "disk.size": "16MiB",
            "disk.segment": "4MiB",
            "disk.min_free": "16MiB",
            "write.min_chance": 0,
        }
    values |= {name.replace("_", ".", 1): value for name, value in more.items()}
    return configuration.load(overrides=values, environ={})


def prompt(seed: int, chunks: int, space: Namespace = SPACE) -> bytes:
    """Keys of a prompt of so many chunks; prompts of one seed share their beginning."""
    tokens = [seed * 100_000 + n for n in range(chunks * CHUNK)]
    return chain_keys(space.digest, tokens, CHUNK)


def payloads(keys: bytes) -> list[bytes]:
    """For each key the bytes that belong to it and to no other."""
    size = LAYOUT.object_bytes
    return [(keys[at : at + 16] * (size // 16 + 1))[:size] for at in range(0, len(keys), 16)]


def question(keys: bytes, name: str = "r", space: Namespace = SPACE) -> Ask:
    """What an engine asks about a prompt."""
    return Ask(name, space.digest, keys, 0, len(keys) // 16 * CHUNK + 1)


def eventually(check: Callable[[], bool], timeout_s: float = 10.0) -> bool:
    """Whether something becomes true in time."""
    deadline_ns, pause = deadline_after(timeout_s), threading.Event()
    while not check():
        if not seconds_until(deadline_ns):
            return False
        pause.wait(0.005)
    return True


@contextlib.contextmanager
def thread_daemon(config: Config) -> Iterator[Daemon]:
    """A daemon on a thread of this process."""
    place = SocketPlace(Path(config.socket_path))
    node = Node(config)
    daemon = Daemon(node, place)
    thread = threading.Thread(target=daemon.run)
    thread.start()
    try:
        yield daemon
    finally:
        daemon.stop()
        thread.join(10)
        node.close(5.0)
        place.close()


@dataclass
class Served:
    """A daemon in a process of its own."""

    process: subprocess.Popen[str]
    socket: str
    facts: dict[str, object]

    def client(self, engine: str = "engine", *, timeout_s: float = 5.0) -> Client:
        """A client of it."""
        return Client(self.socket, engine, timeout_s=timeout_s)

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Make it end; its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(number)
        status = self.process.wait(30)
        if self.process.stdout is not None:
            self.process.stdout.close()
        return status


def spawn(
    config: Config,
    folder: Path,
    *arguments: str,
    stdin: int = subprocess.DEVNULL,
    program: tuple[str, ...] = ("-m", "kvwise"),
) -> Served:
    """Start `kvwise serve`, or what Python makes of another program, and wait until it is ready."""
    file = folder / "kvwise.toml"
    file.write_text(configuration.render(config))
    process = subprocess.Popen(
        [sys.executable, *program, "serve", "--json", "--config", str(file), *arguments],
        stdin=stdin,
        stdout=subprocess.PIPE,
        text=True,
        env=dict(os.environ),
    )
    line = process.stdout.readline() if process.stdout is not None else ""
    return Served(process, config.socket_path, json.loads(line) if line else {})


@contextlib.contextmanager
def served(config: Config, folder: Path, *arguments: str) -> Iterator[Served]:
    """A `kvwise serve` that is gone at the end, whatever the test did to it."""
    daemon = spawn(config, folder, *arguments)
    try:
        yield daemon
    finally:
        daemon.end(signal.SIGKILL)


def client_of(config: Config, engine: str = "engine", *, timeout_s: float = 5.0) -> Client:
    """A client that has joined."""
    client = Client(config.socket_path, engine, timeout_s=timeout_s)
    client.join(SPACE)
    return client


def asks(client: Client) -> bool:
    """Whether the daemon answers."""
    try:
        client.ask(question(prompt(1, 1)))
    except CacheUnavailable:
        return False
    return True
