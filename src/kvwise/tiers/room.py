"""Room: which directory takes the next frame, and whether any may. It writes nothing.

Two bounds hold before every write: the cap over all directories, and the free space that each
filesystem must keep. Among directories with room, bytes are dealt in proportion to the measured
read rate, because loads are what somebody waits for.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate

from kvwise.errors import FailureKind, TierError
from kvwise.tiers.segments import Directory
from kvwise.units import MIB, format_size

_SAMPLE_BYTES_MIN = MIB // 4
"""Smaller reads measure latency, not rate."""

_SMOOTHING = 0.05


@dataclass(slots=True, eq=False)
class Expected:
    """Bytes that a put under way has still to take."""

    left_bytes: int


class Room:
    """Accounting over the directories of one tier; thread-safe."""

    def __init__(
        self, directories: Sequence[Directory], *, capacity_bytes: int, min_free_bytes: int
    ) -> None:
        self._directories = directories
        self._capacity_bytes = capacity_bytes
        self._min_free_bytes = min_free_bytes
        self._lock = threading.Lock()
        self._rates: dict[int, float] = {}
        self._turns = dict.fromkeys((d.number for d in directories), 0.0)
        self._now = 0.0
        self._expected: list[Expected] = []

    @property
    def used_bytes(self) -> int:
        """Bytes that the directories hold."""
        return sum(directory.used_bytes for directory in self._directories)

    @property
    def free_bytes(self) -> int:
        """Bytes that may still be written, besides the footers that segments will need."""
        alive = [d for d in self._directories if not d.down]
        by_device = {d.device: self._above_watermark(d) for d in alive}
        room_bytes = min(self._below_cap(), sum(by_device.values()))
        return max(0, room_bytes - sum(d.footer_bytes for d in alive))

    @contextmanager
    def expecting(self, size_bytes: int) -> Iterator[Expected]:
        """While a put is under way, no footer takes what its last object needs."""
        expected = Expected(size_bytes)
        with self._lock:
            self._expected.append(expected)
        try:
            yield expected
        finally:
            with self._lock:
                self._expected.remove(expected)

    def take(
        self, sizes: Sequence[int], expected: Expected | None = None
    ) -> tuple[Directory, int] | TierError:
        """Reserve room for frames that should lie side by side.

        Stride scheduling: a directory's turn moves on by bytes / rate, and the least turn is next.
        One that had no room for a while rejoins at the present, it does not catch up.

        Returns:
            Where the leading frames go and how many of them fit there, or why not even one does.
        """
        with self._lock:
            below_cap = self._below_cap()
            if sizes[0] > below_cap:
                return self._full(f"the cap of {format_size(self._capacity_bytes)} is reached")
            alive = [d for d in self._directories if not d.down]
            if not alive:
                return TierError(FailureKind.IO, "every directory of the disk tier is down")
            for directory in sorted(alive, key=lambda d: self._turns[d.number]):
                room_bytes = min(below_cap, self._above_watermark(directory))
                if sizes[0] <= room_bytes:
                    count = self._reserve(directory, sizes, room_bytes)
                    if expected is not None:
                        expected.left_bytes -= sum(sizes[:count])
                    return directory, count
            return self._full(f"no filesystem would keep {format_size(self._min_free_bytes)} free")

    def admit(self, directory: Directory, size_bytes: int) -> bool:
        """Reserve room for a footer; it goes without when objects have taken it all, or will."""
        with self._lock:
            room_bytes = min(self._below_cap(), self._above_watermark(directory))
            fits = size_bytes <= room_bytes - sum(one.left_bytes for one in self._expected)
            if fits:
                directory.reserve(size_bytes)
            return fits

    def observe(self, directory: Directory, size_bytes: int, elapsed_ns: int) -> None:
        """Learn from a read how fast a directory is."""
        if size_bytes < _SAMPLE_BYTES_MIN or elapsed_ns <= 0:
            return
        with self._lock:
            seen = size_bytes / elapsed_ns
            rate = self._rates.get(directory.number, seen)
            self._rates[directory.number] = rate + _SMOOTHING * (seen - rate)

    def _reserve(self, directory: Directory, sizes: Sequence[int], room_bytes: int) -> int:
        """Promise a directory's room to as many leading frames as fit; how many did."""
        ends = list(accumulate(sizes))
        count = bisect_right(ends, room_bytes)
        directory.reserve(ends[count - 1])
        self._now = max(self._turns[directory.number], self._now)
        self._turns[directory.number] = self._now + ends[count - 1] / self._rate(directory)
        return count

    def _rate(self, directory: Directory) -> float:
        """Bytes per ns: measured, or the mean of the others, or all alike."""
        known = self._rates.values()
        mean = sum(known) / len(known) if known else 1.0
        return self._rates.get(directory.number, mean)

    def _below_cap(self) -> int:
        """Bytes between what is held or promised and the cap."""
        return self._capacity_bytes - sum(d.held_bytes for d in self._directories)

    def _above_watermark(self, directory: Directory) -> int:
        """Bytes that the directory's filesystem has beyond what it must keep free."""
        promised = sum(d.reserved_bytes for d in self._directories if d.device == directory.device)
        return max(0, directory.available_bytes() - promised - self._min_free_bytes)

    @staticmethod
    def _full(why: str) -> TierError:
        """The answer when there is no room."""
        return TierError(FailureKind.FULL, f"the disk tier is full: {why}", retryable=True)
