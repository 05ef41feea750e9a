"""Canaries: each planted bug makes some seed fail. One that catches nothing proves nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvwise.sim.world import run_seed
from tests.sim.canaries import CANARIES

SEEDS_MAX = 40
"""Seeds in which every canary must be caught; in the first run of all none needed more than 11."""


@pytest.mark.parametrize("plant", CANARIES, ids=lambda plant: str(plant.__name__))
def test_planted_bugs_are_caught(
    plant: Callable[[pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    """A canary must fail: with a bug planted in the brain, some seed breaks a rule."""
    plant(monkeypatch)
    caught = next((seed for seed in range(SEEDS_MAX) if run_seed(seed).failure), None)
    record_property("first_seed", caught)

    assert caught is not None
