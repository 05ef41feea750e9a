"""Outlook against sessions whose uses can be counted: what is left of them, and what memory has."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwise.core.hazards import bucket_of
from kvwise.core.outlook import MEMORY_SHARE, RENEW_EVERY, Kind, Outlook
from tests.core.test_reuse import Cache, prompt

TURNS = 5
PAUSE_S = 10.0
OLD_S = 1e5
MANY = 10_000
"""Requests of each kind, so many that what is believed beforehand does not matter."""


def waited(kind: Kind, pause_s: float, chance: float) -> None:
    """Requests of a kind are gone on from after a pause, with a chance, and else never."""
    for bucket in range(bucket_of(OLD_S)):
        kind.wait(bucket, MANY * (1.0 if bucket <= bucket_of(pause_s) else 1 - chance))
    kind.hit(bucket_of(pause_s), MANY * chance)


def sessions(
    pause_s: float = PAUSE_S, chance: float = 1.0, first: float | None = None
) -> list[Kind]:
    """Kinds of the turns of sessions, each of which goes on with a chance until the last one.

    The first one may have another chance.
    """
    kinds = [Kind(turn) for turn in range(TURNS)]
    chances = [chance if first is None else first, *[chance] * (TURNS - 2), 0.0]
    for turn, kind in enumerate(kinds):
        waited(kind, pause_s, chances[turn])
        for _ in range(MANY if turn < TURNS - 1 else 0):
            kind.go_on(kinds[turn + 1])
        kind.learn(0)
    return kinds


def after(kinds: list[Kind], memory_s: float = 0.0, stay_s: float = 1e4) -> Outlook:
    """What is to come after requests of these kinds, looked at until nothing changes."""
    outlook = Outlook()
    for _ in range(20 * RENEW_EVERY + 1):
        outlook.look(kinds, memory_s, stay_s)
    return outlook


def left(kinds: list[Kind], memory_s: float = 0.0, stay_s: float = 1e4) -> list[float]:
    """Uses to come after a request of each kind."""
    outlook = after(kinds, memory_s, stay_s)
    return [outlook.uses(kind, 0.0, kind, stay_s) for kind in kinds]


@pytest.mark.parametrize("chance", [1.0, 0.5])
def test_uses_to_come_are_those_that_are_left(chance: float) -> None:
    """A block of the first turn is used by all later ones, one of the last by none."""
    uses = [sum(chance**n for n in range(1, TURNS - turn)) for turn in range(TURNS)]
    assert left(sessions(chance=chance)) == pytest.approx(uses, abs=0.05)


def test_what_memory_serves_counts_little() -> None:
    """Turns that come while memory still has the blocks are hardly worth a write."""
    uses = [MEMORY_SHARE * (TURNS - 1 - turn) for turn in range(TURNS)]
    assert left(sessions(), memory_s=100.0) == pytest.approx(uses, abs=0.05)


def test_a_tier_that_forgets_before_the_next_turn_is_of_no_use() -> None:
    """Blocks are of use only if each pause ends while they stay."""
    assert max(left(sessions(pause_s=1000.0), stay_s=100.0)) == pytest.approx(0, abs=0.05)
    assert left(sessions(pause_s=1000.0))[0] == pytest.approx(TURNS - 1, abs=0.05)


@pytest.mark.parametrize(("first", "worth"), [(0.2, 0.25), (0.5, 1.0), (0.75, 3.0), (1.0, 4.0)])
def test_what_can_wait_is_worth_what_waiting_loses(first: float, worth: float) -> None:
    """Waiting loses the next use only, against the chance that none comes, where more follow."""
    kinds = sessions(first=first)
    outlook = after(kinds)
    first_turn, second_turn = (outlook.worth(kind, 0.0, kind, 1e4) for kind in kinds[:2])
    assert first_turn / second_turn == pytest.approx(worth / 3, rel=0.02)


@pytest.mark.parametrize("first", [0.1, 0.4, 0.7, 0.95])
@pytest.mark.parametrize("chance", [0.2, 0.8])
def test_at_its_worth_a_write_is_as_good_now_as_later(first: float, chance: float) -> None:
    """Below that price a write now saves more than one after the next use, above it less."""
    kinds = sessions(chance=chance, first=first)
    outlook, kind = after(kinds), kinds[0]
    uses, again = outlook.uses(kind, 0.0, kind, 1e4), kind.chance(0.0, 1e4)
    later = (uses - again) / again
    worth = outlook.worth(kind, 0.0, kind, 1e4) * outlook._usual
    for price, sign in ((0.99 * worth, 1), (1.01 * worth, -1)):
        assert sign * (uses - price - again * max(0.0, later - price)) > 0


def test_what_follows_itself_goes_on_until_it_ends() -> None:
    """A kind that follows itself with a chance of 0.9 has nine uses to come."""
    kind = Kind()
    waited(kind, PAUSE_S, 0.9)
    for _ in range(MANY):
        kind.go_on(kind)
    kind.learn(0)
    assert left([kind]) == pytest.approx([9.0], rel=0.05)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=60))
def test_no_more_is_expected_than_was_seen(steps: list[tuple[int, int]]) -> None:
    """Whatever follows whatever, uses to come are finite, and none before anything was seen."""
    kinds = [Kind(number) for number in range(4)]
    assert left(kinds) == [0.0] * 4
    for before, after in steps:
        kinds[before].wait(0, 1.0)
        kinds[before].hit(0, 1.0)
        kinds[before].go_on(kinds[after])
    for kind in kinds:
        kind.learn(0)
    assert all(0 <= uses <= len(steps) for uses in left(kinds))


def test_an_early_block_is_worth_more_than_a_last_one() -> None:
    """All blocks of a session but the last ones come back, and the first ones come back most."""
    cache = Cache()
    stamps = dict[int, int]()
    for session in range(150):
        for turn in range(1, TURNS + 1):
            cache.wait(PAUSE_S)
            asked = prompt(*(100 * session + part for part in range(turn)), chunks=2)
            stamps[turn] = cache.request(f"{session} {turn}", asked)[-1][1]
    outlook, reuse = Outlook(), cache.reuse
    for _ in range(4 * RENEW_EVERY + 1):
        outlook.look(reuse.sessions.known, 0.0, 1e4)
    uses = [outlook.uses(cache.kind(s), 0.0, reuse.kind(s), 1e4) for s in stamps.values()]
    assert uses == sorted(uses, reverse=True)
    assert uses[0] > 3 * uses[-2]
    chances = [reuse.hazards(stamps[turn]).chance(0.0, 1e4) for turn in range(1, TURNS)]
    assert max(chances) < 1.1 * min(chances)
