"""Shrink: a failing scenario becomes small and fails the same way. One that holds is refused."""

from __future__ import annotations

import pytest

from kvwise.sim.faults import Fault
from kvwise.sim.report import tell
from kvwise.sim.scenario import draw
from kvwise.sim.shrink import shrink
from kvwise.sim.world import run
from tests.sim.canaries import drops_come_last, full_is_forgotten


def test_a_failure_shrinks_to_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of sixty requests and many faults a few requests and one fault are left, and one rule."""
    full_is_forgotten(monkeypatch)
    scenario = draw(44)
    first = run(scenario, audit_every=1)
    shrunk = shrink(scenario)
    assert first.failure is not None
    assert shrunk.outcome.failure is not None
    assert shrunk.outcome.failure.rule == first.failure.rule
    assert len(shrunk.scenario.requests) <= 4
    assert set(shrunk.scenario.plan.rates) <= {Fault.WRITE_FULL}
    assert len(shrunk.scenario.plan.rates) + len(shrunk.scenario.plan.upsets) == 1
    assert shrunk.outcome.events < first.events / 5


def test_a_bug_without_faults_needs_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the bug shows by itself, every fault is taken out, and the report shows the command."""
    drops_come_last(monkeypatch)
    shrunk = shrink(draw(30))
    assert shrunk.scenario.plan.upsets == ()
    assert dict(shrunk.scenario.plan.rates) == {}
    lines = tell(shrunk, events=3)
    assert any(line.startswith("broken: no write beyond the cap") for line in lines)
    assert any(line.lstrip().startswith("Store(") for line in lines)


def test_tries_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shrinking stops after so many runs with the smallest scenario it has."""
    full_is_forgotten(monkeypatch)
    shrunk = shrink(draw(8), tries_max=5)
    assert shrunk.tries == 5
    assert shrunk.outcome.failure is not None


def test_what_holds_cannot_shrink() -> None:
    """A scenario in which nothing breaks is refused."""
    with pytest.raises(ValueError, match="does not fail"):
        shrink(draw(1, 5))
