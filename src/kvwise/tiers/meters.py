"""Meters: how long a tier's work takes, gathered from all its threads. They judge nothing.

Moving bytes is timed while any thread does it: that is the rate of the link, however many share it.
Encoding and decoding are summed up over threads: that is the rate of one of them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kvwise.core.elements import Coding
from kvwise.core.timing import Work
from kvwise.tiers.base import Spent
from kvwise.units import MIB

BUSY_BYTES_MAX = 64 * MIB
"""A link that is never idle is told of when so much has passed."""


class _Link:
    """One direction: bytes that passed, and time in which any were under way."""

    def __init__(self) -> None:
        self.under_way = 0
        self.since_ns = 0
        self.busy_ns = 0
        self.size_bytes = 0

    def settle(self, now_ns: int) -> None:
        """Count the time up to now."""
        if self.under_way:
            self.busy_ns += now_ns - self.since_ns
        self.since_ns = now_ns


class Meters:
    """All meters of one tier; thread-safe."""

    def __init__(self, clock_ns: Callable[[], int]) -> None:
        """Nothing was done yet."""
        self._clock_ns = clock_ns
        self._lock = threading.Lock()
        self._links = {Work.READ: _Link(), Work.WRITE: _Link()}
        self._spent: dict[tuple[Work, Coding], list[int]] = {}

    @contextmanager
    def moving(self, work: Work, size_bytes: int) -> Iterator[None]:
        """Bytes are on their way over the link."""
        link = self._links[work]
        with self._lock:
            link.settle(self._clock_ns())
            link.under_way += 1
        try:
            yield
        finally:
            with self._lock:
                link.settle(self._clock_ns())
                link.under_way -= 1
                link.size_bytes += size_bytes

    @contextmanager
    def coding(self, work: Work, coding: Callable[[], Coding], size_bytes: int) -> Iterator[None]:
        """A thread encodes or decodes a payload; nothing is counted if it fails, or copies.

        Finding out which coding it is counts as well: who uses codecs pays for that too.
        """
        start_ns = self._clock_ns()
        yield
        found = coding()
        elapsed_ns = self._clock_ns() - start_ns
        if found is Coding.PLAIN:
            return
        with self._lock:
            total = self._spent.setdefault((work, found), [0, 0])
            total[0] += size_bytes
            total[1] += elapsed_ns

    def take(self) -> list[Spent]:
        """What there is to tell, told once."""
        with self._lock:
            told = [Spent(*what, *total) for what, total in self._spent.items()]
            self._spent.clear()
            for work, link in self._links.items():
                idle = not link.under_way
                if link.size_bytes and (idle or link.size_bytes >= BUSY_BYTES_MAX):
                    link.settle(self._clock_ns())
                    told.append(Spent(work, Coding.PLAIN, link.size_bytes, link.busy_ns))
                    link.size_bytes = link.busy_ns = 0
            return told
