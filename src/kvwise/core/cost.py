"""Cost: how long recomputing and loading take, learned online from what was measured. Pure arithmetic.

Recomputing n new tokens after c cached ones takes t(n, c) = a + b*n + g*n*(c + n/2) seconds: a fixed
part, the dense layers, and attention over the context. Loading takes t0 + bytes/rate on each link.
Both are linear in their unknowns, so both are fitted by recursive least squares with forgetting.
"""

from __future__ import annotations

from dataclasses import dataclass, field


class Fit:
    """Recursive least squares with exponential forgetting and clipped outliers.

    Haykin, Adaptive Filter Theory, ch. 10. Features are scaled by the caller to about 1.
    A residual beyond `clip` times the running mean residual is pulled in, so that one host stall
    does not bend the fit; the first samples are taken as they are.
    """

    def __init__(self, first: tuple[float, ...], *, forget: float = 0.98, clip: float = 4.0) -> None:
        """Start from the guess `first`, one weight for each feature."""
        size = len(first)
        self.weights = list(first)
        self.samples = 0
        self.residual = 0.0
        self._forget = forget
        self._clip = clip
        self._spread = [[1e3 if i == j else 0.0 for j in range(size)] for i in range(size)]

    def predict(self, features: tuple[float, ...]) -> float:
        """The value expected for these features."""
        return sum(w * x for w, x in zip(self.weights, features, strict=True))

    def learn(self, features: tuple[float, ...], value: float) -> None:
        """One measurement."""
        error = value - self.predict(features)
        if self.samples >= 8:
            limit = self._clip * max(self.residual, 0.02 * abs(value))
            error = max(-limit, min(limit, error))
        self.residual += (abs(error) - self.residual) / min(self.samples + 1, 32)
        spread, size = self._spread, range(len(features))
        column = [sum(spread[i][j] * features[j] for j in size) for i in size]
        scale = self._forget + sum(features[i] * column[i] for i in size)
        gain = [c / scale for c in column]
        for i in size:
            self.weights[i] += gain[i] * error
            for j in size:
                spread[i][j] = min((spread[i][j] - gain[i] * column[j]) / self._forget, 1e6)
        self.samples += 1


_TOKENS = 1e3
_PAIRS = 1e6


class Recompute:
    """Seconds to compute tokens on one engine."""

    def __init__(self, token_s: float) -> None:
        """Start from a guess of `token_s` seconds for each token."""
        self._fit = Fit((0.0, token_s * _TOKENS, 0.0))

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

        The fixed part is paid once whatever is loaded, so it never weighs in a choice. A fit that
        has not seen long contexts can have a negative weight; no weight below zero is believed.
        """
        if new <= 0:
            return 0.0
        _, per_token, per_pair = self.weights
        return max(per_token, 1e-9) * new + max(per_pair, 0.0) * new * (cached + new / 2)


_MIB = 1024.0 * 1024.0


class Pipe:
    """Seconds to move bytes over one link, as a fixed latency and a rate."""

    def __init__(self, rate_bytes_per_s: float, latency_s: float) -> None:
        """Start from guesses."""
        self._fit = Fit((latency_s, _MIB / rate_bytes_per_s))

    @property
    def samples(self) -> int:
        """Measurements so far."""
        return self._fit.samples

    def learn(self, size_bytes: int, seconds: float) -> None:
        """Moving `size_bytes` took `seconds`."""
        self._fit.learn((1.0, size_bytes / _MIB), seconds)

    def seconds(self, size_bytes: float, queued_bytes: float = 0.0) -> float:
        """Time until `size_bytes` are across when `queued_bytes` are already waiting for the link."""
        if size_bytes <= 0:
            return 0.0
        latency, per_mib = self._fit.weights
        moved = (size_bytes + queued_bytes) / _MIB
        return max(latency, 0.0) + max(per_mib, 1e-7) * moved

    @property
    def rate_bytes_per_s(self) -> float:
        """Bytes per second of a long transfer."""
        return _MIB / max(self._fit.weights[1], 1e-7)


@dataclass(slots=True)
class Costs:
    """All that is known about speed.

    Attributes:
        recompute: by namespace number.
        device: arena to device, by namespace number.
        tiers: reads of each tier into the arena; None for the arena itself.
        queued_bytes: bytes of loads under way, by tier.
    """

    tiers: list[Pipe | None]
    recompute: dict[int, Recompute] = field(default_factory=dict)
    device: dict[int, Pipe] = field(default_factory=dict)
    queued_bytes: list[int] = field(default_factory=list)

    def load_s(self, space: int, bytes_by_tier: list[int]) -> float:
        """Seconds until all of these bytes are on the device, tiers read side by side."""
        arrive = 0.0
        for tier, size_bytes in enumerate(bytes_by_tier):
            pipe = self.tiers[tier]
            if pipe is not None:
                arrive = max(arrive, pipe.seconds(size_bytes, self.queued_bytes[tier]))
        return arrive + self.device[space].seconds(sum(bytes_by_tier))
