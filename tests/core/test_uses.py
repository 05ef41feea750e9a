"""Uses: how old they are, what they teach their class, and what is forgotten of them."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwise.core import uses as module
from kvwise.core.hazards import BUCKETS, EDGES, Hazards, bucket_of
from kvwise.core.uses import STAMP_MAX, Use, Uses, Way


class Heard(Hazards):
    """A class that remembers what it was told, by bucket."""

    def __init__(self) -> None:
        """Nothing yet."""
        super().__init__()
        self.waited: Counter[int] = Counter()
        self.share_waited = [0.0] * BUCKETS
        self.share_hit = [0.0] * BUCKETS

    def wait(self, bucket: int, share: float) -> None:
        """As it is, and written down."""
        super().wait(bucket, share)
        self.waited[bucket] += 1
        self.share_waited[bucket] += share

    def hit(self, bucket: int, share: float) -> None:
        """As it is, and written down."""
        super().hit(bucket, share)
        self.share_hit[bucket] += share


def use(hazards: Hazards | None = None, blocks: int = 4, **more: int) -> Use:
    """A use of new blocks in the first turn of a session."""
    way, first, turn = (more.get(name, 1 if name != "first" else 0) for name in NAMES)
    return Use(hazards or Hazards(), Way(way), blocks, first, turn)


NAMES = ("way", "first", "turn")
PAUSES_S = st.lists(st.floats(0.2, 5000.0), min_size=1, max_size=30)


@given(PAUSES_S)
def test_ages_are_times_since(pauses_s: list[float]) -> None:
    """Every use is as old as the time that went by since, and stamps are in order."""
    uses, began = Uses(), {}
    for pause_s in pauses_s:
        uses.pass_time(uses.now_s + pause_s)
        began[uses.begin(use())] = uses.now_s
    assert list(began) == sorted(began)
    for stamp, when_s in began.items():
        assert uses.is_known(stamp)
        assert uses.age_s(stamp) == uses.now_s - when_s


def test_time_does_not_go_back() -> None:
    """An event that comes late does not make a use younger than new."""
    uses = Uses()
    uses.pass_time(10.0)
    stamp = uses.begin(use())
    uses.pass_time(5.0)
    assert uses.age_s(stamp) == 0


@given(PAUSES_S)
def test_every_use_waits_once_in_each_bucket_it_comes_to(pauses_s: list[float]) -> None:
    """However far time jumps, a bucket is entered once by each use, or not at all."""
    uses, heard, began_s = Uses(), Heard(), list[float]()
    for pause_s in pauses_s:
        uses.begin(use(heard))
        began_s.append(uses.now_s)
        uses.pass_time(uses.now_s + pause_s)
    expected = Counter(
        bucket for begin_s in began_s for bucket in range(bucket_of(uses.now_s - begin_s) + 1)
    )
    assert heard.waited == expected
    uses.pass_time(uses.now_s)
    assert heard.waited == expected


@given(st.lists(st.tuples(st.integers(1, 5), st.booleans(), st.floats(0.2, 9.0)), max_size=30))
def test_shares_of_a_use_add_up_to_one(parts: list[tuple[int, bool, float]]) -> None:
    """Blocks used again, lost from sight and still waiting are all of a use and no more."""
    uses, heard, blocks = Uses(), Heard(), 40
    stamp, left, lost = uses.begin(use(heard, blocks)), blocks, 0
    for wanted, again, pause_s in parts:
        uses.pass_time(uses.now_s + pause_s)
        count = min(wanted, left)
        if again:
            uses.hit(stamp, count)
        else:
            for _ in range(count):
                uses.lose_sight(stamp)
            lost += count
        left -= count
    entered = bucket_of(uses.age_s(stamp))
    uses.pass_time(EDGES[entered] + 1)
    waiting = heard.share_waited[entered + 1]

    assert waiting == pytest.approx(left / blocks, abs=1e-9)
    assert sum(heard.share_hit) + lost / blocks + waiting == pytest.approx(1, abs=1e-9)


def test_more_used_than_there_was_counts_as_all() -> None:
    """A use that is hit twice, or by more blocks than it had, is used again once."""
    uses, heard = Uses(), Heard()
    stamp = uses.begin(use(heard, 4))
    uses.hit(stamp, 9)
    uses.hit(stamp, 4)
    uses.lose_sight(stamp)
    assert sum(heard.share_hit) == 1


def test_a_use_that_grows_has_smaller_shares() -> None:
    """Of four blocks that became eight, four are half."""
    uses, heard = Uses(), Heard()
    stamp = uses.begin(use(heard, 4))
    uses.grow(stamp, 4)
    uses.hit(stamp, 4)
    assert sum(heard.share_hit) == pytest.approx(0.5)


def test_a_hit_lies_in_the_bucket_of_its_age() -> None:
    """Fifty seconds after a use is fifty seconds after it, whatever else happened."""
    uses, heard = Uses(), Heard()
    stamp = uses.begin(use(heard))
    for _ in range(50):
        uses.pass_time(uses.now_s + 1)
        uses.begin(use())
    uses.hit(stamp, 4)
    assert heard.share_hit[bucket_of(50.0)] == sum(heard.share_hit) == 1


def test_old_uses_are_forgotten_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a ring of eight the ninth use takes the first one's place, and only that."""
    monkeypatch.setattr(module, "USES_MAX", 8)
    uses, classes, began = Uses(), [Heard() for _ in range(30)], list[int]()
    for hazards in classes:
        uses.pass_time(uses.now_s + 1)
        began.append(uses.begin(use(hazards)))
        known = [stamp for stamp in began if uses.is_known(stamp)]
        assert known == began[-8:]
        assert [uses.hazards(stamp) for stamp in known] == classes[: len(began)][-8:]
    uses.pass_time(uses.now_s + 100)
    old, new = began[0], began[-8]
    assert uses.hazards(old) is None
    assert uses.age_s(old) >= uses.age_s(new)
    for stamp in (old, 0, uses.last + 1):
        uses.hit(stamp, 4)
        uses.lose_sight(stamp)
        uses.grow(stamp, 4)
        assert uses.next_turn(stamp, 4) == 1
    assert all(sum(hazards.share_hit) == 0 for hazards in classes)
    assert [bucket_of(100.0) in hazards.waited for hazards in classes] == [False] * 22 + [True] * 8


def test_skipped_stamps_are_older_than_what_comes() -> None:
    """Of stamps that were skipped nothing is known but that they are older."""
    uses = Uses()
    uses.pass_time(100.0)
    first = uses.skip(5)
    uses.pass_time(130.0)
    stamp = uses.begin(use())
    assert stamp == first + 5
    assert not any(uses.is_known(skipped) for skipped in range(first, stamp))
    assert {uses.age_s(skipped) for skipped in range(first, stamp)} == {30.0}
    assert uses.is_known(stamp)


def test_halving_makes_room_and_keeps_the_order() -> None:
    """After the clock is set back, new stamps are above all halved ones, which are forgotten."""
    uses, heard = Uses(), Heard()
    uses.skip(STAMP_MAX - 3)
    old = [uses.begin(use(heard)) for _ in range(3)]
    was_full = uses.is_full
    uses.pass_time(7.0)
    uses.halve()
    assert (was_full, uses.is_full) == (True, False)
    halved = [stamp // 2 for stamp in old]
    assert not any(uses.is_known(stamp) for stamp in halved)
    new = uses.begin(use())
    assert new > max(halved)
    uses.pass_time(9.0)
    assert uses.age_s(new) == uses.age_s(halved[0]) == 2.0
    assert sum(heard.share_hit) == 0
    assert set(heard.waited) == {0} | set(range(1, bucket_of(7.0) + 1))


def test_the_next_turn_has_most_of_what_was_new() -> None:
    """Half of the new blocks are enough, less is only a common beginning; SEEN is no new turn."""
    uses = Uses()
    new = uses.begin(use(blocks=10, first=20, turn=3))
    assert uses.next_turn(new, 25) == 4
    assert uses.next_turn(new, 24) == 1
    seen = uses.begin(use(blocks=20, way=Way.SEEN, turn=3))
    assert uses.next_turn(seen, 20) == 3
    generated = uses.begin(use(blocks=5, way=Way.GENERATED, first=30, turn=3))
    assert uses.next_turn(generated, 35) == 4
