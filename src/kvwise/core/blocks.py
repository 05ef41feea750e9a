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
from collections.abc import Sequence

from kvwise.core import columns
from kvwise.core.index import MANY, NONE, Index
from kvwise.core.keep import Keep
from kvwise.core.keys import KEY_BYTES
from kvwise.core.pages import Pages
from kvwise.core.policies import POLICIES
from kvwise.core.reuse import Reuse, Stay
from kvwise.core.shelf import READY, Shelf, State
from kvwise.core.words import DRAM, Command, Drop, TierSpec, Why

SOME = 64
"""Copies that stand for all of a prompt's where their size is asked for."""


class Blocks:
    """Every block on every tier. Drops made by an event are collected until `take_drops`.

    Attributes:
        index: their keys, and how they hang together.
        reuse: what is learned of their coming back.
        shelves: their copies, by tier.
        pins: how many there are, on all blocks together.
        doomed: blocks that only wait for their pins to go.
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
        self._now_ns = -1
        self.dropped: Counter[str] = Counter()
        self._drops: dict[tuple[int, Why], tuple[list[bytes], list[int], list[int]]] = {}
        self.doomed: set[int] = set()

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
        tiers, state = bytearray(), self.shelves[DRAM].state
        if {*map(state.__getitem__, rows)} == {READY}:
            return bytes(len(rows))
        for row in rows:
            tier = DRAM if state[row] == READY else self.tier_of(row)
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
        while place < last and state[rows[place]] == READY:
            place += 1
        return place - first

    def is_doomed(self, row: int) -> bool:
        """Whether the block only waits for its pins to go."""
        return row in self.doomed

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
        return self.pages.chain_all([shelf.location[row] for row in rows])

    def mean_bytes(self, tier: int, rows: Sequence[int]) -> int:
        """What the copy of one of these takes on a tier, by some of them; 0 if none has one."""
        stored, unit_bytes = self.shelves[tier].stored, self.shelves[tier].spec.unit_bytes
        some = [units for row in rows[:: len(rows) // SOME + 1] if (units := stored[row])]
        return unit_bytes * sum(some) // len(some) if some else 0

    def absent_from(self, tier: int, rows: Sequence[int]) -> Sequence[int]:
        """Those of the rows that have no copy on a tier."""
        state = self.shelves[tier].state
        if isinstance(rows, array) and len(rows) >= MANY:
            return columns.those(state, rows, State.ABSENT)
        return [row for row in rows if state[row] == State.ABSENT]

    def memory_s(self) -> float:
        """How long blocks stay unused in the arena, at present; without end if none has left."""
        return self.shelves[DRAM].stay.seconds(self.reuse.uses.now_s)

    # --- changes ---

    def advance(self, now_ns: int) -> None:
        """Time goes on for what is learned of reuse.

        Stamps have 32 bits. When they are used up all are halved: what was used at two neighbouring
        times counts as used at one.
        """
        if now_ns != self._now_ns:
            self._now_ns = now_ns
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
        if self.doomed:
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
        rows = self.index.add_chain(keys, parent, space, stamp, 1)
        self.pins += len(rows)
        self._grow()
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
            if not self.evict(DRAM, count - self.pages.free_count):
                return None
        self.enter(DRAM, row, verb, count * self.page_bytes)
        self.shelves[DRAM].location[row] = pages[0]
        return pages

    def reserve_chain(
        self, rows: array[int], raw_bytes: int, *, modest: bool = False
    ) -> tuple[int, ...]:
        """Arena pages for what `add_chain` made, evicting others if needed.

        When that is not enough, the last of the rows go again, from the index and from `rows`. A
        modest chain makes nothing leave that is worth more than it is.
        """
        shelf, each = self.shelves[DRAM], -(-raw_bytes // self.page_bytes)
        need, stamp = each * len(rows), self.index.stamp[rows[0]]
        while (lack := need - self.pages.free_count) > 0:
            if (modest and not shelf.policy.yields_to(stamp)) or not self.evict(DRAM, lack):
                break
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
        while (lack_bytes := need_bytes - shelf.room_bytes()) > 0:
            if not self.evict(tier, -(-lack_bytes // shelf.spec.unit_bytes)):
                return False
        return True

    def evict(self, tier: int, units: int) -> bool:
        """Give up blocks until so many units are free, or one block and its like are gone.

        It is the one that the policy likes least and the rules allow, and after it those above it
        that would be next. False when there is none.
        """
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
                self._evict(tier, row, units)
                evicted = True
        policy.restore()
        return evicted

    def cancel(self, tier: int, row: int, why: Why) -> None:
        """A copy under way (STORING or MOVING) never came to be; nobody reads or writes it now."""
        if self.shelves[tier].state[row] in (State.STORING, State.MOVING):
            self._clear(tier, (row,), why)

    def lose(self, tier: int, row: int, why: Why) -> None:
        """A tier lost these bytes (missing or corrupt): a block left without any is dropped."""
        if self.shelves[tier].state[row] == State.READY:
            self._clear(tier, (row,), why)
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
        if not self._drops:
            return []
        drops: list[Command] = [
            Drop(tier, b"".join(keys), tuple(locations), tuple(stored), why)
            for (tier, why), (keys, locations, stored) in self._drops.items()
        ]
        for (tier, why), (_, locations, _) in self._drops.items():
            self.dropped[f"{self.shelves[tier].spec.name}|{why.value}"] += len(locations)
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

    def _evict(self, tier: int, row: int, units: int) -> None:
        """Evict a block, and more of its chain where that is what would come next."""
        shelf, index = self.shelves[tier], self.index
        stays = self._elsewhere(tier, row)
        if index.has_children(row) and not stays:
            for child in index.children(row):
                self.drop(child, Why.EVICTED)
        rows = self._run(tier, row, units, stays=stays)
        parent = index.parent[rows[-1]]
        uses = self.reuse.uses
        shelf.stay.note(uses.age_s(index.stamp[row]), uses.now_s, len(rows))
        self._clear(tier, rows, Why.EVICTED)
        if stays:
            return
        self.reuse.gone(rows)
        self.keep.forget(rows)
        index.remove_run(rows)
        if parent in self.doomed:
            self._finish_doomed(parent)

    def _run(self, tier: int, row: int, units: int, *, stays: bool) -> list[int]:
        """A block that is evicted and those above it that the policy would propose after it.

        They were used last when it was, nothing else hangs below them, and what becomes of them is
        the same: a copy elsewhere stays or, on no tier, none does.
        """
        index, shelf, rows = self.index, self.shelves[tier], [row]
        stamps, parents, pins = index.stamp, index.parent, index.pins
        state, stored, kids, stamp = shelf.state, shelf.stored, shelf.kids, stamps[row]
        alone, kept = len(self.shelves) == 1, tier == DRAM and self.keep.has_kept
        freed, waits = stored[row], shelf.policy.waiting(stamp)
        if waits is None or not freed:
            return rows
        after, before = index.siblings
        while freed < units and (above := parents[row]) != NONE and stamps[above] == stamp:
            if kids[above] != 1 or state[above] != READY or pins[above] or waits[above]:
                break
            if not (stays or after[row] == NONE == before[row]):
                break
            if not (alone or self._elsewhere(tier, above) == stays):
                break
            if (kept and self.keep.holds(above)) or not stored[above]:
                break
            rows.append(above)
            freed += stored[above]
            row = above
        return rows

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
        self.doomed.add(row)

    def _clear(self, tier: int, rows: Sequence[int], why: Why) -> None:
        """Take copies off a tier and give their bytes back; more than one are a run of a chain."""
        shelf = self.shelves[tier]
        stored, location, kids = shelf.stored, shelf.location, shelf.kids
        before, unit_bytes = shelf.state[rows[0]], shelf.spec.unit_bytes
        shelf.move_all(rows, "clear")
        locations = [location[row] for row in rows]
        sizes = [stored[row] * unit_bytes for row in rows]
        shelf.account(-sum(sizes))
        for row in rows:
            stored[row] = location[row] = 0
        for row in rows[1:]:
            kids[row] -= 1
        if (parent := self.index.parent[rows[-1]]) != NONE:
            kids[parent] -= 1
            if not kids[parent] and shelf.state[parent] == READY:
                shelf.policy.add(parent)
        if not sizes[0]:
            return
        if tier == DRAM:
            self.pages.free(locations)
        elif before == State.STORING:
            return
        drops = self._drops.setdefault((tier, why), ([], [], []))
        drops[0].append(self.index.keys(rows))
        drops[1].extend(locations)
        drops[2].extend(sizes)

    def _remove(self, row: int, why: Why) -> None:
        """Clear every copy of a block without pins and children, and its row."""
        self.doomed.discard(row)
        self.keep.forget((row,))
        for tier, shelf in enumerate(self.shelves):
            if shelf.state[row] != State.ABSENT:
                self._clear(tier, (row,), why)
        self.index.remove(row)

    def _finish_doomed(self, row: int) -> None:
        """Remove a doomed block that nothing holds any more, then its doomed ancestors."""
        while row != NONE and self.is_doomed(row):
            if self.index.pins[row] or self.index.has_children(row):
                return
            parent = self.index.parent[row]
            self._remove(row, Why.ORPHANED)
            row = parent
