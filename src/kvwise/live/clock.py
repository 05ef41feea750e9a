"""The clock: the one place that reads it for decisions. It never sleeps."""

from __future__ import annotations

import time

from kvwise.units import NS_PER_S


def now_ns() -> int:
    """Nanoseconds since some fixed moment before this machine's processes started.

    The same for all processes of a machine, and it never jumps.
    """
    return time.monotonic_ns()


def seconds_until(deadline_ns: int) -> float:
    """Seconds left until `deadline_ns`, 0 once it has passed."""
    return max(0, deadline_ns - now_ns()) / NS_PER_S


def deadline_after(seconds: float) -> int:
    """The moment `seconds` from now."""
    return now_ns() + int(seconds * NS_PER_S)


def unix_ns() -> int:
    """Nanoseconds since 1970 as this machine believes; it may jump, so it orders nothing.

    Only for how long the store was away between two lives.
    """
    return time.time_ns()
