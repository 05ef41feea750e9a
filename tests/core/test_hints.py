"""Hints of callers: what they keep, what they end, and that they starve nobody."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwise.core.brain import Brain
from kvwise.core.hints import SECONDS_MAX, Hints
from kvwise.core.keep import Keep
from kvwise.core.keys import KEY_BYTES, ROOT
from kvwise.core.shelf import State
from kvwise.core.words import (
    Asked,
    Cleared,
    Drop,
    Filled,
    Granted,
    Left,
    Offered,
    Planned,
    Tick,
    Why,
)
from tests.core.tiny import CHUNK, KEYS, PAGE, SPACE, brain, evict_dram, finish, pick

SECOND = 1_000_000_000
FOUR = KEYS[: 4 * KEY_BYTES]
KEPT = 4 * 2 * PAGE
"""Four objects of two pages: a fifth of the arena."""


def offer(made: Brain, keys: bytes, hints: Hints, *, now_ns: int = 1) -> Granted:
    """Store a prompt with hints, and have it written."""
    granted = pick(
        made.handle(Offered(now_ns, 1, "h", SPACE.digest, ROOT, keys, 0, hints)), Granted
    )
    finish(made, made.handle(Filled(now_ns, 1, granted.lease, len(granted.chunks))), first=500)
    return granted


def in_dram(made: Brain, keys: bytes) -> int:
    """How many of the keys are in the arena."""
    here = {h.key for h in made.holdings() if h.states[0] is State.READY}
    return sum(keys[at : at + KEY_BYTES] in here for at in range(0, len(keys), KEY_BYTES))


def kept_bytes(made: Brain) -> int:
    """What hints keep, as the metric says."""
    return int(made.snapshot()["levels"]["hint_pinned_bytes"])


def test_what_is_kept_stays_until_its_time() -> None:
    """Whatever else comes, kept blocks stay in the arena; afterwards they leave as others do."""
    made = brain()
    offer(made, FOUR, Hints(pin_s=10))
    evict_dram(made)
    assert in_dram(made, FOUR) == 4
    assert kept_bytes(made) == KEPT
    made.handle(Tick(11 * SECOND))
    assert kept_bytes(made) == 0
    evict_dram(made, seed=50)
    assert in_dram(made, FOUR) == 0


def test_keeping_a_block_keeps_what_is_above_it() -> None:
    """A prompt that adds to a cached one keeps both, and both count."""
    made = brain()
    offer(made, KEYS[: 2 * KEY_BYTES], Hints())
    offer(made, FOUR, Hints(pin_s=10))
    assert kept_bytes(made) == KEPT


def test_more_than_the_share_is_not_kept() -> None:
    """A hint that would keep more than a quarter of the arena is ignored as a whole, and counts."""
    made = brain()
    offer(made, KEYS, Hints(pin_s=10))
    assert kept_bytes(made) == 0
    assert made.snapshot()["counters"]["hints_refused"] == 1
    evict_dram(made)
    assert in_dram(made, KEYS) == 0


def test_the_decision_names_a_pin_that_was_refused() -> None:
    """Whether blocks that are there or new ones were to be kept; what is kept is named nowhere."""
    made = brain()

    def ask(name: str, keys: bytes) -> bool:
        tokens = len(keys) // KEY_BYTES * CHUNK + 1
        asked = Asked(1, 1, name, SPACE.digest, keys, 0, tokens, Hints(pin_s=10))
        return pick(made.handle(asked), Planned).decision.pin_refused

    assert not ask("h", KEYS)
    offer(made, KEYS, Hints(pin_s=10))
    assert [one.pin_refused for one in made.decisions(9)] == [True]
    assert ask("again", KEYS)
    assert not ask("less", FOUR)


def test_asking_keeps_what_is_there() -> None:
    """A request that finds everything cached and stores nothing can keep it too, and for longer."""
    made = brain()
    offer(made, FOUR, Hints(pin_s=5))
    asked = Asked(2, 1, "q", SPACE.digest, FOUR, 0, 4 * CHUNK + 1, Hints(pin_s=20))
    made.handle(asked)
    made.handle(Tick(10 * SECOND))
    assert kept_bytes(made) == KEPT
    made.handle(Tick(21 * SECOND))
    assert kept_bytes(made) == 0


def test_clearing_ends_all_hints() -> None:
    """Nothing is kept after `clear`, whatever was promised, and new blocks inherit nothing."""
    made = brain()
    offer(made, FOUR, Hints(pin_s=100, ttl_s=100))
    made.handle(Cleared(2))
    assert kept_bytes(made) == 0
    offer(made, KEYS, Hints(), now_ns=3)
    made.check()
    evict_dram(made)
    assert in_dram(made, KEYS) == 0


def test_what_is_worthless_goes_everywhere() -> None:
    """Blocks that end leave every tier at once, deepest first, and say why."""
    made = brain()
    offer(made, FOUR, Hints(ttl_s=5))
    assert not [c for c in made.handle(Tick(4 * SECOND)) if isinstance(c, Drop)]
    drops = [c for c in made.handle(Tick(6 * SECOND)) if isinstance(c, Drop)]
    assert {(drop.tier, drop.why) for drop in drops} == {(0, Why.EXPIRED), (1, Why.EXPIRED)}
    assert made.snapshot()["levels"]["blocks"] == 0
    made.check()


def test_what_others_use_does_not_end() -> None:
    """A prefix that a request without an end has used or built upon stays."""
    made = brain()
    offer(made, FOUR, Hints(ttl_s=5))
    offer(made, KEYS[: 2 * KEY_BYTES], Hints(), now_ns=2)
    made.handle(Tick(6 * SECOND))
    assert in_dram(made, FOUR) == 2

    made = brain()
    offer(made, FOUR, Hints(ttl_s=5))
    made.handle(Asked(2, 1, "q", SPACE.digest, FOUR, 0, 4 * CHUNK + 1))
    made.handle(Tick(6 * SECOND))
    assert in_dram(made, FOUR) == 4


def test_what_is_held_ends_later() -> None:
    """A block that ends while a lease holds it goes when the lease does."""
    made = brain()
    offer(made, FOUR, Hints(ttl_s=5))
    asked = Asked(2, 1, "q", SPACE.digest, FOUR, 0, 4 * CHUNK + 1, Hints(ttl_s=5))
    assert pick(made.handle(asked), Planned).lease
    made.handle(Tick(6 * SECOND))
    assert in_dram(made, FOUR) == 4
    made.handle(Tick(60 * SECOND))  # the lease expires
    made.handle(Tick(61 * SECOND))
    assert made.snapshot()["levels"]["blocks"] == 0


def test_no_reuse_stores_nothing_and_uses_what_is_there() -> None:
    """A request that nobody will repeat is not stored, and still loads."""
    made = brain()
    offer(made, KEYS[: 2 * KEY_BYTES], Hints())
    offered = Offered(2, 1, "n", SPACE.digest, ROOT, FOUR, 0, Hints(no_reuse=True, pin_s=9))
    assert pick(made.handle(offered), Granted).reasons == {Why.DISABLED: 4}
    asked = Asked(3, 1, "n", SPACE.digest, FOUR, 0, 4 * CHUNK + 1, Hints(no_reuse=True, pin_s=9))
    assert pick(made.handle(asked), Planned).chunks == 2
    assert kept_bytes(made) == 0


def test_asking_again_costs_nothing_new() -> None:
    """However often blocks are pinned or given an end, what is remembered grows with the blocks."""
    made = brain()
    offer(made, FOUR, Hints(pin_s=10, ttl_s=10))
    keep = made._world.blocks.keep
    for number in range(3000):
        hints = Hints(pin_s=10 + number, ttl_s=10 + number)
        made.handle(Asked(2 + number, 1, "q", SPACE.digest, FOUR, 0, 4 * CHUNK + 1, hints))
        if number == 2:
            few = len(pickle.dumps(keep))
    assert len(pickle.dumps(keep)) < few + 100
    assert kept_bytes(made) == KEPT
    assert made.snapshot()["counters"]["hints_refused"] == 0
    made.handle(Left(4000, 1))
    made.handle(Cleared(4001))
    assert len(pickle.dumps(keep)) < few
    assert not keep.rows()


def test_what_is_forgotten_leaves_no_memory() -> None:
    """Blocks that come with hints and go before their time, again and again, are forgotten."""
    keep = Keep(1 << 40)
    for number in range(20_000):
        keep.hold([number + 1, number], 1, 10**15)
        keep.end([number, number + 1], 10**15)
        keep.forget([number + 1, number])
    assert not keep.rows()
    assert len(pickle.dumps(keep)) < 100_000
    keep.check()


def test_an_end_is_never_given_up() -> None:
    """However many requests name an end, the next one's blocks end as well."""
    keep = Keep(1 << 40)
    for number in range(20_000):
        keep.end([number], 10**15)
    keep.end([20_000], 10)
    assert keep.ended(10) == [20_000]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["hold", "end", "extend", "spare", "forget", "pass"]),
            st.integers(0, 15),
            st.integers(1, 40),
        ),
        max_size=60,
    )
)
def test_keep_is_a_table_of_times(steps: list[tuple[str, int, int]]) -> None:
    """A binary tree of rows, against one time for each row in a dictionary."""
    keep, now_ns = Keep(4000), 0
    kept: dict[int, int] = {}
    ends: dict[int, int] = {}
    for what, row, ahead_ns in steps:
        until_ns = now_ns + ahead_ns
        path = [(row + 1 >> up) - 1 for up in range((row + 1).bit_length())]
        if what == "hold":
            keep.hold(path, 1, until_ns)
            kept |= {each: max(until_ns, kept.get(each, 0)) for each in path}
        elif what == "end":
            keep.end(path, until_ns)
            ends |= {each: max(until_ns, ends.get(each, 0)) for each in path}
        elif what == "extend":
            keep.extend(path, until_ns)
            ends |= {each: max(until_ns, ends[each]) for each in path if each in ends}
        elif what == "spare":
            keep.spare(path)
            ends = {each: at for each, at in ends.items() if each not in path}
        elif what == "forget":
            gone = [each for each in range(31, -1, -1) if _is_below(each, row)]
            keep.forget(gone)
            kept = {each: at for each, at in kept.items() if each not in gone}
            ends = {each: at for each, at in ends.items() if each not in gone}
        else:
            now_ns = until_ns
            assert sorted(keep.let_go(now_ns)) == sorted(r for r in kept if kept[r] <= now_ns)
            assert sorted(keep.ended(now_ns)) == sorted(r for r in ends if ends[r] <= now_ns)
            kept = {each: at for each, at in kept.items() if at > now_ns}
            ends = {each: at for each, at in ends.items() if at > now_ns}
        keep.check()
        assert keep.rows() == {*kept, *ends}
        assert all(keep.holds(each) for each in kept)


def _is_below(row: int, top: int) -> bool:
    """Whether a row of a binary tree is another one or below it."""
    while row > top:
        row = (row + 1 >> 1) - 1
    return row == top


def test_all_of_a_prompt_ends_though_it_came_in_parts() -> None:
    """The beginning waits for the end of what was added to it later, and then goes too."""
    made = brain()
    offer(made, KEYS[: 2 * KEY_BYTES], Hints(ttl_s=5))
    late = Offered(
        2 * SECOND,
        1,
        "h",
        SPACE.digest,
        KEYS[KEY_BYTES : 2 * KEY_BYTES],
        KEYS[2 * KEY_BYTES : 4 * KEY_BYTES],
        2,
        Hints(ttl_s=5),
    )
    granted = pick(made.handle(late), Granted)
    finish(made, made.handle(Filled(2 * SECOND, 1, granted.lease, 2)), first=900)
    made.handle(Tick(6 * SECOND))
    assert in_dram(made, FOUR) == 4
    made.handle(Tick(8 * SECOND))
    assert made.snapshot()["levels"]["blocks"] == 0


@pytest.mark.parametrize(
    ("hints", "sane"),
    [
        (Hints(pin_s=SECONDS_MAX, ttl_s=0.1, priority=-1), True),
        (Hints(pin_s=-1), False),
        (Hints(ttl_s=float("nan")), False),
        (Hints(pin_s=float("inf")), False),
        (Hints(priority=1.5), False),
        (Hints(pause="tool"), True),
        (Hints(pause="tea"), False),
    ],
)
def test_what_can_be_meant(hints: Hints, sane: bool) -> None:
    """Times are bounded and not negative, and priorities lie around zero."""
    assert hints.is_sane is sane
