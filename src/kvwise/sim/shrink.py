"""Shrink: take out of a failing scenario what its failure does not need. It judges no failure.

Delta debugging (Zeller and Hildebrandt, 2002), over requests, upsets and kinds of faults in turn. A
smaller scenario counts when it breaks the same rule. It need not break it the same way: the
smallest way to break a rule is the one worth looking at.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from kvwise.sim.faults import Fault, Plan, Upset
from kvwise.sim.scenario import Scenario
from kvwise.sim.workload import Request
from kvwise.sim.world import AUDIT_EVERY, Outcome, run

TRIES_MAX = 400
"""Most runs that shrinking may take."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Shrunk:
    """A small scenario and what became of it."""

    scenario: Scenario
    outcome: Outcome
    tries: int


class _Search:
    """The smallest failing scenario so far."""

    def __init__(self, scenario: Scenario, audit_every: int, tries_max: int) -> None:
        self.best = scenario
        self.outcome = run(scenario, audit_every=audit_every)
        self.tries = 1
        self._audit_every = audit_every
        self._tries_max = tries_max
        if self.outcome.failure is None:
            raise ValueError(f"seed {scenario.seed} does not fail: there is nothing to shrink")
        self._rule = self.outcome.failure.rule

    def accept(self, scenario: Scenario) -> bool:
        """Take a scenario if it fails as the first one did."""
        if self.tries >= self._tries_max:
            return False
        self.tries += 1
        outcome = run(scenario, audit_every=self._audit_every)
        if outcome.failure is None or outcome.failure.rule != self._rule:
            return False
        self.best, self.outcome = scenario, outcome
        return True


def shrink(
    scenario: Scenario, *, audit_every: int = AUDIT_EVERY, tries_max: int = TRIES_MAX
) -> Shrunk:
    """A scenario with the same failure from which nothing more can be taken out.

    The outcome that comes with it is audited after every event: it ends as early as it can.

    Raises:
        ValueError: the scenario does not fail.
    """
    search = _Search(scenario, audit_every, tries_max)
    size = 0
    while size != (size := _size(search.best)):
        _fewer(search.best.requests, lambda kept: search.accept(_with_requests(search, kept)))
        _fewer(search.best.plan.upsets, lambda kept: search.accept(_with_upsets(search, kept)))
        rates = tuple(search.best.plan.rates.items())
        _fewer(rates, lambda kept: search.accept(_with_rates(search, kept)))
    closest = run(search.best, audit_every=1)
    outcome = closest if closest.failure is not None else search.outcome
    return Shrunk(search.best, outcome, search.tries)


def _size(scenario: Scenario) -> int:
    plan = scenario.plan
    return len(scenario.requests) + len(plan.upsets) + len(plan.rates)


def _fewer(items: Sequence[T], still_fails: Callable[[tuple[T, ...]], bool]) -> None:
    """Leave out as many items as possible, in ever smaller pieces."""
    kept, piece = tuple(items), len(items)
    while piece:
        start = 0
        while start < len(kept):
            fewer = kept[:start] + kept[start + piece :]
            if still_fails(fewer):
                kept = fewer
            else:
                start += piece
        piece //= 2


def _with_requests(search: _Search, requests: tuple[Request, ...]) -> Scenario:
    return replace(search.best, requests=requests)


def _with_upsets(search: _Search, upsets: tuple[Upset, ...]) -> Scenario:
    return replace(search.best, plan=Plan(search.best.plan.rates, upsets))


def _with_rates(search: _Search, rates: tuple[tuple[Fault, float], ...]) -> Scenario:
    return replace(search.best, plan=Plan(dict(rates), search.best.plan.upsets))
