"""Records: the last decisions with what became of them, and how good the estimates were.

They change no decision.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvwise.core.words import Decision, Ending

RECORDS_MAX = 1024


@dataclass(slots=True)
class Calibration:
    """How far estimates of loads were off, as shares of what the loads then took.

    Attributes:
        loads: how many loads ended well.
        error: sum of |estimated - actual| / actual.
        bias: sum of (estimated - actual) / actual.
    """

    loads: int = 0
    error: float = 0.0
    bias: float = 0.0

    @property
    def mean_error(self) -> float:
        """By how much an estimate is off."""
        return self.error / self.loads if self.loads else 0.0

    @property
    def mean_bias(self) -> float:
        """By how much estimates are too high, below 0 too low."""
        return self.bias / self.loads if self.loads else 0.0

    def learn(self, estimated_s: float, actual_s: float) -> None:
        """One load."""
        off = (estimated_s - actual_s) / actual_s
        self.loads += 1
        self.error += abs(off)
        self.bias += off


class Records:
    """The last decision of each of the last requests."""

    def __init__(self) -> None:
        """Nothing was decided yet."""
        self.calibration: dict[str, Calibration] = {}
        self._last: dict[tuple[int, str], Decision] = {}

    def __contains__(self, who: tuple[int, str]) -> bool:
        return who in self._last

    def find(self, client: int, request: str) -> Decision | None:
        """The decision about a request, if it is among the last ones."""
        return self._last.get((client, request))

    def add(self, client: int, decision: Decision) -> None:
        """Remember a decision; an earlier one about the same request is forgotten."""
        self._last.pop((client, decision.request), None)
        self._last[client, decision.request] = decision
        if len(self._last) > RECORDS_MAX:
            del self._last[next(iter(self._last))]

    def end(self, client: int, request: str, ending: Ending, actual_s: float) -> Decision | None:
        """Note what became of a decision; the whole record, if it is among the last ones.

        The slowest tier that a load read from stands for it: that is the one it waited for.
        """
        decision = self._last.get((client, request))
        if decision is None:
            return None
        decision = replace(decision, ending=ending, actual_s=actual_s)
        self._last[client, request] = decision
        calibrate(self.calibration, decision)
        return decision

    def refuse_pin(self, client: int, request: str) -> None:
        """Note that a request's wish to keep its blocks was not followed."""
        decision = self._last.get((client, request))
        if decision is not None:
            self._last[client, request] = replace(decision, pin_refused=True)

    def last(self, limit: int) -> list[Decision]:
        """The last decisions, newest last."""
        return list(self._last.values())[-limit:] if limit > 0 else []


def calibrate(calibration: dict[str, Calibration], decision: Decision) -> None:
    """Take a load that ended well into account."""
    if decision.ending is Ending.LOADED and decision.actual_s > 0 and decision.tiers:
        tier = next(reversed(decision.tiers))
        calibration.setdefault(tier, Calibration()).learn(decision.load_s, decision.actual_s)
