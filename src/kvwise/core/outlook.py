"""Outlook: how often blocks will be used yet, and not only next. It knows no block and no bytes.

A block of a session is used by every later turn, so what it is worth below the memory are all those
uses. Each request is of a kind, by turn and length of the prompt; sooner or later one of some kind
goes on from it, or none does. What is still to come after a kind follows by recursion: the next
turn, if there is one, and what comes after that.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from kvwise.core.hazards import BUCKETS, Hazards, kept
from kvwise.core.uses import Use, Uses, Way

TURNS = (1, 2, 3, 4, 8, 16, 32, 64)
"""Where turns count as later ones."""

LENGTHS = tuple(round(2_048 * 2 ** (place / 2)) for place in range(18))
"""Where prompts count as longer, in tokens: a factor of sqrt(2) apart, for sessions end when their
context is full."""

MEMORY_SHARE = 0.1
"""What a use counts that memory is expected to serve: it forgets at a restart, and stays change."""

RENEW_EVERY = 64
"""After so many questions, what is to come is worked out anew for all kinds."""

_LEARN_EACH = 2
"""Kinds that are brought up to date with each request."""

_PRIOR = 10.0
"""How many requests what is known of the kind around a kind is worth."""

_NOTHING = [0.0] * BUCKETS


class Kind(Hazards):
    """Requests that are alike: when they are gone on from, and by what.

    What was not seen is not expected, for uses to come multiply, and an outlook that begins high
    would set a price that keeps out all that comes later.

    Attributes:
        around: the larger kind that this one is part of.
        then: how many requests of each kind went on from one of this kind; old ones count less.
    """

    def __init__(self, number: int = 0, around: Kind | None = None) -> None:
        """Nothing is known."""
        super().__init__(number, around)
        self.around = around
        self.then: dict[Kind, float] = {}
        self._met = 0

    @property
    def hazard(self) -> list[float]:
        """Share of what came into each bucket that is gone on from within it."""
        around = self.around.hazard if self.around is not None else _NOTHING
        return [
            (hit + _PRIOR * hazard) / (risk + _PRIOR)
            for hit, risk, hazard in zip(self._hits, self._risks, around, strict=True)
        ]

    def go_on(self, then: Kind) -> None:
        """A request of another kind, or of this one, went on from one of this kind."""
        self.then[then] = self.then.get(then, 0.0) + 1
        if self.around is not None:
            self.around.go_on(then)

    def learn(self, uses: int) -> None:
        """Take in what was counted; `uses` is how many requests there were ever."""
        fade, self._met = kept(uses - self._met), uses
        self.then = {then: fade * count for then, count in self.then.items()}
        super().learn(uses)


class Sessions:
    """What is known of how requests follow each other.

    Attributes:
        requests: the last ones, by number, each as one use.
        known: the kinds met, larger ones before those within them.
    """

    def __init__(self) -> None:
        """No request yet."""
        self.requests = Uses()
        self.known = [Kind()]
        self._kinds: dict[tuple[int, ...], Kind] = {(): self.known[0]}
        self._next = 0

    def kind(self, turn: int, tokens: int, space: int) -> Kind:
        """The kind of a request."""
        return self._kind(bisect_left(TURNS, turn), bisect_right(LENGTHS, tokens), space)

    def _kind(self, *names: int) -> Kind:
        """The kind of these names; the one around it has all but the last."""
        found = self._kinds.get(names)
        if found is None:
            around = self._kind(*names[:-1])
            found = self._kinds[names] = Kind(len(self.known), around)
            self.known.append(found)
        return found

    def begin(self, kind: Kind, turn: int) -> int:
        """There is a request of a kind; the answer is its number."""
        for _ in range(_LEARN_EACH):
            self._next = (self._next + 1) % len(self.known)
            self.known[self._next].learn(self.requests.last)
        return self.requests.begin(Use(kind, Way.NEW, 1, 0, turn))

    def go_on(self, number: int, then: Kind) -> None:
        """A request of a kind goes on from an earlier one, if that is remembered."""
        if self.requests.is_known(number):
            self.requests.hit(number, 1)
            self.of(number).go_on(then)

    def of(self, number: int) -> Kind:
        """The kind of a request; that of all when it is not remembered."""
        hazards = self.requests.hazards(number)
        return self.known[hazards.number if hazards is not None else 0]


class Outlook:
    """Uses to come of blocks on one tier: those that find them there and not in memory."""

    def __init__(self) -> None:
        """Nothing is expected."""
        self._to_come: dict[Kind, float] = {}
        self._later: dict[Kind, float] = {}
        self._asked = 0
        self._usual = 1.0
        self._memory_s = self._stay_s = 0.0

    def look(self, known: Sequence[Kind], memory_s: float, stay_s: float) -> None:
        """From now on blocks stay unused so long in memory, and so long on the tier."""
        self._memory_s, self._stay_s = memory_s, stay_s
        if self._asked % RENEW_EVERY == 0:
            for kind in reversed(known):
                self._later[kind] = self._after(kind)
                self._to_come[kind] = self._from(kind)
        self._usual = 1 + self._later[known[0]]
        self._asked += 1

    def uses(self, hazards: Hazards, age_s: float, kind: Kind, horizon_s: float) -> float:
        """Uses to come of blocks that a request of a kind used, the next one within a time."""
        chance, counted = self._next_use(hazards, age_s, horizon_s)
        return counted + chance * self._after(kind)

    def worth(self, hazards: Hazards, age_s: float, kind: Kind, horizon_s: float) -> float:
        """The price in uses at which a write now is as good as one after the next use.

        Who waits loses that use, and saves the write where none comes. The price is over the uses
        that are usual after a next one, so it stays of one size while they are learned, and prices
        of yesterday say something today.
        """
        uses = self.uses(hazards, age_s, kind, horizon_s)
        chance, counted = self._next_use(hazards, age_s, horizon_s)
        if chance < 1:
            uses = min(uses, counted / (1 - chance))
        return uses / self._usual

    def fresh(self, hazards: Hazards, kind: Kind) -> float:
        """That price of blocks that were used just now, as the tier was looked at last."""
        return self.worth(hazards, 0.0, kind, self._stay_s)

    def _next_use(self, hazards: Hazards, age_s: float, horizon_s: float) -> tuple[float, float]:
        """The chance of a next use within a time, and for how much it counts on average."""
        chance = hazards.chance(age_s, horizon_s)
        if self._memory_s <= age_s:
            return chance, chance
        served = hazards.chance(age_s, min(horizon_s, self._memory_s - age_s))
        return chance, chance - (1 - MEMORY_SHARE) * served

    def _from(self, kind: Kind) -> float:
        """Uses to come after a request of a kind, where kinds may follow themselves."""
        chance, counted = self._next_use(kind, 0.0, self._stay_s)
        own = kind.then.get(kind, 0.0) / (sum(kind.then.values()) + _PRIOR)
        others = self._after(kind) - own * self._to_come.get(kind, 0.0)
        return (counted + chance * others) / (1 - chance * own)

    def _after(self, kind: Kind) -> float:
        """Uses to come after the next request, when it goes on from one of a kind."""
        around = self._later.get(kind.around, 0.0) if kind.around is not None else 0.0
        to_come = self._to_come
        sums = sum([count * to_come.get(then, 0.0) for then, count in kind.then.items()])
        return (sums + _PRIOR * around) / (sum(kind.then.values()) + _PRIOR)
