"""Warming: memory for the first pages is provided before somebody waits for it. It moves no data.

A load from disk into an arena that was never used spends a third of its time waiting for zeroed
memory. Pages are handed out from the first one on, so after a start the first pages are touched in
the background, no more of them than are worth it, and none that the arena does not have.
"""

from __future__ import annotations

import threading

from kvwise.tiers.dram import Arena
from kvwise.units import MIB

WARM_BYTES = 512 * MIB
"""How much is provided ahead: the KV of several long prompts."""

SLICE_BYTES = MIB
PAUSE_S = 0.001
"""Between slices the processor belongs to others."""


class Warmer:
    """A thread that touches the first pages of an arena once."""

    def __init__(self, arena: Arena) -> None:
        """Begin."""
        self._arena = arena
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kvwise-warm", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop; the arena may be closed afterwards. Idempotent."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        """Provide slice after slice until enough is there or the kernel cannot."""
        shape = self._arena.shape
        most = min(shape.page_count, WARM_BYTES // shape.page_bytes)
        step = max(1, SLICE_BYTES // shape.page_bytes)
        for first in range(0, most, step):
            if self._stop.wait(PAUSE_S) or not self._arena.populate(first, min(step, most - first)):
                return
