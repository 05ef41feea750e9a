"""Admission: each verdict where it belongs. Budgets are in test_govern."""

from __future__ import annotations

from kvwise.core.admit import Admit, Reject, admit_prompt
from kvwise.core.hints import Hints
from kvwise.core.words import Why


def test_prompts() -> None:
    """Hints and the minimum length, with an unknown length let through."""
    assert admit_prompt(100, 50, Hints()) == Admit()
    assert admit_prompt(0, 50, Hints()) == Admit()
    assert admit_prompt(49, 50, Hints()) == Reject(Why.TOO_SHORT)
    assert admit_prompt(100, 50, Hints(no_store=True)) == Reject(Why.DISABLED)
    assert admit_prompt(100, 50, Hints(no_reuse=True)) == Reject(Why.DISABLED)
