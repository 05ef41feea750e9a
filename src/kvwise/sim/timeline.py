"""Timeline: virtual time and the one heap of what will happen. It knows nothing of what that is."""

from __future__ import annotations

import heapq
from collections.abc import Callable

Act = Callable[[], None]


class Timeline:
    """Things to come, in order of time; those of one moment happen in the order of their making."""

    def __init__(self) -> None:
        """Time zero, and nothing to come."""
        self.now_ns = 0
        self._heap: list[tuple[int, int, Act]] = []
        self._made = 0

    def at(self, when_ns: int, act: Act) -> None:
        """Have something happen at a time; the past means now."""
        self._made += 1
        heapq.heappush(self._heap, (max(when_ns, self.now_ns), self._made, act))

    def after(self, delay_ns: int, act: Act) -> None:
        """Have something happen after a delay."""
        self.at(self.now_ns + max(0, delay_ns), act)

    def step(self) -> bool:
        """Let the next thing happen; False when there is none."""
        if not self._heap:
            return False
        self.now_ns, _, act = heapq.heappop(self._heap)
        act()
        return True
