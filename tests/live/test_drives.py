"""Drives: which are found below a path, what they are rated for, what they say of themselves."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwise.core.govern import YEAR_DAYS
from kvwise.host import Host
from kvwise.live import drives as drives_module
from kvwise.live.drives import (
    RATED_YEARS,
    Drive,
    Health,
    capacity_bytes,
    daily_bytes,
    drives_under,
    health_of,
    rated_bytes,
    read_health,
)
from tests.live.drives import NVME, SATA, SSD, TB, machine
from tests.live.support import settings


def test_this_machine() -> None:
    """Whatever a path lies on, something is known of how much it holds."""
    assert capacity_bytes(["/", "/tmp/not/there"], Host()) > 10**9


def test_partitions_and_arrays(tmp_path: Path) -> None:
    """A partition stands for its drive, an array for all of its drives, each once."""
    store = tmp_path / "store"
    store.mkdir()
    device = store.stat().st_dev
    (one,) = drives_under([str(store), str(tmp_path)], machine(tmp_path / "a", device))
    assert one == SSD
    array = machine(tmp_path / "b", device, "md0", slaves=("nvme1n1", "nvme2n1"))
    assert [d.name for d in drives_under([str(store)], array)] == ["nvme1n1", "nvme2n1"]
    assert capacity_bytes([str(store)], array) == 8 * TB
    assert drives_under([str(store)], Host(tmp_path)) == ()


def test_ratings_become_budgets(tmp_path: Path) -> None:
    """Writes a day times what the drives hold, or what is configured if that is less."""
    host = machine(tmp_path / "root", tmp_path.stat().st_dev)
    rated = settings(tmp_path, disk=True, disk_dwpd=0.5)
    assert daily_bytes(rated, host) == 2 * TB
    assert rated_bytes(rated, host) == 2 * TB * RATED_YEARS * YEAR_DAYS
    less = settings(tmp_path, disk=True, disk_dwpd=0.5, write_per_day=TB)
    assert daily_bytes(less, host) == TB
    wearing = settings(tmp_path, disk=True, disk_dwpd=0.5, disk_write_amplification=4)
    assert daily_bytes(wearing, host) == TB // 2
    tiny = settings(tmp_path, disk=True, disk_dwpd=1e-13)
    assert daily_bytes(tiny, host) == 1
    assert daily_bytes(settings(tmp_path, disk=True), host) == 0
    assert daily_bytes(settings(tmp_path, disk_dwpd=1.0), host) == 0


def test_reports_are_read() -> None:
    """Wear and bytes of NVMe and of SATA drives, each from where its report has them."""
    nvme = read_health(msgspec.json.encode(NVME))
    assert nvme == Health("EXAMPLE 3840G", 3840755982336, 20, 1_024_000_000_000)
    sata = read_health(msgspec.json.encode(SATA))
    assert (sata.used_percent, sata.written_bytes) == (3, 1_024_000_000_000)
    refused = {"smartctl": {"messages": [{"string": "Permission denied", "severity": "error"}]}}
    assert read_health(msgspec.json.encode(refused)).why == "smartctl: Permission denied"
    assert "no report" in read_health(b"smartctl 5.0").why


@given(st.binary(max_size=300) | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(
    msgspec.json.encode
))  # fmt: skip
def test_no_report_breaks_it(output: bytes) -> None:
    """Whatever a tool prints is health or a reason."""
    assert read_health(output).why or read_health(output).model == ""


def test_what_is_left() -> None:
    """A rating tells what is left; without one, what was written so far and what it has cost."""
    worn = read_health(msgspec.json.encode(NVME))
    assert worn.left_bytes(10 * TB) == pytest.approx(8 * TB)
    assert worn.left_bytes(0.0) == pytest.approx(4 * 1.024 * TB)
    assert Health().left_bytes(0.0) == 0


def test_the_real_tool_says_why_not() -> None:
    """Asked of a drive that is not there, `smartctl` gives a reason; so does its absence."""
    absent = Drive("kvwise-no-such-drive", 0, spins=False, virtual=False)
    assert health_of(absent).why
    assert "not installed" in health_of(absent, "/nowhere/smartctl").why
    assert "virtual" in health_of(Drive("vda", 0, spins=False, virtual=True)).why
    assert "is not asked" in health_of(Drive("a b;c", 0, spins=False, virtual=False)).why


def test_a_tool_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits longer than a few seconds for a drive that does not answer."""
    tool = tmp_path / "hangs"
    tool.write_text("#!/bin/sh\nexec sleep 60\n")
    tool.chmod(0o700)
    monkeypatch.setattr(drives_module, "SMART_S", 0.1)
    assert "no answer" in health_of(SSD, str(tool)).why
