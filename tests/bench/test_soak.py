"""The soak: a short one on a real daemon, and proof that each of its findings can be found."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from kvwise import cli
from kvwise.bench.places import SetupError
from kvwise.bench.soak import Found, SoakOptions, _row, judge, run_soak
from kvwise.bench.soak_client import SPACES, SoakClient, pattern, prompt, split
from kvwise.bench.soak_faults import flip
from kvwise.bench.soak_watch import Process, Sample, growth
from kvwise.cli import bench_soak
from kvwise.live.store import Store
from tests.bench.engines import mentioning
from tests.bench.fakes import Notes
from tests.live.support import eventually, settings

CALM = Process(90.0, 14, 6)
STATUS = {
    "counters": {"dropped": {"dram|evicted": 5, "disk|evicted": 3}},
    "levels": {"tiers": {"dram": {}, "disk": {}}},
}

FULL_STATUS = STATUS | {
    "counters": {"dropped": {}, "leases_expired": 1, "failures": {"disk|corrupt": 2}}
}


def found() -> Found:
    """A run in which nothing went wrong."""
    return Found(
        begin=CALM,
        end=CALM,
        samples=[Sample(2.0 * n, CALM) for n in range(300)],
        status=STATUS,
        drained={"leases": 0, "jobs": 0, "queued": 0},
        cleared={"pages": 0, "blocks": 0, "dram_bytes": 0, "disk_bytes": 0},
        disk_bytes=100 << 20,
        used_bytes=100 << 20,
        counts={"hits": 7},
        faults={"bit_flipped": 2},
        lost=[],
    )


def growing(mb_per_min: float) -> list[Sample]:
    """Ten minutes of a process whose memory grows steadily."""
    return [
        Sample(2.0 * n, replace(CALM, rss_mb=90 + mb_per_min * 2.0 * n / 60)) for n in range(300)
    ]


@pytest.mark.pain("M1")
@pytest.mark.slow
def test_a_short_soak_finds_nothing(tmp_path: Path) -> None:
    """Twelve seconds of killed and frozen clients and flipped bits: all right, all given back."""
    result = run_soak(SoakOptions(0.2, 3, 11, tmp_path, "kvwise bench soak"), Notes())
    (row,) = result.rows

    assert row["problems"] == []
    assert (row["wrong_bytes"], row["pins_end"], row["leases_end"], row["jobs_end"]) == (0,) * 4
    assert min(row["evictions"].values()) > 0
    assert min(row["hits"], row["corrupt_found"], *row["faults"].values()) > 0
    assert list(tmp_path.iterdir()) == []


def test_a_run_without_fault_is_judged_well() -> None:
    """The verdicts below are about what each of them changes, and about nothing else."""
    assert judge(found()) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"counts": {"hits": 7, "wrong_bytes": 1}}, "1 bytes were wrong"),
        ({"counts": {"hits": 0}}, "proves nothing"),
        ({"drained": {"leases": 2}}, "2 leases did not end"),
        ({"cleared": {"pages": 3}}, "3 pages are left after a clear"),
        ({"end": replace(CALM, descriptors=15)}, "had 14 descriptors and has 15"),
        ({"end": replace(CALM, threads=11)}, "had 6 threads and has 11"),
        ({"samples": growing(1.0)}, "grew by 1.00 MiB a minute"),
        ({"used_bytes": 90 << 20}, "the daemon believes 90.0 MiB"),
        ({"lost": ["client-3 ended by itself"]}, "client-3 ended"),
        ({"complaints": ["the daemon logged: ERROR x"]}, "ERROR x"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_everything_that_is_wrong_is_said(change: dict[str, Any], words: str) -> None:
    """One thing out of place gives one problem that names it."""
    (problem,) = judge(replace(found(), **change))

    assert words in problem


@pytest.mark.parametrize(
    ("samples", "slope"),
    [(300, "0.0 (at most 0.805)"), (3, "0.0 (too short to judge)")],
)
def test_what_is_judged_is_shown_beside_what_is_allowed(samples: int, slope: str) -> None:
    """Whoever reads the table can follow the verdict."""
    seen = replace(found(), samples=found().samples[:samples], status=FULL_STATUS)
    row = _row(SoakOptions(1.0, 2, 3, Path(), ""), seen) | {"verdict": "ok", "problems": []}
    told = io.StringIO()
    bench_soak._show(row, Console(width=100, file=told))
    text = " ".join(told.getvalue().split())

    assert f"rss slope mb per min {slope}" in text
    assert "threads end 6 (at most 10)" in text
    assert "descriptors end 14 (at most 14)" in text
    assert "allowed" not in text


def test_parents_of_a_folder_are_not_made(tmp_path: Path) -> None:
    """A disk that is not mounted must not be soaked on the one below."""
    folder = tmp_path / "mnt" / "soak"

    with pytest.raises(SetupError, match=r"mnt is not there; hint:"):
        run_soak(SoakOptions(0.1, 1, 1, folder, ""), Notes())
    assert list(tmp_path.iterdir()) == []


def test_a_short_run_calls_no_noise_a_leak() -> None:
    """Ten seconds of growth may be anything; minutes of the same growth are a leak."""
    samples = growing(5.0)

    assert not growth(samples[:10]).is_leak
    assert growth(samples).is_leak


def test_wrong_bytes_are_counted(tmp_path: Path) -> None:
    """Bytes changed behind the checksum's back are found, every one of them."""
    store = Store.open(settings(tmp_path, dram_size="64MiB", dram_page="16KiB"))
    client = SoakClient(store, "control", 5)
    for _ in range(200):
        client.turn()
    assert client.counts["wrong_bytes"] == 0
    verified_bytes = client.counts["verified_bytes"]
    store.pages[:] = bytes(len(store.pages))

    for _ in range(50):
        client.turn()

    assert verified_bytes > 0
    assert client.counts["wrong_bytes"] > 1000
    store.close()


def test_payloads_differ_by_key_and_place() -> None:
    """A page of another object, or another page of the same one, cannot pass."""
    pieces = [
        pattern(key, 40_000)[at : at + 4096]
        for key in split(prompt(SPACES[0], 3, 1))
        for at in range(0, 36_000, 4096)
    ]

    assert len(set(pieces)) == len(pieces)


def test_branches_share_their_documents_beginning() -> None:
    """Prompts have prefixes in common, as conversations do, and end differently."""
    one, other = (split(prompt(SPACES[1], 6, branch)) for branch in (0, 1))

    assert one[:7] == other[:7]
    assert not set(one[7:]) & set(other[7:])


def test_one_bit_is_flipped_where_data_is(tmp_path: Path) -> None:
    """Holes stay holes, and every segment with data has exactly one other bit."""
    (tmp_path / "segment-00000000.kvw").write_bytes(bytes(8192))
    with (tmp_path / "segment-00000001.kvw").open("wb") as hole:
        hole.truncate(1 << 20)

    assert flip(tmp_path, np.random.default_rng(0)) == 1

    data = (tmp_path / "segment-00000000.kvw").read_bytes()
    assert sum(byte.bit_count() for byte in data) == 1
    assert (tmp_path / "segment-00000001.kvw").stat().st_blocks == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_soak_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    """Ctrl-C in the middle: status 130, no process and no file of it stays."""
    command = [sys.executable, "-m", "kvwise", "bench", "soak", "--minutes", "4", "--json"]
    process = subprocess.Popen(
        [*command, "--folder", str(tmp_path), "--clients", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert eventually(_logs(tmp_path, 2), 60)
        time.sleep(1)
        process.send_signal(number)
        output, errors = process.communicate(timeout=60)
    finally:
        process.kill()

    assert (process.returncode, output) == (130, "")
    assert "Traceback" not in errors
    assert list(tmp_path.iterdir()) == []
    assert eventually(lambda: not mentioning(str(tmp_path)))


def _logs(folder: Path, count: int) -> Callable[[], bool]:
    """Whether so many clients have begun."""
    return lambda: len(list(folder.glob("*/client-*.log"))) >= count


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["--minutes", "0"], 2, "0.1<=x"),
        (["--minutes", "nan"], 2, "nan is not a time"),
        (["--clients", "many"], 2, "--clients"),
        (["--folder", "/proc/nowhere"], 1, "another --folder"),
        (["--folder", "/dev/null/x"], 1, "another --folder"),
    ],
)
def test_wrong_options_say_what_to_do(
    arguments: list[str], status: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is started for a run that cannot be."""
    assert cli.run(["bench", "soak", *arguments]) == status

    assert words in capsys.readouterr().err
