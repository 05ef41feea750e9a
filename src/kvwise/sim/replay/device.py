"""Device: what of the KV on an engine's own devices can be used again. It moves no bytes.

Blocks stay after their request until room is needed, the least recently used first, as in an engine
with prefix caching. A running request has its room to itself.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class Device:
    """Blocks of KV on the devices of one engine, by number, the least recently used first."""

    def __init__(self, capacity_blocks: int) -> None:
        """Nothing is kept, and nobody runs."""
        self._capacity_blocks = capacity_blocks
        self._held_blocks = 0
        self._kept: OrderedDict[int, None] = OrderedDict()

    def match(self, path: Sequence[int]) -> int:
        """How many blocks of a prompt, from its first, are here."""
        kept, count = self._kept, 0
        for block in path:
            if block not in kept:
                break
            count += 1
        return count

    def hold(self, blocks: int) -> bool:
        """Set room aside for a request; False, and no change, while others have too much of it."""
        if self._held_blocks + blocks > self._capacity_blocks:
            return False
        self._held_blocks += blocks
        self._trim()
        return True

    def keep(self, path: Sequence[int], held_blocks: int) -> None:
        """Keep a prompt that was computed, in room that was set aside for it."""
        kept = self._kept
        for block in reversed(path):
            kept[block] = None
            kept.move_to_end(block)
        self.free(held_blocks)
        self._trim()

    def free(self, blocks: int) -> None:
        """Give back room that was set aside."""
        self._held_blocks -= blocks

    def _trim(self) -> None:
        room = self._capacity_blocks - self._held_blocks
        while len(self._kept) > room:
            self._kept.popitem(last=False)
