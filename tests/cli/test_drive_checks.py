"""What `doctor` says of wear: how much, how fast, how long, and what to do about it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from kvwise.cli.checks import Case, Grade
from kvwise.cli.drive_checks import check_budget, check_drives, check_wear
from kvwise.core.balance import Balance
from kvwise.live.budget import NAME, Saved, pack
from kvwise.live.drives import Drive, Health, read_health
from tests.live.drives import NVME, SSD, TB, machine
from tests.live.support import settings


def test_what_doctor_says(tmp_path: Path) -> None:
    """Wear, pace and years of a drive, and advice where nothing limits them."""
    host = machine(tmp_path / "root", tmp_path.stat().st_dev)
    free = Case(settings(tmp_path, disk=True), host)
    rated = Case(settings(tmp_path, disk=True, disk_dwpd=1.0), host)
    worn = read_health(msgspec.json.encode(NVME))

    assert check_budget(free, (SSD,)).grade is Grade.WARN
    assert "disk.dwpd" in check_budget(free, (SSD,)).advice
    assert check_budget(rated, (SSD,)).grade is Grade.OK
    disk = Drive("sda", TB, spins=True, virtual=False)
    assert check_budget(free, (disk,)).grade is Grade.OK
    assert "does not wear" in check_wear(disk, Health(), free, 0.0).seen
    found = check_wear(SSD, worn, rated, 4 * TB)
    assert found.grade is Grade.OK
    assert "20 % worn" in found.seen
    assert "last 4.0 years" in found.seen
    assert check_wear(SSD, worn, rated, 40 * TB).grade is Grade.WARN
    assert check_wear(SSD, Health(used_percent=95), rated, 0.0).grade is Grade.WARN


def test_doctor_reads_the_pace(tmp_path: Path) -> None:
    """How much is written a day comes from the store's own budget file, beside the objects."""
    host = machine(tmp_path / "root", tmp_path.stat().st_dev, "kvwise0")
    config = settings(tmp_path, disk=True, disk_dwpd=1.0)
    (tmp_path / "disk").mkdir()
    day = Balance(recent_bytes=8 * TB, span_s=86_400.0)
    (tmp_path / "disk" / NAME).write_bytes(pack(Saved(0, closed=True, balance=day)))
    wear, budget = check_drives(Case(config, host))
    assert "last 2.5 years" in wear.seen
    assert "3.6 TiB may be written" in budget.seen
    (tmp_path / "disk" / NAME).write_bytes(b"rubbish")
    wear, _, file = check_drives(Case(config, host))
    assert "years" not in wear.seen
    assert (file.grade, NAME in file.seen) == (Grade.WARN, True)
    assert "empty budget" in file.advice
    assert list(check_drives(Case(settings(tmp_path), host))) == []


@pytest.mark.parametrize(
    ("limits", "grade", "said"),
    [
        ({"write_per_day": 1}, Grade.WARN, "less than one object of the usual 512.0 KiB"),
        ({"write_per_day": "1MiB"}, Grade.WARN, "full after 2.8 years"),
        ({"write_per_day": "1GiB"}, Grade.OK, "1.0 GiB may be written"),
        ({"disk_dwpd": 1e-12, "write_per_day": "1TiB"}, Grade.WARN, "less than one object"),
    ],
)
def test_a_budget_of_next_to_nothing_warns(
    limits: dict[str, object], grade: Grade, said: str, tmp_path: Path
) -> None:
    """A day that has no room for an object, or a disk that takes years to fill, is no budget."""
    host = machine(tmp_path / "root", tmp_path.stat().st_dev)
    config = settings(tmp_path, disk=True, disk_size="1GiB", **limits)
    found = check_budget(Case(config, host), (SSD,))

    assert found.grade is grade
    assert said in found.seen
    key = "disk.dwpd" if "disk_dwpd" in limits else "write.per_day"
    assert (f"raise {key}" in found.advice) is (grade is Grade.WARN)
