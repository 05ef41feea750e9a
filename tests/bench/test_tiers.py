"""The bench of the tiers: a real daemon, a real disk, real fio, and sets too small to mean much."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvwise.bench import disk, lookup, tiers
from kvwise.bench.disk import DiskPath
from kvwise.bench.dram import MODELS, DramPath, Model
from kvwise.bench.index import PROMPT_BLOCKS, measure_index
from kvwise.bench.lookup import measure_lookup
from kvwise.bench.places import SetupError
from kvwise.bench.rows import Rows
from kvwise.bench.tiers import SIZES, TiersOptions, measure_tiers
from kvwise.bench.yardstick import fio_missing
from kvwise.engines.host_copy import HostCopier
from kvwise.errors import ConfigError
from kvwise.tiers.disk import DiskTier
from kvwise.units import KIB, MIB
from tests.bench.fakes import Notes

needs_fio = pytest.mark.skipif(bool(fio_missing()), reason="fio is not installed")


@pytest.fixture(autouse=True)
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Little of everything, below a folder of this test; the folder to measure in."""
    scratch, folder = tmp_path / "s", tmp_path / "disk"
    scratch.mkdir()
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    monkeypatch.setattr(tiers, "working_set_bytes", lambda **_: 24 * MIB)
    monkeypatch.setattr(tiers, "DISK_BYTES", 8 * MIB)
    monkeypatch.setattr(lookup, "PROMPTS_BLOCKS", (8, 64))
    return folder


def measured(folder: Path, part: str, objects: str = "720KiB", passes: int = 1) -> Rows:
    """The rows of one part."""
    return measure_tiers(TiersOptions(folder, (objects,), (part,), passes), Notes())


def processes(folder: Path) -> Iterator[str]:
    """Command lines of processes that name something below a folder."""
    for entry in Path("/proc").iterdir():
        try:
            line = (entry / "cmdline").read_bytes().decode() if entry.name.isdecimal() else ""
        except (FileNotFoundError, ProcessLookupError):
            continue
        if str(folder) in line:
            yield line


def test_sizes_are_named_as_people_write_them() -> None:
    """The three shapes are offered under their sizes."""
    assert {name: model.object_bytes for name, model in SIZES.items()} == {
        "720KiB": 720 * KIB,
        "2MiB": 2 * MIB,
        "16MiB": 16 * MIB,
    }


@pytest.mark.parametrize("objects", SIZES)
def test_both_ways_through_memory_are_rows(small: Path, objects: str) -> None:
    """Put and get are given with memcpy beside them, and everything is gone afterwards."""
    found = measured(small, "dram", objects, passes=2)

    assert [row["path"] for row in found.rows] == ["dram.put", "dram.get"]
    for row in found.rows:
        assert row["object_bytes"] == SIZES[objects].object_bytes
        assert row["reference"] == "memcpy"
        assert row["passes"] == 2
        assert 0 < row["ratio_low"] <= row["ratio"] <= row["ratio_high"]
        assert row["cpu_ratio"] > 0
        assert 0 < row["gbps_low"] <= row["gbps"] <= row["gbps_high"]
    assert list(processes(small.parent)) == []
    assert list((small.parent / "s").iterdir()) == []


@needs_fio
def test_both_ways_to_the_disk_are_rows(small: Path) -> None:
    """Put and get are given with fio beside them, its command included; no file stays."""
    found = measured(small, "disk")

    assert [row["path"] for row in found.rows] == ["disk.put", "disk.get"]
    assert [row["reference"] for row in found.rows] == ["fio", "fio"]
    assert "--rw=write" in found.rows[0]["reference_command"]
    assert "--rw=read" in found.rows[1]["reference_command"]
    assert min(row["ratio"] for row in found.rows) > 0
    assert list(small.iterdir()) == []


def test_without_fio_the_disk_is_skipped_and_said_so(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that is missing has its reason, and what to install."""
    monkeypatch.setenv("PATH", str(small))
    found = measured(small, "disk")

    assert found.rows == []
    assert "disk.get" in found.skipped[0]
    assert "apt-get install fio" in found.skipped[0]


def test_fio_moves_as_much_as_the_tier_in_calls_as_long(small: Path) -> None:
    """Block size and bytes follow the objects; small ones travel together."""
    with DiskPath(small / "tier", 720 * KIB, 64 * MIB) as path:
        fio = path.reader(small)

        assert fio.block_bytes == 6 * (720 + 4) * KIB
        assert path.total_bytes - 4 * fio.block_bytes < 4 * fio.job_bytes <= path.total_bytes


def test_wrong_bytes_from_memory_fail_the_bench(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copier that moves nothing is found out."""
    monkeypatch.setattr(HostCopier, "_move", lambda *_: None)

    found = measure_tiers(TiersOptions(small, ("720KiB",), ("dram", "lookup"), 1), Notes())

    assert found.failed == ["dram: the arena gave back other bytes than it was given"]
    assert {row["path"] for row in found.rows} == {"lookup"}


def test_wrong_bytes_from_the_disk_fail_the_bench(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tier that reads nothing is found out."""
    with DiskPath(small / "tier", 720 * KIB, 4 * MIB) as path:
        path.put()
        path.verify()
        monkeypatch.setattr(
            DiskTier, "get", lambda _, wants: ((n, None) for n in range(len(wants)))
        )

        with pytest.raises(SetupError, match="the disk tier gave back other bytes"):
            path.verify()


def test_an_object_that_is_gone_fails_the_bench(small: Path) -> None:
    """A figure of a read that failed is none."""
    with DiskPath(small / "tier", 720 * KIB, 4 * MIB) as path:
        path.put()
        for segment in (small / "tier").glob("segment-*"):
            os.truncate(segment, 0)

        with pytest.raises(SetupError, match="the disk tier failed: missing"):
            path.get()


@needs_fio
@pytest.mark.parametrize(("part", "path"), [("dram", DramPath), ("disk", DiskPath)])
def test_an_interrupt_leaves_nothing(
    small: Path, monkeypatch: pytest.MonkeyPatch, part: str, path: type
) -> None:
    """Neither a daemon nor a file survives Ctrl-C in the middle of a pass."""
    seen: list[str] = []

    def interrupt(_: object) -> float:
        seen.extend(processes(small.parent))
        raise KeyboardInterrupt

    monkeypatch.setattr(path, "get", interrupt)
    with pytest.raises(KeyboardInterrupt):
        measured(small, part)

    assert bool(seen) == (part == "dram")
    assert list(processes(small.parent)) == []
    assert list(small.iterdir()) == []
    assert list((small.parent / "s").iterdir()) == []


def test_a_disk_without_room_is_refused(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is written, and with what would help."""
    monkeypatch.setattr(tiers, "DISK_BYTES", 1 << 60)
    monkeypatch.setattr(tiers, "fio_missing", lambda: "")

    with pytest.raises(ConfigError, match=r"are needed; hint: --disk names another folder"):
        measured(small, "disk")


def test_a_folder_that_is_gone_is_refused(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the system says of it is passed on."""
    monkeypatch.setattr(tiers, "fio_missing", lambda: "")
    small.rmdir()

    with pytest.raises(ConfigError, match="cannot be measured: No such file"):
        measured(small, "disk")


def test_a_lookup_is_a_row_for_each_length(small: Path) -> None:
    """Every length has its percentiles, in order."""
    rows = measure_lookup(small, 5, Notes())

    assert [row["blocks"] for row in rows] == [8, 64]
    for row in rows:
        assert 0 < row["p50_ms"] <= row["p99_ms"] <= row["max_ms"]


def test_the_index_is_measured_in_a_process_of_its_own() -> None:
    """The row tells what a block takes and how long the collector paused."""
    row = measure_index(640)

    assert row["blocks"] == 640
    assert row["bytes_per_block"] > 0
    assert row["gc_pause_max_ms"] > 0
    assert row["collections"] >= 1


def test_the_index_takes_prompts_that_never_come_back() -> None:
    """More of them than the brain needs to learn that nobody asks for them again."""
    row = measure_index(1000 * PROMPT_BLOCKS)

    assert row["blocks"] == 1000 * PROMPT_BLOCKS


def test_an_index_that_cannot_be_measured_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the process said is part of the message."""
    monkeypatch.setattr(sys, "executable", "/bin/false")

    with pytest.raises(SetupError, match="the measurement of 640 blocks failed"):
        measure_index(640)


def test_the_command_of_a_run_can_be_typed(small: Path) -> None:
    """It names everything that was chosen."""
    options = TiersOptions(small, ("2MiB",), ("dram", "index"), passes=3, quick=True)

    assert options.command == (
        f"kvwise bench tiers --disk {small} --objects 2MiB --part dram --part index "
        "--passes 3 --records 20000 --quick"
    )
    assert TiersOptions(small, (), ()).turns == tiers.PASSES
    assert TiersOptions(small, (), (), quick=True).turns == tiers.PASSES_QUICK


def test_requests_use_every_block_once(small: Path) -> None:
    """No block of the engine is copied twice, and all objects are asked for."""
    from kvwise.bench.dram import _requests

    model = Model("toy", 2, 16, 4 * KIB, 2)
    blocks = [number for r in _requests(model, 9) for number in r.blocks.ravel().tolist()]

    assert sorted(blocks) == list(range(18))
    assert max(one.object_bytes for one in MODELS) <= disk.JOB_BYTES
