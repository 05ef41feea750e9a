"""Coding: how an object is written down on a tier, by what was measured. Pure; it encodes nothing.

What counts is the time in which a prompt's objects come from the tier. X bytes of payload, plain,
take X / link. Encoded they are a share of that, and are decoded while others are still being read,
all but the last run of neighbours, which nothing hides:

    max(share * X / link + min(X, run) / decode, X / (decode * lanes)) + excess

with the rates of the link in bytes of the medium, and of one thread's decode in bytes of payload.
The excess is what loads took beyond that, of late, and plain ones have theirs: threads that wait
for each other, and whatever else no rate knows. So a codec pays on a slow link and costs on a fast
one. In between is the break-even.

Encoding is on nobody's way, since writes are deferred; its rate is known and shown. Link and
encode rates come from what the tier does anyway. One object in `TRIAL_EVERY` is written in a coding
that is not used, and decoded once at once: so shares and decode rates stay known as well.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from kvwise.core.cost import Fit
from kvwise.core.elements import AS_IS, Coding, Elements, Form
from kvwise.core.timing import Timed, Work
from kvwise.core.words import TierSpec

CODECS = ("auto", "off", "fixed", "dense")
"""What may be configured."""

CANDIDATES = (Coding.FIXED, Coding.DENSE)
"""Codings that may be chosen without asking anybody."""

TRIAL_EVERY = 64
"""Objects of a namespace between two that are only written to measure."""

SAMPLES_MIN = 2
"""Measurements of a rate or a share before it is believed."""

SHARE_MAX = 0.97
"""A coding that leaves more of a payload than this gains nothing worth a codec."""

HYSTERESIS = 0.01
"""Part of the time of a load by which another coding must be better than the one in use."""

STEADY = 4
"""Times in a row that it must look better."""

LOADS_KEPT = 31
"""Loads that say by how much the rates are wrong; the middle one of them counts."""

LOADS_MIN = 5
"""So many are enough for that."""

MIXED = 0.02
"""A load that is further than this from a coding's share is not all of that coding."""

LEAST_S = 1e-6
"""No load loses less than this by a codec: so there always is a break-even."""

_FIRST_RATE = 1e9
_MEMORY = 32
_MIB = 1024.0 * 1024.0


class Reason(Enum):
    """Why a coding is used, or none."""

    LINK_SLOW = "link_slow"
    LINK_FAST = "link_fast"
    NO_GAIN = "no_gain"
    UNMEASURED = "unmeasured"
    NO_ELEMENTS = "no_elements"
    NO_NUMBA = "no_numba"
    NOT_READY = "not_ready"
    OPT_IN = "opt_in"
    FORCED = "forced"
    OFF = "off"


class Rate:
    """Bytes per second of one thing, from what was measured; what is old counts less."""

    def __init__(self, bytes_per_s: float = _FIRST_RATE) -> None:
        """Start from a guess."""
        each_s = _MIB / bytes_per_s
        self._fit = Fit((each_s,), (10 * each_s,))

    @property
    def is_known(self) -> bool:
        """Whether it is more than a guess."""
        return self._fit.samples >= SAMPLES_MIN

    @property
    def bytes_per_s(self) -> float:
        """What is expected."""
        return _MIB / max(self._fit.weights[0], 1e-9)

    def learn(self, size_bytes: int, elapsed_ns: int) -> None:
        """So many bytes took so long."""
        if size_bytes > 0 and elapsed_ns > 0:
            self._fit.learn((size_bytes / _MIB,), elapsed_ns / 1e9)


@dataclass(slots=True)
class Share:
    """What a coding leaves of the bytes of a namespace's objects, frames included."""

    value: float = 1.0
    samples: int = 0

    @property
    def is_known(self) -> bool:
        """Whether it was measured often enough."""
        return self.samples >= SAMPLES_MIN

    def learn(self, share: float) -> None:
        """One object."""
        self.samples += 1
        self.value += (share - self.value) / min(self.samples, _MEMORY)


class Excess:
    """Seconds that loads took beyond what rates account for: the middle one of the last ones."""

    def __init__(self) -> None:
        """Nothing was loaded yet."""
        self._last: deque[float] = deque(maxlen=LOADS_KEPT)

    @property
    def is_known(self) -> bool:
        """Whether there were enough loads."""
        return len(self._last) >= LOADS_MIN

    @property
    def seconds(self) -> float:
        """Of a usual load; below 0 where rates promise too little."""
        return sorted(self._last)[len(self._last) // 2] if self.is_known else 0.0

    def learn(self, seconds: float) -> None:
        """One load."""
        self._last.append(seconds)

    def forget(self) -> None:
        """The oldest load no longer counts."""
        if self._last:
            self._last.popleft()


@dataclass(slots=True)
class Link:
    """One tier as objects pass it.

    Attributes:
        read, write: bytes of the medium a second.
        load_bytes: payload of a usual load.
        excess: of loads, by how what they read was written.
    """

    spec: TierSpec
    read: Rate = field(default_factory=Rate)
    write: Rate = field(default_factory=Rate)
    load_bytes: float = 0.0
    excess: dict[Coding, Excess] = field(default_factory=dict)

    @property
    def size_bytes(self) -> float:
        """Payload of the load that is reckoned with: of one run before any was seen."""
        return self.load_bytes or max(self.spec.run_bytes, 1)

    def loaded(self, size_bytes: int) -> None:
        """One load of so many bytes was begun."""
        before = self.load_bytes or size_bytes
        self.load_bytes = before + (size_bytes - before) / _MEMORY


@dataclass(frozen=True, slots=True)
class Took:
    """A load that ended well: bytes of payload, of the medium, and how long it took."""

    payload_bytes: int
    read_bytes: int
    seconds: float


@dataclass(slots=True)
class Standing:
    """How a namespace's objects are written to a tier now.

    Attributes:
        gain: part of the time of a load that the coding saves against plain; below 0 it costs.
        objects: written since one was written to measure.
        leaning, times: what looked better lately, and how often in a row.
        trials: how many objects were written to measure.
    """

    coding: Coding = Coding.PLAIN
    why: Reason = Reason.UNMEASURED
    gain: float = 0.0
    objects: int = 0
    leaning: Coding = Coding.PLAIN
    times: int = 0
    trials: int = 0


@dataclass(frozen=True, slots=True)
class Subject:
    """A namespace as far as codings go: its number, what its objects hold, what it asked for."""

    number: int
    elements: Elements | None
    lossy: Coding = Coding.PLAIN


class Codings:
    """The choice for every namespace on every tier, and all it rests on."""

    def __init__(self, tiers: Iterable[TierSpec], wish: str, at_hand: Iterable[Coding]) -> None:
        """Nothing was measured yet.

        Args:
            tiers: all of them; tier 0 is never encoded.
            wish: one of `CODECS`.
            at_hand: codings that this machine can have; `equipped` says when it has them.
        """
        self.wish = wish
        self.links = [Link(spec) for spec in tiers]
        self.encode: dict[Coding, Rate] = {}
        self.decode: dict[Coding, Rate] = {}
        self.shares: dict[tuple[int, Coding], Share] = {}
        self.switches: Counter[str] = Counter()
        self._at_hand = frozenset(at_hand)
        self._ready = frozenset[Coding]()
        self._standings: dict[tuple[int, int], Standing] = {}

    # --- what was measured ---

    def equipped(self, codings: Iterable[Coding]) -> None:
        """These can be used from now on; none, that there are none after all."""
        ready = frozenset(codings)
        if not ready:
            self._at_hand = self._ready = frozenset()
        self._ready |= ready & self._at_hand

    def timed(self, event: Timed) -> None:
        """A tier tells what its work took."""
        link = self.links[event.tier]
        match event.work:
            case Work.READ:
                link.read.learn(event.size_bytes, event.elapsed_ns)
            case Work.WRITE:
                link.write.learn(event.size_bytes, event.elapsed_ns)
            case Work.ENCODE:
                rate = self.encode.setdefault(event.coding, Rate())
                rate.learn(event.size_bytes, event.elapsed_ns)
            case Work.DECODE:
                rate = self.decode.setdefault(event.coding, Rate())
                rate.learn(event.size_bytes, event.elapsed_ns)

    def took(self, tier: int, subject: int, load: Took) -> None:
        """A load of a namespace's objects is over, and nothing was ahead of it."""
        coding = self._coding_of(tier, subject, load)
        if coding is not None and self.links[tier].read.is_known:
            expected_s = self._rates_s(tier, coding, load.payload_bytes, load.read_bytes)
            excess = self.links[tier].excess.setdefault(coding, Excess())
            excess.learn(load.seconds - expected_s)

    def _coding_of(self, tier: int, subject: int, load: Took) -> Coding | None:
        """How all that a load read was written; None where that cannot be told."""
        if load.read_bytes >= load.payload_bytes:
            return Coding.PLAIN
        coding = self.standing(tier, subject).coding
        off = load.read_bytes / load.payload_bytes - self.share(subject, coding)
        known = coding in self.decode and abs(off) <= MIXED
        return coding if known else None

    def wrote(self, subject: int, coding: Coding, share: float) -> None:
        """An object of a namespace came to a share of what it takes as it is."""
        if coding is not Coding.PLAIN:
            self.shares.setdefault((subject, coding), Share()).learn(share)

    def share(self, subject: int, coding: Coding) -> float:
        """What a coding is expected to leave of an object."""
        known = self.shares.get((subject, coding))
        return known.value if known is not None and coding is not Coding.PLAIN else 1.0

    # --- what follows ---

    def standing(self, tier: int, subject: int) -> Standing:
        """How a namespace's objects are written to a tier now."""
        return self._standings.setdefault((tier, subject), Standing())

    def form(self, tier: int, subject: Subject) -> Form:
        """How the next object is to be written; a trial, now and then."""
        self._choose(tier, subject)
        standing = self.standing(tier, subject.number)
        if standing.why in _SETTLED_REASONS:
            return _form(standing.coding, subject)
        standing.objects += 1
        tried = self._unknown(subject)
        if not tried and standing.objects < TRIAL_EVERY:
            return _form(standing.coding, subject)
        coding = tried or CANDIDATES[standing.trials % len(CANDIDATES)]
        standing.objects = 0
        standing.trials += 1
        self._fade(tier, standing.coding)
        return _form(coding, subject, trial=True)

    def _fade(self, tier: int, used: Coding) -> None:
        """Forget one load of each coding that is not used: what it costs may be another by now."""
        for coding, excess in self.links[tier].excess.items():
            if coding is not used:
                excess.forget()

    def counted(self, tier: int, subject: int, objects: int) -> None:
        """More objects go the way that `form` told."""
        self.standing(tier, subject).objects += objects

    def _choose(self, tier: int, subject: Subject) -> None:
        """Bring the standing of a namespace up to what is known now."""
        standing = self.standing(tier, subject.number)
        told = self._told(subject)
        if told is not None:
            coding, why = told
            standing.coding, standing.why = coding, why
            standing.gain = self.gain(tier, subject.number, coding)
            return
        if not self.links[tier].read.is_known or self._unknown(subject):
            standing.why = Reason.UNMEASURED
            return
        usable = [c for c in CANDIDATES if self.share(subject.number, c) <= SHARE_MAX]
        best = min(
            (Coding.PLAIN, *usable), key=lambda coding: self.load_s(tier, subject.number, coding)
        )
        self._lean(tier, subject, best)
        coded = standing.coding is not Coding.PLAIN
        fast = Reason.LINK_FAST if usable else Reason.NO_GAIN
        standing.why = Reason.LINK_SLOW if coded else fast
        standing.gain = self.gain(tier, subject.number, standing.coding)

    def _told(self, subject: Subject) -> tuple[Coding, Reason] | None:
        """What is settled without measuring."""
        if self.wish == "off":
            return Coding.PLAIN, Reason.OFF
        if subject.elements is None:
            return Coding.PLAIN, Reason.NO_ELEMENTS
        if not self._at_hand:
            return Coding.PLAIN, Reason.NO_NUMBA
        if subject.lossy in self._at_hand and not subject.lossy.lossless:
            return self._once_ready(subject.lossy, Reason.OPT_IN)
        if self.wish != "auto":
            return self._once_ready(Coding(self.wish), Reason.FORCED)
        return None if self._ready.issuperset(CANDIDATES) else (Coding.PLAIN, Reason.NOT_READY)

    def _once_ready(self, coding: Coding, why: Reason) -> tuple[Coding, Reason]:
        """A coding that is wished for, or plain until it can be used."""
        return (coding, why) if coding in self._ready else (Coding.PLAIN, Reason.NOT_READY)

    def _unknown(self, subject: Subject) -> Coding | None:
        """A coding of which too little is known to judge it."""
        for coding in CANDIDATES:
            share = self.shares.get((subject.number, coding))
            if share is None or not share.is_known:
                return coding
            decode = self.decode.get(coding)
            if share.value <= SHARE_MAX and (decode is None or not decode.is_known):
                return coding
        return None

    def _lean(self, tier: int, subject: Subject, best: Coding) -> None:
        """Change to another coding once it was clearly better for a while."""
        standing = self.standing(tier, subject.number)
        now_s = self.load_s(tier, subject.number, standing.coding)
        best_s = self.load_s(tier, subject.number, best)
        if best is standing.coding or now_s <= best_s * (1 + HYSTERESIS):
            standing.times = 0
            return
        standing.times = standing.times + 1 if standing.leaning is best else 1
        standing.leaning = best
        if standing.times >= STEADY:
            self.switches[f"{self.links[tier].spec.name}|{best.value}"] += 1
            standing.coding, standing.times = best, 0

    def load_s(self, tier: int, subject: int, coding: Coding) -> float:
        """Seconds in which the objects of a usual load come from a tier."""
        link = self.links[tier]
        read_bytes = self.share(subject, coding) * link.size_bytes
        known_s = self._rates_s(tier, coding, link.size_bytes, read_bytes)
        return max(known_s + self._excess_s(tier, coding), read_bytes / link.read.bytes_per_s)

    def _rates_s(self, tier: int, coding: Coding, payload_bytes: float, read_bytes: float) -> float:
        """Seconds of a load by the rates of link and decoding alone."""
        link = self.links[tier]
        read_s = read_bytes / link.read.bytes_per_s
        if coding is Coding.PLAIN or coding not in self.decode:
            return read_s
        decode = self.decode[coding].bytes_per_s
        tail_bytes = min(payload_bytes, link.spec.run_bytes or payload_bytes)
        return max(read_s + tail_bytes / decode, payload_bytes / (decode * link.spec.lanes))

    def _excess_s(self, tier: int, coding: Coding) -> float:
        """What rates do not account for; the least of all where too few were of this coding."""
        excess = self.links[tier].excess
        if coding in excess and excess[coding].is_known:
            return excess[coding].seconds
        return min((one.seconds for one in excess.values() if one.is_known), default=0.0)

    def gain(self, tier: int, subject: int, coding: Coding) -> float:
        """Part of the time of a load that a coding saves against plain."""
        plain_s = self.load_s(tier, subject, Coding.PLAIN)
        return 1 - self.load_s(tier, subject, coding) / plain_s

    def break_even(self, tier: int, subject: int, coding: Coding) -> float:
        """Bytes per second of the medium from which on a coding no longer pays; 0 if it never does.

        Where `load_s` of the coding and of plain are equal.
        """
        link, decode = self.links[tier], self.decode.get(coding)
        if decode is None:
            return 0.0
        size, rate = link.size_bytes, decode.bytes_per_s
        tail = min(size, link.spec.run_bytes or size)
        saved = max(0.0, 1 - self.share(subject, coding)) * size
        more_s = self._excess_s(tier, coding) - self._excess_s(tier, Coding.PLAIN)
        tail_s, lanes_s = tail / rate + more_s, size / (rate * link.spec.lanes) + more_s
        return min(saved / max(tail_s, LEAST_S), size / max(lanes_s, LEAST_S))

    def told(self, labels: Iterable[tuple[int, str]]) -> dict[str, Any]:
        """Everything, as plain dictionaries: by tier and namespace what is used and why."""
        names = dict(labels)
        spaces: dict[str, dict[str, Any]] = {link.spec.name: {} for link in self.links[1:]}
        for (tier, number), standing in self._standings.items():
            spaces[self.links[tier].spec.name][names[number]] = {
                "coding": standing.coding.value,
                "why": standing.why.value,
                "gain": standing.gain,
                "shares": {c.value: s.value for (n, c), s in self.shares.items() if n == number},
                "break_even_bytes_per_s": {
                    c.value: self.break_even(tier, number, c)
                    for (n, c) in self.shares
                    if n == number
                },
            }
        return {
            "choices": spaces,
            "ready": sorted(coding.value for coding in self._ready),
            "encode_bytes_per_s": {c.value: r.bytes_per_s for c, r in self.encode.items()},
            "decode_bytes_per_s": {c.value: r.bytes_per_s for c, r in self.decode.items()},
            "read_bytes_per_s": {
                x.spec.name: x.read.bytes_per_s for x in self.links[1:] if x.read.is_known
            },
            "write_bytes_per_s": {
                x.spec.name: x.write.bytes_per_s for x in self.links[1:] if x.write.is_known
            },
            "load_bytes": {x.spec.name: x.load_bytes for x in self.links[1:]},
            "excess_s": {
                x.spec.name: {c.value: e.seconds for c, e in x.excess.items() if e.is_known}
                for x in self.links[1:]
            },
            "switches": dict(self.switches),
        }


_SETTLED_REASONS = (
    Reason.OFF,
    Reason.NO_ELEMENTS,
    Reason.NO_NUMBA,
    Reason.NOT_READY,
    Reason.OPT_IN,
    Reason.FORCED,
)
"""Reasons under which nothing is tried."""


def _form(coding: Coding, subject: Subject, *, trial: bool = False) -> Form:
    """A form; the one for what stays as it is has no more to say."""
    return AS_IS if coding is Coding.PLAIN else Form(coding, subject.elements, trial)
