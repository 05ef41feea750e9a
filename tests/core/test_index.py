"""Index: equal to a dict of keys and parents under any sequence of changes, and small."""

from __future__ import annotations

import hashlib
import struct

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kvwise.core.index import NONE, Index
from kvwise.core.keys import chain_keys, split_keys


def key_of(number: int) -> bytes:
    """A key; few distinct shards and home places, so that probes collide."""
    return struct.pack("<QQ", (number % 3) << 40 | number % 5, number % 2 | number << 32)


class IndexMachine(RuleBasedStateMachine):
    """Adds and removes rows; a dict of key to parent key is the model."""

    def __init__(self) -> None:
        """Both empty."""
        super().__init__()
        self.index = Index()
        self.model: dict[bytes, bytes | None] = {}

    @rule(number=st.integers(0, 400), parent=st.integers(0, 400))
    def add(self, number: int, parent: int) -> None:
        """Add a key that is new, below a parent if that one exists."""
        key, above = key_of(number), key_of(parent)
        if key in self.model:
            return
        row = self.index.find(above) if above in self.model else NONE
        self.index.add_chain(key, row, 7)
        self.model[key] = above if above in self.model else None

    @rule(number=st.integers(0, 400))
    def remove(self, number: int) -> None:
        """Remove a key; one with children is refused."""
        key = key_of(number)
        if key not in self.model:
            return
        row = self.index.find(key)
        if key in self.model.values():
            with pytest.raises(ValueError, match="children"):
                self.index.remove(row)
            return
        self.index.remove(row)
        del self.model[key]

    @rule(number=st.integers(0, 400))
    def look(self, number: int) -> None:
        """Present keys are found with their parent and children, absent ones are not."""
        key = key_of(number)
        row = self.index.find(key)
        assert (row != NONE) == (key in self.model)
        if row == NONE:
            return
        assert self.index.key(row) == key
        children = {self.index.key(r) for r in self.index.children(row)}
        assert children == {k for k, above in self.model.items() if above == key}
        above = self.model[key]
        found = self.index.parent[row]
        assert (None if found == NONE else self.index.key(found)) == above

    @invariant()
    def agrees(self) -> None:
        """Table, columns and links are consistent."""
        assert self.index.rows == len(self.model)
        self.index.check()


TestIndexMachine = IndexMachine.TestCase
TestIndexMachine.settings = settings(max_examples=40, stateful_step_count=60, deadline=None)


@pytest.mark.parametrize("present", [0, 1, 2, 3, 7, 8, 9, 31, 32, 33, 100])
@pytest.mark.parametrize("asked", [0, 1, 2, 8, 33, 100])
def test_length_of_a_chain(present: int, asked: int) -> None:
    """Galloping finds exactly the present prefix, whatever the lengths."""
    keys = chain_keys(b"s" * 16, range(400), 4)
    index, parent = Index(), NONE
    for key in split_keys(keys)[:present]:
        parent = index.add_chain(key, parent, 0)[0]
    assert index.length(keys, asked) == min(present, asked)


@pytest.mark.parametrize(("fresh", "last"), [(0, 5), (1, 5), (4, 5), (1, 0), (4, 0), (4, 3)])
def test_a_chain_is_added_up_to_a_key_that_is_known(fresh: int, last: int) -> None:
    """Each row is below the one before; a known key, or a repetition, and all after it stay out."""
    index, keys = Index(), [key_of(number) for number in range(7)]
    root = index.add_chain(key_of(100), NONE, 0)[0]
    other = index.add_chain(keys[5], root, 0)[0]
    rows = index.add_chain(b"".join([*keys[:fresh], keys[last], keys[6]]), root, 0)
    assert [index.key(row) for row in rows] == keys[:fresh]
    assert [index.parent[row] for row in rows] == [root, *rows][: len(rows)]
    assert (index.parent[other], index.rows) == (root, fresh + 2)
    index.check()


def test_subtree_lists_ancestors_first() -> None:
    """Reversed, it is an order in which rows can be removed."""
    index = Index()
    root = index.add_chain(key_of(1), NONE, 0)[0]
    left, right = index.add_chain(key_of(2), root, 0)[0], index.add_chain(key_of(3), root, 0)[0]
    leaf = index.add_chain(key_of(4), left, 0)[0]
    found = index.subtree(root)
    assert set(found) == {root, left, right, leaf}
    for row in reversed(found):
        index.remove(row)
    assert index.rows == 0


def test_a_million_rows_would_be_small() -> None:
    """Columns and table stay under 64 bytes a row, and growth never rehashes everything."""
    index = Index()
    for number in range(50_000):
        index.add_chain(hashlib.blake2b(number.to_bytes(4), digest_size=16).digest(), NONE, 0)
    assert index.size_bytes() / index.rows < 64
    index.check()
