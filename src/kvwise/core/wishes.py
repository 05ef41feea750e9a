"""Wishes: hints carried out, as far as they harm nobody. Part of the brain; pure.

It keeps blocks in the arena and ends those that are worthless. What may leave otherwise is not its
business.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvwise.core.hints import Hints
from kvwise.core.keys import KEY_BYTES
from kvwise.core.shelf import State
from kvwise.core.words import DRAM, Asked, Why
from kvwise.core.world import Space, World


class Wishes:
    """The hints of all requests."""

    def __init__(self, world: World) -> None:
        """Nobody has a wish yet."""
        self._world = world
        self._keep = world.blocks.keep

    def asked(self, event: Asked) -> None:
        """A request is about to use what is there."""
        if not event.hints.pin_s and not self._keep.has_ending:
            return
        index = self._world.blocks.index
        length = index.length(event.keys, len(event.keys) // KEY_BYTES)
        if length:
            space, _ = self._world.joined(event.space)
            self.used([*index.chain(event.keys[: length * KEY_BYTES])], event.hints, space)

    def used(self, rows: Sequence[int], hints: Hints, space: Space) -> None:
        """A request with these hints uses blocks that are there."""
        if not rows or hints.no_reuse:
            return
        if self._keep.has_ending and hints.ttl_s:
            self._keep.extend(rows, self._after(hints.ttl_s))
        elif self._keep.has_ending:
            self._keep.spare(rows)
        self._hold(rows, hints, space)

    def stored(self, rows: Sequence[int], hints: Hints, space: Space) -> None:
        """Blocks of a request came to be."""
        if hints.ttl_s:
            self._keep.end(rows, self._after(hints.ttl_s))
        self._hold(rows, hints, space)

    def pass_time(self) -> None:
        """What was kept for so long may leave, and what is worthless goes, unless others need it.

        What is held now goes later, and so does what is above it.
        """
        blocks, now_ns = self._world.blocks, self._world.now_ns
        shelf, index = blocks.shelves[DRAM], blocks.index
        for row in self._keep.let_go(now_ns):
            if shelf.state[row] == State.READY and not shelf.kids[row]:
                shelf.policy.add(row)
        later: dict[int, None] = {}
        for row in reversed(self._keep.ended(now_ns)):
            waits = index.pins[row] or self._keep.holds(row)
            if waits or not later.keys().isdisjoint(index.children(row)):
                later[row] = None
            elif not index.has_children(row):
                blocks.drop(row, Why.EXPIRED)
        if later:
            self._keep.end([*reversed(later)], now_ns + 1)

    def _hold(self, rows: Sequence[int], hints: Hints, space: Space) -> None:
        """Keep a chain for as long as a request says; whoever keeps its end keeps all of it."""
        if hints.pin_s:
            index = self._world.blocks.index
            chain = [*index.chain(index.key(rows[-1]))]
            size_bytes = self._world.stored_bytes(DRAM, space.raw_bytes)
            self._keep.hold(chain, size_bytes, self._after(hints.pin_s))

    def _after(self, seconds: float) -> int:
        """The time so many seconds from now."""
        return self._world.now_ns + int(seconds * 1e9)
