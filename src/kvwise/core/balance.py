"""Balance: a write budget's state as data, to be logged and kept. What it means is in `govern`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Balance:
    """What the write budget of a tier must remember from one life to the next.

    Attributes:
        level_bytes: what may be written at once.
        written_bytes: in all lives.
        recent_bytes: over the last day, as it is remembered.
        span_s: how much of a day is remembered.
        offered_bytes: (class of worth, bytes offered in it over the last day).
    """

    level_bytes: float = 0.0
    written_bytes: int = 0
    recent_bytes: float = 0.0
    span_s: float = 0.0
    offered_bytes: tuple[tuple[int, float], ...] = ()
