"""The line to the cache: collects what a step has to say, and takes silence for a miss.

The cache client keeps what must not get lost and answers at once while its daemon is away; here
it is only made sure that an engine goes on without it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from kvwise.core.words import Namespace
from kvwise.engines.vllm.counts import Counts
from kvwise.errors import BugError, CacheUnavailable
from kvwise.live.clock import now_ns
from kvwise.live.messages import Ask, Cache, Fill, Grant, Offer, Plan, Release, Step, Timing
from kvwise.units import NS_PER_S

TIMINGS_MAX = 32
"""Timings that wait for something else to be said before they are said by themselves."""

T = TypeVar("T")
_log = logging.getLogger(__name__)


class Link:
    """What the scheduler half says to the cache. Owns the cache."""

    def __init__(self, cache: Cache, counts: Counts) -> None:
        """Nothing is said before there is something to say."""
        self._cache = cache
        self._counts = counts
        self._fills: list[Fill] = []
        self._releases: list[Release] = []
        self._timings: list[Timing] = []

    def join(self, namespace: Namespace) -> None:
        """Open a namespace; if the cache is away, it hears of it when it is back.

        Raises:
            ConfigError: the cache has no room for such objects.
        """
        self._try("join", lambda: self._cache.join(namespace))

    def ask(self, ask: Ask) -> Plan | None:
        """A plan; None when there is no answer. What ended before is said before."""
        self.flush()
        return self._try("ask", lambda: self._cache.ask(ask))

    def want(self, lease: int, chunks: int) -> Grant | None:
        """Pages of a load; None when there is no answer."""
        return self._try("want", lambda: self._cache.want(lease, chunks))

    def fill(self, lease: int, good: int) -> None:
        """Say, at the next occasion, that a store lease is over."""
        self._fills.append(Fill(lease, good))

    def release(self, release: Release) -> None:
        """Say, at the next occasion, that a load lease is over."""
        self._releases.append(release)

    def time(self, timing: Timing) -> None:
        """Say, at the next occasion, how long a step took."""
        self._timings.append(timing)
        if len(self._timings) >= TIMINGS_MAX:
            self.offer([])

    def flush(self) -> None:
        """Say now what waits to be said, if anything does."""
        if self._fills or self._releases or self._timings:
            self.offer([])

    def offer(self, offers: list[Offer]) -> list[Grant]:
        """Say everything, these offers included; one grant each, or none at all without answer."""
        step = Step(
            fills=self._fills, releases=self._releases, offers=offers, timings=self._timings
        )
        self._fills, self._releases, self._timings = [], [], []
        return self._try("step", lambda: self._cache.step(step)) or []

    def capacity_bytes(self) -> int | None:
        """What all tiers hold; None when there is no answer."""

        def say() -> int:
            tiers = self._cache.status()["levels"]["tiers"]
            return sum(int(tier["capacity_bytes"]) for tier in tiers.values())

        return self._try("status", say)

    def clear(self, space: bytes) -> bool:
        """Drop a namespace's objects; False when there is no answer."""

        def say() -> bool:
            self._cache.clear(space)
            return True

        self.flush()
        return self._try("clear", say) is not None

    def close(self) -> None:
        """Say what is left, then hang up."""
        self.flush()
        self._cache.close()

    def _try(self, verb: str, say: Callable[[], T]) -> T | None:
        """The answer, if there is one; the engine's scheduler waits for it."""
        begin_ns = now_ns()
        try:
            return say()
        except CacheUnavailable as error:
            _log.debug("no answer to %s: %s", verb, error)
        except BugError:
            _log.exception("the cache refused %s", verb)
        finally:
            self._counts.add("held_seconds", (now_ns() - begin_ns) / NS_PER_S, "answers")
        self._counts.add("unanswered", 1, verb)
        return None
