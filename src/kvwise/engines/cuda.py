"""The copier for devices with a link: pinned arena, bounded staging, one stream each way.

A store sorts scattered blocks into staging with one kernel and sends staging to the arena in long
runs; a load is the reverse, wave of layers by wave. It drives a `Device` and knows no CUDA call:
`cuda_device.py` has those. It decides nothing and keeps no bytes.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, cast

import numpy as np

from kvwise.engines.copying import CopyPlan, Fence
from kvwise.engines.staging import Rows, Staging, load_batches, store_batches, waves
from kvwise.errors import BugError, EngineError
from kvwise.live.clock import deadline_after, now_ns
from kvwise.units import MIB, format_size

_PAUSE_MIN_S = 20e-6
_PAUSE_MAX_S = 500e-6

_log = logging.getLogger(__name__)


class Mark(Protocol):
    """A point in a stream of device work."""

    def done(self) -> bool:
        """Whether all work before it is over; never waits.

        Raises:
            EngineError: that work failed.
        """
        ...


class Lane(Protocol):
    """One stream of device work with a staging buffer; what is put on it happens in that order.

    The caller guarantees: one thread at a time. The implementer guarantees: no call waits for the
    device (a transfer of memory that is not pinned may), and a call that failed raises
    `EngineError` with everything put on it before still in order.
    """

    @property
    def staging(self) -> int:
        """Device address of the staging buffer."""
        ...

    def after(self, mark: Mark) -> None:
        """Let what follows begin only when `mark` is done."""
        ...

    def shuffle(self, rows: Rows) -> None:
        """Copy rows between places on the device; no byte is a target twice."""
        ...

    def transfer(self, rows: Rows) -> None:
        """Copy rows between the device and the arena."""
        ...

    def mark(self) -> Mark:
        """Mark what was put on the lane so far."""
        ...

    def close(self) -> None:
        """Give the staging buffer back; nothing is under way."""
        ...


class Device(Protocol):
    """What the copier needs of a GPU."""

    def mark(self) -> Mark:
        """Mark what the calling thread has put on the engine's own stream so far."""
        ...

    def lane(self, staging_bytes: int) -> Lane:
        """A new stream with a staging buffer."""
        ...

    def register(self, address: int, size_bytes: int) -> bool:
        """Pin host memory for direct transfers; False when the system does not allow it."""
        ...

    def unregister(self, address: int) -> None:
        """Undo `register`."""
        ...


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one copier.

    Attributes:
        staging_bytes: device memory for each direction. A batch of this size keeps a link of
            50 GB/s busy for 0.7 ms, against about 20 us to start the next.
        slice_bytes: arena memory that is pinned at once, when first used: pinning touches every
            page, and all of a large arena would hold up the engine's start.
        deadline_s: how long a call may wait for the device or for its turn. Copies take
            milliseconds; a device that needs longer than this has stopped.
    """

    staging_bytes: int = 32 * MIB
    slice_bytes: int = 64 * MIB
    deadline_s: float = 30.0


class CudaCopier:
    """Moves plans through one lane each way, so that loads and stores overlap on a duplex link.

    Each lane is one stream, and its order is all the protection that staging needs: a kernel reads
    what the transfer before it wrote, and the next transfer waits for that kernel. The kernel takes
    a few hundredths of the transfer's time, so a second buffer to overlap them would gain as
    little. The engine's stream never waits for a lane.

    A call that fails first waits until everything it started is over: nothing moves after its
    return. Where even that wait fails, the device may still write; the copier then refuses all
    further work and leaves the arena pinned.
    """

    def __init__(self, device: Device, limits: Limits = Limits()) -> None:
        self._device = device
        self._limits = limits
        self._pins: _Pins | None = None
        self._broken = ""
        self._closed = False
        self._loads = _Way(device.lane(limits.staging_bytes))
        self._stores = _Way(device.lane(limits.staging_bytes))

    def pin(self, address: int, size_bytes: int) -> None:
        """Note where the arena is; each slice of it is pinned when a copy first needs it.

        What was pinned of an earlier arena is unpinned, or the driver would keep its memory.
        """
        if self._pins is not None and not self._broken:
            self._pins.close()
        self._pins = _Pins(self._device, address, size_bytes, self._limits.slice_bytes)

    def fence(self) -> Fence:
        """Mark the engine's own stream."""
        return self._device.mark()

    def load(self, plan: CopyPlan, fence: Fence, on_layer: Callable[[int], None]) -> None:
        """Arena to device. Waves are queued ahead while finished ones are reported, in order.

        Raises:
            EngineError: the device failed or stopped; some layers may have arrived.
        """
        with self._turn(self._loads) as lane:
            lane.after(cast("Mark", fence))
            pending: deque[tuple[Mark, range]] = deque()
            for wave in waves(plan):
                for batch in load_batches(plan, wave, self._staging(lane)):
                    self._pinned.cover(batch.runs)
                    lane.transfer(batch.runs)
                    lane.shuffle(batch.blocks.turned())
                pending.append((lane.mark(), wave))
                _report(pending, on_layer)
            while pending:
                self._wait(pending[0][0])
                _report(pending, on_layer)

    def store(self, plan: CopyPlan, fence: Fence) -> None:
        """Device to arena.

        Raises:
            EngineError: the device failed or stopped; the arena's side holds no whole copy.
        """
        with self._turn(self._stores) as lane:
            lane.after(cast("Mark", fence))
            for batch in store_batches(plan, self._staging(lane)):
                self._pinned.cover(batch.runs)
                lane.shuffle(batch.blocks)
                lane.transfer(batch.runs.turned())

    def close(self) -> None:
        """Wait for both lanes, give up their buffers and unpin the arena."""
        if self._closed:
            return
        self._closed = True
        for way in (self._loads, self._stores):
            if not way.turn.acquire(timeout=self._limits.deadline_s):
                self._broken = self._broken or "a copy did not end"
                continue
            if not self._broken:
                way.lane.close()
            way.turn.release()
        if self._broken:
            _log.error("the arena stays pinned until this process ends: %s", self._broken)
        elif self._pins is not None:
            self._pins.close()

    @property
    def _pinned(self) -> _Pins:
        if self._pins is None:
            raise BugError("a copy was asked for before the arena was pinned")
        return self._pins

    def _staging(self, lane: Lane) -> Staging:
        """The lane's buffer, cut where the arena's slices end."""
        return Staging(
            address=lane.staging,
            size_bytes=self._limits.staging_bytes,
            arena=self._pinned.address,
            slice_bytes=self._limits.slice_bytes,
        )

    @contextmanager
    def _turn(self, way: _Way) -> Iterator[Lane]:
        """Hold a lane; when it is given back, nothing on it is under way.

        Raises:
            EngineError: the copier is closed or broken, or the lane was not free in time.
        """
        self._require_usable()
        if not way.turn.acquire(timeout=self._limits.deadline_s):
            raise EngineError(f"no turn on the link within {self._limits.deadline_s:g} s")
        try:
            self._require_usable()
            try:
                yield way.lane
            finally:
                if not self._broken:
                    self._settle(way.lane)
        finally:
            way.turn.release()

    def _require_usable(self) -> None:
        """Refuse work that could not be done safely.

        Raises:
            EngineError: the copier is closed or broken.
        """
        if self._broken:
            raise EngineError(f"the GPU's copy path is out of use: {self._broken}")
        if self._closed:
            raise EngineError("the copier is closed")

    def _settle(self, lane: Lane) -> None:
        """Wait until the lane is empty; a lane that cannot be emptied takes the copier out of use.

        Raises:
            EngineError: the device failed or stopped.
        """
        try:
            self._wait(lane.mark())
        except EngineError as error:
            self._broken = str(error)
            raise

    def _wait(self, mark: Mark) -> None:
        """Wait until the device has passed `mark`.

        Raises:
            EngineError: it failed, or did not pass in time.
        """
        deadline_ns = deadline_after(self._limits.deadline_s)
        pause_s = _PAUSE_MIN_S
        while not mark.done():
            if now_ns() >= deadline_ns:
                self._broken = f"the GPU did not finish a copy in {self._limits.deadline_s:g} s"
                raise EngineError(self._broken)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_MAX_S)


class _Way:
    """One direction: its lane, and whose turn it is."""

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self.turn = threading.Lock()


class _Pins:
    """Which slices of the arena are pinned. Thread-safe."""

    def __init__(self, device: Device, address: int, size_bytes: int, slice_bytes: int) -> None:
        self.address = address
        self._device = device
        self._size_bytes = size_bytes
        self._slice_bytes = slice_bytes
        self._lock = threading.Lock()
        self._pinned: set[int] = set()
        self._refused = False

    def cover(self, runs: Rows) -> None:
        """Pin the slices that runs read or write; each run lies in one.

        A system that refuses is asked once: copies are then slower and just as correct.

        Raises:
            BugError: a run is not in the arena.
        """
        start = runs.sources - self.address
        if len(start) and (start.min() < 0 or (start + runs.sizes).max() > self._size_bytes):
            raise BugError("a copy plan reaches beyond the arena")
        with self._lock:
            for number in sorted(set(np.unique(start // self._slice_bytes).tolist())):
                if number not in self._pinned and not self._refused:
                    self._pin(number)

    def _pin(self, number: int) -> None:
        """Pin one slice; the last one may be shorter."""
        offset = number * self._slice_bytes
        size_bytes = min(self._slice_bytes, self._size_bytes - offset)
        if self._device.register(self.address + offset, size_bytes):
            self._pinned.add(number)
            return
        self._refused = True
        _log.warning(
            "this system does not let %s more of the arena be pinned (%s are); copies to and from "
            "the GPU will be several times slower. Raise the locked-memory limit (ulimit -l), or "
            "make the arena smaller",
            format_size(size_bytes),
            format_size(len(self._pinned) * self._slice_bytes),
        )

    def close(self) -> None:
        """Unpin everything."""
        with self._lock:
            while self._pinned:
                self._device.unregister(self.address + self._pinned.pop() * self._slice_bytes)


def _report(pending: deque[tuple[Mark, range]], on_layer: Callable[[int], None]) -> None:
    """Say which layers have arrived, oldest wave first."""
    while pending and pending[0][0].done():
        for layer in pending.popleft()[1]:
            on_layer(layer)
