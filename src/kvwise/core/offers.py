"""Offers: what a tier was offered over the last day, by what it is worth. It decides nothing.

Offers are counted by class of worth, and forgotten. Most of them have a kin, which is what their
worth was worked out from: blocks that are used alike, by requests that are alike. How often those
are used again is learned while their offers are remembered, and what comes next is worth what is
known then. So a kin that was taken to be used more often, beside all others, than it is now, counts
for as much less: at the worth of before no more of it will come. Beside all others, for in a quiet
hour, when memory serves nearly all, everything is worth less, and when it is over what is offered
is worth as much as before. A kin that is taken to be used more often than it was counts for what it
was: what was declined then comes again, at the new worth, and is counted there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from kvwise.core.hazards import Hazards
from kvwise.core.outlook import Kind

_STEPS = 8
_EXPONENT_MIN, _EXPONENT_MAX = -56, 8
CLASSES = (_EXPONENT_MAX - _EXPONENT_MIN) * _STEPS
"""Of worth: seconds that a written byte saves."""

KINS_MAX = 512
"""Kins that are remembered; beyond that the half with the fewest bytes count for what they were."""

Kin = tuple[tuple[Hazards, Kind], ...]
"""What the worth of an offer follows from: how its blocks were used, by what requests."""

_Then = tuple[int, int]
"""The class that blocks were offered in, and that of their kin's standing then."""

Standing = Callable[[Kin], float]
"""How often blocks of a kin are expected to be used, over how often all blocks are."""


def worth_class(worth: float) -> int:
    """The class of a worth in seconds per byte: eight to each doubling, the lowest is 0."""
    if worth <= 0:
        return 0
    fraction, exponent = math.frexp(worth)
    place = (exponent - _EXPONENT_MIN) * _STEPS + int((2 * fraction - 1) * _STEPS)
    return min(max(place, 0), CLASSES - 1)


def class_floor(place: int) -> float:
    """The least worth in a class; 0 for the lowest."""
    if place <= 0:
        return 0.0
    octave, step = divmod(place, _STEPS)
    return math.ldexp((1 + step / _STEPS) / 2, octave + _EXPONENT_MIN)


@dataclass(frozen=True, slots=True)
class Offer:
    """Objects that may be written together.

    Attributes:
        value_s: seconds that they save, all of them.
        size_bytes: of each.
        count: how many.
        kin: theirs, if they have one.
    """

    value_s: float
    size_bytes: int
    count: int = 1
    kin: Kin | None = None

    @property
    def total_bytes(self) -> int:
        """Of all of them."""
        return self.size_bytes * self.count


class Offers:
    """Bytes that were offered, by kin and class; older ones count less."""

    def __init__(self, standing: Standing | None = None) -> None:
        """None yet; without `standing` they are worth what they were."""
        self._standing = standing
        self._bytes: dict[Kin | None, dict[_Then, float]] = {None: {}}

    def add(self, offer: Offer) -> int:
        """Objects are offered; their class."""
        place, height = worth_class(offer.value_s / offer.total_bytes), self._height(offer.kin)
        found = self._bytes.setdefault(offer.kin if height is not None else None, {})
        then = place, height or 0
        found[then] = found.get(then, 0.0) + offer.total_bytes
        if len(self._bytes) > KINS_MAX:
            self._let_go()
        return place

    def put_back(self, by_class: Iterable[tuple[int, float]]) -> None:
        """What an earlier life left, instead of all that is here."""
        self._bytes = {None: {(place, 0): size for place, size in by_class}}

    def fade(self, keep: float) -> None:
        """All counts for so much of what it did; what comes to no byte is forgotten."""
        for kin, found in self._bytes.items():
            self._bytes[kin] = {then: keep * size for then, size in found.items() if size >= 1}

    def by_class(self) -> dict[int, float]:
        """Bytes, by the class that they would be offered in now."""
        sums: dict[int, float] = {}
        for kin, found in self._bytes.items():
            now = self._height(kin)
            for (place, height), size in found.items():
                lower = max(0, height - now) if now is not None else 0
                lowered = max(0, place - lower)
                sums[lowered] = sums.get(lowered, 0.0) + size
        return sums

    def _height(self, kin: Kin | None) -> int | None:
        """The class of a kin's standing, if it has one."""
        if kin is None or self._standing is None:
            return None
        standing = self._standing(kin)
        return worth_class(standing) if standing > 0 else None

    def _let_go(self) -> None:
        """Forget of whose kin the fewest bytes are."""
        kins = [kin for kin in self._bytes if kin is not None]
        kins.sort(key=lambda kin: sum(self._bytes[kin].values()))
        nobodys = self._bytes[None]
        for kin in kins[: KINS_MAX // 2]:
            for then, size in self._bytes.pop(kin).items():
                nobodys[then] = nobodys.get(then, 0.0) + size
