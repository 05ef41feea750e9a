"""Explore: keeps the rates of tiers known that nothing is loaded from. It loads nothing itself.

A tier that was slow once is not chosen, and what is not chosen is not measured. So now and then
one chunk is loaded although computing it is expected to be faster. That is paid for from an
allowance, a hundredth of the time of the requests that could have used the tier and did not.
"""

from __future__ import annotations

REQUESTS_MIN = 128
"""Requests that found something on a tier and did not load it, for each that is sent to look."""

SHARE = 0.01
"""Part of the time of such requests that looking may cost."""

ALLOWANCE_S_MAX = 60.0


class Explorer:
    """What was not loaded from each tier since it was last measured."""

    def __init__(self, tiers: int) -> None:
        """Nothing was passed over yet."""
        self._passed = [0] * tiers
        self._allowance_s = [0.0] * tiers

    def passed(self, tier: int, whole_s: float) -> None:
        """A request that takes `whole_s` to compute did not load what it found on a tier."""
        self._passed[tier] += 1
        allowance_s = self._allowance_s[tier] + SHARE * whole_s
        self._allowance_s[tier] = min(allowance_s, ALLOWANCE_S_MAX)

    def may_look(self, tier: int, cost_s: float) -> bool:
        """Whether it is time, and there is time, to look; then that is taken off."""
        if self._passed[tier] < REQUESTS_MIN or self._allowance_s[tier] < cost_s:
            return False
        self._passed[tier] = 0
        self._allowance_s[tier] -= cost_s
        return True

    def measured(self, tier: int) -> None:
        """A load from a tier was measured."""
        self._passed[tier] = 0
