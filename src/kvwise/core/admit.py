"""Admit: whether a block may be written to a tier. It answers with a verdict; it writes nothing."""

from __future__ import annotations

from dataclasses import dataclass

from kvwise.core.words import Why

DAY_NS = 86_400 * 1_000_000_000


@dataclass(frozen=True, slots=True)
class Admit:
    """Yes."""


@dataclass(frozen=True, slots=True)
class Reject:
    """No, and it makes no sense to ask again for this block."""

    why: Why


@dataclass(frozen=True, slots=True)
class Throttle:
    """Not now: ask again after `wait_ns`."""

    wait_ns: int


Verdict = Admit | Reject | Throttle


def admit_prompt(total_tokens: int, tokens_min: int, *, no_store: bool) -> Verdict:
    """Whether blocks of this prompt may enter the cache at all."""
    if no_store:
        return Reject(Why.DISABLED)
    if 0 < total_tokens < tokens_min:
        return Reject(Why.TOO_SHORT)
    return Admit()


class Budget:
    """Bytes that may be written per day, as a token bucket that holds at most one hour's worth.

    A drive's endurance is bytes per day over its life; a burst of an hour lets a busy morning
    through without letting a busy week through.
    """

    def __init__(self, bytes_per_day: int) -> None:
        """A full bucket; 0 bytes per day means no limit."""
        self._per_day = bytes_per_day
        self._burst = bytes_per_day / 24
        self._level = self._burst
        self._filled_ns: int | None = None

    def ask(self, now_ns: int, size_bytes: int) -> Verdict:
        """Whether `size_bytes` may be written now; changes nothing but the passing of time."""
        if not self._per_day:
            return Admit()
        since = 0 if self._filled_ns is None else max(0, now_ns - self._filled_ns)
        self._level = min(self._burst, self._level + since * self._per_day / DAY_NS)
        self._filled_ns = now_ns
        lacking = min(size_bytes, self._burst) - self._level
        if lacking > 0:
            return Throttle(int(lacking * DAY_NS / self._per_day) + 1)
        return Admit()

    def spend(self, size_bytes: int) -> None:
        """`size_bytes` are being written."""
        if self._per_day:
            self._level -= size_bytes
