"""Timeline: virtual time and the one heap of what will happen. It knows nothing of what that is."""

from __future__ import annotations

import heapq
from collections.abc import Callable

from kvwise.errors import ConfigError
from kvwise.units import NS_PER_S

Act = Callable[[], None]

LAST_NS = 1 << 62
"""When virtual time ends: times must fit into 64 bits, with room for what is added to them."""

_YEARS = LAST_NS // NS_PER_S // (365 * 86_400)


class Timeline:
    """Things to come, in order of time; those of one moment happen in the order of their making."""

    def __init__(self) -> None:
        """Time zero, and nothing to come."""
        self.now_ns = 0
        self._heap: list[tuple[int, int, Act]] = []
        self._made = 0

    def at(self, when_ns: int, act: Act) -> None:
        """Have something happen at a time; the past means now.

        Raises:
            ConfigError: that is after the end of virtual time.
        """
        if when_ns > LAST_NS:
            raise ConfigError(
                f"this takes more than {_YEARS} years of simulated time; "
                "hint: faster machines, or requests that come sooner"
            )
        self._made += 1
        heapq.heappush(self._heap, (max(when_ns, self.now_ns), self._made, act))

    def after(self, delay_ns: int, act: Act) -> None:
        """Have something happen after a delay."""
        self.at(self.now_ns + max(0, delay_ns), act)

    def next_ns(self) -> int | None:
        """When the next thing happens; None when there is none."""
        return self._heap[0][0] if self._heap else None

    def step(self) -> bool:
        """Let the next thing happen; False when there is none."""
        if not self._heap:
            return False
        self.now_ns, _, act = heapq.heappop(self._heap)
        act()
        return True
