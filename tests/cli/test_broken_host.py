"""Owns the proof that `doctor` finds what is broken on a real host, in a mount namespace.

Nothing is faked: limits are those of the kernel, filesystems are mounted. Root is needed for that.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BROKEN = """
set -e
mount -t tmpfs -o size=1M none /dev/shm
mount --bind "$FIXED" "$FIXED"
mount -o remount,bind,ro "$FIXED"
mount -t tmpfs -o size=16M none "$SMALL"
exec prlimit --memlock=65536:65536 "$@"
"""
WHOLE = """
set -e
mount -t tmpfs -o size=2G none /dev/shm
exec prlimit --memlock=8388608:8388608 "$@"
"""


def doctor(script: str, places: dict[str, Path], *paths: Path, seed: str = "") -> dict[str, Any]:
    """What doctor says on a host that a script prepared, with its exit code."""
    tried = subprocess.run(["unshare", "-m", "true"], check=False, capture_output=True)
    if tried.returncode:
        pytest.skip("needs root: no mount namespace can be made here")
    command = [sys.executable, "-m", "kvwise", "doctor", "--json", "--disk-size", "600MiB"]
    command += [f"--disk={path}" for path in paths]
    environment = {
        **{name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"},
        **{name: str(place) for name, place in places.items()},
        **({"PYTHONHASHSEED": seed} if seed else {}),
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "KVWISE_SERVE_METRICS": "",
        "KVWISE_DISK_MIN_FREE": "0",
        "KVWISE_DRAM_SIZE": "64MiB",
    }
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, "sh", *command],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout, done.stderr
    return {"code": done.returncode, **json.loads(done.stdout)}


def graded(said: dict[str, Any], name: str) -> list[tuple[str, str]]:
    """Grades of all findings of a name, with what was seen."""
    return [(one["grade"], one["seen"]) for one in said["findings"] if one["name"] == name]


def advices(said: dict[str, Any]) -> str:
    """Everything that is to be done."""
    return "\n".join(one["advice"] for one in said["findings"])


def test_everything_that_is_broken_is_found(tmp_path: Path) -> None:
    """A small memlock, a tiny /dev/shm, a read-only folder, a tiny disk and a hash seed are named.

    Each comes with what to do, and the exit code says that something failed.
    """
    fixed, small = tmp_path / "fixed", tmp_path / "small"
    for folder in (fixed, small):
        folder.mkdir(mode=0o700)

    said = doctor(BROKEN, {"FIXED": fixed, "SMALL": small}, fixed, small, seed="12345")

    assert said["code"] == 1
    ((grade, seen),) = graded(said, "locked memory")
    assert (grade, seen[:14]) == ("warn", "limit 64.0 KiB")
    ((grade, seen),) = graded(said, "shared memory")
    assert (grade, seen[:20]) == ("warn", "/dev/shm has 1.0 MiB")
    assert ("fail", f"{fixed} is on a read-only filesystem") in graded(said, "disk folder")
    ((grade, seen),) = graded(said, "disk space")
    assert grade == "fail"
    assert f"{small}: 16.0 MiB" in seen
    assert f"take {small} out of disk.paths" in advices(said)
    ((grade, seen),) = graded(said, "hash seed")
    assert (grade, seen[:25]) == ("warn", "PYTHONHASHSEED = '12345' ")
    assert all(one["advice"] for one in said["findings"] if one["grade"] != "ok")


def test_a_whole_host_is_not_complained_of(tmp_path: Path) -> None:
    """The same checks pass where limits are high, filesystems large and no seed is set."""
    folder = tmp_path / "good"
    folder.mkdir(mode=0o700)

    said = doctor(WHOLE, {}, folder)

    names = ("locked memory", "shared memory", "disk folder", "disk space", "hash seed")
    assert {grade for name in names for grade, _ in graded(said, name)} == {"ok"}
