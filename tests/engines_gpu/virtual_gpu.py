"""Owns a GPU made of host memory: streams that run late and in any order their events allow.

It is an adversary, not a model of speed: work runs only when somebody asks about a mark, a random
stream a random number of steps further, and the rows of a kernel in random order. Code that is
right here does not lean on luck. It refuses what a real driver refuses.
"""

from __future__ import annotations

import ctypes
import random
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from kvwise.engines.cuda import Lane, Mark
from kvwise.engines.staging import Rows
from kvwise.errors import EngineError


def move(target: int, source: int, size: int) -> None:
    """Copy host memory."""
    ctypes.memmove(target, source, size)


@dataclass
class Stream:
    """Work in order; `passed` steps of it have run."""

    gpu: VirtualGpu
    work: deque[Callable[[], bool]] = field(default_factory=deque)
    queued: int = 0
    passed: int = 0
    stopped: bool = False

    def put(self, step: Callable[[], object]) -> None:
        """Add work."""

        def run() -> bool:
            step()
            return True

        self._add(run)

    def put_wait(self, mark: VirtualMark) -> None:
        """Let the work after this one begin only when `mark` is passed."""
        self._add(mark.passed)

    def _add(self, step: Callable[[], bool]) -> None:
        with self.gpu.lock:
            self.work.append(step)
            self.queued += 1

    def advance(self) -> None:
        """Run one step, if it may run."""
        if self.work and not self.stopped and self.work[0]():
            self.work.popleft()
            self.passed += 1


@dataclass(frozen=True)
class VirtualMark:
    """Everything queued on a stream before it."""

    stream: Stream
    steps: int

    def passed(self) -> bool:
        """Whether the stream has got here; runs nothing."""
        return self.stream.passed >= self.steps

    def done(self) -> bool:
        """Whether the stream has got here, after letting the device run a little."""
        self.stream.gpu.run_a_little()
        if self.stream.gpu.dead:
            raise EngineError("the virtual GPU has failed")
        return self.passed()


class VirtualGpu:
    """A device with an engine stream and any number of lanes."""

    def __init__(self, seed: int, *, pinnable: int = 1 << 60) -> None:
        self.lock = threading.RLock()
        self.random = random.Random(seed)
        self.engine = Stream(self)
        self.lanes: list[VirtualLane] = []
        self.registered: dict[int, int] = {}
        self.pinnable = pinnable
        self.dead = False

    def run_a_little(self) -> None:
        """Let random streams run a random number of steps."""
        with self.lock:
            streams = [self.engine, *(lane.stream for lane in self.lanes)]
            for _ in range(self.random.randrange(2 + 2 * sum(len(s.work) for s in streams))):
                self.random.choice(streams).advance()

    def run_all(self) -> None:
        """Let everything run that can."""
        for _ in range(10_000):
            self.run_a_little()

    def mark(self) -> Mark:
        """Mark the engine's stream."""
        return VirtualMark(self.engine, self.engine.queued)

    def lane(self, staging_bytes: int) -> Lane:
        """A new stream."""
        self.lanes.append(VirtualLane(self, staging_bytes))
        return self.lanes[-1]

    def register(self, address: int, size_bytes: int) -> bool:
        """Pin memory; never twice, and no more than is allowed."""
        assert address not in self.registered
        if sum(self.registered.values()) + size_bytes > self.pinnable:
            return False
        self.registered[address] = size_bytes
        return True

    def unregister(self, address: int) -> None:
        """Unpin memory that was pinned."""
        del self.registered[address]

    def require_transferable(self, address: int, size: int) -> None:
        """Refuse what a driver refuses: nothing at all, and ranges that are partly pinned."""
        assert size > 0
        for start, length in self.registered.items():
            apart = address + size <= start or start + length <= address
            inside = start <= address and address + size <= start + length
            assert apart or inside


class VirtualLane:
    """A stream with staging; `fail_at` is the number of the call that fails."""

    def __init__(self, gpu: VirtualGpu, staging_bytes: int) -> None:
        self.gpu = gpu
        self.stream = Stream(gpu)
        self.memory = ctypes.create_string_buffer(staging_bytes)
        self.staging_bytes = staging_bytes
        self.calls = 0
        self.fail_at = -1
        self.closed = False

    @property
    def staging(self) -> int:
        """Address of the staging buffer."""
        return ctypes.addressof(self.memory)

    @property
    def idle(self) -> bool:
        """Whether nothing is queued."""
        return not self.stream.work

    def after(self, mark: Mark) -> None:
        """Wait for a mark."""
        assert isinstance(mark, VirtualMark)
        self.stream.put_wait(mark)

    def shuffle(self, rows: Rows) -> None:
        """Copy rows in one step, in any order."""
        self._call()
        self._require_staged(rows)
        todo = list(
            zip(rows.targets.tolist(), rows.sources.tolist(), rows.sizes.tolist(), strict=True)
        )

        def kernel() -> None:
            self.gpu.random.shuffle(todo)
            for target, source, size in todo:
                move(target, source, size)

        self.stream.put(kernel)

    def transfer(self, rows: Rows) -> None:
        """Copy rows, one step each; the call fails before its last row when it is to fail."""
        self._require_staged(rows)
        inward = self._in_staging(int(rows.targets[0]))
        for nth, (target, source, size) in enumerate(
            zip(rows.targets.tolist(), rows.sources.tolist(), rows.sizes.tolist(), strict=True)
        ):
            if nth == len(rows.sizes) - 1:
                self._call()
            self.gpu.require_transferable(source if inward else target, size)
            self.stream.put(partial(move, target, source, size))

    def mark(self) -> Mark:
        """Mark this stream."""
        return VirtualMark(self.stream, self.stream.queued)

    def close(self) -> None:
        """Only an idle lane may be closed."""
        assert self.idle
        assert not self.closed
        self.closed = True

    def _call(self) -> None:
        """Count a call, and fail if it is its turn."""
        assert not self.closed
        self.calls += 1
        if self.calls == self.fail_at:
            raise EngineError("the virtual driver refused")

    def _in_staging(self, address: int) -> bool:
        return self.staging <= address < self.staging + self.staging_bytes

    def _require_staged(self, rows: Rows) -> None:
        """Exactly one side of every row lies in staging, wholly."""
        for target, source, size in zip(rows.targets, rows.sources, rows.sizes, strict=True):
            assert self._in_staging(int(target)) != self._in_staging(int(source))
            side = target if self._in_staging(int(target)) else source
            assert side + size <= self.staging + self.staging_bytes
