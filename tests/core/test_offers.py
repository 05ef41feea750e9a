"""Offers: remembered at the worth they had, and counted at what their like is worth now."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwise.core.hazards import Hazards
from kvwise.core.offers import (
    CLASSES,
    KINS_MAX,
    Kin,
    Offer,
    Offers,
    class_floor,
    worth_class,
)
from kvwise.core.outlook import Kind

OBJECT = 1 << 19


def kin() -> Kin:
    """Blocks that are like no others."""
    return ((Hazards(), Kind()),)


@given(st.floats(1e-18, 1e3), st.floats(1.0, 8.0))
def test_classes_keep_the_order(worth: float, times: float) -> None:
    """A greater worth is never in a lower class, and a class begins where it says."""
    place = worth_class(worth)
    assert worth_class(worth * times) >= place
    assert class_floor(place) <= worth
    assert worth_class(class_floor(place + 1)) == place + 1 or place == worth_class(1e9)


def test_what_is_worth_an_eighth_more_is_told_apart() -> None:
    """A price in coarser classes lets through by lot what could be chosen."""
    assert len({worth_class(2**-20 * (1 + part / 8)) for part in range(8)}) == 8


@pytest.mark.parametrize(("now", "lower"), [(1.0, 0), (0.5, 8), (0.25, 16), (2.0, 0), (0.0, 0)])
def test_a_kin_that_is_used_less_counts_for_less(now: float, lower: int) -> None:
    """By as much less as it is used less, beside all others; never for more than it was offered."""
    mine, other, told = kin(), kin(), [1.0]
    offers = Offers(lambda one: told[0] if one is mine else 1.0)
    place = offers.add(Offer(3.0, OBJECT, 3, mine))
    offers.add(Offer(7.0, OBJECT, 1, other))
    offers.add(Offer(1.0, OBJECT, 2))
    told[0] = now
    own = {worth_class(7.0 / OBJECT): OBJECT, worth_class(0.5 / OBJECT): 2 * OBJECT}
    own[place - lower] = own.get(place - lower, 0) + 3 * OBJECT
    assert offers.by_class() == own


def test_each_offer_counts_for_what_it_was_offered_at() -> None:
    """A few that were offered high do not hide among many of their kin that came later."""
    mine, told = kin(), [2.0]
    offers = Offers(lambda _: told[0])
    high = offers.add(Offer(2.0, OBJECT, 1, mine))
    told[0] = 1.0
    low = offers.add(Offer(99.0, OBJECT, 99, mine))
    assert high - low == 8
    assert offers.by_class() == {low: 100 * OBJECT}


@pytest.mark.parametrize("has_kin", [False, True])
def test_what_is_forgotten_goes(has_kin: bool) -> None:
    """What has faded to less than a byte leaves nothing behind."""
    offers = Offers(lambda _: 1.0)
    offers.add(Offer(1.0, 1 << 20, 1, kin() if has_kin else None))
    for _ in range(30):
        offers.fade(0.5)
    assert offers.by_class() == {}
    assert not any(offers._bytes.values())


def test_kins_are_bounded() -> None:
    """More kins than are remembered lose no bytes, and those with the most are still known."""
    standing: Callable[[Kin], float] = lambda one: told.get(one, 1.0)  # noqa: E731
    told: dict[Kin, float] = {}
    offers, largest = Offers(standing), kin()
    place = offers.add(Offer(10.0, OBJECT, 10, largest))
    for _ in range(3 * KINS_MAX):
        offers.add(Offer(1.0, OBJECT, 1, kin()))
        assert len(offers._bytes) <= KINS_MAX + 1
    assert offers.by_class() == {place: OBJECT * (10 + 3 * KINS_MAX)}
    told[largest] = 0.5
    assert offers.by_class()[place - 8] == 10 * OBJECT


@given(st.lists(st.tuples(st.integers(0, CLASSES - 1), st.floats(1, 1e15)), max_size=20))
def test_what_is_put_back_is_what_was_left(left: list[tuple[int, float]]) -> None:
    """Over a restart offers keep their classes and lose their kin."""
    offers, by_class = Offers(lambda _: 0.25), dict(left)
    offers.add(Offer(1.0, OBJECT, 1, kin()))
    offers.put_back(by_class.items())
    assert offers.by_class() == by_class
