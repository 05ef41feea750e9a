"""Every policy keeps the promises of an eviction policy, by itself and within a brain."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwise.core.brain import Brain
from kvwise.core.keys import chain_keys
from kvwise.core.policies import POLICIES
from kvwise.core.words import (
    Asked,
    Joined,
    Planned,
    Released,
    TierSpec,
)
from kvwise.core.world import BrainConfig
from kvwise.testing.evictions import EvictionSuite, Policy
from tests.core.tiny import CHUNK, PAGE, SPACE, offer_rest, pick

OBJECTS = 12
PAGES_EACH = 3
SECOND_NS = 10**9


class TestLru(EvictionSuite):
    """Least recently used."""

    def policy(self) -> Policy:
        """By its name."""
        return POLICIES["lru"]


class TestS3Fifo(EvictionSuite):
    """Two queues."""

    def policy(self) -> Policy:
        """By its name."""
        return POLICIES["s3fifo"]


class TestWild(EvictionSuite):
    """Ranked by an exponential law."""

    def policy(self) -> Policy:
        """By its name."""
        return POLICIES["wild"]


class TestWorth(EvictionSuite):
    """Ranked by what is learned."""

    def policy(self) -> Policy:
        """By its name."""
        return POLICIES["worth"]


def test_every_policy_is_under_the_suite() -> None:
    """A policy that is added has to be tried as well."""
    tried = [suite().policy() for suite in (TestLru, TestS3Fifo, TestWild, TestWorth)]
    assert tried == list(POLICIES.values())


class Node:
    """A brain with memory only, led by what is drawn.

    Attributes:
        leases: of loads that go on.
    """

    def __init__(self, policy: str) -> None:
        """Room for twelve objects; nothing is refused for its worth."""
        tier = TierSpec("dram", OBJECTS * PAGES_EACH * PAGE, PAGE, 0, 1e10, 0.0)
        self.brain = Brain(BrainConfig(PAGE, (tier,), chance_min=0.0, eviction=policy))
        self.brain.handle(Joined(0, 1, SPACE))
        self.leases: list[int] = []
        self.now_ns = 0
        self._requests = 0

    def request(self, prompt: int, chunks: int, wait_s: int) -> int:
        """Ask for a prompt and offer all of it; the number of chunks that were granted."""
        self.now_ns += wait_s * SECOND_NS
        self._requests += 1
        name, brain = str(self._requests), self.brain
        tokens = [prompt] * CHUNK + list(range(CHUNK * (chunks - 1)))
        keys = chain_keys(SPACE.digest, tokens, CHUNK)
        asked = Asked(self.now_ns, 1, name, SPACE.digest, keys, 0, len(tokens) + 1)
        plan = pick(brain.handle(asked), Planned)
        if plan.lease:
            self.leases.append(plan.lease)
        grant = offer_rest(brain, asked, plan, len(tokens) + 1)
        return len(grant.chunks) if grant is not None else 0

    def release(self) -> None:
        """The load that began first is over."""
        if self.leases:
            self.brain.handle(Released(self.now_ns, 1, self.leases.pop(0)))


STEPS = st.lists(
    st.tuples(
        st.integers(0, 5), st.integers(1, 6), st.sampled_from((0, 1, 40, 4000)), st.booleans()
    ),
    max_size=40,
)


@pytest.mark.parametrize("policy", POLICIES)
@given(steps=STEPS)
def test_no_candidate_is_ever_lost(policy: str, steps: list[tuple[int, int, int, bool]]) -> None:
    """Whatever was asked for and held, once nothing is in use a new prompt can have all memory."""
    node = Node(policy)
    for prompt, chunks, wait_s, over in steps:
        node.request(prompt, chunks, wait_s)
        node.brain.check()
        if over:
            node.release()
    while node.leases:
        node.release()
    node.brain.check()

    assert node.request(6, OBJECTS, 1) == OBJECTS
