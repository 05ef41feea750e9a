"""Plan: load, load a part, or recompute, whichever is faster now. It changes nothing.

Let T(k) be the time to first token when the first k chunks are loaded and the rest is computed.
The engine is busy with earlier prompts for another B seconds, and a load takes L(k), the queues of
tiers and links included, so that

    T(k) = max(L(k), B) + C(k)          where C(k) computes what is not loaded.

What of a load hides behind B costs this request nothing; since a load that ends late misses its
turn, a part of B only counts. Where an engine overlaps copying with
computing layer by layer, the copy begins when the engine is free: T(k) = B + pipelined(L(k), C(k)).

Within one tier L is linear and C concave, so that without B the best k is where the source
changes, or nothing, or everything. B adds the place where L(k) overtakes it. Those few are priced,
and some in between where more than one tier makes the curve less simple.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kvwise.core.words import Choice, Why

RUNS_PRICED_MAX = 16
"""Of more changes of tier than this, only the first ones and the end are priced."""

FRACTIONS = (0.25, 0.5, 0.75)
FRACTIONED_CHUNKS_MIN = 8
FRACTIONED_RUNS_MAX = 4
"""Where runs are priced within: the first so many of at least so many chunks."""

STEPS = 64
"""Places are looked for among so many parts of everything, or chunk by chunk if there are fewer."""

TIE = 0.01
"""Cuts whose times differ by less than this share are equal: the one that computes less is taken.

What an engine need not compute is there for the requests behind this one.
"""


HIDDEN = 0.75
"""Part of the backlog that a load may hide behind: one that ends late misses its turn."""

RELIEF = 2.5
"""What a second of the engine is worth to the loads before this one, if there are any.

They end while this prompt would be computed, and then have to wait for the engine.
"""

DOUBT = 0.5
"""Standard deviations of the difference by which loading must win, beside its margin.

Few enough that what looks much better than computing is tried before anything is known of it.
"""


@dataclass(frozen=True, slots=True)
class Transfer:
    """How long a load takes.

    Attributes:
        total_s: until the last byte is on the device, what is ahead of it included.
        own_s: what it keeps tiers and links busy, nothing ahead of it.
        deviation_s: standard deviation of `own_s`.
    """

    total_s: float
    own_s: float
    deviation_s: float = 0.0


NOTHING = Transfer(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Computing:
    """How long computing takes: functions of n new tokens after c cached ones.

    Attributes:
        seconds: what is expected.
        deviation_s: standard deviation of that.
    """

    seconds: Callable[[int, int], float]
    deviation_s: Callable[[int, int], float]


@dataclass(frozen=True, slots=True)
class Question:
    """What a plan is about.

    Attributes:
        sources: (tier, chunks) runs of the chunks that could be loaded, in order.
        chunk_tokens: tokens in each chunk.
        skip_tokens: tokens of the first chunk that the device already holds.
        local_tokens: leading tokens on the device.
        total_tokens: tokens of the prompt.
        policy: `auto`, `load` (always) or `recompute` (never load).
        margin: a load must win by this fraction of the time that it keeps tiers and links busy.
        backlog_s: time until the engine is done with what it has to compute before this prompt.
        layers: layers over which the load of chunks in the arena overlaps with computing; 0 for a
            load that has to be over before anything is computed.
        limit_s: loads that would take longer are given up, and so are not worth starting.
    """

    sources: tuple[tuple[int, int], ...]
    chunk_tokens: int
    skip_tokens: int
    local_tokens: int
    total_tokens: int
    policy: str
    margin: float
    backlog_s: float = 0.0
    layers: int = 0
    limit_s: float = math.inf


@dataclass(frozen=True, slots=True)
class Cut:
    """How many chunks to load, and why.

    Attributes:
        chunks: leading chunks of the sources to load; 0 for none.
        transfer: of the load considered best.
        exposed_s: by how much that load delays the first token, beyond what hides behind others.
        recompute_s: estimated seconds to compute the same tokens instead.
        relief_s: what the engine's time that it saves is worth to loads before it.
        doubt_s: what it must win by beside its margin, because the estimates are uncertain.
    """

    chunks: int
    transfer: Transfer
    exposed_s: float
    recompute_s: float
    relief_s: float
    doubt_s: float
    choice: Choice
    why: Why


@dataclass(frozen=True, slots=True)
class _Priced:
    """One cut: what it gains against computing everything, margin and doubt taken off."""

    chunks: int
    transfer: Transfer
    exposed_s: float
    saved_s: float
    relief_s: float
    doubt_s: float
    net_s: float


def runs(tiers: bytes) -> tuple[tuple[int, int], ...]:
    """(tier, count) runs of the tiers of chunks."""
    others = tiers.translate(None, tiers[:1])
    if tiers and not others:
        return ((tiers[0], len(tiers)),)
    known, found, start = {*tiers[:1], *others}, [], 0
    while start < len(tiers):
        tier = tiers[start]
        ends = [at for other in known - {tier} if (at := tiers.find(other, start)) >= 0]
        end = min(ends, default=len(tiers))
        found.append((tier, end - start))
        start = end
    return tuple(found)


def pipelined(load_s: float, compute_s: float, layers: int) -> float:
    """Time of a step whose layers wait each for its own part of a load, layers being alike.

    The closed form of done_load[i] = done_load[i-1] + l and
    done_compute[i] = max(done_compute[i-1], done_load[i]) + c.
    """
    return max(load_s, compute_s) + min(load_s, compute_s) / layers


def choose(
    question: Question,
    transfer: Callable[[int], Transfer],
    computing: Computing,
) -> Cut:
    """The best number of leading chunks to load.

    Args:
        question: what there is.
        transfer: how long it takes to have the first k chunks on the device.
        computing: how long it takes to compute them instead.
    """
    prices = _Prices(question, transfer, computing)
    if question.policy == "load":
        cut = prices.of(prices.ends[-1])
        return _cut(cut, Choice.LOAD, Why.FORCED)
    priced = [prices.of(chunks) for chunks in sorted(prices.candidates())]
    in_time = [one for one in priced if one.transfer.total_s <= question.limit_s]
    best = _best(in_time or priced, prices.whole_s + question.backlog_s)
    if question.policy == "recompute":
        return _cut(best, Choice.RECOMPUTE, Why.FORCED)
    if not in_time:
        return _cut(best, Choice.RECOMPUTE, Why.TOO_LATE)
    if best.net_s <= 0:
        return _cut(best, Choice.RECOMPUTE, Why.SLOWER)
    if best.chunks < prices.ends[-1]:
        return _cut(best, Choice.LOAD_PART, Why.TAIL_SLOWER)
    return _cut(best, Choice.LOAD, Why.FASTER)


def look(
    question: Question, transfer: Callable[[int], Transfer], computing: Computing, chunks: int
) -> Cut:
    """A cut that is made to measure a tier, whatever it costs."""
    priced = _Prices(question, transfer, computing).of(chunks)
    return _cut(priced, Choice.LOAD_PART, Why.EXPLORE)


def _cut(priced: _Priced, choice: Choice, why: Why) -> Cut:
    chunks = 0 if choice is Choice.RECOMPUTE else priced.chunks
    return Cut(
        chunks=chunks,
        transfer=priced.transfer,
        exposed_s=priced.exposed_s,
        recompute_s=priced.saved_s,
        relief_s=priced.relief_s,
        doubt_s=priced.doubt_s,
        choice=choice,
        why=why,
    )


def _best(priced: list[_Priced], whole_s: float) -> _Priced:
    """The cut that gains most; of those that gain as good as that, the one that computes least."""
    if len(priced) == 1:
        return priced[0]
    most = max(one.net_s for one in priced)
    least = most - TIE * max(0.0, whole_s - most) if most > 0 else most
    return max((one for one in priced if one.net_s >= least), key=lambda one: one.chunks)


def _held_up(transfer: Transfer, saved_s: float) -> float:
    """Loads like this one that are ahead of it and would end while it is computed; at most 1."""
    if transfer.own_s <= 0:
        return 0.0
    return min(1.0, (transfer.total_s - transfer.own_s) / transfer.own_s, saved_s / transfer.own_s)


def _constant(value_s: float) -> Callable[[int], float]:
    """A bound that is the same for every cut."""

    def same(_chunks: int) -> float:
        return value_s

    return same


class _Prices:
    """What cuts of one question cost."""

    def __init__(
        self,
        question: Question,
        transfer: Callable[[int], Transfer],
        computing: Computing,
    ) -> None:
        self._question = question
        self._price_transfer = transfer
        self._known: dict[int, Transfer] = {}
        self._computing = computing
        self.whole_s = computing.seconds(
            question.total_tokens - question.local_tokens, question.local_tokens
        )
        self.ends: list[int] = []
        chunks = 0
        for _, count in question.sources:
            chunks += count
            self.ends.append(chunks)

    def of(self, chunks: int) -> _Priced:
        """The price of a cut."""
        question, transfer = self._question, self._transfer(chunks)
        rest_s = self._rest_s(chunks)
        if self._overlaps(chunks):
            exposed_s = pipelined(transfer.total_s, rest_s, question.layers) - rest_s
        else:
            exposed_s = max(0.0, transfer.total_s - HIDDEN * question.backlog_s)
        saved_s = self.whole_s - rest_s
        doubt_s = DOUBT * self._deviation_s(chunks, transfer, hidden=exposed_s <= 0)
        relief_s = RELIEF * _held_up(transfer, saved_s) * saved_s
        gain_s = saved_s + relief_s - exposed_s
        net_s = gain_s - question.margin * transfer.own_s - doubt_s
        return _Priced(chunks, transfer, exposed_s, saved_s, relief_s, doubt_s, net_s)

    def _transfer(self, chunks: int) -> Transfer:
        """What a cut has to move, worked out only once."""
        known = self._known.get(chunks)
        if known is None:
            known = self._known[chunks] = self._price_transfer(chunks)
        return known

    def candidates(self) -> set[int]:
        """Cuts that are worth a price."""
        question, ends = self._question, self.ends
        found = {*ends[:RUNS_PRICED_MAX], ends[-1]}
        if len(ends) > 1:
            found.update(self._within())
        for bound_s in (HIDDEN * question.backlog_s, question.limit_s):
            if 0 < bound_s < math.inf:
                found.update(self._around(_constant(bound_s)))
        if self._overlaps(1):
            found.update(self._around(self._rest_s))
        return found

    def _within(self) -> Iterator[int]:
        """A few cuts inside the first long runs."""
        begins = [0, *self.ends]
        spans = [(begin, end) for begin, end in zip(begins, self.ends, strict=False)]
        long = [span for span in spans if span[1] - span[0] >= FRACTIONED_CHUNKS_MIN]
        for begin, end in long[:FRACTIONED_RUNS_MAX]:
            for fraction in FRACTIONS:
                yield begin + int((end - begin) * fraction)

    def _around(self, bound_s: Callable[[int], float]) -> Iterator[int]:
        """About the last cut whose load takes no longer than a bound that never grows; the next.

        Nothing when all of it does not: the end is priced anyway.
        """
        low, high = 0, self.ends[-1]
        if self._transfer(high).total_s <= bound_s(high):
            return
        while high - low > max(1, self.ends[-1] // STEPS):
            middle = (low + high) // 2
            if self._transfer(middle).total_s <= bound_s(middle):
                low = middle
            else:
                high = middle
        if low:
            yield low
        yield high

    def _covered(self, chunks: int) -> int:
        """Tokens on the device after a cut."""
        question = self._question
        return question.local_tokens + chunks * question.chunk_tokens - question.skip_tokens

    def _rest_s(self, chunks: int) -> float:
        """Seconds to compute what is left after a cut."""
        covered = self._covered(chunks)
        return self._computing.seconds(self._question.total_tokens - covered, covered)

    def _deviation_s(self, chunks: int, transfer: Transfer, *, hidden: bool) -> float:
        """Standard deviation of the difference between loading a cut and computing it."""
        local = self._question.local_tokens
        computing_s = self._computing.deviation_s(self._covered(chunks) - local, local)
        return computing_s if hidden else math.hypot(computing_s, transfer.deviation_s)

    def _overlaps(self, chunks: int) -> bool:
        """Whether all of a cut is in the arena, and loads of that overlap with computing."""
        tier, count = self._question.sources[0]
        return self._question.layers > 0 and not tier and chunks <= count
