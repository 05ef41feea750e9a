"""The governor: a budget that holds over any day, and a price that spends it on what is best."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwise.core.admit import Admit, Throttle
from kvwise.core.balance import Balance
from kvwise.core.govern import (
    BURST_DAYS,
    DAY_NS,
    DAY_S,
    DEBT_DAYS_MAX,
    FIRST_DAYS,
    FULL,
    LIFE_YEARS_MAX,
    YEAR_DAYS,
    Governor,
    life_years,
)
from kvwise.core.hazards import Hazards
from kvwise.core.offers import Offer
from kvwise.core.outlook import Kind
from kvwise.sim.dice import Dice
from kvwise.units import NS_PER_S
from tests.core.months import BUDGET, CHANCES, DAYS, month

HOUR_NS = DAY_NS // 24
OBJECT = 1 << 19


def drive(governor: Governor, per_day: float, days: float, dice: Dice) -> tuple[float, float]:
    """Offer objects as a busy day would, write what passes; (written, their value) in all."""
    now_ns, written, kept = 0, 0, 0.0
    while now_ns < days * DAY_NS:
        swing = 1 + 0.8 * math.sin(2 * math.pi * now_ns / DAY_NS)
        now_ns += int(DAY_NS / (per_day * swing) * 2 * dice.unit()) + 1
        value_s = 10 ** (4 * dice.unit() - 4)
        if governor.offer(now_ns, Offer(value_s, OBJECT)) and isinstance(
            governor.ask(now_ns, OBJECT), Admit
        ):
            governor.spend(OBJECT)
            governor.wrote(OBJECT)
            written, kept = written + OBJECT, kept + value_s
    return written, kept


@pytest.mark.pain("G8")
def test_a_month_of_five_times_too_much() -> None:
    """The budget is kept and used to 2 %, for what returns: far more hits than by lot."""
    governed, drawn = month(), month(lottery=True)
    assert 0.98 < governed.written_bytes / (BUDGET * DAYS) < 1.0 + FIRST_DAYS / DAYS
    assert governed.worst_day_bytes <= BUDGET * (1 + BURST_DAYS)
    assert governed.asked_chunks == drawn.asked_chunks
    assert governed.hits > 2.2 * drawn.hits
    kept = [governed.hit_chunks[c] / governed.asked_chunks[c] for c in CHANCES[:4]]
    assert kept == sorted(kept, reverse=True)
    assert kept[0] > 0.9
    assert kept[3] < 0.1


def test_no_limit() -> None:
    """Zero bytes a day means no budget and no price at all."""
    governor = Governor(0)
    governor.spend(10**15)
    assert governor.ask(0, 10**12) == Admit()
    assert governor.offer(0, Offer(1e-12, 10**12, 3)) == 3
    assert governor.price == 0


@pytest.mark.pain("G8")
@given(
    st.integers(24_000, 10**9),
    st.lists(st.tuples(st.integers(0, DAY_NS // 50), st.integers(1, 10**8)), max_size=120),
)
def test_never_more_than_a_day_and_a_burst(per_day: int, asks: list[tuple[int, int]]) -> None:
    """Over any run, what was let through is at most rate times time, plus what was saved."""
    governor, now_ns, spent, largest = Governor(per_day), 0, 0, 0
    for wait_ns, size in asks:
        now_ns += wait_ns
        if isinstance(governor.ask(now_ns, size), Admit):
            governor.spend(size)
            spent += size
            largest = max(largest, size)
        assert spent <= per_day * (now_ns / DAY_NS + FIRST_DAYS) + largest + 1
        assert governor.level_bytes <= per_day * BURST_DAYS


def test_waiting_as_told_is_enough() -> None:
    """A throttled write is admitted after the wait it was given."""
    governor = Governor(24_000)
    assert isinstance(governor.ask(0, 500), Admit)
    governor.spend(1000)
    verdict = governor.ask(1, 500)
    assert isinstance(verdict, Throttle)
    assert governor.ask(1 + verdict.wait_ns, 500) == Admit()


def test_a_price_rises_with_offers_and_falls_without() -> None:
    """Under five times the budget there is a price; when nothing is offered it goes away."""
    governor = Governor(1000 * OBJECT)
    drive(governor, 5000, 2, Dice(1))
    busy = governor.price
    assert busy > 0
    for hour in range(48, 240):
        governor.pass_time(hour * HOUR_NS)
    governor.offer(240 * HOUR_NS, Offer(1.0, OBJECT))
    assert governor.price < busy


def test_a_young_bucket_that_runs_dry_raises_the_price() -> None:
    """After minutes as after days: who spent all that was earned takes only the best there is."""
    prices = []
    for is_spent in (True, False):
        governor = Governor(DAY_S * OBJECT)
        governor.restore(0, Balance())
        for second in range(1, 1200):
            for place in range(20):
                governor.offer(second * NS_PER_S, Offer(2.0 ** (place / 2), OBJECT))
            governor.spend(int(is_spent * governor.level_bytes))
        prices.append(governor.price)
    assert prices[0] > prices[1] > 0


def test_what_a_young_bucket_was_offered_is_soon_forgotten() -> None:
    """Ten minutes of many offers that are worth much set no price for the rest of the day."""
    governor, passed = Governor(DAY_S * OBJECT), 0
    governor.restore(0, Balance())
    for second in range(1, 12_000):
        is_early = second <= 600
        worth_s, count = (9.0, 100) if is_early else (1.0, 1)
        count = governor.offer(second * NS_PER_S, Offer(count * worth_s, OBJECT, count))
        governor.spend(count * OBJECT)
        passed += count * (second > 9_000)
    assert passed > 0.8 * 3000


@pytest.mark.parametrize("hours", [0.5, 3, 24, 72])
@pytest.mark.parametrize("left", [0.95, 0.7, 0.3])
def test_a_kin_that_was_worth_more_holds_up_nothing(hours: float, left: float) -> None:
    """It is learned that all that comes is used less: at the price of before nothing would pass."""
    told, kin = [1.0], ((Hazards(), Kind()),)
    governor = Governor(DAY_S * OBJECT, standing=lambda _: told[0])
    governor.restore(0, Balance())
    begun_s = hours * HOUR_NS / NS_PER_S
    highest, now_s = 0.0, 0.0
    while now_s < 2 * begun_s:
        now_s += begun_s / 5_000
        told[0] = 1.0 if now_s < begun_s else left
        count = round(30 * begun_s / 5_000)
        offer = Offer(told[0] * count, OBJECT, count, kin)
        count = governor.offer(round(now_s * NS_PER_S), offer)
        governor.spend(count * OBJECT)
        if now_s > 1.8 * begun_s:
            highest = max(highest, governor.level_bytes)
    assert highest < 0.5 * governor.burst_bytes * min(2 * begun_s / DAY_S, 1)


def test_what_runs_over_has_no_price() -> None:
    """It is lost otherwise, however much better what came before was; the rest is kept for that."""
    governor = Governor(DAY_S * OBJECT)
    governor.restore(0, Balance())
    for second in range(1, DAY_S, 10):
        governor.spend(governor.offer(second * NS_PER_S, Offer(400.0, OBJECT, 400)) * OBJECT)
    passed = []
    for second, part in ((0, 0.5), (1, 1.0)):
        governor.level_bytes = part * governor.burst_bytes
        offer = Offer(1.0, OBJECT, 10_000)
        passed.append(governor.offer((DAY_S + second) * NS_PER_S, offer))
    assert passed == [0, int((1 - FULL) * DAY_S / 2)]


def test_a_reserve_is_as_large_as_others_are_better() -> None:
    """Among equals a bucket is spent as it fills; where a few are worth far more it waits."""
    levels = []
    for best in (1.05, 20.0):
        governor, dice = Governor(DAY_S * OBJECT), Dice(1)
        governor.restore(0, Balance())
        sums = 0.0
        for second in range(1, 20_000):
            value_s = best if dice.chance(0.05) else 1.0
            count = governor.offer(second * NS_PER_S, Offer(value_s * 10, OBJECT, 10))
            governor.spend(count * OBJECT)
            sums += governor.level_bytes * (second > 10_000)
        levels.append(sums / 10_000 / (governor.burst_bytes * 20_000 / DAY_S))
    assert 4 * levels[0] < levels[1]


@pytest.mark.parametrize(("is_early", "passed"), [(True, 0), (False, 10)])
def test_what_serves_a_restart_only_is_paid_for_from_what_is_left(
    is_early: bool,
    passed: int,
) -> None:
    """While nothing has had to leave memory a young bucket saves; what it has beyond is spent."""
    governor = Governor(DAY_S * OBJECT)
    governor.restore(0, Balance())
    offer = Offer(10.0, OBJECT, 10)
    assert governor.offer(200 * NS_PER_S, offer, is_early=is_early) == passed
    assert governor.offer(400 * NS_PER_S, offer, is_early=is_early) == 10


@pytest.mark.parametrize("size", [OBJECT, 600 * OBJECT, 60_000 * OBJECT])
def test_what_serves_a_restart_only_is_written_in_the_end(size: int) -> None:
    """Days in which memory has room for all: what the bucket earns then is not lost."""
    governor, written = Governor(DAY_S * OBJECT), 0
    governor.restore(0, Balance())
    for minute in range(1, 4 * 1440):
        now_ns = minute * 60 * NS_PER_S
        count = governor.offer(now_ns, Offer(1.0, size), is_early=True)
        if count and isinstance(governor.ask(now_ns, size), Admit):
            governor.spend(size)
            written += size
    assert written > min(0.25 * 4 * governor.per_day, 0.9 * 4 * 1440 * size)
    assert written <= 4 * governor.per_day + size


def test_what_is_worth_far_less_waits_for_a_full_bucket() -> None:
    """While little is offered and all of it could be paid for, too; with a full one it passes."""
    governor, passed = Governor(DAY_S * OBJECT), [0, 0]
    governor.restore(0, Balance())
    for second in range(10, 4000, 10):
        for value_s in (1.0, 0.1):
            count = governor.offer(second * NS_PER_S, Offer(value_s, OBJECT))
            governor.spend(count * OBJECT * 8)
            passed[value_s < 1] += count
        if second == 300:
            assert passed == [30, 0]
    assert passed[0] == 399
    governor.level_bytes = governor.burst_bytes
    assert governor.offer(4001 * NS_PER_S, Offer(0.1, OBJECT)) == 1


@given(st.lists(st.floats(0.1, 4 * DAY_S), min_size=1, max_size=30))
def test_a_memory_spans_no_more_than_has_passed(steps_s: list[float]) -> None:
    """In steps of any length, a memory is at least a third as long as time has, or as a day."""
    governor, now_s = Governor(1000), 0.0
    governor.pass_time(0)
    for step_s in steps_s:
        now_s += step_s + 1
        governor.pass_time(round(now_s * NS_PER_S))
        most_s = min(now_s, DAY_S)
        assert most_s / 3 < governor.balance().span_s < most_s * (1 + 1e-9)


def test_equals_share_the_budget() -> None:
    """Where all is worth the same a share passes, and it is the first part of each offer."""
    governor, passed = Governor(1000 * OBJECT), 0
    parts = []
    for minute in range(3 * 1440):
        count = governor.offer(minute * HOUR_NS // 60, Offer(0.5, OBJECT, 8))
        if isinstance(governor.ask(minute * HOUR_NS // 60, count * OBJECT), Admit):
            governor.spend(count * OBJECT)
            passed += count
        parts.append(count)
    assert 0.9 * 3000 < passed <= 3 * 1000 + 1000 * FIRST_DAYS
    assert {0} < set(parts) <= set(range(9))


def test_a_balance_is_gone_on_from() -> None:
    """A governor that is told another's balance goes on as that one would have."""
    first = Governor(1000 * OBJECT)
    drive(first, 5000, 1, Dice(2))
    second = Governor(1000 * OBJECT)
    second.restore(0, first.balance())
    assert second.balance() == first.balance()
    first.offer(DAY_NS + HOUR_NS, Offer(1e-9, OBJECT))
    second.offer(HOUR_NS, Offer(1e-9, OBJECT))
    assert second.price == pytest.approx(first.price, rel=0.5)


def test_no_balance_overfills() -> None:
    """Whatever a balance says, the bucket holds its burst at most and owes a year's at most."""
    governor = Governor(24_000)
    governor.restore(0, Balance(level_bytes=1e18, offered_bytes=((10**9, 5.0), (-1, 5.0))))
    assert governor.level_bytes == governor.burst_bytes
    assert governor.balance().offered_bytes == ()
    governor.restore(0, Balance(level_bytes=-5.0))
    assert governor.level_bytes == -5.0
    governor.restore(0, Balance(level_bytes=-1e18))
    assert governor.level_bytes == -24_000 * DEBT_DAYS_MAX


def test_life_of_a_drive() -> None:
    """A drive of 1 TB rated for one write a day over five years lasts five years at 1 TB a day."""
    rated = 1e12 * 5 * YEAR_DAYS
    assert life_years(rated, 1e12, 1.0) == pytest.approx(5)
    assert life_years(rated, 1e12, 2.0) == pytest.approx(2.5)
    assert life_years(rated, 0.0, 1.0) == LIFE_YEARS_MAX


def test_no_more_waits_than_can_be_paid_for() -> None:
    """What passes is what the bucket holds and earns in time, less what waits; without one, all."""
    governor = Governor(24_000)
    assert governor.payable(0, 0.0, 0, 100) == 10
    assert governor.payable(0, 3600.0, 0, 100) == 20
    assert governor.payable(0, 3600.0, 1_500, 100) == 5
    assert governor.payable(0, 0.0, 5_000, 100) == 0
    assert Governor(0).payable(0, 0.0, 5_000, 100) is None
    assert Governor(24_000, is_priced=False).payable(0, 0.0, 5_000, 100) is None
