"""Cost: how long recomputing and loading take, learned from what was measured. Pure arithmetic.

Recomputing n new tokens after c cached ones takes t(n, c) = a + b*n + g*n*(c + n/2) seconds: a
fixed part, the dense layers, and attention over the context. Loading takes t0 + bytes/rate on each
link. Both are linear in their unknowns, so both are fitted by recursive least squares that forgets.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kvwise.core.plan import Transfer

_DRIFT = 4
_NOISE = 0.05
_NOISE_S_MIN = 2e-5
_WANDER = 0.02
_WANDER_MIN = 1e-4


class Fit:
    """Recursive least squares that forgets: a Kalman filter over weights that wander.

    Haykin, Adaptive Filter Theory, ch. 10 and 14. Three things keep it sane where plain exponential
    forgetting is not. Errors count relative to the value, so that short steps matter as much as
    long ones. What the samples do not excite (an engine that only ever sees one length) keeps the
    width of the first guess instead of growing without bound. No weight goes below zero, since none
    can.

    A residual beyond four times the usual one is pulled in, so that one host stall does not bend
    the fit; but what stays off for `_DRIFT` samples in a row is no outlier but a machine that
    changed, and the fit opens up again.
    """

    def __init__(self, first: tuple[float, ...], width: tuple[float, ...]) -> None:
        """Start from the guess `first` with standard deviations `width`, one for each feature."""
        self.weights = list(first)
        self.samples = 0
        self._first = [w * w for w in width]
        self._spread: list[list[float]] = []
        self._open()
        self._usual = 0.0
        self._clipped = 0

    def _open(self) -> None:
        size = range(len(self._first))
        self._spread = [[self._first[i] if i == j else 0.0 for j in size] for i in size]

    def predict(self, features: tuple[float, ...]) -> float:
        """The value expected for these features."""
        return sum(w * x for w, x in zip(self.weights, features, strict=True))

    def learn(self, features: tuple[float, ...], value: float) -> None:
        """One measurement."""
        expected = self.predict(features)
        error = self._clip(value - expected, expected)
        noise = max(_NOISE * max(abs(expected), abs(value)), _NOISE_S_MIN)
        self._forget()
        spread, size = self._spread, range(len(features))
        column = [sum(spread[i][j] * features[j] for j in size) for i in size]
        scale = noise * noise + sum(features[i] * column[i] for i in size)
        for i in size:
            self.weights[i] += column[i] / scale * error
        self._spread = [[spread[i][j] - column[i] * column[j] / scale for j in size] for i in size]
        self._project()
        self.samples += 1

    def _project(self) -> None:
        """Bring negative weights to zero, and let the others take over what they stood for."""
        for i, weight in enumerate(self.weights):
            if weight < 0 < self._spread[i][i]:
                share = weight / self._spread[i][i]
                for j, row in enumerate(self._spread):
                    self.weights[j] -= row[i] * share
        self.weights = [max(0.0, weight) for weight in self.weights]

    def _clip(self, error: float, expected: float) -> float:
        relative = abs(error) / max(abs(expected), _NOISE_S_MIN)
        limit = 4 * max(self._usual, _NOISE)
        outside = self.samples >= 8 and relative > limit
        self._clipped = self._clipped + 1 if outside else 0
        if outside and self._clipped < _DRIFT:
            return error * limit / relative
        if outside:
            self._open()
        self._usual += (min(relative, 1.0) - self._usual) / min(self.samples + 1, 32)
        return error

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


class Recompute:
    """Seconds to compute tokens on one engine."""

    def __init__(self, token_s: float) -> None:
        """Start from a guess of `token_s` seconds for each token."""
        token = token_s * _TOKENS
        self._fit = Fit((0.0, token, 0.0), (0.01, 10 * token, 0.5 * token))

    @property
    def samples(self) -> int:
        """Measurements so far."""
        return self._fit.samples

    @property
    def weights(self) -> tuple[float, float, float]:
        """(a, b, g): seconds, seconds for each token, seconds for each token pair."""
        fixed, tokens, pairs = self._fit.weights
        return fixed, tokens / _TOKENS, pairs / _PAIRS

    def learn(self, tokens: int, pairs: float, seconds: float) -> None:
        """One engine step took `seconds` for `tokens` tokens and `pairs` of n * (c + n / 2)."""
        self._fit.learn((1.0, tokens / _TOKENS, pairs / _PAIRS), seconds)

    def seconds(self, new: int, cached: int) -> float:
        """Time to compute `new` tokens after `cached` ones, without the fixed part of a step.

        The fixed part is paid once whatever is loaded, so it never weighs in a choice.
        """
        if new <= 0:
            return 0.0
        return self.work_s(new, new * (cached + new / 2))

    def work_s(self, tokens: int, pairs: float) -> float:
        """Time to compute so many tokens that attend to so many others, in steps of any number."""
        _, per_token, per_pair = self.weights
        return max(per_token, 1e-9) * tokens + per_pair * pairs


_MIB = 1024.0 * 1024.0


class Pipe:
    """Seconds to move bytes over one link, as a fixed latency and a rate."""

    def __init__(self, rate_bytes_per_s: float, latency_s: float) -> None:
        """Start from guesses."""
        self._fit = Fit((latency_s, _MIB / rate_bytes_per_s), (2e-3, 10 * _MIB / rate_bytes_per_s))

    @property
    def samples(self) -> int:
        """Measurements so far."""
        return self._fit.samples

    def learn(self, size_bytes: float, seconds: float) -> None:
        """Moving `size_bytes` took `seconds`."""
        self._fit.learn((1.0, size_bytes / _MIB), seconds)

    def seconds(self, size_bytes: float) -> float:
        """Time until `size_bytes` are across, when nothing else is on the way."""
        if size_bytes <= 0:
            return 0.0
        latency, per_mib = self._fit.weights
        return latency + max(per_mib, 1e-7) * size_bytes / _MIB

    @property
    def rate_bytes_per_s(self) -> float:
        """Bytes per second of a long transfer."""
        return _MIB / max(self._fit.weights[1], 1e-7)


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
    """

    tiers: list[Pipe | None]
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
        arrive_s = own_s = 0.0
        for tier, size_bytes in enumerate(burden.read_bytes):
            pipe = self.tiers[tier]
            if pipe is not None and size_bytes:
                read_s = pipe.seconds(size_bytes)
                own_s = max(own_s, read_s)
                arrive_s = max(arrive_s, read_s + self.queued_s(tier, now_ns))
        for tier in burden.awaited:
            arrive_s = max(arrive_s, self.queued_s(tier, now_ns))
        device = self.device[space]
        copy_s, lane = device.seconds(burden.copied_bytes), self.copying.get(client)
        if lane is not None and lane.size_bytes:
            rate = device.rate_bytes_per_s
            arrive_s = max(arrive_s, lane.left_bytes(rate, now_ns) / rate)
        return Transfer(arrive_s + copy_s, own_s + copy_s)
