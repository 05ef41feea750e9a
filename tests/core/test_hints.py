"""Hints of callers: what they keep, what they end, and that they starve nobody."""

from __future__ import annotations

import pytest

from kvwise.core.brain import Brain
from kvwise.core.hints import SECONDS_MAX, Hints
from kvwise.core.keep import GROUPS_MAX, Keep
from kvwise.core.keys import KEY_BYTES, ROOT
from kvwise.core.shelf import State
from kvwise.core.words import Asked, Cleared, Drop, Filled, Granted, Offered, Planned, Tick, Why
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


def test_requests_with_hints_are_bounded() -> None:
    """So many requests may keep something at once, and no more."""
    keep = Keep(1 << 40)
    for number in range(GROUPS_MAX + 5):
        keep.hold([number], 1, 10 + number)
    assert keep.refused == 5
    assert keep.let_go(9 + GROUPS_MAX) == list(range(GROUPS_MAX))
    assert keep.kept_bytes == 0


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
