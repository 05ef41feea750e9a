"""Pages: never handed out twice, never lost, and kept together."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwise.core.pages import Pages


@pytest.mark.pain("M2")
@given(st.integers(1, 60), st.lists(st.integers(-8, 8), max_size=80))
def test_against_a_set(count: int, moves: list[int]) -> None:
    """Any sequence of allocations and frees agrees with a set of free pages."""
    pages, held = Pages(count), []
    free = set(range(count))
    for move in moves:
        if move > 0:
            got = pages.allocate(move)
            assert (got is None) == (move > len(free))
            if got is not None:
                assert len(set(got)) == move
                assert free.issuperset(got)
                free.difference_update(got)
                held.append(got)
        elif held:
            back = held.pop(move % len(held))
            assert pages.chain(back[0]) == back
            pages.free([back[0]])
            free.update(back)
        assert pages.free_count == len(free)
    alike = [some for some in held if len(some) == 3]
    firsts = array("I", [some[0] for some in alike])
    assert pages.chains(firsts, 3) == tuple(page for some in alike for page in some)


def test_fresh_pages_are_neighbours() -> None:
    """The first objects lie in a row, so one view or one I/O vector covers them."""
    pages = Pages(10)
    assert pages.allocate(4) == (0, 1, 2, 3)
    again = pages.allocate(3)
    assert again == (4, 5, 6)
    pages.free([again[0]])
    assert pages.allocate(3) == again


@pytest.mark.parametrize("each", [1, 3])
def test_many_objects_at_once_are_as_many_one_by_one(each: int) -> None:
    """The same pages in the same order, and each object's own chain; nothing when one lacks."""
    together, single = Pages(4 * each), Pages(4 * each)
    assert together.allocate(each, 5) is None
    assert together.free_count == 4 * each
    got = together.allocate(each, 4)
    one_by_one = [single.allocate(each) for _ in range(4)]
    assert got == tuple(page for pages in one_by_one for page in pages or ())
    assert [together.chain(got[at]) for at in range(0, len(got), each)] == one_by_one
    assert together.chain_all(got[::each]) == got


def test_double_free_is_refused() -> None:
    """Freeing twice would hand one page to two objects."""
    pages = Pages(4)
    got = pages.allocate(2)
    assert got is not None
    pages.free([got[0]])
    with pytest.raises(ValueError, match="freed twice"):
        pages.free([got[0]])
    with pytest.raises(ValueError, match="not part"):
        pages.chain(got[0])
    assert pages.free_count == 4


@pytest.mark.parametrize("count", [0, -1, 2**32])
def test_impossible_arenas(count: int) -> None:
    """An arena without pages, or with more than a link can name."""
    with pytest.raises(ValueError, match="between 1"):
        Pages(count)


def test_nothing_is_not_an_object() -> None:
    """Zero pages are never allocated."""
    assert Pages(4).allocate(0) is None
