"""Admission: each verdict where it belongs, and a budget that holds over any day."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwise.core.admit import DAY_NS, Admit, Budget, Reject, Throttle, admit_prompt
from kvwise.core.words import Why


def test_prompts() -> None:
    """Hints and the minimum length, with an unknown length let through."""
    assert admit_prompt(100, 50, no_store=False) == Admit()
    assert admit_prompt(0, 50, no_store=False) == Admit()
    assert admit_prompt(49, 50, no_store=False) == Reject(Why.TOO_SHORT)
    assert admit_prompt(100, 50, no_store=True) == Reject(Why.DISABLED)


def test_no_limit() -> None:
    """Zero bytes a day means no budget at all."""
    budget = Budget(0)
    budget.spend(10**15)
    assert budget.ask(0, 10**12) == Admit()


@pytest.mark.pain("G8")
@given(
    st.integers(24_000, 10**9),
    st.lists(st.tuples(st.integers(0, DAY_NS // 50), st.integers(1, 10**8)), max_size=120),
)
def test_never_more_than_a_day_and_a_burst(per_day: int, asks: list[tuple[int, int]]) -> None:
    """Over any run, what was let through is at most the rate times the time, plus the burst."""
    budget, now_ns, spent, largest = Budget(per_day), 0, 0, 0
    for wait_ns, size in asks:
        now_ns += wait_ns
        if isinstance(budget.ask(now_ns, size), Admit):
            budget.spend(size)
            spent += size
            largest = max(largest, size)
        assert spent <= per_day * (now_ns / DAY_NS) + per_day / 24 + largest + 1


def test_waiting_as_told_is_enough() -> None:
    """A throttled write is admitted after the wait it was given."""
    budget = Budget(24_000)
    budget.spend(1000)
    verdict = budget.ask(1, 500)
    assert isinstance(verdict, Throttle)
    assert budget.ask(1 + verdict.wait_ns, 500) == Admit()
