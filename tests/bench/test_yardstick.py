"""Yardsticks: that they move real bytes, take turns, and say when they cannot be had."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from kvwise.bench import yardstick
from kvwise.bench.places import SetupError
from kvwise.bench.yardstick import (
    CpuTime,
    Fio,
    Memcpy,
    Memory,
    Spread,
    moved_note,
    movement,
    ratio,
    take_turns,
)
from kvwise.errors import ConfigError
from kvwise.units import KIB, MIB

needs_fio = pytest.mark.skipif(bool(yardstick.fio_missing()), reason="fio is not installed")


def test_actions_take_turns_after_a_warm_up() -> None:
    """A pass runs every action once, and the first pass does not count."""
    order: list[str] = []
    told: list[str] = []

    def action(name: str) -> float:
        order.append(name)
        return float(len(order))

    found = take_turns({n: lambda n=n: action(n) for n in "ab"}, 2, told.append)  # type: ignore[misc]

    assert order == list("ababab")
    assert found == {"a": [3.0, 5.0], "b": [4.0, 6.0]}
    assert told[0] == "a, warming up"
    assert told[-1] == "b, pass 2 of 2"


def test_a_warm_up_can_be_left_out() -> None:
    """Without one the first figure counts."""
    assert take_turns({"a": lambda: 7.0}, 1, lambda _: None, warm_up=False) == {"a": [7.0]}


def test_ratios_are_of_the_same_pass() -> None:
    """A machine that doubles its speed between passes does not change the ratio."""
    assert ratio([1.0, 2.0, 4.0], [2.0, 4.0, 8.0]) == Spread(0.5, 0.5, 0.5)


def test_a_yardstick_that_moved_is_told() -> None:
    """More than a fifth between the passes is a note, less is none."""
    assert movement("memcpy", [10.0, 11.9]) == []
    moved = movement("memcpy", [10.0, 12.1, 11.0])
    assert moved == ["memcpy 10.00 to 12.10 GB/s"]


def test_yardsticks_that_moved_are_one_note() -> None:
    """However many moved, a reader is told once; nothing is said when all held still."""
    (note,) = moved_note(["memcpy 1.00 to 2.00 GB/s", "fio read 3.00 to 4.00 GB/s"])

    assert note.endswith("moved: memcpy 1.00 to 2.00 GB/s; fio read 3.00 to 4.00 GB/s")
    assert moved_note([]) == []


def test_processor_time_is_that_of_the_work() -> None:
    """Work that takes longer shows as a smaller part of the yardstick, sleep does not count."""
    cpu = CpuTime()

    def busy(seconds: float) -> float:
        until = time.process_time() + seconds
        while time.process_time() < until:
            pass
        return 7.0

    def asleep(seconds: float) -> float:
        time.sleep(0.05)
        return busy(seconds)

    actions = {"little": cpu.of("little", lambda: asleep(0.01))}
    actions["much"] = cpu.of("much", lambda: busy(0.1))
    found = take_turns(actions, 2, lambda _: None)

    assert found == {"little": [7.0, 7.0], "much": [7.0, 7.0]}
    assert cpu.ratio("little", "much").median < 0.9
    assert cpu.ratio("much", "much") == Spread(1.0, 1.0, 1.0)


def test_memory_differs_everywhere() -> None:
    """No two words of a buffer are equal, nor are those of two seeds."""
    one, other = Memory(MIB, seed=1), Memory(MIB, seed=2)
    words = np.concatenate([one.bytes.view(np.uint64), other.bytes.view(np.uint64)])

    assert len(np.unique(words)) == len(words)


def test_memcpy_copies_every_whole_object() -> None:
    """Each object of the source is in the target afterwards, and what is no object is not."""
    source, target = Memory(10 * KIB, seed=1), Memory(10 * KIB)
    target.clear()

    assert Memcpy(source, target).gbps(4 * KIB) > 0
    assert np.array_equal(source.bytes[: 8 * KIB], target.bytes[: 8 * KIB])
    assert not target.bytes[8 * KIB :].any()


def test_a_working_set_is_larger_than_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """It follows the cache of the processor, and is refused when memory does not hold it."""
    monkeypatch.setattr(yardstick, "cache_bytes", lambda: 700 * MIB)
    monkeypatch.setattr(yardstick, "memory_bytes", lambda _: 3000 * MIB)

    assert yardstick.working_set_bytes(copies=2) == 1400 * MIB
    with pytest.raises(ConfigError, match=r"4\.1 GiB of memory are needed.*hint:"):
        yardstick.working_set_bytes(copies=3)


def test_the_cache_size_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's own notation is understood; nothing there means nothing known."""
    path = tmp_path / "size"
    monkeypatch.setattr(yardstick, "_L3", path)
    assert yardstick.cache_bytes() == 0
    path.write_text("32768K\n")

    assert yardstick.cache_bytes() == 32 * MIB


@needs_fio
def test_fio_writes_new_files_and_reads_them(tmp_path: Path) -> None:
    """Both directions give a rate, and nothing stays after removing."""
    fio = Fio(tmp_path, block_bytes=MIB, jobs=2, job_bytes=4 * MIB, direct=False)

    assert fio.write() > 0
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) == 8 * MIB
    assert fio.read() > 0
    fio.remove()
    assert list(tmp_path.iterdir()) == []


@needs_fio
def test_fio_that_fails_is_quoted(tmp_path: Path) -> None:
    """A folder that is not there is named by fio itself."""
    fio = Fio(tmp_path / "nowhere", block_bytes=MIB, jobs=1, job_bytes=MIB)

    with pytest.raises(SetupError, match=r"(?s)fio failed in .*nowhere"):
        fio.write()


def test_a_machine_without_fio_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason says what to install."""
    monkeypatch.setenv("PATH", str(tmp_path))

    assert "apt-get install fio" in yardstick.fio_missing()
    with pytest.raises(SetupError, match="hint: apt-get install fio"):
        Fio(tmp_path, block_bytes=MIB, jobs=1, job_bytes=MIB).write()


@pytest.mark.parametrize(
    "report",
    [
        "",
        "{}",
        '{"jobs": 7}',
        '{"jobs": [7]}',
        '{"jobs": []}',
        '{"jobs": [{"read": {"io_bytes": 1, "runtime": 0}}]}',
        '{"jobs": [{"read": {"io_bytes": 0, "runtime": 5}}]}',
        '{"jobs": [{"read": {"io_bytes": NaN, "runtime": 5}}]}',
        '{"jobs": [{"read": {"io_bytes": "many", "runtime": null}}]}',
        '{"jobs": [{"read": {"io_bytes": 1' + "0" * 400 + ', "runtime": 5}}]}',
    ],
)
def test_a_report_without_a_figure_is_refused(report: str) -> None:
    """No rate is made up."""
    with pytest.raises(SetupError, match=r"not understood.*hint: is it fio"):
        yardstick._rate(report, "read")


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("#!/bin/sh\nprintf '\\377\\376'\n", "not understood"),
        ("#!/bin/sh\nprintf '\\377\\376' >&2\nexit 1\n", "fio failed"),
        ("#!/nowhere/at/all\n", "cannot be started"),
    ],
    ids=["rubbish", "failing-with-rubbish", "no-program"],
)
def test_another_program_called_fio_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, words: str
) -> None:
    """Bytes that are no text, or a file that cannot run, end as a message."""
    path = tmp_path / "fio"
    path.write_text(program)
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(SetupError, match=words):
        Fio(tmp_path, block_bytes=MIB, jobs=1, job_bytes=MIB).write()


def test_the_command_can_be_typed() -> None:
    """What a row quotes is the command that ran."""
    fio = Fio(Path("/mnt/my disk"), block_bytes=2 * MIB, jobs=2, job_bytes=MIB)

    assert "'--directory=/mnt/my disk' --rw=read --bs=2097152" in fio.spoken("read")
    assert "--direct=1" in fio.command("write")
