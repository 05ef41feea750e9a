"""Worth: what a block would save, by depth, speed, chance and wish; and how chains are cut."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwise.core.brain import Brain
from kvwise.core.hints import NO_HINTS, Hints
from kvwise.core.keys import KEY_BYTES
from kvwise.core.words import Filled, Granted, Observed, Offered, Released, Store, Why
from kvwise.core.worth import Bundle, Worth
from tests.core.tiny import KEYS, SPACE, ask, brain, finish, pick, store

DISK = 1


class Said(Worth):
    """Chances as a test says them, one for each row in the order of a chain."""

    def __init__(self, made: Brain, chances: Sequence[float]) -> None:
        """Rows are told by `rows`."""
        super().__init__(made._world)
        self.chances = chances
        self.rows: list[int] = []
        self.horizons_ns: list[int] = []

    def expect(self, tier: int, row: int, horizon_ns: int) -> tuple[float, float]:
        """What was said of it."""
        self.horizons_ns.append(horizon_ns)
        chance = self.chances[self.rows.index(row)]
        return chance, chance

    def may_enter(self, stamp: int, hints: Hints) -> bool:
        """Everything."""
        return True


def rows_of(made: Brain) -> list[int]:
    """The rows of KEYS."""
    return [*made._world.blocks.index.chain(KEYS)]


def weigh(
    made: Brain, chances: Sequence[float], hints: Hints = NO_HINTS, stay_ns: int = 10**12
) -> tuple[list[Bundle], int]:
    """The bundles of KEYS under such chances."""
    said = Said(made, chances)
    said.rows = rows_of(made)
    return said.bundles(DISK, said.rows, hints, stay_ns)


@given(st.lists(st.floats(0.0, 1.0), min_size=8, max_size=8))
def test_bundles_are_the_best_way_to_cut(chances: list[float]) -> None:
    """Worth per byte falls from bundle to bundle, and at any price no other prefix is better."""
    made = brain(policy="load")
    store(made)
    bundles, _ = weigh(made, chances)
    assert [row for bundle in bundles for row in bundle.rows] == rows_of(made)
    worths = [bundle.value_s / bundle.size_bytes for bundle in bundles]
    assert worths == sorted(worths, reverse=True)

    worth, space = Worth(made._world), made._world.spaces[0]
    values = [chance * worth.saved_s(DISK, space, n) for n, chance in enumerate(chances)]
    size_bytes = bundles[0].size_bytes // len(bundles[0].rows)
    for price in (0.0, 1e-9, 3e-7, 1e-6):
        best = max(sum(values[:n]) - price * size_bytes * n for n in range(9))
        gains = [bundle.value_s - price * bundle.size_bytes for bundle in bundles]
        assert sum(gain for gain in gains if gain > 0) == pytest.approx(best, abs=1e-9)


def test_a_small_chance_ends_the_chain() -> None:
    """What is hardly ever used again is not written, nor what comes below it."""
    made = brain(chance_min=0.02)
    store(made)
    bundles, unlikely = weigh(made, [0.5, 0.4, 0.01, 0.9, 0.9, 0.9, 0.9, 0.9])
    assert sum(len(bundle.rows) for bundle in bundles) == 2
    assert unlikely == 6


def test_deep_blocks_are_worth_more() -> None:
    """Attention makes late tokens dearer, so with equal chances a whole chain is one bundle."""
    made = brain()
    for n in (64, 256, 1024):
        made.handle(Observed(1, 1, SPACE.digest, n, n * n / 2, 1e-4 * n + 1e-6 * n * n / 2))
    store(made)
    worth = Worth(made._world)
    space = made._world.spaces[0]
    gains = [worth.gain_s(DISK, space, depth) for depth in range(8)]
    assert gains == sorted(gains)
    assert gains[7] > gains[0] > 0
    assert len(weigh(made, [0.5] * 8)[0]) == 1


def test_what_loads_slower_than_it_computes_is_worth_nothing() -> None:
    """A slow disk under a fast engine is left alone, unless loading is forced."""
    for policy, sign in (("auto", -1), ("load", 1)):
        made = brain(policy=policy)
        for n in (64, 256, 1024) * 10:
            made.handle(Observed(1, 1, SPACE.digest, n, n * n / 2, 1e-9 * n))
        commands = store(made)
        gain_s = Worth(made._world).gain_s(DISK, made._world.spaces[0], 0)
        assert gain_s * sign > 0
        refused = made.snapshot()["counters"]["refused"]
        assert refused.get("disk|worth", 0) == (8 if policy == "auto" else 0)
        assert any(isinstance(c, Store) for c in commands) is (policy == "load")


def test_hints_change_worth() -> None:
    """Priority multiplies, and a time to live bounds the time in which reuse counts."""
    made = brain()
    store(made)
    (plain,), (high,), (low,) = (
        weigh(made, [0.5] * 8, Hints(priority=priority))[0] for priority in (0.0, 1.0, -1.0)
    )
    assert high.value_s == pytest.approx(4 * plain.value_s)
    assert low.value_s == pytest.approx(plain.value_s / 4)
    said = Said(made, [0.5] * 8)
    said.rows = rows_of(made)
    said.bundles(DISK, said.rows, Hints(ttl_s=2.5), 10**12)
    assert set(said.horizons_ns) == {2_500_000_000}


def test_what_was_declined_is_taken_with_what_follows() -> None:
    """A prefix that was not worth it goes down together with a continuation that is."""
    made = brain()
    said = Said(made, [0.0] * 8)
    made._stores._worth = said
    first, second = KEYS[: 4 * KEY_BYTES], KEYS[4 * KEY_BYTES :]
    said.rows = [*range(1000)]
    said.chances = [0.0] * 1000
    assert not any(isinstance(c, Store) for c in store(made, first))
    assert made.snapshot()["counters"]["refused"]["disk|worth"] == 4
    said.chances = [0.5] * 1000
    offered = Offered(2, 1, "another", SPACE.digest, first[-KEY_BYTES:], second)
    granted = pick(made.handle(offered), Granted)
    job = pick(made.handle(Filled(2, 1, granted.lease, 4)), Store)
    assert [item.key for item in job.items] == [
        KEYS[at : at + KEY_BYTES] for at in range(0, len(KEYS), KEY_BYTES)
    ]
    finish(made, [job])


def test_use_is_a_second_chance() -> None:
    """What was declined is weighed again when a request has used it."""
    made = brain(chance_min=0.2)
    said = made._stores._worth = Said(made, [0.0] * 1000)
    said.rows = [*range(1000)]
    assert not any(isinstance(c, Store) for c in store(made))
    said.chances = [0.5] * 1000
    planned = ask(made)
    commands = made.handle(Released(5, 1, planned.lease))
    assert len(pick(commands, Store).items) == 8
    assert made.snapshot()["counters"]["refused"] == {f"disk|{Why.WORTH.value}": 8}
