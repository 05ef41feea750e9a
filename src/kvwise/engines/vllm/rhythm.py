"""Rhythm: how long the engine's steps take, as the scheduler sees them.

A step lasts from when it was ordered, or from when the one before it ended if that was later, until
its results arrive; time that copies held it up is taken off. It measures and draws no conclusion.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from kvwise.live.messages import Timing
from kvwise.units import NS_PER_S

STEPS_IN_FLIGHT_MAX = 64
"""Steps that are remembered while their results are awaited; vLLM has two or three in flight."""

WARM_UP = 1
"""First steps of an engine, which allocate and compile: they say nothing about the next ones."""


@dataclass(frozen=True, slots=True)
class _Beat:
    """A step on its way."""

    begin_ns: int
    tokens: int
    pairs: float
    requests: int
    clean: bool


class Rhythm:
    """Times the steps of one engine in one namespace."""

    def __init__(self, space: bytes) -> None:
        """No step has begun."""
        self._space = space
        self._beats: OrderedDict[int, _Beat] = OrderedDict()
        self._last_ns = 0
        self._ended = 0

    def begin(self, number: int, now_ns: int, work: list[tuple[int, int]], *, clean: bool) -> None:
        """A step is ordered: (new tokens, tokens before them) of each request in it.

        `clean` is False when its time will say nothing about computing; nor does that of a step in
        which every request computes a single token.
        """
        tokens = sum(new for new, _ in work)
        pairs = sum(new * (before + new / 2) for new, before in work)
        clean &= tokens > len(work)
        self._beats[number] = _Beat(now_ns, tokens, pairs, len(work), clean)
        while len(self._beats) > STEPS_IN_FLIGHT_MAX:
            self._beats.popitem(last=False)

    def end(self, number: int, now_ns: int, blocked_ns: int) -> Timing | None:
        """A step's results are there; a sample if it makes one."""
        beat = self._beats.pop(number, None)
        if beat is None:
            return None
        begin_ns, self._last_ns = max(beat.begin_ns, self._last_ns), now_ns
        self._ended += 1
        seconds = (now_ns - begin_ns - blocked_ns) / NS_PER_S
        if not beat.clean or self._ended <= WARM_UP or seconds <= 0:
            return None
        return Timing(self._space, beat.tokens, beat.pairs, seconds, beat.requests)
