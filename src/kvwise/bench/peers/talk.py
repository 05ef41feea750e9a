"""A side as seen from the bench: a child process and the socket on which it says its rates."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from kvwise.bench.children import Child
from kvwise.bench.places import SetupError
from kvwise.bench.progress import Progress
from kvwise.errors import KvwiseError

START_S = 180.0
ROUND_S = 300.0
STOP_S = 20.0
LINE_BYTES_MAX = 1 << 16
_LOOK_S = 0.05
PACKAGE = "kvwise.bench.peers.drivers"


class PeerError(KvwiseError):
    """kvwise's side of a comparison failed; the message says how."""


class DriverLost(KvwiseError):
    """A side ended, hung or went wrong; the message has its last words.

    Attributes:
        side: the name of its driver.
    """

    def __init__(self, side: str, message: str) -> None:
        super().__init__(message)
        self.side = side


class Driver:
    """One side of a comparison: started when it is made, it answers rounds until it is closed."""

    def __init__(self, name: str, command: list[str], spec: dict[str, Any], folder: Path) -> None:
        """Start it.

        Args:
            name: what to call it in messages.
            command: starts it, without its own two arguments.
            spec: what to measure.
            folder: a folder for its socket and its log.
        """
        self._buffer = b""
        self._lost = False
        self._peer: socket.socket | None = None
        self._door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        path = folder / "talk"
        self._door.bind(str(path))
        self._door.listen(1)
        command = [*command, str(path), json.dumps(spec)]
        self._child = Child(name, command, log=folder / "log", env=os.environ, stop_s=STOP_S)

    def start(self, progress: Progress) -> None:
        """Wait until it is ready to do rounds.

        Raises:
            DriverLost: it ended or took too long; the message has its last words.
        """
        self._hear(START_S, progress, f"starting {self._child.name}")

    def round(self, progress: Progress, which: str = "") -> dict[str, float]:
        """GB/s of each operation in one round; `which` says in words which round it is.

        Raises:
            DriverLost: it ended or took too long; the message has its last words.
        """
        if self._peer is None:
            raise DriverLost(self._child.name, f"{self._child.name} was not started")
        with suppress(BrokenPipeError):  # it ended: hearing it says how
            self._peer.send(b"round\n")
        answer = self._hear(ROUND_S, progress, f"measuring {self._child.name}{which}")
        return {str(op): float(rate) for op, rate in answer["gbps"].items()}

    def close(self) -> None:
        """Let it end in good order, then end it and all that it started; idempotent."""
        if self._peer is not None:
            self._peer.close()
            self._peer = None
            deadline = time.monotonic() + STOP_S
            while not self._lost and self._child.alive and time.monotonic() < deadline:
                time.sleep(_LOOK_S)
        self._door.close()
        self._child.stop()

    def _hear(self, deadline_s: float, progress: Progress, doing: str) -> dict[str, Any]:
        """The next line that it says; a driver that does not say one is lost for good."""
        self._lost = True
        try:
            self._child.wait_until(self._line_came, deadline_s, progress, doing)
        except SetupError as error:
            raise DriverLost(self._child.name, str(error)) from error
        line, _, self._buffer = self._buffer.partition(b"\n")
        try:
            answer: dict[str, Any] = json.loads(line)
        except ValueError as error:
            said = f"{self._child.name} said {line[:80]!r}, which is no JSON"
            raise DriverLost(self._child.name, said) from error
        self._lost = False
        return answer

    def _line_came(self) -> bool:
        """Whether a whole line is here; takes in what came, without waiting."""
        with suppress(BlockingIOError):
            if self._peer is None:
                self._peer, _ = self._door.accept()
                self._peer.settimeout(0)
            self._buffer += self._peer.recv(LINE_BYTES_MAX)
        return b"\n" in self._buffer


def peer_command(module: str, python: Path, folder: Path) -> list[str]:
    """Starts a driver with a peer's interpreter.

    Of kvwise it sees only the drivers, through a new folder: otherwise a peer's environment would
    see the packages that are installed beside kvwise, in place of its own.
    """
    place = root = folder / "code"
    for name in PACKAGE.split(".")[:-1]:
        place /= name
        place.mkdir(parents=True)
        (place / "__init__.py").touch()
    (place / "drivers").symlink_to(Path(__file__).parent / "drivers", target_is_directory=True)
    return ["env", f"PYTHONPATH={root}", str(python), "-P", "-m", f"{PACKAGE}.{module}"]


def our_command() -> list[str]:
    """Starts kvwise's side."""
    return [sys.executable, "-m", "kvwise.bench.peers.side"]
