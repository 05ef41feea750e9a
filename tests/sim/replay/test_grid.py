"""The grid: times that can be worked out by hand, and the promise in a few of its cells."""

from __future__ import annotations

import pytest

from kvwise.sim.replay.grid import (
    CHUNK_TOKENS,
    CLIENTS,
    GB_PER_S,
    LATENCY_S,
    NEW_TOKENS,
    PREFIX_TOKENS,
    Cell,
    Compared,
    Outcome,
    cells,
    compare,
)
from kvwise.sim.replay.profile import DEFAULT, PROFILES
from tests.sim.trace.support import quiet

PROFILE = PROFILES[DEFAULT]
OBJECT_BYTES = CHUNK_TOKENS * PROFILE.kv_bytes_per_token


@pytest.mark.parametrize("rate", [50.0, 1.0])
def test_a_single_client_waits_for_what_it_asks(rate: float) -> None:
    """Alone, time to first token is a read, the copy of its last part and a step; or a step."""
    prefix = 2_048
    found = compare(PROFILE, Cell(prefix, 1, rate), quiet)
    read_s = LATENCY_S + prefix * PROFILE.kv_bytes_per_token / (rate * 1e9)
    step_s = PROFILE.step_s + PROFILE.compute_s(NEW_TOKENS, prefix)
    load_s = read_s + PROFILE.load_s(OBJECT_BYTES) + step_s
    compute_s = PROFILE.step_s + PROFILE.compute_s(prefix + NEW_TOKENS, 0)

    assert found.load.mean_s == pytest.approx(load_s, rel=1e-3)
    assert found.recompute.mean_s == pytest.approx(compute_s, rel=1e-6)
    assert found.auto.mean_s == pytest.approx(min(load_s, compute_s), rel=0.02)
    assert (found.load.loaded, found.recompute.loaded) == (1.0, 0.0)
    assert not found.is_contended
    assert not found.is_worse


def test_mixing_wins_where_gpu_and_tier_are_both_busy() -> None:
    """Where loading and computing take about as long, doing both at once takes far less."""
    found = compare(PROFILE, Cell(2_048, 16, 7.0), quiet)

    assert found.is_contended
    assert found.is_mixed
    assert not found.is_worse
    assert found.mixing_bound - 0.02 < found.mean_ratio < 0.7
    assert 0.2 < found.auto.loaded < 0.8


def test_the_same_cell_again_is_the_same() -> None:
    """Nothing in a cell is left to chance, and it is told how far it is."""
    cell = Cell(2_048, 3, 14.0)

    told = list[str]()
    assert compare(PROFILE, cell, told.append) == compare(PROFILE, cell, quiet)
    assert told[0] == "2048,3,14, load: 0 of 203 requests"
    assert told[-1] == "2048,3,14, auto: 200 of 203 requests"


def test_every_cell_is_in_the_grid() -> None:
    """The grid has every combination once."""
    assert len(set(cells())) == len(PREFIX_TOKENS) * len(CLIENTS) * len(GB_PER_S)


def outcome(mean_s: float, p99_s: float) -> Outcome:
    """A policy that keeps everything busy."""
    return Outcome(mean_s, p99_s, gpu=1.0, tier=1.0, loaded=0.5, late=0)


@pytest.mark.parametrize(
    ("auto", "worse"), [((1.0, 2.2), False), ((1.0, 2.3), True), ((1.03, 2.0), True)]
)
def test_worse_is_worse_than_the_better_of_both(auto: tuple[float, float], worse: bool) -> None:
    """Mean and p99 are each held against the better of the two other policies."""
    cell = Cell(2_048, 16, 7.0)
    found = Compared(cell, outcome(1.0, 3.0), outcome(2.0, 2.05), outcome(*auto))

    assert found.is_worse is worse
