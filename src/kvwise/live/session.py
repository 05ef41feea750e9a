"""A session: the verbs of one client, from messages to events and from answers to replies.

It checks what a client says before the brain hears it, and decides nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvwise.core.brain import Brain
from kvwise.core.elements import Coding, Elements
from kvwise.core.hints import Hints
from kvwise.core.keys import DIGEST_BYTES, KEY_BYTES
from kvwise.core.words import (
    Asked,
    Cleared,
    Decision,
    Event,
    Filled,
    Granted,
    Namespace,
    Observed,
    Offered,
    Planned,
    Released,
    Wanted,
)
from kvwise.errors import BugError, ConfigError
from kvwise.live.clock import now_ns
from kvwise.live.leases import join_lease, pack_pages, split_lease
from kvwise.live.messages import Ask, Grant, Offer, Plan, Release, Step, Timing
from kvwise.live.node import Node
from kvwise.live.pump import Answer
from kvwise.units import NS_PER_S

REQUEST_CHARS_MAX = 1024
LABEL_CHARS_MAX = 1024
LAYERS_MAX = 1 << 14
"""What a namespace, which is kept for good, may take."""

TOKENS_MAX = (1 << 31) - 1
BACKLOG_TOKENS_MAX = 1 << 40
REQUESTS_MAX = 1 << 16
COPIED_BYTES_MAX = 1 << 40
SECONDS_MAX = 1e6
PAIRS_MAX = 1e18
ELEMENTS_MAX = 1 << 31
"""What no prompt, load or step goes beyond: counters add these up for as long as the daemon lives,
and the fits multiply them."""


class Session:
    """What one client may say to a node."""

    def __init__(self, node: Node, engine: str, *, wake: bool = True) -> None:
        """Attach; sessions with the same `engine` are one client.

        Without `wake` the caller wakes the pump's workers after it passed the reply on.
        """
        self._wake = wake
        self._node = node
        self._pump = node.pump
        self._engine = engine
        self._client = node.attach(engine)
        self._open = True

    def close(self) -> None:
        """Detach; leases end when the last session of the client does. Idempotent."""
        if self._open:
            self._open = False
            self._node.detach(self._engine)

    # --- verbs ---

    def join(self, namespace: Namespace) -> None:
        """Open a namespace; idempotent.

        Raises:
            ConfigError: it is not one, does not fit the arena, or stands for another shape.
        """
        label = namespace.label[:64]
        sane = 0 < namespace.token_s <= SECONDS_MAX and 0 <= namespace.pair_tokens <= SECONDS_MAX
        if len(namespace.digest) != DIGEST_BYTES or not sane:
            raise ConfigError(f"namespace {label} has no proper digest or token time")
        layers = sum(max(1, len(group.pages_bytes)) for group in namespace.layout.groups)
        if len(namespace.label) > LABEL_CHARS_MAX or layers > LAYERS_MAX:
            raise ConfigError(f"namespace {label} has {layers} layers, or too long a name")
        lossy = namespace.lossy
        if not _is_geometry(namespace.elements) or (lossy.lossless and lossy is not Coding.PLAIN):
            raise ConfigError(f"namespace {label} has elements or a lossy codec that cannot be")
        self._node.join(self._client, namespace)

    def ask(self, ask: Ask) -> Plan:
        """Plan a request."""
        self._check(ask.space, ask.keys, ask.request)
        _check_hints(ask.hints)
        if not 0 <= ask.local_tokens <= ask.total_tokens <= TOKENS_MAX:
            raise BugError(f"{ask.local_tokens} of {ask.total_tokens} tokens are on the device")
        event = Asked(
            now_ns(),
            self._client,
            ask.request,
            ask.space,
            ask.keys,
            ask.local_tokens,
            ask.total_tokens,
            ask.hints,
            *_backlog(ask),
            layers=min(max(0, ask.layers), LAYERS_MAX),
            requests=min(max(1, ask.requests), REQUESTS_MAX),
        )
        (answer,) = self._handle([event])
        if not isinstance(answer, Planned):
            raise BugError(f"asked for a plan, got {answer}")
        return Plan(
            lease=self._wire(answer.lease),
            first_chunk=answer.first_chunk,
            chunks=answer.chunks,
            load_tokens=answer.load_tokens,
            ready=answer.ready,
            wait_s=answer.deadline_ns / NS_PER_S,
            decision=answer.decision,
        )

    def want(self, lease: int, chunks: int) -> Grant:
        """Start a planned load. No chunks are granted when the lease has ended."""
        number = self._number(lease)
        if not number:
            return Grant(lease=lease, chunks=[], pages=b"")
        (answer,) = self._handle([Wanted(now_ns(), self._client, number, chunks)])
        return self._grant(answer)

    def step(self, step: Step) -> list[Grant]:
        """Take in a step: what ended first, so that offers find the room."""
        now = now_ns()
        events: list[Event] = [
            Filled(now, self._client, self._number(fill.lease), fill.good) for fill in step.fills
        ]
        events += [self._released(now, release) for release in step.releases]
        events += [self._observed(now, timing) for timing in step.timings if self._is_sane(timing)]
        self._handle(events)
        for offer in step.offers:
            self._check(offer.space, offer.keys, offer.request)
            _check_hints(offer.hints)
            if len(offer.parent) != KEY_BYTES:
                raise BugError(f"a parent's key has {len(offer.parent)} bytes")
        offers = [self._offered(now, offer) for offer in step.offers]
        return [self._grant(answer) for answer in self._handle(offers)]

    def explain(self, limit: int) -> list[Decision]:
        """The last decisions, newest last."""

        def last(brain: Brain) -> list[Decision]:
            return brain.decisions(limit)

        return self._pump.query(last)

    def status(self) -> dict[str, Any]:
        """Counters and levels."""
        return self._node.status()

    def clear(self, space: bytes) -> None:
        """Drop what is not in use."""
        if len(space) not in (0, DIGEST_BYTES):
            raise BugError(f"a namespace digest has {len(space)} bytes")
        self._handle([Cleared(now_ns(), space)])

    def waiting_writes(self) -> int:
        """How many deferred writes are left."""
        return self._pump.waiting_writes()

    # --- words ---

    def _handle(self, events: Sequence[Event]) -> list[Answer]:
        """Have events handled."""
        return self._pump.handle(events, wake=self._wake)

    def _check(self, space: bytes, keys: bytes, request: str) -> None:
        """Refuse what the brain must never hear."""
        if not self._node.knows(space):
            raise BugError(f"namespace {space.hex()} was used before it was joined")
        if len(keys) % KEY_BYTES:
            raise BugError(f"keys of {KEY_BYTES} bytes do not add up to {len(keys)}")
        if len(request) > REQUEST_CHARS_MAX:
            raise BugError(f"a request's name has {len(request)} characters")

    def _is_sane(self, timing: Timing) -> bool:
        """Whether a measurement can be one; anything else would bend the fit for good."""
        return (
            self._node.knows(timing.space)
            and 0 <= timing.tokens <= TOKENS_MAX
            and 0 <= timing.pairs <= PAIRS_MAX
            and 0 <= timing.seconds <= SECONDS_MAX
        )

    def _offered(self, now: int, offer: Offer) -> Offered:
        return Offered(
            now,
            self._client,
            offer.request,
            offer.space,
            offer.parent,
            offer.keys,
            offer.total_tokens,
            offer.hints,
        )

    def _released(self, now: int, release: Release) -> Released:
        waited_ns = max(0, release.waited_ns)
        if not release.failed and release.copied_bytes > 0:
            self._node.latencies.load(waited_ns)
        return Released(
            now,
            self._client,
            self._number(release.lease),
            min(max(0, release.copied_bytes), COPIED_BYTES_MAX),
            max(0, release.copy_ns),
            waited_ns,
            release.failed,
        )

    def _observed(self, now: int, timing: Timing) -> Observed:
        return Observed(
            now,
            self._client,
            timing.space,
            timing.tokens,
            timing.pairs,
            timing.seconds,
            min(max(1, timing.requests), REQUESTS_MAX),
        )

    def _grant(self, answer: Answer) -> Grant:
        if not isinstance(answer, Granted):
            raise BugError(f"asked for pages, got {answer}")
        return Grant(
            lease=self._wire(answer.lease),
            chunks=list(answer.chunks),
            pages=pack_pages(answer.pages),
        )

    def _wire(self, number: int) -> int:
        """A lease as clients know it; 0 stays 0."""
        return join_lease(self._node.epoch, number) if number else 0

    def _number(self, lease: int) -> int:
        """The brain's number of a client's lease; 0, which no lease has, for another daemon's."""
        epoch, number = split_lease(lease)
        return number if epoch == self._node.epoch else 0


def _backlog(ask: Ask) -> tuple[int, float]:
    """Tokens and pairs of earlier prompts; what cannot be counts as an idle engine."""
    sane = 0 <= ask.backlog_tokens <= BACKLOG_TOKENS_MAX and 0 <= ask.backlog_pairs <= PAIRS_MAX
    return (ask.backlog_tokens, ask.backlog_pairs) if sane else (0, 0.0)


def _check_hints(hints: Hints) -> None:
    """Refuse numbers that no hint can have."""
    if not hints.is_sane:
        raise BugError(f"no request can mean these hints: {hints}")


def _is_geometry(elements: Elements | None) -> bool:
    """Whether elements can be those of an object."""
    if elements is None:
        return True
    tensor, heads, run = elements.tensor_elements, elements.heads, elements.run_elements
    return 0 < run * heads <= tensor <= ELEMENTS_MAX and heads > 0 and tensor % (run * heads) == 0
