"""The bench of codecs on the way to disk: a real daemon, few and small loads."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvwise.bench import boundary
from kvwise.bench.boundary import POLICIES, BoundaryOptions, Cell, _crossing, _notes
from kvwise.codecs import forms
from kvwise.errors import ConfigError
from tests.bench.fakes import Notes


@pytest.mark.skipif(not forms.at_hand(), reason="Numba is not installed")
def test_a_daemon_is_measured_under_every_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each row has a time for each policy, and on a slow drive auto is no longer plain."""
    monkeypatch.setattr(boundary, "WARM_ROUNDS", 6)
    options = BoundaryOptions(tmp_path, (60.0,), rounds=1, objects=3)
    found = boundary.measure_boundary(options, Notes())
    (row,) = found.rows
    assert all(row[f"{policy}_ms"] > 0 for policy in POLICIES)
    assert row["auto_chose"] in ("fixed", "dense")
    assert row["why"] == "link_slow"
    assert row["break_even_mb_per_s"] > 60
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_a_rate_that_cannot_be_is_refused(tmp_path: Path, rate: float) -> None:
    """Nothing is started for a rate that is none."""
    with pytest.raises(ConfigError, match="rate"):
        boundary.measure_boundary(BoundaryOptions(tmp_path, (rate,)), Notes())
    assert [*tmp_path.iterdir()] == []


def cell(rate: float, off_ms: float, codec_ms: float, chose: str, break_even: float = 1500) -> Cell:
    """What a rate came to."""
    times = {"off": [off_ms], "fixed": [codec_ms], "dense": [codec_ms + 1], "auto": [off_ms]}
    return Cell(rate * 1e6, times, chose, "", rate * 1e6, break_even * 1e6)


def test_where_it_flips_is_told_beside_the_formula() -> None:
    """Between the last rate with a codec and the first without lies the flip."""
    cells = [cell(1000, 10, 8, "dense"), cell(2000, 5, 6, "plain"), cell(3000, 3, 5, "plain")]
    notes = _notes(cells)
    assert "the choice flips at 1500 MB/s, 1.00 of the 1500 MB/s of the formula" in notes
    assert "the measured times cross at 1667 MB/s" in notes
    assert _crossing(cells[1:], lambda one: 1.0 if one.chose == "plain" else -1.0) == 0.0


def test_the_formula_is_that_of_its_own_rate() -> None:
    """What is reckoned at rates far from the flip is of other loads."""
    cells = [
        cell(500, 10, 8, "dense", 3000),
        cell(1000, 10, 8, "dense", 1400),
        cell(2000, 5, 6, "plain", 1400),
        cell(3000, 3, 5, "plain", 700),
    ]
    assert "the choice flips at 1500 MB/s, 1.07 of the 1400 MB/s of the formula" in _notes(cells)
