"""Table: many rows at once end as one by one, however keys collide, shards grow and rows leave."""

from __future__ import annotations

import struct
from array import array

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kvwise.core.index import MANY, NONE, Index
from kvwise.core.keys import split_keys

CROWDED = 1024
"""Keys whose low halves differ by this belong to one shard."""


def key_of(number: int) -> bytes:
    """A key of one of two shards, whose home is one of the shard's last slots or its first."""
    return struct.pack("<QQ", (number % 4 - 3) % (1 << 64), number // 4 * CROWDED + number % 2)


def find_many(index: Index, keys: bytes) -> list[int]:
    """All keys looked up together."""
    return list(index._find_chain(keys))


class TableMachine(RuleBasedStateMachine):
    """One index takes keys in many at once, its twin one by one; rows leave both."""

    def __init__(self) -> None:
        """Both empty."""
        super().__init__()
        self.many, self.single = Index(), Index()
        self.present: set[bytes] = set()

    @rule(numbers=st.lists(st.integers(0, 160), max_size=60), space=st.integers(0, 3))
    def add(self, numbers: list[int], space: int) -> None:
        """Keys come in with repetitions; only the first of those that are new gets a row."""
        keys = [key_of(number) for number in numbers]
        fresh = dict.fromkeys(key for key in keys if key not in self.present)
        rows, places = self.many.add_many(b"".join(keys), space, 1)
        assert [keys[place] for place in places] == list(fresh)
        assert list(places) == [keys.index(key) for key in fresh]
        assert [self.many.key(row) for row in rows] == list(fresh)
        assert [self.many.stamp[row] for row in rows] == list(range(1, len(fresh) + 1))
        for key in fresh:
            self.single.add_chain(key, NONE, space)
        self.present |= set(fresh)

    @rule(first=st.integers(0, 160), count=st.integers(1, 30))
    def single_file(self, first: int, count: int) -> None:
        """Keys come into both one by one."""
        for number in range(first, first + count):
            key = key_of(number)
            if key not in self.present:
                self.many.add_chain(key, NONE, 0)
                self.single.add_chain(key, NONE, 0)
                self.present.add(key)

    @rule(numbers=st.lists(st.integers(0, 160), max_size=40))
    def remove(self, numbers: list[int]) -> None:
        """Rows leave both."""
        for number in numbers:
            key = key_of(number)
            if key in self.present:
                self.present.discard(key)
                for index in (self.many, self.single):
                    index.remove(index.find(key))

    @rule(numbers=st.lists(st.integers(0, 200), min_size=1, max_size=40))
    def look(self, numbers: list[int]) -> None:
        """Looking up many keys at once finds what looking for each finds."""
        keys = [key_of(number) for number in numbers]
        found = find_many(self.many, b"".join(keys))
        assert found == [self.many.find(key) for key in keys]
        assert [row != NONE for row in found] == [key in self.present for key in keys]

    @invariant()
    def agree(self) -> None:
        """Both hold the same keys, and their tables and columns are sound."""
        assert self.many.rows == self.single.rows == len(self.present)
        self.many.check()
        self.single.check()


TestTableMachine = TableMachine.TestCase
TestTableMachine.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)


@given(st.lists(st.integers(1, 300), min_size=1, max_size=4), st.booleans(), st.booleans())
def test_a_chain_in_pieces_is_found_whole(pieces: list[int], once: bool, other: bool) -> None:
    """Whether rows are neighbours or scattered, a chain has the rows of its keys from the root."""
    index, parent = Index(), NONE
    expected: list[int] = []
    keys = [key_of(number) for number in range(sum(pieces))]
    for number, piece in enumerate(pieces):
        for key in keys[len(expected) : len(expected) + piece]:
            parent = index.add_chain(key, parent, 0)[0]
            expected.append(parent)
        if once or other:
            index.add_chain(key_of(10_000 + number), NONE if once else parent, 0)
    assert list(index.chain(b"".join(keys))) == expected


def test_a_row_that_left_is_nobodys_neighbour() -> None:
    """Keys of rows that left are not found beside those that stayed."""
    index, parent = Index(), NONE
    keys = [key_of(number) for number in range(2 * MANY)]
    for key in keys:
        parent = index.add_chain(key, parent, 0)[0]
    for key in reversed(keys[MANY:]):
        index.remove(index.find(key))
    assert find_many(index, b"".join(keys)) == [index.find(key) for key in keys]


def test_a_chain_under_other_keys_is_that_of_its_last_block() -> None:
    """Keys that are present but no chain give the ancestors of the last, as the tree has them."""
    index, count = Index(), 2 * MANY
    strangers = [index.add_chain(key_of(number), NONE, 0)[0] for number in range(count)]
    root = index.add_chain(key_of(count), NONE, 0)[0]
    leaf = index.add_chain(key_of(count + 1), root, 0)[0]
    keys = b"".join(index.key(row) for row in [*strangers, leaf])
    assert list(index.chain(keys)) == [root, leaf]


@given(st.lists(st.one_of(st.none(), st.integers(0, 30)), min_size=1, max_size=60))
def test_many_links_are_those_made_one_by_one(parents: list[int | None]) -> None:
    """Children come in the same order, beside children that were there before."""
    many, single = Index(), Index()
    for index in (many, single):
        roots = [index.add_chain(key_of(number), NONE, 0)[0] for number in range(31)]
        for number in range(0, 31, 3):
            index.add_chain(key_of(100 + number), roots[number], 0)
    keys = b"".join(key_of(200 + number) for number in range(len(parents)))
    rows, _ = many.add_many(keys, 0, 1)
    above = array("I", [NONE if parent is None else parent for parent in parents])
    many.link_many(rows, above)
    for key, parent in zip(split_keys(keys), above, strict=True):
        single.add_chain(key, parent, 0)
    for row in range(31):
        names = [[index.key(child) for child in index.children(row)] for index in (many, single)]
        assert names[0] == names[1]
    many.check()
    for index in (many, single):
        for number in range(0, 31, 3):
            index.remove(index.find(key_of(100 + number)))
    for row in range(31):
        names = [[index.key(child) for child in index.children(row)] for index in (many, single)]
        assert names[0] == names[1]
    for row in reversed(rows):
        many.remove(row)
    many.check()


def test_growing_shards_leave_no_gaps_for_long() -> None:
    """What shards leave when they grow is taken by others, and preparing for many packs them."""
    index = Index()
    for number in range(20_000):
        index.add_chain(
            struct.pack("<QQ", number * 0x9E3779B97F4A7C15 % (1 << 64), number), NONE, 0
        )
    grown = index._table.size_bytes()
    index.reserve([struct.pack("<2048Q", *range(2048)) * 40])
    assert len(index._table.slots) == sum(index._table.mask) + 1024
    assert grown / index.rows < 32
    index.check()
