"""Hazards against plain counting, densities against every horizon, and chances as probabilities."""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from math import isnan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwise.core.hazards import BORDERS, BUCKETS, EDGES, WIDTHS, Hazards, bucket_of

MANY = 1e7
"""Every history counts so often that what is believed beforehand does not matter."""

AGES = st.floats(0, 1e6)
HISTORIES = st.lists(st.tuples(AGES, st.booleans()), min_size=1, max_size=30)
SHARES = st.one_of(
    st.floats(0, 1), st.sampled_from((0.0, 5e-324, 2.0**-1022, 1e-300, 1e6, 1e300, 1.0))
)
COUNTS = st.lists(
    st.tuples(st.integers(0, BUCKETS - 1), SHARES, st.booleans()),
    max_size=60,
)
SECONDS = st.one_of(
    st.floats(0, 1e7), st.sampled_from((0.0, 5e-324, 1e308, float("inf"), *EDGES[::7]))
)


def counted(counts: list[tuple[int, float, bool]], around: Hazards | None = None) -> Hazards:
    """A class that was told of shares that waited or were used, by bucket."""
    made = Hazards(1, around)
    for bucket, share, used in counts:
        made.wait(bucket, share)
        if used:
            made.hit(bucket, share)
    made.learn(0)
    return made


def lived(histories: list[tuple[float, bool]], share: float) -> Hazards:
    """A class that was told of uses as they went through the buckets to their end."""
    made = Hazards()
    for age_s, used in histories:
        for bucket in range(bucket_of(age_s) + 1):
            made.wait(bucket, share)
        if used:
            made.hit(bucket_of(age_s), share)
    made.learn(0)
    return made


def survival(histories: list[tuple[float, bool]], bucket: int) -> float:
    """By Kaplan and Meier: the part that is not used before the end of a bucket."""
    left = 1.0
    for place in range(bucket + 1):
        begin = BORDERS[place]
        waiting = sum(age_s >= begin for age_s, _ in histories)
        used = sum(bucket_of(age_s) == place for age_s, was_used in histories if was_used)
        left *= 1 - min(used / waiting, 0.999) if waiting else float("nan")
    return left


def test_buckets_tile_the_time() -> None:
    """Borders grow by sqrt(2), each bucket begins where the one before it ends."""
    assert len(WIDTHS) == BUCKETS == len(EDGES) + 1
    for below, above in pairwise(EDGES):
        assert above / below == pytest.approx(2**0.5)
    for bucket, (begin, end) in enumerate(pairwise(BORDERS)):
        assert bucket_of(begin) == bucket
        assert bucket_of((begin + end) / 2) == bucket
    assert bucket_of(1e12) == BUCKETS - 1


@given(HISTORIES)
def test_hazards_are_those_of_kaplan_and_meier(histories: list[tuple[float, bool]]) -> None:
    """With enough of them, what is learned of random histories is plain counting."""
    learned = lived(histories, MANY)
    for bucket in range(BUCKETS):
        counted_left = survival(histories, bucket)
        if isnan(counted_left):  # nobody lived so long
            break
        assert 1 - learned.within[bucket] == pytest.approx(counted_left, rel=1e-2, abs=1e-4)


def test_few_histories_are_not_believed_at_once() -> None:
    """One use that came back says less than a hundred that did."""
    before, one, many = Hazards(), lived([(5.0, True)], 1.0), lived([(5.0, True)], 100.0)
    bucket = bucket_of(5.0)
    assert before.hazard[bucket] < one.hazard[bucket] < many.hazard[bucket]
    assert many.hazard[bucket] > 0.9
    assert one.hazard[bucket] < 0.5


@given(COUNTS)
def test_density_is_the_best_over_all_horizons(counts: list[tuple[int, float, bool]]) -> None:
    """From every bucket on, no horizon has more uses for each second kept."""
    made = counted(counts)
    for first in range(BUCKETS):
        left, gain, stay_s, best = 1.0, 0.0, 0.0, 0.0
        for bucket in range(first, BUCKETS):
            hazard = made.hazard[bucket]
            gain += left * hazard
            stay_s += left * WIDTHS[bucket] * (1 - hazard / 2)
            left *= 1 - hazard
            best = max(best, gain / stay_s)
        assert made.density[first] == pytest.approx(best, rel=1e-6)


@given(COUNTS, SECONDS, SECONDS, SECONDS)
def test_chances_are_probabilities(
    counts: list[tuple[int, float, bool]], age_s: float, one_s: float, other_s: float
) -> None:
    """Whatever was counted, a chance lies within 0 and 1 and grows with the horizon."""
    made = counted(counts, Hazards())
    near, far = sorted((one_s, other_s))
    left = 1 - made.within[bisect_right(EDGES, age_s)]
    rounding = 1e-15 / left if left else 1.0

    assert 0 <= made.chance(age_s, near) <= 1
    assert made.chance(age_s, near) <= made.chance(age_s, far) + rounding
    assert made.chance(age_s, 0.0) == 0
    assert all(0 <= hazard < 1 for hazard in made.hazard)


@given(
    st.lists(st.tuples(st.integers(0, BUCKETS - 1), st.floats(0, 1)), max_size=60),
    st.floats(0, 1e5),
    st.floats(0, 1e5),
    st.floats(0, 1e5),
)
def test_not_used_by_then_is_not_used_in_either_part(
    waits: list[tuple[int, float]], age_s: float, first_s: float, second_s: float
) -> None:
    """The product rule: to stay unused for both spans is to stay unused for one, then the other."""
    made = counted([(bucket, share, share > 0.7) for bucket, share in waits])
    whole = 1 - made.chance(age_s, first_s + second_s)
    parts = (1 - made.chance(age_s, first_s)) * (1 - made.chance(age_s + first_s, second_s))
    assert whole == pytest.approx(parts, rel=1e-6, abs=1e-6)


def test_what_was_learned_is_forgotten_by_halves() -> None:
    """After 8192 uses what was counted counts half; after many times that, next to nothing."""
    made = lived([(5.0, True)] * 64, 1.0)
    assert made.seen == 64
    made.learn(8192)
    assert made.seen == pytest.approx(32)
    made.learn(8192 * 80)
    assert made.seen == pytest.approx(0)
    assert made.hazard == pytest.approx(Hazards().hazard)


@given(COUNTS)
def test_a_class_starts_from_its_surroundings(counts: list[tuple[int, float, bool]]) -> None:
    """Before anything is known of it, a class is like the larger one around it."""
    around = counted(counts)
    inner = Hazards(2, around)
    assert inner.hazard == around.hazard
    assert inner.within == around.within
    assert inner.density == around.density


def test_surroundings_learn_from_every_class_within() -> None:
    """What two classes saw is what the class around them saw."""
    around = Hazards()
    first, second = Hazards(1, around), Hazards(2, around)
    for one, bucket in ((first, 3), (second, 8)):
        one.wait(bucket, 1000.0)
        one.hit(bucket, 500.0)
    around.learn(0)
    assert around.hazard[3] == pytest.approx(0.5, abs=0.05)
    assert around.hazard[8] == pytest.approx(0.5, abs=0.05)


def test_a_class_that_is_used_more_often_is_expected_to_be_everywhere() -> None:
    """Where a class has seen nothing yet it takes the shape around it, times its own level."""
    around = Hazards()
    often, never = Hazards(1, around), Hazards(2, around)
    for one, used in ((often, 20.0), (never, 0.0)):
        one.wait(0, 40.0)
        one.hit(0, used)
        one.learn(0)
    elsewhere = 20
    assert never.hazard[elsewhere] < around.hazard[elsewhere] < often.hazard[elsewhere]


def test_the_rate_is_uses_over_time_waited() -> None:
    """With enough of them, times between uses of four seconds make a quarter of a use a second."""
    made = Hazards()
    bucket = bucket_of(4.0)
    for place in range(bucket + 1):
        made.wait(place, MANY)
    made.hit(bucket, MANY)
    made.learn(0)
    assert made.rate == pytest.approx(1 / BORDERS[bucket + 1], rel=1e-3)
