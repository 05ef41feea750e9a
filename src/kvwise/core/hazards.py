"""Hazards: how likely blocks of a class are to be used again, by the time since their last use.

Time since the last use falls into buckets whose borders are a factor of sqrt(2) apart. Of what
enters a bucket unused, the share that is used within it is the bucket's hazard (Kaplan and Meier,
1958), so what is still waiting counts as waiting and not as lost. Classes are few, some rare, so
each starts from what is known of the larger class around it: the hazards there, times how much
more or less often this class was used than they would have it. Everything is forgotten by halves.

From hazards follow the chance of a use within a time, and the density by which blocks are ranked:
uses to expect for each second a block is kept, over the horizon at which that is best (Beckmann,
Chen and Cidon, LHD, 2018, with time for age and classes of requests for applications).
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise

BUCKETS = 40
FIRST_S = 0.5
EDGES = tuple(FIRST_S * 2 ** (place / 2) for place in range(BUCKETS - 1))
"""Where each bucket but the last one ends, in seconds: from half a second to three days."""

BORDERS = (0.0, *EDGES, 2 * EDGES[-1])
WIDTHS = tuple(end - begin for begin, end in pairwise(BORDERS))

_GUESS = 1 - 0.7 ** (2 / BUCKETS)
"""A hazard before anything is known: half of everything is used again some time."""

_GUESSES = [_GUESS] * BUCKETS

_PRIOR = 10.0
"""How many uses the hazards of the class around a class are worth."""

_DOUBT = 0.5
"""Uses by which a class is taken to be like the one around it, before it has shown otherwise."""

_FACTOR_MAX = 20.0
_USUAL_S = 600.0
"""Mean time between uses before anything is known."""

_HAZARD_MAX = 0.999
_HALF_LIFE_USES = 8192
"""After so many uses, of all classes, what was learned before counts half."""


def kept(uses: int) -> float:
    """What is left of a count after so many uses of all classes."""
    left: float = 0.5 ** (uses / _HALF_LIFE_USES)
    return left


def bucket_of(age_s: float) -> int:
    """The bucket of a time since the last use, in seconds."""
    return bisect_right(EDGES, age_s)


class _Counts:
    """What a class was known from when it learned last; what follows is worked out when asked."""

    __slots__ = ("_around", "_hazards", "_hits", "_prior", "_risks")

    def __init__(
        self, hits: list[float], risks: list[float], around: _Counts | None, prior: float
    ) -> None:
        """Hits and risks by bucket, and those of the class around it, if any, at that time."""
        self._hits, self._risks, self._around, self._prior = hits, risks, around, prior
        self._hazards: list[float] | None = None

    def hazards(self) -> list[float]:
        """By bucket; those of the class around it, times how much more often it was hit."""
        if self._hazards is not None:
            return self._hazards
        hits, risks = self._hits, self._risks
        around = self._around.hazards() if self._around is not None else _GUESSES
        expected = sum([risk * hazard for risk, hazard in zip(risks, around, strict=True)])
        times = (sum(hits) + _DOUBT * self._prior) / (expected + _DOUBT)
        weight = _PRIOR * min(times, _FACTOR_MAX)
        self._hazards = found = [
            (hit + weight * hazard) / (risk + _PRIOR)
            for hit, risk, hazard in zip(hits, risks, around, strict=True)
        ]
        if max(found) > _HAZARD_MAX:
            self._hazards = found = [min(hazard, _HAZARD_MAX) for hazard in found]
        self._around = None
        return found

    def rate(self) -> float:
        """Uses a second, were times between uses exponential."""
        waited_s = sum([risk * width for risk, width in zip(self._risks, WIDTHS, strict=True)])
        return (sum(self._hits) + 1) / (waited_s + _USUAL_S)


class Hazards:
    """What is known of one class.

    Attributes:
        number: tells it from other classes.
        counts: what it learned from last; None before that.
        risks: what came into each bucket, of it and of the classes around it.
    """

    def __init__(self, number: int = 0, around: Hazards | None = None, prior: float = 1.0) -> None:
        """Nothing is known beyond what is of the class around it, if any.

        Args:
            number: see above.
            around: the class around it.
            prior: how much more often than the class around it this one is taken to be used,
                before it has shown otherwise.
        """
        self.number = number
        self._prior = prior
        self._around = around
        self._hits = [0.0] * BUCKETS
        self._risks = [0.0] * BUCKETS
        self.risks: tuple[list[float], ...] = (self._risks, *(around.risks if around else ()))
        self._learned = 0
        self.counts: _Counts | None = around.counts if around else None
        if prior != 1:
            self.counts = _Counts([*self._hits], [*self._risks], self.counts, prior)
        self._rate: float | None = around.rate if around else 1 / _USUAL_S
        self._density: list[float] = []
        self._within: list[float] = []

    def wait(self, bucket: int, share: float) -> None:
        """A share of a use came into a bucket, not used again as yet."""
        for risks in self.risks:
            risks[bucket] += share

    def hit(self, bucket: int, share: float) -> None:
        """A share of a use was used again within a bucket."""
        self._hits[bucket] += share
        if self._around is not None:
            self._around.hit(bucket, share)

    @property
    def seen(self) -> float:
        """How many uses this is known from; old ones count less."""
        return self._risks[0]

    def learn(self, uses: int) -> None:
        """Take in what was counted; `uses` is how many there were ever, of all classes."""
        fade = kept(uses - self._learned)
        self._learned = uses
        hits = [fade * share for share in self._hits]
        risks = [fade * share for share in self._risks]
        self._hits[:], self._risks[:] = hits, risks
        around = self._around.counts if self._around else None
        self.counts = _Counts(hits, risks, around, self._prior)
        self._rate = None
        self._density = self._within = []

    @property
    def hazard(self) -> list[float]:
        """Share of what came into each bucket that is used within it."""
        return self.counts.hazards() if self.counts is not None else _GUESSES

    @property
    def rate(self) -> float:
        """Uses a second, were times between uses exponential."""
        if self._rate is None and self.counts is not None:
            self._rate = self.counts.rate()
        return self._rate or 0.0

    @property
    def density(self) -> list[float]:
        """Uses to expect for each second kept, by bucket."""
        if not self._density:
            self._derive()
        return self._density

    @property
    def within(self) -> list[float]:
        """Chance of a use before the end of each bucket, from the last use on."""
        if not self._within:
            self._derive()
        return self._within

    def _derive(self) -> None:
        """Densities from hazards: for each bucket the steepest mean slope from there on.

        Walking back, neighbours are merged while what lies ahead is denser than what is merged so
        far, which finds the best horizon of every bucket in one pass.
        """
        left, gains, stays = 1.0, list[float](), list[float]()
        within = self._within = []
        for hazard, width in zip(self.hazard, WIDTHS, strict=True):
            gains.append(left * hazard)
            stays.append(left * width * (1 - hazard / 2))
            left *= 1 - hazard
            within.append(1 - left)
        density = [0.0] * BUCKETS
        merged: list[tuple[float, float]] = []
        for bucket in range(BUCKETS - 1, -1, -1):
            gain, stay = gains[bucket], stays[bucket]
            while merged and merged[-1][0] * stay > gain * merged[-1][1]:
                more, longer = merged.pop()
                gain, stay = gain + more, stay + longer
            merged.append((gain, stay))
            density[bucket] = gain / stay if stay > 0 else 0.0
        self._density = density

    def chance(self, age_s: float, horizon_s: float) -> float:
        """Probability of a use within a horizon, not having been used for a time; in seconds."""
        before = self._until(age_s)
        left = 1 - before
        return (self._until(age_s + horizon_s) - before) / left if left > 0 else 0.0

    def _until(self, age_s: float) -> float:
        """Chance that a use comes before a time since the last one."""
        bucket = bisect_right(EDGES, age_s)
        begin = self.within[bucket - 1] if bucket else 0.0
        part = min(1.0, (age_s - BORDERS[bucket]) / WIDTHS[bucket])
        return begin + part * (self.within[bucket] - begin)
