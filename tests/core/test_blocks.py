"""Blocks: runs of a chain that leave in one go are what would have left one after the other."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwise.core.audit import check
from kvwise.core.blocks import Blocks
from kvwise.core.index import NONE
from kvwise.core.keys import KEY_BYTES, ROOT, chain_keys
from kvwise.core.policies import POLICIES
from kvwise.core.reuse import About
from kvwise.core.shelf import State
from kvwise.core.words import DRAM, Drop, TierSpec
from kvwise.units import NS_PER_S

PAGE = 4096
PAGES_EACH = 2
DISK = 1
TIERS = (
    TierSpec("dram", 400 * PAGE, PAGE, 0, 1e10, 0.0),
    TierSpec("disk", 400 * PAGE, PAGE, 0, 1e9, 0.0),
)
RUN = 1_000
"""More units than there are."""


class Cache:
    """Blocks in memory and on a disk, with room for all of them: what leaves was told to."""

    def __init__(self, policy: str) -> None:
        """Empty."""
        self.blocks = Blocks(TIERS, PAGE, policy)
        self.pinned: list[int] = []
        self._now_s = self._requests = 0

    def request(self, keys: bytes, wait_s: int) -> None:
        """Use a prompt: load what is on disk only, and take in what is new."""
        blocks, index = self.blocks, self.blocks.index
        self._now_s += wait_s
        self._requests += 1
        blocks.advance(self._now_s * NS_PER_S)
        who = (1, str(self._requests))
        here = index.length(keys, len(keys) // KEY_BYTES)
        rows = index.chain(keys[: here * KEY_BYTES]) if here else array("I")
        blocks.touch(rows, blocks.reuse.meet(who, keys, rows, About(0, 1)))
        for row in blocks.absent_from(DRAM, rows):
            blocks.reserve_pages(row, "load", PAGES_EACH * PAGE)
            blocks.finish(DRAM, row)
        parent, rest = rows[-1] if rows else NONE, keys[here * KEY_BYTES :]
        named = index.key(parent) if here else ROOT
        for count, stamp in blocks.reuse.parts(who, rest, named, About(0, 1)) if rest else ():
            new = blocks.add_chain(rest[: count * KEY_BYTES], parent, 0, stamp)
            blocks.reserve_chain(new, PAGES_EACH * PAGE)
            blocks.finish_all(DRAM, new)
            blocks.unpin_all(new)
            parent, rest = new[-1], rest[count * KEY_BYTES :]

    def write(self, keys: bytes) -> None:
        """Copy what is in memory of a prompt to the disk, as far as nothing is missing there."""
        blocks, above = self.blocks, NONE
        for at in range(0, len(keys), KEY_BYTES):
            row = blocks.index.find(keys[at : at + KEY_BYTES])
            states = [shelf.state[row] for shelf in blocks.shelves] if row != NONE else []
            if not states or (above != NONE and blocks.shelves[DISK].state[above] == State.ABSENT):
                return
            if states == [State.READY, State.ABSENT]:
                blocks.enter(DISK, row, "store", PAGE)
                blocks.finish(DISK, row, location=row)
            above = row

    def pin(self, keys: bytes) -> None:
        """Hold the last block of a prompt that is here, or let go of what is held longest."""
        row = self.blocks.index.find(keys[-KEY_BYTES:])
        if row != NONE and len(self.pinned) < 2:
            self.pinned.append(row)
            self.blocks.pin(row)
        elif self.pinned:
            self.blocks.unpin(self.pinned.pop(0))

    def keep(self, keys: bytes) -> None:
        """Have a hint keep a block in memory."""
        row = self.blocks.index.find(keys[-KEY_BYTES:])
        if row != NONE:
            self.blocks.keep.hold([row], PAGES_EACH * PAGE, 1 << 60)

    def drops(self) -> dict[int, list[bytes]]:
        """What has left each tier since the last time, in order."""
        left: dict[int, list[bytes]] = {tier: [] for tier in range(len(self.blocks.shelves))}
        for drop in self.blocks.take_drops():
            assert isinstance(drop, Drop)
            left[drop.tier] += [
                drop.keys[at : at + KEY_BYTES] for at in range(0, len(drop.keys), KEY_BYTES)
            ]
        return left


def prompt(parts: list[int]) -> bytes:
    """Keys of a prompt of parts, two chunks each."""
    return chain_keys(b"s" * KEY_BYTES, [part * 10 + at for part in parts for at in (0, 1)], 1)


PROMPTS = st.lists(st.integers(0, 2), min_size=1, max_size=4).map(prompt)
STEPS = st.lists(
    st.tuples(st.just("request"), PROMPTS, st.sampled_from((0, 1, 30, 4000)))
    | st.tuples(st.sampled_from(("write", "pin", "keep")), PROMPTS, st.just(0))
    | st.tuples(st.just("evict"), st.sampled_from((b"\0", b"\1")), st.sampled_from((1, 5, RUN))),
    min_size=4,
    max_size=40,
)


def oldest(blocks: Blocks, tier: int) -> list[int]:
    """What an LRU may give up next, looked up block by block."""
    index, state = blocks.index, blocks.shelves[tier].state
    others = [shelf.state for number, shelf in enumerate(blocks.shelves) if number != tier]

    def may_leave(row: int) -> bool:
        below = index.subtree(row)[1:]
        if any(state[member] != State.ABSENT for member in below if index.parent[member] == row):
            return False
        if index.pins[row] or (tier == DRAM and blocks.keep.holds(row)):
            return False
        if any(other[row] == State.READY for other in others):
            return True
        fast = [shelf.state for shelf in blocks.shelves[: tier + 1]]
        return not any(index.pins[m] or any(one[m] for one in fast) for m in below)

    rows = [row for row in range(index.capacity) if state[row] == State.READY and may_leave(row)]
    first = min((index.stamp[row] for row in rows), default=0)
    return [row for row in rows if index.stamp[row] == first]


def evict_singly(cache: Cache, tier: int, count: int, policy: str) -> dict[int, list[bytes]]:
    """Have so many blocks leave one after the other; each is what a naive LRU would choose."""
    left: dict[int, list[bytes]] = {number: [] for number in range(len(TIERS))}
    for _ in range(count):
        victims = [cache.blocks.index.key(row) for row in oldest(cache.blocks, tier)]
        assert cache.blocks.evict(tier, 1)
        drops = cache.drops()
        assert len(drops[tier]) == 1
        assert policy != "lru" or drops[tier][0] in victims
        left = {number: left[number] + keys for number, keys in drops.items()}
    return left


@pytest.mark.parametrize("policy", sorted({*POLICIES} - {"wild"}))
@given(steps=STEPS)
def test_a_run_leaves_as_if_one_by_one(policy: str, steps: list[tuple[str, bytes, int]]) -> None:
    """With copies below, pins and hints: the same victims in the same order.

    `wild` scores by how long blocks stay, so what leaves first changes what leaves next: where
    scores are as good as equal, a run of it need not be what one by one would leave.
    """
    together, singly = Cache(policy), Cache(policy)
    for verb, what, number in steps:
        if verb == "evict":
            tier = int.from_bytes(what)
            together.blocks.evict(tier, number)
            left = together.drops()
            assert evict_singly(singly, tier, len(left[tier]), policy) == left
        else:
            for cache in (together, singly):
                if verb == "request":
                    cache.request(what, number)
                else:
                    getattr(cache, verb)(what)
        for cache in (together, singly):
            check(cache.blocks)
    for tier in (DISK, DRAM):
        while together.blocks.evict(tier, RUN):
            left = together.drops()
            assert evict_singly(singly, tier, len(left[tier]), policy) == left
        assert not singly.blocks.evict(tier, RUN)


@pytest.mark.parametrize("policy", sorted({*POLICIES} - {"s3fifo"}))
def test_what_a_request_brought_leaves_at_once(policy: str) -> None:
    """Its last block goes first; otherwise single blocks would be compared with single blocks."""
    cache = Cache(policy)
    cache.request(prompt([1, 2, 3]), 0)
    for wanted, left in ((4 * PAGES_EACH, 1), (4 * PAGES_EACH, 4), (RUN, 1)):
        assert cache.blocks.evict(DRAM, wanted)
        assert len(cache.drops()[DRAM]) == left
