"""The clients of a soak, and what is done to them and to the disk. It draws; it judges nothing.

Clients are killed and started again, frozen and thawed; bits of records on disk are turned over
while the daemon that wrote them is running.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import numpy as np

from kvwise.bench.children import Child

FAULT_EVERY_S = 1.5
"""Time between two faults."""

FREEZES_S = (0.2, 1.0, 5.0, 40.0)
"""How long a client is frozen; the last is longer than any lease lives."""

STOP_S = 10
_TAIL_BYTES = 8192


@dataclass(slots=True)
class _Life:
    """One process of a client, and when it is to be thawed if it is frozen."""

    child: Child
    thaw_at_s: float = 0.0


@dataclass(slots=True)
class Crowd:
    """Clients of one daemon; a context manager that ends them.

    Attributes:
        socket, folder: where the daemon listens, and where logs go.
        seed: draws what every life does.
        counts: what lives that ended did.
        lost: clients that ended without being asked to, in words.
    """

    socket: Path
    folder: Path
    seed: int
    counts: Counter[str] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)
    _lives: list[_Life] = field(default_factory=list)
    _started: int = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def add(self) -> None:
        """Start one more client."""
        self._lives.append(_Life(self._spawn()))

    def kill(self, number: int) -> None:
        """End a client as a crash would, and start it again."""
        self._kill(self._lives[number])
        self._lives[number] = _Life(self._spawn())

    def freeze(self, number: int, seconds: float) -> bool:
        """Stop a client where it is, and have it go on later; False when it is frozen already."""
        life = self._lives[number]
        if life.thaw_at_s:
            return False
        os.killpg(life.child.pid, signal.SIGSTOP)
        life.thaw_at_s = time.monotonic() + seconds
        return True

    def look(self) -> None:
        """Thaw whoever is due, and start again whoever ended by itself."""
        for number, life in enumerate(self._lives):
            if life.thaw_at_s and time.monotonic() >= life.thaw_at_s:
                self._thaw(life)
            if not life.child.alive:
                self.lost.append(f"{life.child.name} ended by itself, see {life.child.log}")
                self.kill(number)

    def totals(self) -> Counter[str]:
        """What all clients said they did. A killed one takes its last second with it."""
        return sum((_told(life.child.log) for life in self._lives), self.counts.copy())

    def stop(self) -> None:
        """Let every client finish its request and end; idempotent."""
        for life in self._lives:
            if life.thaw_at_s:
                self._thaw(life)
        for life in self._lives:
            life.child.stop()
            self.counts += _told(life.child.log)
        self._lives.clear()

    def _spawn(self) -> Child:
        """A process that is a client."""
        self._started += 1
        name = f"client-{self._started}"
        command = [sys.executable, "-m", "kvwise.bench.soak_client", str(self.socket), name]
        command.append(str(self.seed * 1_000_003 + self._started))
        log = self.folder / f"{name}.log"
        return Child(name, command, log=log, env=os.environ, stop_s=STOP_S)

    def _kill(self, life: _Life) -> None:
        """End a process group without asking."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(life.child.pid, signal.SIGKILL)
        life.child.stop()
        self.counts += _told(life.child.log)

    @staticmethod
    def _thaw(life: _Life) -> None:
        """Let a frozen process go on."""
        life.thaw_at_s = 0.0
        with contextlib.suppress(ProcessLookupError):
            os.killpg(life.child.pid, signal.SIGCONT)


def _told(log: Path) -> Counter[str]:
    """The last whole line of numbers that a client wrote."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
        lines = file.read().splitlines()
    for line in reversed(lines):
        if line.startswith(b"{") and line.endswith(b"}"):
            return Counter(json.loads(line))
    return Counter()


class Faults:
    """Does something bad every now and then; which, to whom and for how long is drawn.

    Attributes:
        crowd: the clients.
        counts: how often each kind was done.
    """

    def __init__(self, crowd: Crowd, clients: int, disk: Path, *, until_s: float) -> None:
        """`until_s`: when all must be well again, so that no freeze is longer than the run."""
        self.crowd = crowd
        self._clients = clients
        self._disk = disk
        self._until_s = until_s
        self._dice = np.random.default_rng(crowd.seed)
        self._next_s = time.monotonic() + FAULT_EVERY_S
        self._deck: list[Callable[[], None]] = []
        self.counts: Counter[str] = Counter()

    def look(self) -> None:
        """Do what is due: the kinds take turns, in an order that is drawn anew each round."""
        self.crowd.look()
        if time.monotonic() < self._next_s:
            return
        self._next_s = time.monotonic() + FAULT_EVERY_S
        if not self._deck:
            kinds = [self._damage, self._kill, self._damage, self._freeze, self._damage]
            self._deck = [kinds[place] for place in self._dice.permutation(len(kinds))]
        self._deck.pop()()

    def _kill(self) -> None:
        """A client dies."""
        self.crowd.kill(int(self._dice.integers(self._clients)))
        self.counts["client_killed"] += 1

    def _freeze(self) -> None:
        """A client stands still for a while."""
        left_s = max(0.1, self._until_s - time.monotonic())
        seconds = min(left_s, FREEZES_S[int(self._dice.integers(len(FREEZES_S)))])
        if self.crowd.freeze(int(self._dice.integers(self._clients)), seconds):
            self.counts["client_frozen"] += 1

    def _damage(self) -> None:
        """Bits on disk turn over."""
        self.counts["bit_flipped"] += flip(self._disk, self._dice)


def flip(disk: Path, dice: np.random.Generator) -> int:
    """Turn over one bit in each segment file at a random place that holds data; how many.

    A file that vanishes meanwhile was evicted, which is as good.
    """
    flipped = 0
    for path in disk.glob("segment-*.kvw"):
        with contextlib.suppress(FileNotFoundError):
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                flipped += _flip(fd, dice)
            finally:
                os.close(fd)
    return flipped


def _flip(fd: int, dice: np.random.Generator) -> int:
    """Turn over one bit of a file, and see that it reaches the medium."""
    size_bytes = os.fstat(fd).st_size
    if not size_bytes:
        return 0
    try:
        offset = os.lseek(fd, int(dice.integers(size_bytes)), os.SEEK_DATA)
    except OSError:  # nothing but a hole from there on
        return 0
    old = os.pread(fd, 1, offset)
    if not old:
        return 0
    os.pwrite(fd, bytes([old[0] ^ 1 << int(dice.integers(8))]), offset)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    return 1
