"""Dice: draws that depend on a seed and a name, on every machine. They carry no state between."""

from __future__ import annotations

from collections import Counter

import pytest

from kvwise.sim.dice import Dice


def test_golden_draws() -> None:
    """The generator is SplitMix64: its published first values for seed 1234567."""
    dice = Dice(1234567)

    assert [dice.bits() for _ in range(3)] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
    ]


def test_a_name_is_a_stream_of_its_own() -> None:
    """Named draws do not depend on what was drawn before, and differ by every part of the name."""
    fresh, used = Dice(5), Dice(5)
    used.bits()

    assert fresh.named("a", 1).bits() == used.named("a", 1).bits()
    names: list[tuple[str | int, ...]] = [("a", 1), ("a", 2), ("a",), ("a1",), ("b", 1)]
    assert len({Dice(5).named(*name).bits() for name in names}) == 5


def test_ranges_hold_and_are_reached() -> None:
    """Integers lie within their bounds, and every value of a small range occurs."""
    dice = Dice(9)

    assert {dice.below(4) for _ in range(200)} == {0, 1, 2, 3}
    assert {dice.between(-1, 1) for _ in range(200)} == {-1, 0, 1}
    assert all(0 <= dice.unit() < 1 for _ in range(200))
    assert Counter(dice.pick("ab") for _ in range(1000))["a"] == pytest.approx(500, abs=80)


def test_waits_have_their_mean() -> None:
    """Waiting times are never negative and average to their mean."""
    dice = Dice(3)
    waits = [dice.wait(2.0) for _ in range(4000)]

    assert min(waits) >= 0
    assert sum(waits) / len(waits) == pytest.approx(2.0, rel=0.1)


def test_shuffling_keeps_the_items() -> None:
    """A shuffled list has the same items in another order; the original is left alone."""
    items = list(range(20))
    mixed = Dice(1).shuffled(items)

    assert sorted(mixed) == items == list(range(20))
    assert mixed != items
