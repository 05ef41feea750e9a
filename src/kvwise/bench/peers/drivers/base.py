"""What all drivers share: the talk with the bench, memory to copy from and to, ports, children.

A driver is started with the path of a socket and a JSON object that says what to measure. It
connects, prepares, and says `{"ready": true}`; for every line it then receives it does one round
and answers `{"gbps": {op: rate}}`. It ends when the bench closes the socket.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

Rates = dict[str, float]
"""Operation to GB/s of one round."""

Round = Callable[[], Rates]
Spec = dict[str, Any]

CHILD_END_S = 10
_LOOK_S = 0.05
_libc = ctypes.CDLL(None)
_libc.memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


class DriverError(Exception):
    """The peer did not do what was asked of it."""


class Region:
    """Anonymous, page-aligned memory, touched once so that no round pays for its first use.

    Attributes:
        memory: the mapping.
        address: where it starts.
        size_bytes: how long it is.
    """

    def __init__(self, size_bytes: int, *, random: bool) -> None:
        """Memory full of random bytes, or of zeros."""
        self.memory = mmap.mmap(-1, size_bytes)
        self.size_bytes = size_bytes
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        if random:
            step = 1 << 24
            for offset in range(0, size_bytes, step):
                piece = os.urandom(min(step, size_bytes - offset))
                self.memory[offset : offset + len(piece)] = piece
        else:
            self.wipe()

    def wipe(self) -> None:
        """Fill it with zeros, so that a later comparison sees only what was read since."""
        ctypes.memset(self.address, 0, self.size_bytes)

    def require_same(self, other: Region) -> None:
        """Refuse contents that differ.

        Raises:
            DriverError: they do.
        """
        if _libc.memcmp(self.address, other.address, self.size_bytes):
            raise DriverError("the bytes that came back are not those that were stored")


class Stopwatch:
    """Seconds spent inside `with` blocks, added up."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._begin = 0.0

    def __enter__(self) -> None:
        self._begin = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter() - self._begin

    def gbps(self, size_bytes: int) -> float:
        """The rate at which so many bytes moved in that time."""
        return size_bytes / self.seconds / 1e9


def parts(count: int, at_once: int) -> list[range]:
    """`count` objects in requests of `at_once`."""
    return [range(n, min(n + at_once, count)) for n in range(0, count, at_once)]


def free_port() -> int:
    """A port of the loopback address that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for_port(port: int, child: subprocess.Popen[bytes], deadline_s: float) -> None:
    """Wait until somebody listens.

    Raises:
        DriverError: the child ended, or nobody listened in time.
    """
    deadline = time.monotonic() + deadline_s
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        if child.poll() is not None:
            raise DriverError(f"{child.args!r} ended with code {child.returncode}")
        time.sleep(_LOOK_S)
    raise DriverError(f"nobody listens at port {port} after {deadline_s} s: {child.args!r}")


@contextmanager
def child(command: list[str], *, heard: bool = False) -> Iterator[subprocess.Popen[bytes]]:
    """A program that runs inside the block.

    Its output goes where the driver's goes, unless it is to be heard through `stdout`.
    """
    output = subprocess.PIPE if heard else sys.stderr
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output)
    try:
        yield process
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(CHILD_END_S)
        process.kill()
        process.wait(CHILD_END_S)


def run(prepare: Callable[[Spec], AbstractContextManager[Round]]) -> None:
    """The whole life of a driver; `prepare` gives the function that does one round.

    It leaves without waiting for threads: those of a peer may outlive a normal exit.
    """
    signal.signal(signal.SIGTERM, _leave)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as talk:
            talk.connect(sys.argv[1])
            with prepare(json.loads(sys.argv[2])) as do_round, talk.makefile("rb") as lines:
                _say(talk, {"ready": True})
                for _ in lines:
                    _say(talk, {"gbps": do_round()})
    finally:
        failed = sys.exc_info()[0] is not None
        if failed:
            traceback.print_exc()
        sys.stderr.flush()
        os._exit(failed)


def _say(talk: socket.socket, message: dict[str, Any]) -> None:
    """One line to the bench."""
    talk.sendall(json.dumps(message).encode() + b"\n")


def _leave(*_: object) -> None:
    """End in good order when asked to."""
    raise SystemExit
