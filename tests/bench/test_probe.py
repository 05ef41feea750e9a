"""What the parts of a probe measure, and that they keep to their time, their bytes and no trace."""

from __future__ import annotations

import os
import time
from datetime import date
from importlib import util
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest

from kvwise.bench.probe import codecs, disk, gpu, links, memory
from kvwise.bench.probe.disk import (
    CELLS,
    Cell,
    file_bytes,
    measure_disk,
    require_room,
    together_gbps,
)
from kvwise.bench.probe.hardware_file import drive_names, entries
from kvwise.bench.probe.limits import Allowance, Timetable, figure, rounds
from kvwise.bench.probe.links import measure_loopback
from kvwise.bench.rows import Rows
from kvwise.bench.targets import write_whole
from kvwise.errors import ConfigError
from kvwise.host import Host, number_list
from kvwise.planner.hardware import read_hardware
from kvwise.tiers import directio
from kvwise.units import MIB
from tests.cli.test_doctor import host

WAIT_S = 30.0
"""More than anything here takes; parts end when they have their rounds."""


def silent(_: object) -> None:
    """Nobody looks at the progress."""


def written_bytes() -> int:
    """What this process gave to write calls so far."""
    text = Path("/proc/self/io").read_text()
    return int(text.partition("wchar: ")[2].split()[0])


# --- time and bytes ------------------------------------------------------------------------------


def test_a_part_leaves_its_time_to_those_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shares are of what is left, so all parts together never take more than there is."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    timetable = Timetable([1, 1, 2], 40.0)

    assert timetable.next_end_s() == 110.0
    now[0] = 101.0  # the first part needed one second of ten
    assert timetable.next_end_s() == 114.0
    now[0] = 150.0  # and the second took far too long
    assert timetable.next_end_s() == 150.0


def test_rounds_end_with_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Actions take turns; what was not reached has no figure, and nothing begins too late."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def action() -> float:
        now[0] += 1.0
        return now[0]

    assert rounds({"a": action, "b": action}, 3.0, silent) == {"a": [1.0, 3.0], "b": [2.0]}
    assert rounds({"a": action}, 3.0, silent) == {"a": []}


def test_the_first_of_three_figures_warms_up() -> None:
    """A median leaves out what touched everything for the first time, if enough others are."""
    assert figure([9.0, 1.0, 3.0])["gbps"] == 2.0
    assert figure([9.0, 1.0, 3.0, 8.0], fmean)["gbps"] == 4.0
    assert figure([9.0, 1.0]) == {"gbps": 5.0, "gbps_low": 1.0, "gbps_high": 9.0, "rounds": 2}


def test_an_allowance_is_not_overdrawn() -> None:
    """What does not fit is refused and takes nothing."""
    allowance = Allowance(10)

    assert [allowance.take(size) for size in (6, 6, 4, 1)] == [True, False, True, False]


# --- memory --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ends", "calls_per_s"),
    [
        ([[0.0, 1.0, 2.0]], 1.0),
        ([[0.0, 1.0, 2.0], [0.0, 2.0, 2.5]], 1.5),  # its last call was quick, alone
        ([[0.0, 1.0, 2.0], [1.0, 2.0, 3.0]], 2.0),
        ([[0.0, 1.0, 2.0], [0.5]], 1.0),
        ([[0.0], [0.5]], 0.0),
        ([[0.0, 1.0], [2.0, 3.0]], 0.0),
    ],
)
def test_a_rate_is_of_the_time_in_which_all_worked(
    ends: list[list[float]], calls_per_s: float
) -> None:
    """Who is left alone at the end is faster than all of them together ever were."""
    assert together_gbps(ends, 10**9) == pytest.approx(calls_per_s)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0-3,8", [0, 1, 2, 3, 8]), ("0", [0]), ("", []), ("none", []), ("0-x", [])],
)
def test_lists_of_the_kernel(text: str, expected: list[int]) -> None:
    """Ranges and single numbers are read, anything else is nothing."""
    assert number_list(text) == expected


def test_nodes_are_those_of_the_kernel(tmp_path: Path) -> None:
    """Each node has those of its processors that may be used; a host without nodes is one."""
    allowed = tuple(sorted(os.sched_getaffinity(0)))
    base = "/sys/devices/system/node"
    cpus = {f"{base}/node0/cpulist": "0-4095", f"{base}/node1/cpulist": "5000-5003"}
    two = host(tmp_path / "two", {f"{base}/online": "0-1", **cpus})

    assert memory.numa_nodes(two) == [memory.Node(0, allowed), memory.Node(1, ())]
    assert memory.numa_nodes(Host(tmp_path)) == [memory.Node(0, allowed)]


def test_memory_is_really_copied(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Rates come from copies that can be seen in the target, and unusable nodes are named."""
    monkeypatch.setattr(memory, "SLICE_S", 0.02)
    monkeypatch.setattr(memory, "working_set_bytes", lambda *, copies: 16 * MIB // copies)
    base = "/sys/devices/system/node"
    files = {f"{base}/online": "0-1", f"{base}/node0/cpulist": "0-4095"}
    before = os.sched_getaffinity(0)
    made: list[memory._Copier] = []

    class Seen(memory._Copier):
        def __init__(self, size_bytes: int) -> None:
            super().__init__(size_bytes)
            made.append(self)

    monkeypatch.setattr(memory, "_Copier", Seen)

    found = memory.measure_memory(host(tmp_path, files), time.monotonic() + WAIT_S, silent)

    assert {row["node"] for row in found.rows} == {0}
    assert all(row["gbps"] > 0 for row in found.rows)
    assert np.array_equal(made[0]._source.bytes, made[0]._target.bytes)
    assert found.skipped == ["memory of node 1: no processor of it may be used"]
    assert os.sched_getaffinity(0) == before


def test_memory_is_not_taken_where_that_would_be_the_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A control group with little memory is left in peace, and named."""
    monkeypatch.setattr(memory, "working_set_bytes", lambda *, copies: 16 * MIB // copies)
    files = {"/proc/self/cgroup": "0::/", "/sys/fs/cgroup/memory.max": str(20 * MIB)}

    found = memory.measure_memory(host(tmp_path, files), time.monotonic() + WAIT_S, silent)

    assert found.rows == []
    assert "the control group may use 20.0 MiB in all; hint:" in found.skipped[0]


# --- disk ----------------------------------------------------------------------------------------


def test_a_directory_is_measured_within_its_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reads, writes and both have figures, no more is written than may be, and nothing stays."""
    for name in ("SLICE_S_MIN", "SLICE_S_MAX"):
        monkeypatch.setattr(disk, name, 0.02)
    before = written_bytes()

    found = measure_disk(tmp_path, 128 * MIB, time.monotonic() + WAIT_S, silent)

    assert written_bytes() - before <= 129 * MIB
    ways = {(row["way"], row["block_bytes"], row["depth"]) for row in found.rows}
    assert {("read", 4096, 1), ("read", 2 * MIB, 4), ("write", 2 * MIB, 1)} <= ways
    assert all(row["gbps"] > 0 for row in found.rows)
    assert all(row["latency_us"] > 0 for row in found.rows if row["depth"] == 1)
    assert list(tmp_path.iterdir()) == []


def test_what_was_not_reached_is_named(tmp_path: Path) -> None:
    """Without time there is no figure, and each one that is missing is told with a hint."""
    found = measure_disk(tmp_path, 64 * MIB, time.monotonic(), silent)

    assert found.rows == []
    assert all(cell.text in found.skipped[0] for cell in CELLS)
    assert "hint: raise --seconds" in found.skipped[0]


def test_want_of_time_and_of_bytes_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With time to spare, what has no figure had too few bytes, and what a plan takes has one."""
    for name in ("SLICE_S_MIN", "SLICE_S_MAX"):
        monkeypatch.setattr(disk, name, 0.02)

    found = measure_disk(tmp_path, 64 * MIB, time.monotonic() + WAIT_S, silent)

    (said,) = found.skipped
    assert said.startswith(f"{tmp_path}: too few bytes for ")
    assert said.endswith("hint: raise --bytes")
    assert drive_names(found.rows) == {str(tmp_path): "host-disk"}


def test_reads_meet_what_was_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A read that gives less than a whole block is no figure but an error that names the folder."""
    monkeypatch.setattr(
        "kvwise.bench.probe.disk.read_all", lambda *given: (0, directio.read_all(*given)[1])
    )

    found = measure_disk(tmp_path, 64 * MIB, time.monotonic() + 1.0, silent)

    assert found.rows == []
    assert found.skipped == [f"{tmp_path}: a read of 4096 bytes gave 0"]


def test_a_directory_is_refused_before_it_is_written(tmp_path: Path) -> None:
    """What is no directory or lacks the room is refused with what to do."""
    with pytest.raises(ConfigError, match=r"is no directory; hint: `mkdir -p"):
        require_room(tmp_path / "nowhere", MIB, 0)
    with pytest.raises(ConfigError, match=r"free, and the probe would take .* hint:.*--bytes"):
        require_room(tmp_path, 1 << 50, 0)
    with pytest.raises(ConfigError, match=r"leave 1024\.0 TiB"):
        require_room(tmp_path, MIB, 1 << 50)


def test_the_file_takes_half_of_the_bytes() -> None:
    """The rest is for measuring writes; however much is allowed, it is a gigabyte at most."""
    assert file_bytes(100 * MIB) == 48 * MIB
    assert file_bytes(1 << 50) == 1 << 30


# --- the other parts -----------------------------------------------------------------------------


def test_loopback_carries_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection of this host has a rate and a round trip; without time it is named."""
    monkeypatch.setattr(links, "SLICE_S", 0.02)
    (row,) = measure_loopback(time.monotonic() + WAIT_S, silent).rows

    assert row["gbps"] > 0
    assert row["round_trip_us"] > 0
    assert "no time left" in measure_loopback(time.monotonic(), silent).skipped[0]


def test_a_host_without_a_gpu_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No driver and no torch are different reasons, and neither is an error."""
    driver = host(tmp_path, {"/proc/driver/nvidia/version": "580.65.06"})
    monkeypatch.setattr(util, "find_spec", lambda _: None)

    assert gpu.measure_gpu(Host(tmp_path / "none"), 0.0, silent).skipped == [
        "gpu: this host has no NVIDIA driver"
    ]
    assert "no torch here" in gpu.measure_gpu(driver, 0.0, silent).skipped[0]


def test_codecs_that_take_too_long_are_named() -> None:
    """The process with the codecs ends with its time, and the reason is told."""
    found = codecs._bench("synthetic", 0.05)

    assert found.rows == []
    assert "machine code, once; hint: run it again" in found.skipped[0]


# --- the file ------------------------------------------------------------------------------------


def measured(folder: str) -> Rows:
    """Rows as a probe gives them, of a folder with any name."""
    rate = {"gbps": 2.0, "gbps_low": 1.0, "gbps_high": 3.0, "rounds": 3}
    rows: list[dict[str, Any]] = [{"part": "memory", "node": 0, "threads": 1, **rate}]
    for cell in CELLS:
        row = {"part": "disk", "path": folder, "io": "direct", "latency_us": 80.0, **rate}
        row |= {"way": cell.way, "block_bytes": cell.block_bytes, "depth": cell.depth}
        rows.append(row | ({"written_gbps": 0.5} if cell.way == "mixed" else {}))
    ways = ("to device", "to host", "within", "products")
    rows += [{"part": "gpu", "name": "H", "memory_bytes": 8e10, "way": w, **rate} for w in ways]
    rows.append({"part": "loopback", "round_trip_us": 9.0, **rate})
    machine = {"cpu": "Some", "cores": 2}
    return Rows("probe", "kvwise probe", "2026-11-30", machine, rows, ["gpu: no\nmore"], ["so"])


@pytest.mark.parametrize("folder", ["/mnt/nvme0", '/a "b"\n[x]\\', "/\udcff\x7f\U0001f600"])
def test_the_planner_reads_the_file(tmp_path: Path, folder: str) -> None:
    """Entries are measured tiers and GPUs of the planner, whatever a folder is called."""
    path = tmp_path / "host.toml"
    write_whole({path: entries(measured(folder), date(2026, 11, 30), dwpd=0.5)})

    known = read_hardware(path)

    drive = known.tiers["host-disk"]
    assert (drive.read_gb_per_s, drive.write_gb_per_s, drive.latency_us) == (2.0, 2.0, 80.0)
    assert (drive.dwpd, drive.per_gpu, drive.origin.mark) == (0.5, False, "measured")
    assert (drive.origin.as_of, drive.origin.source) == ("2026-11-30", "kvwise probe")
    assert known.tiers["host-dram"].per_gpu
    assert known.tiers["dram-pcie5"].origin.source == "kvwise probe"
    assert known.gpu("host-gpu").hbm_gb == 80.0


def test_drives_of_unknown_rating_are_not_called_free(tmp_path: Path) -> None:
    """Where nobody said what a drive is rated for, the file says what that means."""
    text = entries(measured("/a"), date(2026, 11, 30))

    assert "# dwpd = 1  # drive writes a day: nobody can measure it" in text
    assert "\ndwpd" not in text


def test_cells_have_names() -> None:
    """A cell is told as a person would say it."""
    assert Cell("read", 2 * MIB, 4).text == "read, 2.0 MiB blocks, depth 4"
