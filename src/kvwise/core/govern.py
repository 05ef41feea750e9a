"""Govern: how many bytes a tier may be written, and which are worth it. Pure; it writes nothing.

A drive wears by the byte, so a tier has a budget of bytes per day. Two things keep it. A token
bucket says *when*: what it lacks waits. A price says *which*: of what was offered during the last
day, only the best share that the budget can pay for is let through, so that the budget goes to the
most valuable blocks and not to the first that come.

The price needs no model of the workload. Offers are counted by worth, in seconds saved per byte,
and forgotten over a day (`offers`); the price is where the best of them fill the budget. While
writes run ahead, the bucket is low and less is let through; while they fall behind, more.

What is not spent is a reserve for better offers than those of now, so it is as large as they are
better: where nearly all is worth the same, nothing is gained by waiting. Two things wait all the
same. What is worth far less than most waits for a full bucket, however little is offered. And while
nothing has had to leave memory, a write serves no more than a restart, so only what a bucket has
above its reserve is spent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from kvwise.core.admit import Admit, Throttle, Verdict
from kvwise.core.balance import Balance
from kvwise.core.offers import CLASSES, Offer, Offers, Standing, class_floor, worth_class

DAY_S = 86_400
DAY_NS = DAY_S * 1_000_000_000
BURST_DAYS = 0.5
"""What the bucket holds: enough to save the quiet half of a day for the busy half. A drive wears
over years, so what counts is that nothing is ever written that was not earned before."""

DEBT_DAYS_MAX = 365
"""An object may be larger than the bucket and leaves a debt; a later life owes no more than so."""

FIRST_DAYS = 1 / 24
"""What a bucket without a past begins with."""

MEMORY_S = float(DAY_S)
FADE_SPANS = 2.0
"""A memory forgets within a day, and while it is young within so many times what it spans, so that
what was offered before much was known sets no price for the rest of the day."""

FADE_S_MIN = 60.0
"""But never faster than that."""

MEMORY_S_MIN = 3600.0
"""What was written in the first minutes is believed to have taken so long: a burst is no pace."""

OFFERS_S_MIN = 60.0
"""The same of what was offered, with an empty bucket: whoever takes the offers of the first hour
for few sets no price, and gives the budget to what comes first. A bucket that holds more than is
usual can pay for a burst, so its offers count as those of the time in which that was earned."""

YOUNG_S = 600.0
"""A memory shorter than this is taken to be as long, so that a young bucket saves at first: what is
offered then is not known yet, and what was saved is not lost."""

STEP_NS = 1_000_000_000
"""Prices are set and memories age in steps of this, at least."""

STEER = 2.0
"""A full or empty bucket lets e**(STEER / 2) times more or less through than the budget's rate. In
between is half of it. For a governor that remembers less than a day, full is what it could save in
that time: it would save at first what it may spend, or run dry long before the level told."""

EXCESS_FULL = 0.5
"""Where what passes is worth so much more than the price, on average and as a share of it, half of
what a bucket holds is its reserve, and of less as much less. That half is usual then."""

FULL = 0.98
"""What a bucket holds beyond so much of all that it can has no price, for it is lost otherwise."""

FLOOR = 0.5
"""Below so much of what offers are worth on average, nothing passes through an empty bucket."""

STAY_S_MAX = 30.0 * DAY_S
LIFE_YEARS_MAX = 1000.0
YEAR_DAYS = 365.25


def life_years(endurance_bytes: float, bytes_per_day: float, amplification: float) -> float:
    """Years until so many bytes are written at such a rate, at most `LIFE_YEARS_MAX`."""
    worn_per_year = bytes_per_day * amplification * YEAR_DAYS
    if worn_per_year * LIFE_YEARS_MAX <= endurance_bytes:
        return LIFE_YEARS_MAX
    return endurance_bytes / worn_per_year


def pace_per_day(balance: Balance) -> float:
    """Bytes written in a day, as a balance remembers the last one."""
    return balance.recent_bytes / max(balance.span_s, MEMORY_S_MIN) * DAY_S


@dataclass(slots=True)
class _Price:
    """Where the line is drawn: classes above `place` pass, and `share` of the bytes in it.

    Attributes:
        excess: by how much what passes is worth more than the price, on average; a share of it.
        set_ns: when it was drawn.
    """

    place: int = 0
    share: float = 1.0
    excess: float = EXCESS_FULL
    set_ns: int | None = None

    @property
    def price(self) -> float:
        """Seconds that a byte must save."""
        return class_floor(self.place)


@dataclass(slots=True)
class _Memory:
    """What was offered and written over the last day; older things count less.

    Attributes:
        span_s: seconds that it spans: the weights of all seconds past, summed.
    """

    offers: Offers
    span_s: float = 0.0
    written_bytes: float = 0.0

    def age(self, seconds: float) -> None:
        """Time passes."""
        fade_s = max(FADE_SPANS * self.span_s + seconds, FADE_S_MIN)
        memory_s = min(fade_s, MEMORY_S)
        keep = math.exp(-seconds / memory_s)
        self.span_s = self.span_s * keep + memory_s * (1 - keep)
        self.written_bytes *= keep
        self.offers.fade(keep)

    def per_s(self, size_bytes: float) -> float:
        """A rate, from what is remembered."""
        return size_bytes / max(self.span_s, MEMORY_S_MIN)


class Governor:
    """The budget of one tier, its price, and what was written.

    Attributes:
        per_day: bytes that may be written in a day; 0 is no limit.
        burst_bytes: most that the bucket holds.
        level_bytes: what it holds.
        written_bytes: ever, over all lives of the store that are known.
    """

    def __init__(
        self, per_day: int, *, is_priced: bool = True, standing: Standing | None = None
    ) -> None:
        """Nothing was written or offered yet; without a price, who comes first is served.

        Args:
            per_day: see above.
            is_priced: whether there is a price.
            standing: how often blocks of a kin are used beside all others, see `offers`.
        """
        self.per_day = per_day
        self._is_priced = is_priced
        self.burst_bytes = per_day * BURST_DAYS
        self.level_bytes = per_day * FIRST_DAYS
        self.written_bytes = 0
        self._price = _Price()
        self._memory = _Memory(Offers(standing))
        self._owed_bytes = 0.0
        self._here_bytes = 0
        self._first_ns: int | None = None
        self._now_ns = self._aged_ns = 0

    # --- memory across lives ---

    def restore(self, now_ns: int, balance: Balance, away_s: float = 0.0) -> None:
        """Go on from what an earlier life left some time ago."""
        self._first_ns = self._now_ns = self._aged_ns = now_ns
        away_s = min(max(0.0, away_s), STAY_S_MAX)
        earned = away_s * self.per_day / DAY_S
        debt_bytes = min(max(0.0, -balance.level_bytes), DEBT_DAYS_MAX * self.per_day)
        level_bytes = max(0.0, balance.level_bytes) - debt_bytes
        self.level_bytes = min(level_bytes + earned, self.burst_bytes)
        self.written_bytes = balance.written_bytes
        offered = [(place, size) for place, size in balance.offered_bytes if 0 <= place < CLASSES]
        memory = self._memory
        memory.offers.put_back(offered)
        memory.span_s, memory.written_bytes = balance.span_s, balance.recent_bytes
        memory.age(away_s)
        self._set_price(now_ns)

    def balance(self) -> Balance:
        """What a later life should know."""
        memory = self._memory
        offered = sorted(memory.offers.by_class().items())
        return Balance(
            level_bytes=self.level_bytes,
            written_bytes=self.written_bytes,
            recent_bytes=memory.written_bytes,
            span_s=memory.span_s,
            offered_bytes=tuple((place, size) for place, size in offered if size >= 1),
        )

    # --- verdicts ---

    def offer(self, now_ns: int, offer: Offer, *, is_early: bool = False) -> int:
        """How many of the offered objects may be written.

        At the price itself a share of what is offered passes, the first of each offer, since those
        that follow are of no use without them. What the bucket cannot pay for now is declined and
        may be offered again: a long chain that waited for the budget would hold up all others, and
        leave memory before its turn.

        Args:
            now_ns: the time.
            offer: see there.
            is_early: nothing has had to leave the tier above as yet.
        """
        size_bytes, count = offer.size_bytes, offer.count
        if not self.per_day:
            return count
        self.pass_time(now_ns)
        if not self._is_priced:
            return min(count, max(0, int(self.level_bytes / size_bytes)))
        brim_bytes = FULL * self.burst_bytes
        payable = self._payable(offer, min(self._full_bytes(), brim_bytes) if is_early else 0.0)
        place = self._memory.offers.add(offer)
        price = self._price
        if price.set_ns is None or now_ns - price.set_ns >= STEP_NS:
            self._set_price(now_ns)
        passed = count if place > price.place else 0
        if place == price.place:
            owed_bytes = min(self._owed_bytes + price.share * offer.total_bytes, self.burst_bytes)
            passed = min(count, int(owed_bytes / size_bytes))
            self._owed_bytes = owed_bytes - passed * size_bytes
        return min(max(passed, self._payable(offer, brim_bytes)), payable)

    def _payable(self, offer: Offer, kept_bytes: float) -> int:
        """How many of the offered objects can be paid for by a bucket that keeps so much.

        One that is larger than a bucket costs a full one.
        """
        most_bytes = self.burst_bytes - kept_bytes
        spare_bytes = self.level_bytes - kept_bytes
        return min(offer.count, max(0, int(spare_bytes / min(offer.size_bytes, most_bytes))))

    def payable(
        self, now_ns: int, wait_s: float, waiting_bytes: int, size_bytes: int
    ) -> int | None:
        """How many objects can be written within a time after those that wait; None is any number.

        What passes beyond that holds up others until memory gives it up unwritten.
        """
        if not self.per_day or not self._is_priced:
            return None
        self.pass_time(now_ns)
        left_bytes = self.level_bytes + self.per_day / DAY_S * wait_s - waiting_bytes
        return max(0, int(left_bytes / min(size_bytes, self.burst_bytes)))

    def ask(self, now_ns: int, size_bytes: int) -> Verdict:
        """Whether `size_bytes` may be written now; changes nothing but the passing of time."""
        self.pass_time(now_ns)
        if not self.per_day:
            return Admit()
        lacking = min(size_bytes, self.burst_bytes) - self.level_bytes
        if lacking > 0:
            return Throttle(int(lacking * DAY_NS / self.per_day) + 1)
        return Admit()

    def spend(self, size_bytes: int) -> None:
        """`size_bytes` are being written."""
        if self.per_day:
            self.level_bytes -= size_bytes

    def wrote(self, size_bytes: int) -> None:
        """`size_bytes` were written."""
        self.written_bytes += size_bytes
        self._here_bytes += size_bytes
        self._memory.written_bytes += size_bytes

    # --- time and price ---

    def pass_time(self, now_ns: int) -> None:
        """Bring everything that ages up to now."""
        if self._first_ns is None:
            self._first_ns = self._now_ns = self._aged_ns = now_ns
        since_ns = now_ns - self._now_ns
        if since_ns <= 0:
            return
        self._now_ns = now_ns
        earned = since_ns * self.per_day / DAY_NS
        self.level_bytes = min(self.burst_bytes, self.level_bytes + earned)
        if now_ns - self._aged_ns >= STEP_NS:
            self._memory.age((now_ns - self._aged_ns) / 1e9)
            self._aged_ns = now_ns

    def _full_bytes(self) -> float:
        """What a bucket that remembers less than a day holds when it is full."""
        return self.burst_bytes * max(self._memory.span_s, YOUNG_S) / MEMORY_S

    def _set_price(self, now_ns: int) -> None:
        """Draw the line where the best of what was offered fills what may be written."""
        price, memory = self._price, self._memory
        reserve = min(price.excess / EXCESS_FULL, 1.0)
        price.place, price.share, price.excess, price.set_ns = 0, 1.0, EXCESS_FULL, now_ns
        if not self.per_day:
            return
        full_bytes = self._full_bytes()
        usual_bytes = full_bytes / 2 * reserve
        beside = (self.level_bytes - usual_bytes) / full_bytes
        left = self.per_day / DAY_S * math.exp(STEER * min(max(beside, -0.5), 0.5))
        spare_s = (self.level_bytes - usual_bytes) / self.per_day * DAY_S
        span_s = max(memory.span_s, min(max(spare_s, OFFERS_S_MIN), MEMORY_S_MIN))
        offered = memory.offers.by_class()
        passing = worth = 0.0
        for place in sorted(offered, reverse=True):
            rate = offered[place] / span_s
            some = min(rate, left - passing)
            passing, worth = passing + some, worth + some * class_floor(place)
            if some < rate:
                price.place, price.share = place, some / rate
                break
        if price.price > 0:
            price.excess = worth / (passing * price.price) - 1
        self._keep_for_better(offered, 1 - self.level_bytes / full_bytes)

    def _keep_for_better(self, offered: Mapping[int, float], lack: float) -> None:
        """Let nothing pass that is worth far less than most, by how much the bucket lacks."""
        total_bytes = sum(offered.values())
        if lack <= 0 or not total_bytes:
            return
        mean = sum(size * class_floor(place) for place, size in offered.items()) / total_bytes
        least = worth_class(FLOOR * lack * mean)
        if self._price.place < least:
            self._price.place, self._price.share = least, 1.0

    @property
    def price(self) -> float:
        """Seconds that a written byte must save."""
        return self._price.price

    # --- what it comes to ---

    def recent_per_day(self) -> float:
        """Bytes written per day, as the last day went."""
        return self._memory.per_s(self._memory.written_bytes) * DAY_S

    def mean_per_day(self) -> float:
        """Bytes written per day since this life began."""
        here_s = (self._now_ns - (self._first_ns or 0)) / 1e9
        return self._here_bytes / max(here_s, MEMORY_S_MIN) * DAY_S

    def stay_ns(self, capacity_bytes: int) -> int:
        """How long a tier of this size keeps what is written to it, as the last day went."""
        rate = self._memory.per_s(self._memory.written_bytes)
        stay_s = STAY_S_MAX if rate * STAY_S_MAX <= capacity_bytes else capacity_bytes / rate
        return int(stay_s * 1e9)
