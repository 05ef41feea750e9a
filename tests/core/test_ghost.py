"""The ghost against a dictionary: which keys it remembers, and how far a chain is known."""

from __future__ import annotations

from collections import OrderedDict

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kvwise.core.ghost import Ghost
from kvwise.core.keys import KEY_BYTES, chain_keys

ROOM = 5
NUMBERS = st.integers(0, 11)


def key_of(number: int) -> bytes:
    """A key; some share a half with others."""
    return (number % 3).to_bytes(8, "little") + number.to_bytes(8, "little")


class GhostMachine(RuleBasedStateMachine):
    """Any puts, beside a dictionary in the order in which keys came."""

    def __init__(self) -> None:
        """Both know nothing."""
        super().__init__()
        self.ghost = Ghost(ROOM)
        self.model: OrderedDict[int, int] = OrderedDict()
        self.stamp = 0

    @rule(number=NUMBERS)
    def put(self, number: int) -> None:
        """A key is remembered with a newer stamp, and is the last to be forgotten."""
        self.stamp += 1
        lost = []
        if number not in self.model and len(self.model) == ROOM:
            lost = [self.model.popitem(last=False)[1]]
        self.model[number] = self.stamp
        self.model.move_to_end(number)
        assert self.ghost.put([Ghost.halves(key_of(number), 0)], self.stamp) == lost

    @invariant()
    def they_agree(self) -> None:
        """All keys, known or not."""
        assert len(self.ghost) == len(self.model)
        joined = b"".join(key_of(number) for number in range(12))
        for number in range(12):
            assert self.ghost.stamp(joined, number) == self.model.get(number, 0)
            known = self.ghost.has(*Ghost.halves(joined, number))
            assert known == (number in self.model)


TestGhostMachine = GhostMachine.TestCase


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 10), st.integers(0, 40))
def test_length_is_that_of_counting(total: int, known: int, here: int, first: int) -> None:
    """Of a chain whose beginning is known, galloping finds where that ends, from any place on."""
    keys = chain_keys(b"s" * 16, list(range(total)), 1)
    ghost, known, first = Ghost(), min(known, total), min(first, total)
    for place in range(min(here, known), known):
        ghost.put([Ghost.halves(keys, place)], place + 1)
    expected = 0
    while first + expected < total and ghost.stamp(keys, first + expected):
        expected += 1
    if first >= min(here, known):  # what is here itself is not among the ghosts, nor asked for
        assert ghost.length(keys, first) == expected == max(0, known - first)


def test_it_takes_no_more_than_its_bound() -> None:
    """Ten times as many keys as it may remember: it stops growing, and knows the last ones."""
    ghost = Ghost(64)
    keys = chain_keys(b"s" * 16, list(range(640)), 1)
    sizes = []
    for place in range(len(keys) // KEY_BYTES):
        ghost.put([Ghost.halves(keys, place)], place + 1)
        sizes.append(ghost.size_bytes())
    assert len(ghost) == 64
    assert sizes[63] == sizes[-1]
    assert [place for place in range(640) if ghost.stamp(keys, place)] == list(range(576, 640))
