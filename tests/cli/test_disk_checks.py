"""What `doctor` says of the disk on filesystems that are real and mounted here."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from kvwise.cli import disk_checks
from kvwise.cli.checks import Grade
from tests.tiers.mounts import mounted


def test_a_filesystem_without_room_warns(tmp_path: Path) -> None:
    """Nothing is claimed of a full filesystem that could not be tried."""
    with mounted(tmp_path / "small", "-t", "tmpfs", "-o", "size=1M", "none") as home:
        with suppress(OSError), (home / "other").open("wb", 0) as file:
            while file.write(bytes(4096)):
                pass
        found = disk_checks.check_access(home, "buffered")

        assert found.grade is Grade.WARN
        assert found.seen == f"{home}: no room to try buffered I/O"
        (home / "other").unlink()
        assert disk_checks.check_access(home, "buffered").grade is Grade.OK
