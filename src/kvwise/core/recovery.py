"""Recovery: what the tiers hold from an earlier life. Part of the brain; pure.

Records come in any order, so nothing is taken in before a tier has told all of them: then a record
is kept if its whole prefix is, and of two with one key the first. It decides about no copy that
this life made.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from kvwise.core import columns
from kvwise.core.index import NONE
from kvwise.core.keys import KEY_BYTES, ROOT
from kvwise.core.shelf import State
from kvwise.core.words import Drop, Recovered, Why
from kvwise.core.world import World
from kvwise.errors import BugError


@dataclass(slots=True)
class _Batch:
    """The records of one event; what is `new` got rows, the others' keys were known already.

    Attributes:
        places, rows: of the new ones, among all of the event.
        parents: of the new ones: their rows, or NONE, or LOST.
    """

    event: Recovered
    space: int
    locations: array[int]
    stored_bytes: array[int]
    places: array[int] = field(default_factory=lambda: array("I"))
    rows: array[int] = field(default_factory=lambda: array("I"))
    parents: array[int] = field(default_factory=lambda: array("I"))


@dataclass(slots=True)
class _Drops:
    """Records that are not kept for one reason."""

    keys: list[bytes] = field(default_factory=list)
    locations: list[int] = field(default_factory=list)
    stored_bytes: list[int] = field(default_factory=list)

    def add(self, batch: _Batch, place: int) -> None:
        """Add one record of an event."""
        at = place * KEY_BYTES
        self.keys.append(batch.event.keys[at : at + KEY_BYTES])
        self.locations.append(batch.locations[place])
        self.stored_bytes.append(batch.stored_bytes[place])


class Recovery:
    """Records told so far, by tier."""

    def __init__(self, world: World) -> None:
        """Nothing told yet."""
        self._world = world
        self._told: dict[int, list[_Batch]] = {}

    def recovered(self, event: Recovered) -> None:
        """Hear of records; an event without any ends the recovery of its tier.

        Raises:
            BugError: the columns of the event are not of one length.
        """
        if not event.keys:
            self._end(event.tier, self._told.pop(event.tier, []))
            return
        count, rest = divmod(len(event.keys), KEY_BYTES)
        lengths = (len(event.parents), len(event.locations), len(event.stored_bytes))
        if rest or lengths != (KEY_BYTES * count, 8 * count, 4 * count):
            raise BugError(f"{count} recovered keys, but columns of {lengths} bytes beside them")
        locations = columns.unpack(event.locations, "Q")
        stored_bytes = columns.unpack(event.stored_bytes, "I")
        if self._world.is_full(event.space):
            sizes = tuple(stored_bytes)
            self._world.out.append(
                Drop(event.tier, event.keys, tuple(locations), sizes, Why.NO_ROOM)
            )
            return
        space = self._world.meet(event.space, event.space.hex()[:8], event.raw_bytes)
        batch = _Batch(event, space.number, locations, stored_bytes)
        self._told.setdefault(event.tier, []).append(batch)

    def _end(self, tier: int, told: list[_Batch]) -> None:
        """Take in everything that a tier told, and make what is above its cap go."""
        blocks = self._world.blocks
        present, orphaned = _Drops(), _Drops()
        self._add(told)
        lost = self._unrooted(told)
        for batch in told:
            self._take_in(tier, batch, lost, orphaned)
        for batch in told:
            self._settle(tier, batch, present, orphaned)
        for drops, why in ((present, Why.PRESENT), (orphaned, Why.ORPHANED)):
            if drops.keys:
                keys, locations = b"".join(drops.keys), tuple(drops.locations)
                drop = Drop(tier, keys, locations, tuple(drops.stored_bytes), why)
                self._world.out.append(drop)
        blocks.offer_all(tier)
        blocks.make_room(tier, 0)

    def _add(self, told: list[_Batch]) -> None:
        """Make rows for all keys that have none; their parents are looked up when all have one."""
        blocks = self._world.blocks
        blocks.index.reserve([batch.event.keys for batch in told])
        for batch in told:
            batch.rows, batch.places = blocks.add_many(batch.event.keys, batch.space)
        for batch in told:
            keys = columns.pick(batch.event.parents, KEY_BYTES, batch.places)
            batch.parents = blocks.index.parents(keys)

    def _unrooted(self, told: list[_Batch]) -> set[int]:
        """The new rows whose prefix is not whole."""
        rows, parents = array("I"), array("I")
        for batch in told:
            rows += batch.rows
            parents += batch.parents
        places = columns.unrooted(self._world.blocks.index.capacity, rows, parents)
        return {rows[place] for place in places}

    def _take_in(self, tier: int, batch: _Batch, lost: set[int], orphaned: _Drops) -> None:
        """Enter the new rows of an event; those that are lost go again."""
        blocks = self._world.blocks
        rows, parents, places = batch.rows, batch.parents, batch.places
        if lost and not lost.isdisjoint(rows):
            kept = array("I")
            for place, row in enumerate(rows):
                if row in lost:
                    orphaned.add(batch, places[place])
                    blocks.index.remove(row)
                else:
                    kept.append(place)
            rows, parents, places = (columns.gather(c, kept) for c in (rows, parents, places))
        blocks.index.link_many(rows, parents)
        located = (columns.gather(c, places) for c in (batch.locations, batch.stored_bytes))
        locations, stored_bytes = located
        blocks.recover(tier, rows, (locations, stored_bytes))

    def _settle(self, tier: int, batch: _Batch, present: _Drops, orphaned: _Drops) -> None:
        """Decide about the records whose keys were known already, one by one."""
        blocks, event = self._world.blocks, batch.event
        state, find = blocks.shelves[tier].state, blocks.index.find
        for place in columns.others(batch.places, len(batch.locations)):
            at = place * KEY_BYTES
            row, parent = find(event.keys[at : at + KEY_BYTES]), event.parents[at : at + KEY_BYTES]
            if row == NONE or (parent != ROOT and find(parent) == NONE):
                orphaned.add(batch, place)
            elif state[row] != State.ABSENT:
                present.add(batch, place)
            else:
                at_one = (batch.locations[place : place + 1], batch.stored_bytes[place : place + 1])
                blocks.recover(tier, array("I", [row]), at_one)
