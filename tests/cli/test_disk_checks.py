"""What `doctor` says of the disk on filesystems that are real and mounted here."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest

from kvwise.cli import disk_checks
from kvwise.cli.checks import Case, Grade
from kvwise.host import Host
from kvwise.units import MIB, parse_size
from tests.cli.test_doctor import case, host
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


def at(path: Path, **settings: str | int) -> Case:
    """A disk tier in one directory."""
    return case(Host(), **({"disk__paths": str(path), "disk__min_free": "1MiB"} | settings))


def test_advice_that_helps(tmp_path: Path) -> None:
    """Whoever takes the size that is advised is not told to lower it again."""
    with mounted(tmp_path / "small", "-t", "tmpfs", "-o", "size=700M", "none") as home:
        with (home / "other").open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, 100 * MIB + 12_345)
        for size in ("1TiB", "650MiB"):
            found = disk_checks.check_space(home / "kv", at(home / "kv", disk__size=size))
            assert found.grade is not Grade.OK
            advised = found.advice.partition("lower disk.size to ")[2].partition(" ")[0]
            taken = disk_checks.check_space(home / "kv", at(home / "kv", disk__size=advised))
            assert taken.grade is Grade.OK
            assert parse_size(advised) >= 590 * MIB


@pytest.mark.parametrize("path", ["/proc", "/sys/kernel/kvwise"])
def test_the_kernels_own_folders_fail(path: str) -> None:
    """What keeps no files is named for that, and nobody is told to close it to others."""
    found = disk_checks.check_folder(Path(path), Host())

    assert found.grade is Grade.FAIL
    assert "keeps no files" in found.seen
    assert "chmod" not in found.advice


def test_a_drive_that_is_not_mounted_warns(tmp_path: Path) -> None:
    """A folder whose parents are missing too would be made on the filesystem of /."""
    table = "1 1 0:1 / / rw - ext4 /dev/a rw\n"
    on = host(tmp_path / "host", {"/proc/self/mountinfo": table})

    found = disk_checks.check_folder(tmp_path / "nvme" / "kvwise", on)
    assert found.grade is Grade.WARN
    assert "will be created, on ext4, the filesystem of /" in found.seen
    assert "mount the drive first" in found.advice
    assert disk_checks.check_folder(tmp_path / "kvwise", on).grade is Grade.OK
    assert disk_checks.may_be_unmounted(Path("/mnt/none"), Path("/mnt"), Path("/mnt"))


def test_a_folder_of_everybody_is_not_to_be_closed(tmp_path: Path) -> None:
    """What others use stays open to them: the advice is a folder of one's own in it."""
    table = "1 1 0:1 / / rw - ext4 /dev/a rw\n"
    on = host(tmp_path / "host", {"/proc/self/mountinfo": table})
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)

    found = disk_checks.check_folder(shared, on)

    assert found.grade is Grade.WARN
    assert f"such as {shared / 'kvwise'}" in found.advice
