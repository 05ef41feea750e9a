"""The measurement of a restart, on few records. What it measures is nobody's business here."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvwise.bench import recovery
from kvwise.bench.recovery import measure_recovery
from kvwise.units import MIB


@pytest.mark.pain("D6")
def test_every_record_is_found_again(tmp_path: Path) -> None:
    """A row says how many records there were, and how long the next life took to find them."""
    row = measure_recovery(tmp_path, 3000, segment_bytes=4 * MIB)

    assert row["path"] == "recovery"
    assert row["records"] == 3000
    assert row["scan_seconds"] > 0
    assert row["records_per_s"] == 3000 / row["seconds"]
    assert len(list((tmp_path / "recovery").glob("segment-*.kvw"))) == 6


def test_a_restart_that_loses_records_is_no_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When fewer records come back than were written, no row is given."""
    fill = recovery._fill
    monkeypatch.setattr(recovery, "_fill", lambda tier, records: fill(tier, records - 1))
    with pytest.raises(RuntimeError, match="the tier found 99"):
        measure_recovery(tmp_path, 100)
