"""Blocks: every block on every tier, and what may become of it. It takes no decision of its own.

Rules that hold after every event:

1. A copy moves between states only as `shelf.MOVES` says.
2. A block is READY on a tier only when its bytes are there.
3. A pinned block keeps its bytes; to drop it is to doom it, and it goes when the last pin does.
4. A tier gives up a block only after all of the block's children on that tier, and the last copy of
   a block only after every child: no suffix without its prefix.
5. What a tier holds never exceeds its capacity, writes under way included.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kvwise.core import columns
from kvwise.core.index import MANY, NONE, Index
from kvwise.core.keep import Keep
from kvwise.core.keys import KEY_BYTES, ROOT
from kvwise.core.pages import Pages
from kvwise.core.policies import POLICIES
from kvwise.core.reuse import Reuse, Stay
from kvwise.core.shelf import READY, Shelf, State
from kvwise.core.words import DRAM, Command, Drop, TierSpec, Why


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
        index: their keys, and how they hang together.
        reuse: what is learned of their coming back.
        shelves: their copies, by tier.
        pins: how many there are, on all blocks together.
    """

    def __init__(self, tiers: tuple[TierSpec, ...], page_bytes: int, eviction: str) -> None:
        """Empty tiers; tier 0 is the arena, in pages of `page_bytes`."""
        self.index = Index()
        self.reuse = Reuse(self.index)
        self.shelves = []
        for spec in tiers:
            stay = Stay()
            policy = POLICIES[eviction](self.index, self.reuse, stay)
            self.shelves.append(Shelf(spec, policy, stay))
        self.pages = Pages(tiers[DRAM].capacity_bytes // page_bytes)
        self.page_bytes = page_bytes
        self.keep = Keep(self.pages.count * page_bytes)
        self.pins = 0
        self.dropped: Counter[str] = Counter()
        self._drops: dict[tuple[int, Why], tuple[list[bytes], list[int], list[int]]] = {}
        self._doomed: set[int] = set()

    # --- questions ---

    def tier_of(self, row: int) -> int:
        """The fastest tier from which a block can be read now, or -1."""
        for tier, shelf in enumerate(self.shelves):
            if shelf.state[row] == State.READY:
                return tier
        return -1

    def tiers_of(self, rows: array[int]) -> bytes:
        """`tier_of` for each of the rows, up to the first that cannot be read."""
        if len(rows) >= MANY:
            states = [shelf.state for shelf in self.shelves]
            return columns.first_with(states, rows, State.READY)
        tiers, state, ready = bytearray(), self.shelves[DRAM].state, int(State.READY)
        for row in rows:
            tier = DRAM if state[row] == ready else self.tier_of(row)
            if tier < 0:
                break
            tiers.append(tier)
        return bytes(tiers)

    def count_ready(self, tier: int, rows: array[int], first: int) -> int:
        """How many rows in a row, from place `first` on, are READY on a tier."""
        state, last = self.shelves[tier].state, len(rows)
        if last - first >= MANY:
            return len(columns.first_with([state], rows[first:], State.READY))
        place = first
        while place < last and state[rows[place]] == State.READY:
            place += 1
        return place - first

    def is_doomed(self, row: int) -> bool:
        """Whether the block only waits for its pins to go."""
        return row in self._doomed

    def pages_of(self, row: int) -> tuple[int, ...]:
        """Arena pages of a block that has them."""
        return self.pages.chain(self.shelves[DRAM].location[row])

    def pages_of_all(self, rows: array[int]) -> tuple[int, ...]:
        """The arena pages of many blocks, which all have some, one block after the other."""
        shelf = self.shelves[DRAM]
        if len(rows) >= MANY:
            sizes = columns.gather(shelf.stored, rows)
            if sizes == array("I", [sizes[0]]) * len(sizes):
                first = columns.gather(shelf.location, rows)
                return self.pages.chains(first, sizes[0])
        return tuple(page for row in rows for page in self.pages_of(row))

    def absent_from(self, tier: int, rows: Sequence[int]) -> Sequence[int]:
        """Those of the rows that have no copy on a tier."""
        state = self.shelves[tier].state
        if isinstance(rows, array) and len(rows) >= MANY:
            return columns.those(state, rows, State.ABSENT)
        return [row for row in rows if state[row] == State.ABSENT]

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

    def advance(self, now_ns: int) -> None:
        """Time goes on for what is learned of reuse.

        Stamps have 32 bits. When they are used up all are halved: what was used at two neighbouring
        times counts as used at one.
        """
        self.reuse.pass_time(now_ns)
        if self.reuse.uses.is_full:
            columns.halve(self.index.stamp)
            self.reuse.halve()
            for shelf in self.shelves:
                shelf.policy.restamped()

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

    def touch(self, rows: array[int], stamp: int) -> None:
        """These blocks were just used, which has this stamp."""
        stamps = self.index.stamp
        if len(rows) >= MANY:
            columns.fill(stamps, rows, stamp)
            return
        for row in rows:
            stamps[row] = stamp

    def pin_all(self, rows: array[int]) -> None:
        """Pin different rows."""
        self.pins += len(rows)
        if len(rows) >= MANY:
            columns.add(self.index.pins, rows, 1)
            return
        pins = self.index.pins
        for row in rows:
            pins[row] += 1

    def unpin_all(self, rows: array[int]) -> None:
        """Take one pin back from each of different rows."""
        pins = self.index.pins
        if self._doomed:
            for row in rows:
                self.unpin(row)
            return
        self.pins -= len(rows)
        if len(rows) >= MANY:
            columns.add(pins, rows, -1)
        else:
            for row in rows:
                pins[row] -= 1

    def add_chain(self, keys: bytes, parent: int, space: int, stamp: int) -> array[int]:
        """Rows for new blocks that are nowhere yet, as `Index.add_chain` makes them, pinned."""
        rows = self.index.add_chain(keys, parent, space)
        self._grow()
        self.touch(rows, stamp)
        self.pin_all(rows)
        return rows

    def add_many(self, keys: bytes, space: int) -> tuple[array[int], array[int]]:
        """Rows for those of the keys that have none, as `Index.add_many` makes them."""
        stamp = self.reuse.uses.skip(len(keys) // KEY_BYTES)
        rows, places = self.index.add_many(keys, space, stamp)
        self._grow()
        return rows, places

    def recover(self, tier: int, rows: array[int], placed: tuple[array[int], array[int]]) -> None:
        """Copies of many blocks are found on a tier; `placed` are their locations and bytes."""
        shelf = self.shelves[tier]
        shelf.recover(rows, *placed)
        columns.count(shelf.kids, columns.gather(self.index.parent, rows))

    def enter(self, tier: int, row: int, verb: str, stored_bytes: int) -> None:
        """A copy comes into being on a tier (`store` or `load`) and takes its bytes."""
        self.enter_all(tier, (row,), verb, stored_bytes)

    def enter_all(self, tier: int, rows: Sequence[int], verb: str, stored_bytes: int) -> None:
        """`enter` for different rows, each with so many bytes."""
        shelf, parents = self.shelves[tier], self.index.parent
        stored, kids, units = shelf.stored, shelf.kids, stored_bytes // shelf.spec.unit_bytes
        shelf.move_all(rows, verb)
        shelf.account(len(rows) * stored_bytes)
        for row in rows:
            stored[row] = units
            if (parent := parents[row]) != NONE:
                kids[parent] += 1

    def finish(self, tier: int, row: int, *, location: int | None = None) -> None:
        """The bytes of a copy are complete."""
        shelf = self.shelves[tier]
        if location is not None:
            shelf.location[row] = location
        self.finish_all(tier, (row,))

    def finish_all(self, tier: int, rows: Sequence[int]) -> None:
        """The bytes of different copies are complete."""
        shelf = self.shelves[tier]
        shelf.move_all(rows, "finish")
        state, kids = shelf.state, shelf.kids
        for row in rows:
            if not kids[row] and state[row] == READY:
                shelf.policy.add(row)

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

    def reserve_chain(self, rows: array[int], raw_bytes: int) -> tuple[int, ...]:
        """Arena pages for what `add_chain` made, evicting others if needed.

        When that is not enough, the last of the rows go again, from the index and from `rows`.
        """
        shelf, each = self.shelves[DRAM], -(-raw_bytes // self.page_bytes)
        while self.pages.free_count < each * len(rows) and self.evict_one(DRAM):
            pass
        while self.pages.free_count < each * len(rows):
            self.unpin(rows[-1])
            self.index.remove(rows.pop())
        pages = self.pages.allocate(each, len(rows)) or ()
        self.enter_all(DRAM, rows, "store", each * self.page_bytes)
        location = shelf.location
        for row, first in zip(rows, pages[::each], strict=True):
            location[row] = first
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
            if shelf.state[row] != READY or shelf.kids[row]:
                policy.accept()
            elif tier == DRAM and self.keep.holds(row):
                policy.accept()  # it comes back when its time is over
            elif index.pins[row] or not self._may_leave(tier, row):
                policy.set_aside()
            else:
                policy.accept()
                uses = self.reuse.uses
                shelf.stay.note(uses.age_s(index.stamp[row]), uses.now_s)
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
        shelf = self.shelves[tier]
        shelf.policy.add_all(columns.candidates(shelf.state, State.READY, shelf.kids))

    def take_drops(self) -> list[Command]:
        """`Drop` commands for everything that left a tier since the last call."""
        drops: list[Command] = [
            Drop(tier, b"".join(keys), tuple(locations), tuple(stored), why)
            for (tier, why), (keys, locations, stored) in self._drops.items()
        ]
        for (tier, why), (keys, _, _) in self._drops.items():
            self.dropped[f"{self.shelves[tier].spec.name}|{why.value}"] += len(keys)
        self._drops.clear()
        return drops

    # --- inner moves ---

    def _grow(self) -> None:
        """Give new rows their places on every shelf."""
        capacity = self.index.capacity
        if capacity > len(self.shelves[DRAM].state):
            for shelf in self.shelves:
                shelf.grow(capacity)

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
        for shelf in self.shelves:
            if shelf.state[row]:
                return
        self.reuse.gone(row)
        self.keep.forget(row)
        self.index.remove(row)
        if parent in self._doomed:
            self._finish_doomed(parent)

    def _elsewhere(self, tier: int, row: int) -> bool:
        for other, shelf in enumerate(self.shelves):
            if shelf.state[row] == READY and other != tier:
                return True
        return False

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
            if shelf.state[parent] == READY and not shelf.kids[parent]:
                shelf.policy.add(parent)
        if not stored_bytes:
            return
        if tier == DRAM:
            self.pages.free(location)
        elif before == State.STORING:
            return
        keys, locations, sizes = self._drops.setdefault((tier, why), ([], [], []))
        keys.append(self.index.key(row))
        locations.append(location)
        sizes.append(stored_bytes)

    def _remove(self, row: int, why: Why) -> None:
        """Clear every copy of a block without pins and children, and its row."""
        self._doomed.discard(row)
        self.keep.forget(row)
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
        self.keep.check()
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
