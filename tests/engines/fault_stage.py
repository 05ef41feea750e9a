"""Owns the stage of the fault tests: engines that obey, daemons to hurt, and what each holds.

It injects and measures; what must hold is said by the tests.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from kvwise.codecs.base import BLOCK_BYTES
from kvwise.errors import FrameError
from kvwise.live.client import Client
from kvwise.tiers import footer
from tests.engines.fault_child import ANSWER
from tests.engines.support import Daemon, Processes
from tests.tiers.media import data_bytes

START_S = 120.0
ANSWER_S = 60.0
SETTLE_S = 10.0
CLIENT_S = 1.0
EQUIP_S = 280.0
THREADS = 10
"""Of a daemon: main, tick, four workers, three helpers for reads and one for writes."""

SERVE = Path(__file__).with_name("fault_serve.py")

Seen = dict[str, Any]
Orders = dict[str, dict[str, Any]]


class Engine:
    """A real vLLM in a process of its own that does one thing after another."""

    def __init__(self, processes: Processes, rig: dict[str, Any]) -> None:
        """Start it; the first `end` waits until it is ready."""
        self._process = processes.start("obey", rig)
        self._said: SimpleQueue[Any] = SimpleQueue()
        self._words: deque[str] = deque(maxlen=60)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Of its process."""
        return self._process.pid

    def begin(self, verb: str, **given: object) -> None:
        """Tell it to do something; `end` gives what came of it."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"verb": verb, **given}) + "\n")
        self._process.stdin.flush()

    def end(self, timeout_s: float = ANSWER_S) -> Any:
        """What came of it."""
        try:
            answer = self._said.get(timeout=timeout_s)
        except Empty:
            answer = None
        assert answer is not None, f"no answer in {timeout_s} s:\n" + "\n".join(self._words)
        return answer

    def ask(self, verb: str, **given: object) -> Any:
        """Tell it to do something and wait for what comes of it."""
        self.begin(verb, **given)
        return self.end()

    def kill(self) -> None:
        """End it without giving it a chance to say goodbye."""
        os.killpg(self.pid, signal.SIGKILL)
        self._process.wait(10)
        self._reader.join(10)

    def _read(self) -> None:
        """Tell its answers from its other words."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(ANSWER):
                self._said.put(json.loads(line.removeprefix(ANSWER)))
            else:
                self._words.append(line.rstrip())
        self._said.put(None)


class HurtDaemon(Daemon):
    """A daemon in a process of its own whose medium fails on order, and what it holds."""

    def __init__(
        self,
        directory: Path,
        socket: Path,
        settings: dict[str, object],
        *,
        disk: Path | None = None,
    ) -> None:
        """Not started, and its medium well; `disk` is a directory elsewhere."""
        self._orders = Path(f"{directory}.orders")
        self.disk = disk or directory / "disk"
        settings = {"disk.paths": [str(self.disk)], **settings}
        super().__init__(directory, settings, socket=socket, launch=(SERVE, self._orders))

    def order(self, **orders: dict[str, Any]) -> None:
        """From now on the medium does this; without any it is well again."""
        fresh = self._orders.with_suffix(".fresh")
        fresh.write_text(json.dumps(orders))
        fresh.rename(self._orders)

    @contextmanager
    def ordered(self, **orders: dict[str, Any]) -> Iterator[None]:
        """The medium does this for a while."""
        self.order(**orders)
        try:
            yield
        finally:
            self.order()

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    @contextmanager
    def visited(self) -> Iterator[Client]:
        """A client beside the engines."""
        client = Client(str(self.socket), "visitor", timeout_s=5.0)
        try:
            yield client
        finally:
            client.close()

    def status(self) -> Seen:
        """What it says of itself."""
        with self.visited() as client:
            return client.status()

    def flush(self) -> None:
        """Have everything written that waits for it."""
        with self.visited() as client:
            assert client.flush(20.0)

    def equip(self) -> None:
        """Wait until the codecs are there that it loads for whoever joined, compiled if need be."""
        busy = eventually(
            lambda: self.status()["codecs"]["loading"], lambda loading: not loading, EQUIP_S
        )
        assert not busy

    def segments(self) -> list[Path]:
        """Its files."""
        return sorted(self.disk.glob("segment-*.kvw"))

    def holds(self) -> Seen:
        """What it holds while nothing is under way; equal before and after a fault.

        `lost_pages` are those neither free nor in use, `lost_bytes` those on disk without account.
        """
        status = self.status()
        levels, page_bytes = status["levels"], status["arena"]["page_bytes"]
        used_pages = levels["tiers"]["dram"]["used_bytes"] // page_bytes
        on_disk = sum(data_bytes(path) - footer_bytes(path) for path in self.segments())
        threads = list(Path(f"/proc/{self.pid}/task").iterdir())
        return {
            "leases": levels["leases"],
            "jobs": levels["jobs"],
            "pins": levels["pins"],
            "clients": levels["clients"],
            "lost_pages": status["arena"]["pages"] - levels["pages_free"] - used_pages,
            "lost_bytes": on_disk - levels["tiers"]["disk"]["used_bytes"],
            "queued": levels["tiers"]["disk"]["queued_objects"],
            "extra_threads": max(0, len(threads) - THREADS),
            "files": open_files(self.pid),
        }


def footer_bytes(path: Path) -> int:
    """Of a segment's footer: the tier counts it, the brain counts objects only."""
    end = path.read_bytes()[-BLOCK_BYTES:]
    try:
        return footer.trailer(memoryview(end)).size_bytes
    except FrameError:
        return 0


def open_files(pid: int) -> Counter[str]:
    """What a process has open, numbers left out."""
    found: Counter[str] = Counter()
    for entry in list(Path(f"/proc/{pid}/fd").iterdir()):
        with suppress(FileNotFoundError):  # closed meanwhile
            found[str(entry.readlink()).split(":[")[0].split("segment-")[0]] += 1
    return found


def eventually(
    look: Callable[[], Any], wish: Callable[[Any], bool], timeout_s: float = SETTLE_S
) -> Any:
    """What a look sees as soon as it is as wished, or last before time runs out."""
    deadline = time.monotonic() + timeout_s
    while not wish(seen := look()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return seen


def can_mount() -> bool:
    """Whether this process may mount a filesystem."""
    return os.geteuid() == 0 and sys.platform == "linux"


@contextmanager
def small_filesystem(place: Path, size: str) -> Iterator[None]:
    """A filesystem of its own at a place."""
    place.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", place], check=True, timeout=10
    )
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", place], check=True, timeout=10)
