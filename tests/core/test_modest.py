"""Newcomers to a full arena: they make nothing leave that is worth more than they are."""

from __future__ import annotations

import pytest

from kvwise.core.brain import Brain
from kvwise.core.hints import NO_HINTS, Hints
from kvwise.core.keys import chain_keys
from kvwise.core.reuse import LENGTHS
from kvwise.core.words import (
    Asked,
    Granted,
    Joined,
    Planned,
    Released,
    TierSpec,
    Why,
)
from kvwise.core.world import BrainConfig
from kvwise.units import NS_PER_S
from tests.core.tiny import CHUNK, PAGE, SPACE, offer_rest, pick

OBJECTS = 40
PAGES_EACH = 2
CHUNKS = 4
BACK_S = 20
SHORT, LONG = 1, LENGTHS[0] + 1
DRAM = TierSpec("dram", OBJECTS * PAGES_EACH * PAGE, PAGE, 0, 1e10, 0.0)
DISK = TierSpec("disk", 1000 * PAGE * PAGES_EACH, PAGE, 0, 1e9, 1e-4)


class Node:
    """A brain that has learned that short prompts come back soon, and few of the long ones."""

    def __init__(self, tiers: tuple[TierSpec, ...] = (DRAM,), chance_min: float = 0.02) -> None:
        """Four prompts a second time, three of them long; one long one in four comes back."""
        config = BrainConfig(PAGE, tiers, chance_min=chance_min, eviction="worth")
        self.brain = Brain(config)
        self.brain.handle(Joined(0, 1, SPACE))
        self._now_s = self._requests = 0
        for number in range(300):
            back = [self.ask(SHORT), self.ask(LONG)]
            self.wait(BACK_S)
            self.ask(SHORT, back[0])
            if number % 4 == 0:
                self.ask(LONG, back[1])
            self.wait(1)
        self.wait(10_000)
        for _ in range(OBJECTS // CHUNKS):  # all that is there will come back
            self.ask(SHORT)
        self.wait(BACK_S // 2)

    def wait(self, seconds: int) -> None:
        """Time goes on."""
        self._now_s += seconds

    def ask(self, tokens: int, keys: bytes = b"", hints: Hints = NO_HINTS) -> bytes:
        """A request for a prompt, a new one unless it is named, of this class of length."""
        self.offer(keys := keys or self.new(), tokens, hints)
        return keys

    def new(self) -> bytes:
        """Keys of a prompt that nobody has asked for."""
        begin = (self._requests + 1) * 1000
        return chain_keys(SPACE.digest, list(range(begin, begin + CHUNKS * CHUNK)), CHUNK)

    def offer(self, keys: bytes, tokens: int, hints: Hints = NO_HINTS) -> Granted | None:
        """Ask, and offer what is not there; what is granted of it."""
        brain, now_ns = self.brain, self._now_s * NS_PER_S
        self._requests += 1
        name = str(self._requests)
        asked = Asked(now_ns, 1, name, SPACE.digest, keys, 0, max(tokens, CHUNKS * CHUNK + 1))
        plan = pick(brain.handle(asked), Planned)
        if plan.lease:
            brain.handle(Released(now_ns, 1, plan.lease))
        return offer_rest(brain, asked, plan, tokens, hints)


def granted(node: Node, tokens: int, hints: Hints = NO_HINTS) -> dict[Why, int]:
    """Why chunks of a new prompt are refused; empty if none is."""
    grant = node.offer(node.new(), tokens, hints)
    assert grant is not None
    node.brain.check()
    return grant.reasons


def test_a_newcomer_that_is_worth_less_is_refused() -> None:
    """A full arena of what comes back is not given up for what seldom does."""
    node = Node()
    assert granted(node, LONG) == {Why.WORTH: 1, Why.NO_PARENT: CHUNKS - 1}
    node.wait(1000 * BACK_S)
    assert granted(node, LONG) == {}  # by now nobody will ask for them any more


@pytest.mark.parametrize("hints", [Hints(pin_s=1), Hints(priority=1)])
def test_a_hint_lets_it_in(hints: Hints) -> None:
    """What a caller wants kept is taken in, whatever was learned."""
    assert granted(Node(), LONG, hints) == {}


def test_a_tier_below_lets_it_in() -> None:
    """What leaves is not lost then, and what is refused would never get there."""
    assert granted(Node((DRAM, DISK)), LONG) == {}


def test_nothing_is_refused_without_a_least_chance() -> None:
    """Whoever sets `write.min_chance` to 0 has everything stored."""
    assert granted(Node(chance_min=0.0), LONG) == {}
