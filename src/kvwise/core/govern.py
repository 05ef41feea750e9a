"""Govern: how many bytes a tier may be written, and which are worth it. Pure; it writes nothing.

A drive wears by the byte, so a tier has a budget of bytes per day. Two things keep it. A token
bucket says *when*: what it lacks waits. A price says *which*: of what was offered during the last
day, only the best share that the budget can pay for is let through, so that the budget goes to the
most valuable blocks and not to the first that come.

The price needs no model of the workload. Offers are counted by worth, in seconds saved per byte,
and forgotten over a day; the price is where the best of them fill the budget. While writes run
ahead, the bucket is low and less is let through; while they fall behind, more. Where nearly all is
worth the same, a worth that was learned to be a little less lies below the price as a whole, and
nothing would pass for hours; so while the bucket is nearly full, and less passes than should, the
price eases a little.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from kvwise.core.admit import Admit, Throttle, Verdict
from kvwise.core.balance import Balance

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

NEARLY_FULL = 0.25
"""From so far above its usual level on, in parts of what it holds, a bucket is nearly full."""

EASE_SPANS, EASE_MAX = 0.25, 5.0
"""A nearly full bucket through which nothing passes lets e times more through for each such part of
what is remembered, and at most e**EASE_MAX times."""

EASE_CLASSES = 1
"""But nothing worse by more classes than this, of 6 to 12 % each: so far learned worth wanders.
What is worth far less than what was offered before is no reason to give up waiting for that."""

EASE_STEP_MAX = 0.25
"""But one pause between offers says no more than this, for nothing could pass in it."""

STAY_S_MAX = 30.0 * DAY_S
LIFE_YEARS_MAX = 1000.0
YEAR_DAYS = 365.25
_STEPS = 8
_EXPONENT_MIN, _EXPONENT_MAX = -56, 8
_CLASSES = (_EXPONENT_MAX - _EXPONENT_MIN) * _STEPS


def worth_class(worth: float) -> int:
    """The class of a worth in seconds per byte: eight to each doubling, the lowest is 0."""
    if worth <= 0:
        return 0
    fraction, exponent = math.frexp(worth)
    place = (exponent - _EXPONENT_MIN) * _STEPS + int((2 * fraction - 1) * _STEPS)
    return min(max(place, 0), _CLASSES - 1)


def class_floor(place: int) -> float:
    """The least worth in a class; 0 for the lowest."""
    if place <= 0:
        return 0.0
    octave, step = divmod(place, _STEPS)
    return math.ldexp((1 + step / _STEPS) / 2, octave + _EXPONENT_MIN)


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
        set_ns: when it was drawn.
        ease: logarithm of how many times more is let through than what was offered tells.
        passed_bytes: what passed since it was drawn.
    """

    place: int = 0
    share: float = 1.0
    set_ns: int | None = None
    ease: float = 0.0
    passed_bytes: int = 0


@dataclass(slots=True)
class _Memory:
    """What was offered, by class, and written, over the last day; older things count less.

    Attributes:
        span_s: seconds that it spans: the weights of all seconds past, summed.
    """

    span_s: float = 0.0
    written_bytes: float = 0.0
    offered_bytes: dict[int, float] = field(default_factory=dict)

    def age(self, seconds: float) -> None:
        """Time passes."""
        fade_s = max(FADE_SPANS * self.span_s + seconds, FADE_S_MIN)
        memory_s = min(fade_s, MEMORY_S)
        keep = math.exp(-seconds / memory_s)
        self.span_s = self.span_s * keep + memory_s * (1 - keep)
        self.written_bytes *= keep
        for place in self.offered_bytes:
            self.offered_bytes[place] *= keep

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

    def __init__(self, per_day: int, *, is_priced: bool = True) -> None:
        """Nothing was written or offered yet; without a price, who comes first is served."""
        self.per_day = per_day
        self._is_priced = is_priced
        self.burst_bytes = per_day * BURST_DAYS
        self.level_bytes = per_day * FIRST_DAYS
        self.written_bytes = 0
        self._price = _Price()
        self._memory = _Memory()
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
        offered = {place: size for place, size in balance.offered_bytes if 0 <= place < _CLASSES}
        self._memory = _Memory(balance.span_s, balance.recent_bytes, offered)
        self._memory.age(away_s)
        self._set_price(now_ns)

    def balance(self) -> Balance:
        """What a later life should know."""
        memory = self._memory
        offered = sorted(memory.offered_bytes.items())
        return Balance(
            level_bytes=self.level_bytes,
            written_bytes=self.written_bytes,
            recent_bytes=memory.written_bytes,
            span_s=memory.span_s,
            offered_bytes=tuple((place, size) for place, size in offered if size >= 1),
        )

    # --- verdicts ---

    def offer(self, now_ns: int, value_s: float, size_bytes: int, count: int = 1) -> int:
        """How many of `count` objects may be written that together save `value_s` seconds.

        Each has `size_bytes`. At the price itself a share of what is offered passes, the first of
        each offer, since those that follow are of no use without them. What the bucket cannot pay
        for now is declined and may be offered again: a long chain that waited for the budget would
        hold up all others, and leave memory before its turn.
        """
        if not self.per_day:
            return count
        self.pass_time(now_ns)
        if not self._is_priced:
            return min(count, max(0, int(self.level_bytes / size_bytes)))
        total_bytes = size_bytes * count
        payable = min(count, max(0, int(self.level_bytes / min(size_bytes, self.burst_bytes))))
        place, offered = worth_class(value_s / total_bytes), self._memory.offered_bytes
        offered[place] = offered.get(place, 0.0) + total_bytes
        price = self._price
        if price.set_ns is None or now_ns - price.set_ns >= STEP_NS:
            self._set_price(now_ns)
        passed = count if place > price.place else 0
        if place == price.place:
            owed_bytes = min(self._owed_bytes + price.share * total_bytes, self.burst_bytes)
            passed = min(count, int(owed_bytes / size_bytes))
            self._owed_bytes = owed_bytes - passed * size_bytes
        price.passed_bytes += passed * size_bytes
        return min(passed, payable)

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

    def _set_price(self, now_ns: int) -> None:
        """Draw the line where the best of what was offered fills what may be written."""
        price, memory, was_bound = self._price, self._memory, self._price.place > 0
        price.place, price.share = 0, 1.0
        if not self.per_day:
            return
        full_bytes = self.burst_bytes * max(memory.span_s, YOUNG_S) / MEMORY_S
        usual_bytes = full_bytes / 2
        beside = (self.level_bytes - usual_bytes) / full_bytes
        left = self.per_day / DAY_S * math.exp(STEER * min(max(beside, -0.5), 0.5))
        self._ease(now_ns, left, is_stuck=was_bound and beside > NEARLY_FULL)
        eased, least = left * math.exp(price.ease), 0
        spare_s = (self.level_bytes - usual_bytes) / self.per_day * DAY_S
        span_s = max(memory.span_s, min(max(spare_s, OFFERS_S_MIN), MEMORY_S_MIN))
        for place in sorted(memory.offered_bytes, reverse=True):
            rate = memory.offered_bytes[place] / span_s
            if not least and rate > left:
                least = place - EASE_CLASSES
            if least and place < least:
                break
            if rate > eased:
                price.place, price.share = place, eased / rate
                return
            left, eased = left - rate, eased - rate
        if least:
            price.place, price.share = least - 1, 0.0

    def _ease(self, now_ns: int, due_per_s: float, *, is_stuck: bool) -> None:
        """Hold what passed since the line was drawn against what should have."""
        price = self._price
        since_ns = now_ns - price.set_ns if price.set_ns is not None else 0
        missed_bytes = due_per_s * since_ns / 1e9 - price.passed_bytes
        if is_stuck or missed_bytes < 0:
            spans_s = EASE_SPANS * max(self._memory.span_s, YOUNG_S)
            step = min(missed_bytes / (self.per_day / DAY_S * spans_s), EASE_STEP_MAX)
            price.ease = min(max(price.ease + step, 0.0), EASE_MAX)
        price.set_ns, price.passed_bytes = now_ns, 0

    @property
    def price(self) -> float:
        """Seconds that a written byte must save."""
        return class_floor(self._price.place)

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
