"""Eviction policies: the order, and that stale proposals sort themselves out."""

from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from kvwise.core.evict import Lru
from kvwise.core.index import NONE, Index


def make(count: int) -> tuple[Index, Lru]:
    """An index of `count` unrelated rows with stamps 1.. and a policy that knows them all."""
    index = Index()
    policy = Lru(index)
    for number in range(count):
        row = index.add_chain(number.to_bytes(16), NONE, 0)[0]
        index.stamp[row] = number + 1
        policy.add(row)
    return index, policy


def drain(policy: Lru) -> list[int]:
    """Every proposal in order, each accepted."""
    order = []
    while (row := policy.propose()) != NONE:
        policy.accept()
        order.append(row)
    return order


@given(st.lists(st.integers(0, 11), max_size=40))
def test_least_recently_used_goes_first(touches: list[int]) -> None:
    """Whatever was touched, the order is that of the last touch."""
    index, policy = make(12)
    for time, row in enumerate(touches):
        index.stamp[row] = 100 + time
        policy.add(row)
    assert drain(policy) == sorted(range(12), key=lambda row: index.stamp[row])


@given(st.lists(st.integers(0, 11), max_size=20), st.lists(st.integers(0, 11), max_size=20))
def test_many_candidates_at_once_are_the_same(before: list[int], together: list[int]) -> None:
    """Rows that are known already, or named twice, are in the order once."""
    index, policy = make(12)
    for row in drain(policy):
        index.stamp[row] = 1 + row * 5 % 12
    for row in before:
        policy.add(row)
    policy.add_all(array("I", together))
    assert drain(policy) == sorted({*before, *together}, key=lambda row: index.stamp[row])


def test_rows_set_aside_come_back() -> None:
    """A row in use is passed over once, not forgotten."""
    _, policy = make(3)
    policy.propose()
    policy.set_aside()
    assert policy.propose() == 1
    policy.accept()
    policy.restore()
    assert drain(policy) == [0, 2]


def test_a_reused_row_counts_with_its_new_stamp() -> None:
    """An entry left over from a row's earlier life does not evict its new one early."""
    index, policy = make(2)
    index.remove(0)
    row = index.add_chain((9).to_bytes(16), NONE, 0)[0]
    assert row == 0
    index.stamp[row] = 50
    policy.add(row)
    assert drain(policy) == [1, 0]


def test_who_waits_is_told_where_nothing_else_would_come_next() -> None:
    """Not while something has the same stamp or is set aside; rows that came later count too."""
    index, policy = make(3)
    first = policy.propose()
    policy.accept()
    (late,) = index.add_chain((9).to_bytes(16), NONE, 0)
    waits = policy.waiting(index.stamp[first])
    assert waits is not None
    assert [bool(waits[row]) for row in (first, 1, 2, late)] == [False, True, True, False]
    assert policy.waiting(index.stamp[1]) is None
    policy.propose()
    policy.set_aside()
    assert policy.waiting(index.stamp[first]) is None
