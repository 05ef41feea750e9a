"""Owns how long a probe may take and how much it may write, and how parts share that.

It measures nothing. A part that ends early leaves its time to those after it.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from kvwise.bench.rows import Row
from kvwise.bench.yardstick import Spread

ROUNDS_WISHED = 3
"""So many times each thing is measured at least, where time and bytes allow it."""
ROUNDS_MAX = 9
"""More figures of the same thing would not move a median."""
WARM_UP_FROM = 3
"""From so many rounds on, the first does not count: it touched everything for the first time."""

Name = TypeVar("Name", bound=Hashable)
Tell = Callable[[str], None]


@dataclass(slots=True)
class Found:
    """What a part found, and what it could not measure.

    Attributes:
        skipped: each names what was not measured and why.
    """

    rows: list[Row] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, other: Found) -> None:
        """Take in what another part found."""
        self.rows += other.rows
        self.skipped += other.skipped
        self.notes += other.notes


class Allowance:
    """Bytes that may still be written to one place; threads may share it."""

    def __init__(self, left_bytes: int) -> None:
        self.left_bytes = left_bytes
        self._lock = threading.Lock()

    def lend(self, wanted_bytes: int) -> Allowance:
        """A part, as far as there is so much; `give_back` what is left of it."""
        with self._lock:
            size_bytes = min(wanted_bytes, self.left_bytes)
            self.left_bytes -= size_bytes
        return Allowance(size_bytes)

    def give_back(self, part: Allowance) -> None:
        """Take what is left of a part."""
        with self._lock:
            self.left_bytes += part.left_bytes

    def take(self, wanted_bytes: int) -> bool:
        """Whether so many may be written; then they are counted."""
        with self._lock:
            if wanted_bytes > self.left_bytes:
                return False
            self.left_bytes -= wanted_bytes
        return True


class Timetable:
    """When each part must have ended, so that all together end in time."""

    def __init__(self, weights: Sequence[float], seconds: float) -> None:
        """`weights` are those of the parts, in their order."""
        self._weights = list(weights)
        self._end_s = time.monotonic() + seconds

    def next_end_s(self) -> float:
        """The moment at which the next part must end: its share of what is left."""
        now_s = time.monotonic()
        share = self._weights[0] / sum(self._weights)
        del self._weights[0]
        return now_s + share * max(0.0, self._end_s - now_s)


def left_s(end_s: float) -> float:
    """Seconds until a moment; 0 once it has passed."""
    return max(0.0, end_s - time.monotonic())


def rounds(
    actions: Mapping[Name, Callable[[], float]], end_s: float, tell: Callable[[Name], None]
) -> dict[Name, list[float]]:
    """Figures of actions taken in turns, A, B, A, B, until a moment.

    Whatever was not reached before that has no figure.
    """
    found: dict[Name, list[float]] = {name: [] for name in actions}
    for _ in range(ROUNDS_MAX):
        for name, action in actions.items():
            if left_s(end_s) == 0.0:
                return found
            tell(name)
            found[name].append(action())
    return found


def figure(
    values: Sequence[float], middle: Callable[[Sequence[float]], float] = statistics.median
) -> dict[str, float | int]:
    """The rate of a row: the middle of its figures, their range, and how many there are."""
    kept = values[1:] if len(values) >= WARM_UP_FROM else values
    spread = Spread.of(kept)
    return {
        "gbps": round(middle(kept), 4),
        "gbps_low": round(spread.low, 4),
        "gbps_high": round(spread.high, 4),
        "rounds": len(kept),
    }
