"""Blocks: the state of every block on every tier, and all code that changes it. Decides nothing.

Rules that hold after every event:

1. A copy moves between states only as `MOVES` says.
2. A block is READY on a tier only when its bytes are there.
3. A pinned block keeps its bytes; to drop it is to doom it, and it goes when the last pin does.
4. A tier gives up a block only after all of the block's children on that tier, and the last copy of
   a block only after every child: no suffix without its prefix.
5. What a tier holds never exceeds its capacity, writes under way included.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from kvwise.core.evict import POLICIES, Eviction
from kvwise.core.index import NONE, Index
from kvwise.core.keys import ROOT
from kvwise.core.pages import Pages
from kvwise.core.words import DRAM, Command, Drop, TierSpec, Why
from kvwise.errors import BugError


class State(IntEnum):
    """The life of one copy."""

    ABSENT = 0
    STORING = 1
    READY = 2
    MOVING = 3
    EVICTING = 4


MOVES = {
    (State.ABSENT, "store"): State.STORING,
    (State.ABSENT, "load"): State.MOVING,
    (State.ABSENT, "recover"): State.READY,
    (State.STORING, "finish"): State.READY,
    (State.MOVING, "finish"): State.READY,
    (State.EVICTING, "finish"): State.EVICTING,
    (State.STORING, "doom"): State.EVICTING,
    (State.READY, "doom"): State.EVICTING,
    (State.ABSENT, "doom"): State.EVICTING,
    (State.MOVING, "doom"): State.EVICTING,
    (State.STORING, "clear"): State.ABSENT,
    (State.MOVING, "clear"): State.ABSENT,
    (State.READY, "clear"): State.ABSENT,
    (State.EVICTING, "clear"): State.ABSENT,
}
"""Next state by (state, verb); whatever is not here must not happen."""


class Shelf:
    """The copies on one tier, as columns beside the index's rows."""

    def __init__(self, spec: TierSpec, policy: Eviction) -> None:
        """An empty tier."""
        self.spec = spec
        self.policy = policy
        self.state = array("B")
        self.location = array("Q")
        self.stored = array("I")
        self.kids = array("I")
        self.used_bytes = 0
        self.ready = 0
        self.free_hint_bytes: int | None = None

    def grow(self, rows: int) -> None:
        """Give every row up to `rows` a place in the columns."""
        more = rows - len(self.state)
        for column in (self.state, self.location, self.stored, self.kids):
            column.frombytes(bytes(column.itemsize * more))

    def move(self, row: int, verb: str) -> State:
        """Change the state of a copy by the table; returns the state it had.

        Raises:
            BugError: the table has no such move.
        """
        before = State(self.state[row])
        after = MOVES.get((before, verb))
        if after is None:
            raise BugError(f"{self.spec.name}: cannot {verb} row {row} in state {before.name}")
        self.state[row] = after
        self.ready += (after is State.READY) - (before is State.READY)
        return before

    def account(self, delta_bytes: int) -> None:
        """The tier holds `delta_bytes` more, and its filesystem has as many fewer."""
        self.used_bytes += delta_bytes
        if self.free_hint_bytes is not None:
            self.free_hint_bytes -= delta_bytes

    def room_bytes(self) -> int:
        """Bytes that may be written before the cap or the filesystem's own limit."""
        room = self.spec.capacity_bytes - self.used_bytes
        return room if self.free_hint_bytes is None else min(room, self.free_hint_bytes)

    def size_bytes(self) -> int:
        """Bytes of the columns."""
        columns = (self.state, self.location, self.stored, self.kids)
        return sum(c.itemsize * len(c) for c in columns)


@dataclass(frozen=True, slots=True)
class Holding:
    """What is known of one block: for people and checkers.

    Attributes:
        parent: `keys.ROOT` for the first block of a chain.
        states, locations: of its copies, by tier.
    """

    key: bytes
    parent: bytes
    pins: int
    states: tuple[State, ...]
    locations: tuple[int, ...]


class Blocks:
    """Every block on every tier. Drops made by an event are collected until `take_drops`.

    Attributes:
        pins: how many there are, on all blocks together.
    """

    def __init__(self, tiers: tuple[TierSpec, ...], page_bytes: int, eviction: str) -> None:
        """Empty tiers; tier 0 is the arena, in pages of `page_bytes`."""
        self.index = Index()
        self.shelves = [Shelf(spec, POLICIES[eviction](self.index)) for spec in tiers]
        self.pages = Pages(tiers[DRAM].capacity_bytes // page_bytes)
        self.page_bytes = page_bytes
        self.pins = 0
        self.dropped: Counter[str] = Counter()
        self._drops: dict[tuple[int, Why], tuple[list[bytes], list[int], list[int]]] = {}
        self._doomed: set[int] = set()
        self._clock = 0

    # --- questions ---

    def tier_of(self, row: int) -> int:
        """The fastest tier from which a block can be read now, or -1."""
        for tier, shelf in enumerate(self.shelves):
            if shelf.state[row] == State.READY:
                return tier
        return -1

    def is_doomed(self, row: int) -> bool:
        """Whether the block only waits for its pins to go."""
        return row in self._doomed

    def pages_of(self, row: int) -> tuple[int, ...]:
        """Arena pages of a block that has them."""
        return self.pages.chain(self.shelves[DRAM].location[row])

    def holdings(self) -> Iterator[Holding]:
        """Every block."""
        index, shelves = self.index, self.shelves
        for row in range(index.capacity):
            states = tuple(State(shelf.state[row]) for shelf in shelves)
            if any(states):
                parent = index.parent[row]
                yield Holding(
                    key=index.key(row),
                    parent=ROOT if parent == NONE else index.key(parent),
                    pins=index.pins[row],
                    states=states,
                    locations=tuple(shelf.location[row] for shelf in shelves),
                )

    # --- changes ---

    def tick(self) -> int:
        """A new last-use stamp, later than all before."""
        self._clock += 1
        return self._clock

    def pin(self, row: int) -> None:
        """Keep the bytes of a block until `unpin`."""
        self.index.pins[row] += 1
        self.pins += 1

    def unpin(self, row: int) -> None:
        """Take one pin back; a doomed block goes with its last one."""
        self.index.pins[row] -= 1
        self.pins -= 1
        if not self.index.pins[row] and self.is_doomed(row):
            self._finish_doomed(row)

    def add(self, key: bytes, parent: int, space: int) -> int:
        """A row for a new block that is nowhere yet."""
        row = self.index.add(key, parent, space)
        capacity = self.index.capacity
        if capacity > len(self.shelves[DRAM].state):
            for shelf in self.shelves:
                shelf.grow(capacity)
        self.index.stamp[row] = self.tick()
        return row

    def enter(self, tier: int, row: int, verb: str, stored_bytes: int) -> None:
        """A copy comes into being on a tier (`store`, `load` or `recover`) and takes its bytes."""
        shelf = self.shelves[tier]
        shelf.move(row, verb)
        shelf.stored[row] = stored_bytes // shelf.spec.unit_bytes
        shelf.account(stored_bytes)
        if (parent := self.index.parent[row]) != NONE:
            shelf.kids[parent] += 1

    def finish(self, tier: int, row: int, *, location: int | None = None) -> None:
        """The bytes of a copy are complete."""
        shelf = self.shelves[tier]
        if location is not None:
            shelf.location[row] = location
        shelf.move(row, "finish")
        self._offer(tier, row)

    def resize(self, tier: int, row: int, stored_bytes: int) -> None:
        """A copy turned out to take other bytes than were set aside for it."""
        shelf = self.shelves[tier]
        shelf.account(stored_bytes - shelf.stored[row] * shelf.spec.unit_bytes)
        shelf.stored[row] = stored_bytes // shelf.spec.unit_bytes

    def reserve_pages(self, row: int, verb: str, raw_bytes: int) -> tuple[int, ...] | None:
        """Arena pages for a block, evicting others if needed; None when that is not enough."""
        count = -(-raw_bytes // self.page_bytes)
        while (pages := self.pages.allocate(count)) is None:
            if not self.evict_one(DRAM):
                return None
        self.enter(DRAM, row, verb, count * self.page_bytes)
        self.shelves[DRAM].location[row] = pages[0]
        return pages

    def make_room(self, tier: int, need_bytes: int) -> bool:
        """Evict from a tier until `need_bytes` fit; False when they cannot."""
        shelf = self.shelves[tier]
        if need_bytes > shelf.spec.capacity_bytes:
            return False
        while shelf.room_bytes() < need_bytes:
            if not self.evict_one(tier):
                return False
        return True

    def evict_one(self, tier: int) -> bool:
        """Give up the block that the policy likes least and the rules allow; False when none is."""
        shelf = self.shelves[tier]
        policy, index = shelf.policy, self.index
        evicted = False
        while not evicted and (row := policy.propose()) != NONE:
            if shelf.state[row] != State.READY or shelf.kids[row]:
                policy.accept()
            elif index.pins[row] or not self._may_leave(tier, row):
                policy.set_aside()
            else:
                policy.accept()
                self._evict(tier, row)
                evicted = True
        policy.restore()
        return evicted

    def cancel(self, tier: int, row: int, why: Why) -> None:
        """A copy under way (STORING or MOVING) never came to be; nobody reads or writes it now."""
        if self.shelves[tier].state[row] in (State.STORING, State.MOVING):
            self._clear(tier, row, why)

    def lose(self, tier: int, row: int, why: Why) -> None:
        """A tier lost these bytes (missing or corrupt): a block left without any is dropped."""
        if self.shelves[tier].state[row] == State.READY:
            self._clear(tier, row, why)
        if all(shelf.state[row] == State.ABSENT for shelf in self.shelves):
            self.drop(row, why)

    def drop(self, row: int, why: Why) -> None:
        """Forget a block and all below it; what is pinned is doomed and goes with its last pin."""
        parent = self.index.parent[row]
        for member in reversed(self.index.subtree(row)):
            if self.index.pins[member] or self.index.has_children(member):
                self._doom(member)
            else:
                self._remove(member, why)
        if parent != NONE and self.is_doomed(parent):
            self._finish_doomed(parent)

    def offer_all(self, tier: int) -> None:
        """Tell the policy every candidate of a tier; recovery does so once, at its end."""
        for row in range(self.index.capacity):
            self._offer(tier, row)

    def take_drops(self) -> list[Command]:
        """`Drop` commands for everything that left a tier since the last call."""
        drops: list[Command] = [
            Drop(tier, b"".join(keys), tuple(locations), tuple(stored), why)
            for (tier, why), (keys, locations, stored) in self._drops.items()
        ]
        self._drops.clear()
        return drops

    # --- inner moves ---

    def _may_leave(self, tier: int, row: int) -> bool:
        """Whether a tier may give up a block that has no child there.

        With the last copy of a block goes what is below it, so that has to be unpinned and on
        slower tiers only. A failed write leaves such a block behind: those after it were written
        and it was not. If they held it, it would stay for as long as the slower tier keeps them.
        """
        if not self.index.has_children(row) or self._elsewhere(tier, row):
            return True
        fast = self.shelves[: tier + 1]
        return not any(
            self.index.pins[member] or any(shelf.state[member] for shelf in fast)
            for member in self.index.subtree(row)[1:]
        )

    def _evict(self, tier: int, row: int) -> None:
        parent = self.index.parent[row]
        if self.index.has_children(row) and not self._elsewhere(tier, row):
            for child in self.index.children(row):
                self.drop(child, Why.EVICTED)
        self._clear(tier, row, Why.EVICTED)
        if all(shelf.state[row] == State.ABSENT for shelf in self.shelves):
            self.index.remove(row)
            if parent != NONE:
                self._finish_doomed(parent)

    def _elsewhere(self, tier: int, row: int) -> bool:
        return any(
            other != tier and shelf.state[row] == State.READY
            for other, shelf in enumerate(self.shelves)
        )

    def _offer(self, tier: int, row: int) -> None:
        shelf = self.shelves[tier]
        if shelf.state[row] == State.READY and not shelf.kids[row]:
            shelf.policy.add(row)

    def _doom(self, row: int) -> None:
        """Mark every copy for removal; a block without any gets an empty one to carry the mark."""
        for shelf in self.shelves:
            if shelf.state[row] not in (State.ABSENT, State.EVICTING):
                shelf.move(row, "doom")
        if not any(shelf.state[row] == State.EVICTING for shelf in self.shelves):
            shelf = self.shelves[DRAM]
            shelf.move(row, "doom")
            if (parent := self.index.parent[row]) != NONE:
                shelf.kids[parent] += 1
        self._doomed.add(row)

    def _clear(self, tier: int, row: int, why: Why) -> None:
        """Take a copy off a tier and give its bytes back."""
        shelf = self.shelves[tier]
        before = shelf.move(row, "clear")
        stored_bytes = shelf.stored[row] * shelf.spec.unit_bytes
        shelf.account(-stored_bytes)
        location = shelf.location[row]
        shelf.stored[row] = shelf.location[row] = 0
        parent = self.index.parent[row]
        if parent != NONE:
            shelf.kids[parent] -= 1
            self._offer(tier, parent)
        if not stored_bytes:
            return
        if tier == DRAM:
            self.pages.free(self.pages.chain(location))
        elif before is State.STORING:
            return
        self.dropped[f"{shelf.spec.name}|{why.value}"] += 1
        keys, locations, sizes = self._drops.setdefault((tier, why), ([], [], []))
        keys.append(self.index.key(row))
        locations.append(location)
        sizes.append(stored_bytes)

    def _remove(self, row: int, why: Why) -> None:
        """Clear every copy of a block without pins and children, and its row."""
        self._doomed.discard(row)
        for tier, shelf in enumerate(self.shelves):
            if shelf.state[row] != State.ABSENT:
                self._clear(tier, row, why)
        self.index.remove(row)

    def _finish_doomed(self, row: int) -> None:
        """Remove a doomed block that nothing holds any more, then its doomed ancestors."""
        while row != NONE and self.is_doomed(row):
            if self.index.pins[row] or self.index.has_children(row):
                return
            parent = self.index.parent[row]
            self._remove(row, Why.ORPHANED)
            row = parent

    def check(self) -> None:
        """Verify the rules of the module docstring.

        Raises:
            AssertionError: one is broken.
        """
        self.index.check()
        held = 0
        assert self._doomed == {
            row
            for row in range(self.index.capacity)
            if any(shelf.state[row] == State.EVICTING for shelf in self.shelves)
        }
        assert self.index.rows == sum(
            any(shelf.state[row] for shelf in self.shelves) for row in range(self.index.capacity)
        )
        for tier, shelf in enumerate(self.shelves):
            used = ready = 0
            kids: Counter[int] = Counter()
            for row in range(self.index.capacity):
                if shelf.state[row] == State.ABSENT:
                    continue
                used += shelf.stored[row] * shelf.spec.unit_bytes
                ready += shelf.state[row] == State.READY
                kids[self.index.parent[row]] += 1
                if tier == DRAM and shelf.stored[row]:
                    held += len(self.pages_of(row))
            assert used == shelf.used_bytes <= shelf.spec.capacity_bytes
            assert ready == shelf.ready
            for row in range(self.index.capacity):
                assert shelf.kids[row] == kids[row]
        assert held + self.pages.free_count == self.pages.count
        assert self.pins == sum(self.index.pins)
