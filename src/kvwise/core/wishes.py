"""Wishes: hints carried out, as far as they harm nobody. Part of the brain; pure.

It keeps blocks in the arena and ends those that are worthless. What may leave otherwise is not its
business.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from kvwise.core.hints import Hints
from kvwise.core.index import NONE
from kvwise.core.keys import KEY_BYTES
from kvwise.core.shelf import State
from kvwise.core.words import DRAM, Asked, Why
from kvwise.core.world import Space, World

RETRY_NS = 1_000_000_000
"""A block that ended while somebody held it is looked at again after so long."""


class Wishes:
    """The hints of all requests."""

    def __init__(self, world: World) -> None:
        """Nobody has a wish yet."""
        self._world = world
        self._keep = world.blocks.keep

    def asked(self, event: Asked) -> bool:
        """A request is about to use what is there; whether it can have what it wishes."""
        if not event.hints.pin_s and not self._keep.has_ending:
            return True
        index = self._world.blocks.index
        length = index.length(event.keys, len(event.keys) // KEY_BYTES)
        if not length:
            return True
        space, _ = self._world.joined(event.space)
        found = event.keys[: length * KEY_BYTES]
        rows: Sequence[int] = (index.find(found[-KEY_BYTES:]),)
        if self._keep.has_ending:
            rows = index.chain(found)
        return self.used(rows, event.hints, space)

    def used(self, rows: Sequence[int], hints: Hints, space: Space) -> bool:
        """A request uses blocks that are there; whether they are kept as its hints say."""
        if not rows or hints.no_reuse:
            return True
        if self._keep.has_ending and hints.ttl_s:
            self._keep.extend(rows, self._after(hints.ttl_s))
        elif self._keep.has_ending:
            self._keep.spare(rows)
        return self._hold(rows, hints, space)

    def stored(self, rows: Sequence[int], hints: Hints, space: Space) -> bool:
        """Blocks of a request came to be; whether they are kept as its hints say."""
        if hints.ttl_s:
            self._keep.end(rows, self._after(hints.ttl_s))
        return self._hold(rows, hints, space)

    def pass_time(self) -> None:
        """What was kept for so long may leave, and what is worthless goes, unless others need it.

        What is held now goes later, and so does what is above it.
        """
        blocks, now_ns = self._world.blocks, self._world.now_ns
        shelf = blocks.shelves[DRAM]
        for row in self._keep.let_go(now_ns):
            if shelf.state[row] == State.READY and not shelf.kids[row]:
                shelf.policy.add(row)
        parents = blocks.index.parent
        over = dict.fromkeys(reversed(self._keep.ended(now_ns)))
        for row in [*over]:
            place = row
            while place in over and not self._is_held(place):
                if blocks.index.has_children(place):
                    break
                del over[place]
                above = parents[place]
                blocks.drop(place, Why.EXPIRED)
                place = above
        self._put_off(over)

    def _put_off(self, over: Collection[int]) -> None:
        """Rows that ended and are still there end when what they are there for does, if it does."""
        later: dict[int, int] = {}
        for row in over:
            ends = [self._keep.end_ns(child) for child in self._world.blocks.index.children(row)]
            at_ns = max(ends, default=0)
            if self._is_held(row):
                at_ns = max(at_ns, self._world.now_ns + RETRY_NS)
            place = row
            while place in over and later.get(place, 0) < at_ns:
                later[place] = at_ns
                place = self._world.blocks.index.parent[place]
        for row, at_ns in later.items():
            self._keep.end((row,), at_ns)

    def _is_held(self, row: int) -> bool:
        """Whether a block may not go now, whatever its end."""
        return bool(self._world.blocks.index.pins[row]) or self._keep.holds(row)

    def _hold(self, rows: Sequence[int], hints: Hints, space: Space) -> bool:
        """Keep a chain for as long as a request says; whoever keeps its end keeps all of it."""
        if not hints.pin_s:
            return True
        size_bytes = self._world.stored_bytes(DRAM, space.raw_bytes)
        return self._keep.hold(self._up(rows[-1]), size_bytes, self._after(hints.pin_s))

    def _up(self, row: int) -> Iterator[int]:
        """A row and all above it."""
        while row != NONE:
            yield row
            row = self._world.blocks.index.parent[row]

    def _after(self, seconds: float) -> int:
        """The time so many seconds from now."""
        return self._world.now_ns + int(seconds * 1e9)
