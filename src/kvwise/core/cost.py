"""Cost: how long recomputing and loading take, learned from what was measured. Pure arithmetic.

Recomputing n new tokens after c cached ones takes t(n, c) = a + b*n + g*n*(c + n/2) seconds: a
fixed part, the dense layers, and attention over the context. Loading takes t0 + bytes/rate on each
link. Both are linear in their unknowns, so both are fitted by recursive least squares that forgets.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, field

from kvwise.core.explore import Explorer
from kvwise.core.plan import Transfer

_DRIFT = 4
_DRIFT_EARLY = 2
"""Samples in a row that are far off, until they are believed: of many samples, and of few."""

_SETTLED = 8
_FAR_EARLY = 2.0
"""Of few samples, only those off by this factor are far off."""

_NOISE = 0.05
_NOISE_S_MIN = 2e-5
_WANDER = 0.02
_WANDER_MIN = 1e-4
_TRIED = 4
"""Samples from which on uncertainty counts."""

_DEVIATION_OF_MEAN = 1.25
"""Standard deviation of a normal error, as a multiple of its mean absolute value."""


class Fit:
    """Recursive least squares that forgets: a Kalman filter over weights that wander.

    Haykin, Adaptive Filter Theory, ch. 10 and 14. Three things keep it sane where plain exponential
    forgetting is not. Errors count relative to the value, so that short steps matter as much as
    long ones. What the samples do not excite (an engine that only ever sees one length) keeps the
    width of the first guess instead of growing without bound. No weight goes below zero, since none
    can.

    A residual beyond four times the usual one is pulled in, so that one host stall does not bend
    the fit; but what stays off for `_DRIFT` samples in a row is no outlier but a machine that
    changed, and the fit opens up again: as wide as the error is, for a tier may get a thousand
    times slower. While there are few samples, two in a row are enough, since the first one may have
    been the odd one.
    """

    def __init__(self, first: tuple[float, ...], width: tuple[float, ...]) -> None:
        """Start from the guess `first` with standard deviations `width`, one for each feature."""
        self.weights = list(first)
        self.samples = 0
        self._first = [w * w for w in width]
        size = range(len(width))
        self._spread = [[self._first[i] if i == j else 0.0 for j in size] for i in size]
        self._usual = 0.0
        self._far = 0
        self._calm = 0.0

    def _open(self, features: tuple[float, ...], error: float) -> None:
        """Know nothing again, and take an error like this for likely."""
        size = range(len(self._first))
        likely = sum(self._first[i] * features[i] ** 2 for i in size)
        wider = max(1.0, error * error / likely) if likely > 0 else 1.0
        self._spread = [[wider * self._first[i] if i == j else 0.0 for j in size] for i in size]

    def predict(self, features: tuple[float, ...]) -> float:
        """The value expected for these features."""
        return sum(w * x for w, x in zip(self.weights, features, strict=True))

    @property
    def error(self) -> float:
        """How far off predictions of samples are: a standard deviation, as a share of the value.

        Before a few samples are there it is 0: then the first guess is all there is, and what it
        says is worth trying.
        """
        return _DEVIATION_OF_MEAN * self._usual if self.samples >= _TRIED else 0.0

    def deviation(self, features: tuple[float, ...]) -> float:
        """Standard deviation of a prediction, of which the uncertain weights are a part.

        Never more than the value itself, and 0 before a few samples are there.
        """
        if self.samples < _TRIED:
            return 0.0
        weights = 0.0
        for feature, row in zip(features, self._spread, strict=True):
            for other, both in zip(features, row, strict=True):
                weights += feature * both * other
        value = self.predict(features)
        return min(math.hypot(math.sqrt(max(0.0, weights)), self.error * value), value)

    def learn(self, features: tuple[float, ...], value: float) -> bool:
        """One measurement; whether it was anything like what was expected."""
        expected = self.predict(features)
        relative = abs(value - expected) / max(abs(expected), _NOISE_S_MIN)
        error, changed = self._judge(value, expected, relative)
        noise = max(_NOISE * max(abs(expected), abs(value)), _NOISE_S_MIN)
        self._forget()
        if changed:
            self._open(features, error)
        spread, size = self._spread, range(len(features))
        column = [sum(spread[i][j] * features[j] for j in size) for i in size]
        scale = noise * noise + sum(features[i] * column[i] for i in size)
        for i in size:
            self.weights[i] += column[i] / scale * error
        self._spread = [[spread[i][j] - column[i] * column[j] / scale for j in size] for i in size]
        self._project()
        self.samples += 1
        return not self._far

    def _project(self) -> None:
        """Bring negative weights to zero, and let the others take over what they stood for."""
        for i, weight in enumerate(self.weights):
            if weight < 0 < self._spread[i][i]:
                share = weight / self._spread[i][i]
                for j, row in enumerate(self._spread):
                    self.weights[j] -= row[i] * share
        self.weights = [max(0.0, weight) for weight in self.weights]

    def _judge(self, value: float, expected: float, relative: float) -> tuple[float, bool]:
        """The error that counts, and whether the machine is another one than before."""
        error, limit = value - expected, 4 * max(self._usual, _NOISE)
        settled = self.samples >= _SETTLED
        if settled:
            far = relative > limit
        else:
            far = max(value, expected) > _FAR_EARLY * max(min(value, expected), _NOISE_S_MIN)
        way = math.copysign(1.0, error)
        if not far or self._far * way <= 0:
            self._far, self._calm = 0, self._usual
        self._far += int(way) if far else 0
        if abs(self._far) >= (_DRIFT if settled else _DRIFT_EARLY):
            self._usual = self._calm
            return error, True
        if far and settled:
            return error * limit / relative, False
        if self.samples >= _TRIED:  # before that, errors are those of the first guess
            count = min(self.samples - _TRIED + 1, 32)
            self._usual += (min(relative, 1.0) - self._usual) / count
        return error, False

    def _forget(self) -> None:
        """Let every weight wander by 2 % a sample, up to the width of the first guess."""
        size = range(len(self._first))
        for i in size:
            step = _WANDER * self.weights[i]
            self._spread[i][i] += step * step + _WANDER_MIN**2 * self._first[i]
            if self._spread[i][i] > self._first[i] > 0:
                shrink = (self._first[i] / self._spread[i][i]) ** 0.5
                for j in size:
                    self._spread[i][j] *= shrink
                    self._spread[j][i] *= shrink


_TOKENS = 1e3
_PAIRS = 1e6
_CROWD = 0.02
_CROWD_MAX = 0.25
"""Fraction by which each further request lengthens a step: how much is likely, and believable."""


class Recompute:
    """Seconds to compute tokens on one engine.

    A pair is taken to cost at least what the model says beside a token, so that an engine that has
    only seen short prompts is not thought to compute long ones as fast.
    """

    def __init__(self, token_s: float, pair_tokens: float = 0.0) -> None:
        """Start from a guess of `token_s` seconds for each token, and what a pair is of that."""
        token = token_s * _TOKENS
        self._pair_tokens = pair_tokens
        self._fit = Fit((0.0, token, 0.0, 0.0), (0.01, 10 * token, 0.5 * token, _CROWD))

    @property
    def samples(self) -> int:
        """Measurements so far."""
        return self._fit.samples

    @property
    def weights(self) -> tuple[float, float, float]:
        """(a, b, g): seconds, seconds for each token, seconds for each token pair."""
        fixed, tokens, pairs, _ = self._fit.weights
        token_s = tokens / _TOKENS
        return fixed, token_s, pairs / _PAIRS + token_s * self._pair_tokens

    def learn(self, tokens: int, pairs: float, seconds: float, requests: int = 1) -> None:
        """One step took `seconds` for `tokens` tokens, `pairs` of n * (c + n / 2), and so many."""
        alone_s = self._fit.predict((*self._features(tokens, pairs), 0.0))
        others = max(0, requests - 1)
        self._fit.learn((*self._features(tokens, pairs), others * alone_s), seconds)

    def crowding(self, requests: int) -> float:
        """How much longer everything takes when a step has so many requests."""
        return 1 + min(self._fit.weights[3], _CROWD_MAX) * max(0, requests - 1)

    def _features(self, tokens: int, pairs: float) -> tuple[float, float, float]:
        """What the fit sees: tokens with their least share of pairs, and pairs beyond it."""
        return 1.0, (tokens + self._pair_tokens * pairs) / _TOKENS, pairs / _PAIRS

    def seconds(self, new: int, cached: int) -> float:
        """Time to compute `new` tokens after `cached` ones, without the fixed part of a step.

        The fixed part is paid once whatever is loaded, so it never weighs in a choice.
        """
        if new <= 0:
            return 0.0
        return self.work_s(new, new * (cached + new / 2))

    def deviation_s(self, new: int, cached: int) -> float:
        """Standard deviation of `seconds`, going by how well steps are predicted.

        What is not known of the weights is left out: an engine whose steps are all alike tells
        little about each weight, and all about the time of such steps.
        """
        return self._fit.error * self.seconds(new, cached)

    def work_s(self, tokens: int, pairs: float) -> float:
        """Time to compute so many tokens that attend to so many others, in steps of any number."""
        _, per_token, per_pair = self.weights
        return max(per_token, 1e-9) * tokens + per_pair * pairs


_MIB = 1024.0 * 1024.0
_CLASSES_BYTES = (4 * _MIB, 64 * _MIB)
_BEND_SAMPLES = 8
_BEND_MIN, _BEND_MAX = 0.5, 2.0


class Pipe:
    """Seconds to move bytes over one link: a fixed latency and a rate.

    Where small, middling and large transfers do not lie on one line, each class has a factor.
    """

    def __init__(self, rate_bytes_per_s: float, latency_s: float) -> None:
        """Start from guesses."""
        self._fit = Fit((latency_s, _MIB / rate_bytes_per_s), (2e-3, 10 * _MIB / rate_bytes_per_s))
        self._bend = [1.0] * (len(_CLASSES_BYTES) + 1)

    @property
    def samples(self) -> int:
        """Measurements so far."""
        return self._fit.samples

    def learn(self, size_bytes: float, seconds: float) -> None:
        """Moving `size_bytes` took `seconds`."""
        straight_s, kind = self._straight_s(size_bytes), _class(size_bytes)
        likely = self._fit.learn((1.0, size_bytes / _MIB), seconds)
        if likely and self.samples > _SETTLED:
            found = min(max(seconds / straight_s, _BEND_MIN), _BEND_MAX)
            self._bend[kind] += (found - self._bend[kind]) / _BEND_SAMPLES

    def seconds(self, size_bytes: float) -> float:
        """Time until `size_bytes` are across, when nothing else is on the way."""
        if size_bytes <= 0:
            return 0.0
        return self._straight_s(size_bytes) * self._bend[_class(size_bytes)]

    def deviation_s(self, size_bytes: float) -> float:
        """Standard deviation of `seconds`."""
        return self._fit.deviation((1.0, size_bytes / _MIB)) if size_bytes > 0 else 0.0

    def _straight_s(self, size_bytes: float) -> float:
        """On the line that fits all sizes best."""
        latency, per_mib = self._fit.weights
        return latency + max(per_mib, 1e-7) * size_bytes / _MIB

    @property
    def rate_bytes_per_s(self) -> float:
        """Bytes per second of a long transfer."""
        return _MIB / max(self._fit.weights[1], 1e-7)


def _class(size_bytes: float) -> int:
    """0 for small transfers, 1 for middling, 2 for large ones."""
    return bisect_right(_CLASSES_BYTES, size_bytes)


class Lane:
    """Bytes on their way over one link, first come first served.

    What is under way now is partly there. How much is guessed from the link's rate, but never more
    than half of everything: a link that stands still must not look like one that is done.
    """

    def __init__(self) -> None:
        """Nothing is on its way."""
        self.size_bytes = 0
        self._since_ns = 0

    def add(self, size_bytes: int, now_ns: int) -> None:
        """More bytes are to be moved."""
        if not self.size_bytes:
            self._since_ns = now_ns
        self.size_bytes += size_bytes

    def take(self, size_bytes: int, now_ns: int) -> None:
        """Bytes arrived, or will not."""
        self.size_bytes -= size_bytes
        self._since_ns = now_ns

    def left_bytes(self, rate_bytes_per_s: float, now_ns: int) -> float:
        """What is still to be moved."""
        moved = rate_bytes_per_s * max(0, now_ns - self._since_ns) / 1e9
        return self.size_bytes - min(moved, self.size_bytes / 2)


@dataclass(slots=True)
class Burden:
    """What a load has to move.

    Attributes:
        read_bytes: to be read from each tier.
        awaited: tiers that are reading a part of it already, for somebody else.
        copied_bytes: to be copied to the device.
    """

    read_bytes: list[int]
    awaited: set[int]
    copied_bytes: int


@dataclass(slots=True)
class Costs:
    """All that is known about speed.

    Attributes:
        recompute: by namespace number.
        device: arena to device, by namespace number.
        tiers: reads of each tier into the arena; None for the arena itself.
        reading: loads under way, by tier.
        copying: copies to a device under way, by client.
        explorer: sees to it that no rate gets old.
    """

    tiers: list[Pipe | None]
    explorer: Explorer
    recompute: dict[int, Recompute] = field(default_factory=dict)
    device: dict[int, Pipe] = field(default_factory=dict)
    reading: list[Lane] = field(default_factory=list)
    copying: dict[int, Lane] = field(default_factory=dict)

    def queued_s(self, tier: int, now_ns: int) -> float:
        """Seconds until a tier has read all it was told to read."""
        pipe = self.tiers[tier]
        return self.ahead_bytes(tier, now_ns) / pipe.rate_bytes_per_s if pipe else 0.0

    def ahead_bytes(self, tier: int, now_ns: int) -> float:
        """What a tier has still to read of all it was told to read."""
        pipe = self.tiers[tier]
        if pipe is None or not self.reading[tier].size_bytes:
            return 0.0
        return self.reading[tier].left_bytes(pipe.rate_bytes_per_s, now_ns)

    def transfer(self, space: int, client: int, burden: Burden, now_ns: int) -> Transfer:
        """How long a load takes: tiers are read side by side, then all is copied to the device."""
        arrive_s = own_s = doubt_s = 0.0
        for tier, size_bytes in enumerate(burden.read_bytes):
            pipe = self.tiers[tier]
            if pipe is not None and size_bytes:
                read_s = pipe.seconds(size_bytes)
                own_s = max(own_s, read_s)
                arrive_s = max(arrive_s, read_s + self.queued_s(tier, now_ns))
                doubt_s = max(doubt_s, pipe.deviation_s(size_bytes))
        for tier in burden.awaited:
            arrive_s = max(arrive_s, self.queued_s(tier, now_ns))
        device = self.device[space]
        copy_s, lane = device.seconds(burden.copied_bytes), self.copying.get(client)
        if lane is not None and lane.size_bytes:
            rate = device.rate_bytes_per_s
            arrive_s = max(arrive_s, lane.left_bytes(rate, now_ns) / rate)
        doubt_s = math.hypot(doubt_s, device.deviation_s(burden.copied_bytes))
        return Transfer(arrive_s + copy_s, own_s + copy_s, doubt_s)
