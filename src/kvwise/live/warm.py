"""Warming: memory for the next pages is provided before somebody waits for it. It moves no data.

A load from disk into an arena that was never used spends a third of its time waiting for zeroed
memory, and a store two thirds. Pages are handed out from the first one on, so those that come next
are touched in the background, no more of them than are worth it, and none that the arena does not
have.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from kvwise.tiers.dram import Arena
from kvwise.units import MIB

WARM_BYTES = 512 * MIB
"""How much is provided ahead of what is in use: the KV of several long prompts."""

LOOK_S = 0.5
"""How often it is looked whether more has come into use."""

SLICE_BYTES = 2 * MIB
"""Provided at a time: a huge page, which takes 2.3 ms to join."""

PAUSE_S = 0.001
"""Between slices the processor belongs to others."""


class Warmer:
    """A thread that touches each page of an arena once, soon before it comes into use."""

    def __init__(self, arena: Arena, used: Callable[[], int]) -> None:
        """Begin; `used` says how many pages are in use."""
        self._arena = arena
        self._used = used
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kvwise-warm", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop; the arena may be closed afterwards. Idempotent."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        """Stay ahead until all is provided or the kernel cannot."""
        shape, first, end = self._arena.shape, 0, 0
        ahead = WARM_BYTES // shape.page_bytes
        step = max(1, SLICE_BYTES // shape.page_bytes)
        while first < shape.page_count:
            if first == end:
                end = max(end, min(shape.page_count, self._used() + ahead))
            if self._stop.wait(LOOK_S if first == end else PAUSE_S):
                return
            count = min(step, end - first)
            if count and not self._arena.populate(first, count):
                return
            first += count
