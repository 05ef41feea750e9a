"""Ranked: what is learned to come back stays, and who moves to another class is not forgotten."""

from __future__ import annotations

from math import exp

import pytest

from kvwise.core.hazards import BUCKETS, Hazards, bucket_of
from kvwise.core.index import NONE
from kvwise.core.policies import POLICIES
from kvwise.core.ranked import wild, worth
from kvwise.testing.evictions import Candidates

BACK, NEVER = 0, 1
"""Namespaces: of prompts that come back within seconds, and of others."""


def taught(policy: str) -> Candidates:
    """A policy that has seen that prompts of one namespace come back."""
    made = Candidates(POLICIES[policy])
    made.stay.note(300.0, 0.0)
    for _ in range(400):
        back, never = made.new(space=BACK), made.new(space=NEVER)
        made.wait(5)
        made.use(back, space=BACK)
        for row in (back, never):
            made.reuse.gone((row,))
        made.wait(5)
    made.drain()
    return made


@pytest.mark.parametrize("policy", ["worth", "wild"])
def test_what_never_comes_back_leaves_first(policy: str) -> None:
    """Also when it is the younger one."""
    made = taught(policy)
    back = {made.new(space=BACK) for _ in range(5)}
    made.wait(1)
    never = {made.new(space=NEVER) for _ in range(5)}
    made.wait(1)
    order = made.drain()
    assert set(order[:5]) == never
    assert set(order[5:]) == back


def test_what_did_not_come_back_in_its_time_leaves() -> None:
    """Prompts that come back do so after five seconds; an hour later one is worth nothing."""
    made = taught("worth")
    late = made.new(space=BACK)
    made.wait(3600)
    never = made.new(space=NEVER)
    made.wait(1)
    fresh = made.new(space=BACK)
    made.wait(0.5)
    order = []
    for _ in range(3):
        order.append(made.leave())
        made.wait(0.1)
    assert order == [late, never, fresh]


@pytest.mark.parametrize("policy", ["worth", "wild"])
def test_of_one_class_the_oldest_leaves_first(policy: str) -> None:
    """Within a class the order is that of use."""
    made = Candidates(POLICIES[policy])
    rows = []
    for _ in range(20):
        rows.append(made.new())
        made.wait(30)
    assert made.drain() == rows


@pytest.mark.parametrize("policy", ["worth", "wild"])
def test_who_moved_to_another_class_is_still_looked_at(policy: str) -> None:
    """Found by the simulator: the last candidate of its class, used in a way nobody was before."""
    made = Candidates(POLICIES[policy])
    row = made.new()
    assert made.policy.propose() == row
    for tokens in (3_000, 9_000, 40_000):
        made.wait(10)
        made.use(row, tokens=tokens)
        assert made.policy.propose() == row
    made.policy.accept()
    assert made.policy.propose() == NONE


def test_scores_are_what_they_say() -> None:
    """A density by the age's bucket, and the published formula, each from what is known."""
    known = Hazards()
    known.wait(3, 50.0)
    known.hit(3, 20.0)
    known.learn(0)
    for age_s in (0.0, 0.4, 3.0, 700.0, 1e7):
        assert worth(known, age_s, 1.0) == known.density[bucket_of(age_s)]
        span = 1 - exp(-known.rate * 60)
        assert wild(known, age_s, 60.0) == pytest.approx(exp(-known.rate * age_s) * span)
    assert len(known.density) == BUCKETS
