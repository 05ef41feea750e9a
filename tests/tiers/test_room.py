"""How frames are dealt over directories. Directories are real, the rates are told to the room."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kvwise.errors import FailureKind, TierError
from kvwise.tiers.directio import Io
from kvwise.tiers.room import Room
from kvwise.tiers.segments import Directory
from kvwise.units import GIB, MIB


@contextmanager
def rooms(home: Path, count: int, **bounds: int) -> Iterator[tuple[Room, list[Directory]]]:
    """A room over so many fresh directories."""
    directories = [Directory(home / str(n), n, io=Io.AUTO, segment_bytes=MIB) for n in range(count)]
    limits = {"capacity_bytes": 1 << 60, "min_free_bytes": 0, **bounds}
    yield Room(directories, **limits), directories
    for directory in directories:
        directory.close()


def dealt(room: Room, times: int, size_bytes: int = MIB) -> list[int]:
    """Numbers of the directories that the next frames go to; their room is taken back at once."""
    numbers: list[int] = []
    for _ in range(times):
        taken = room.take([size_bytes])
        assert not isinstance(taken, TierError)
        taken[0].unreserve(size_bytes)
        numbers.append(taken[0].number)
    return numbers


def test_unmeasured_directories_take_turns(tmp_path: Path) -> None:
    """As long as nothing is measured, frames go round."""
    with rooms(tmp_path, 3) as (room, _):
        numbers = dealt(room, 9)

    assert Counter(numbers) == {0: 3, 1: 3, 2: 3}
    assert all(set(numbers[k : k + 3]) == {0, 1, 2} for k in (0, 3, 6))


def test_faster_directories_take_more(tmp_path: Path) -> None:
    """Frames are dealt in proportion to the measured rate; an unmeasured one counts as average."""
    with rooms(tmp_path, 3) as (room, directories):
        room.observe(directories[0], MIB, 1_000_000)
        room.observe(directories[1], MIB, 3_000_000)
        numbers = dealt(room, 60)

    assert Counter(numbers) == {0: 30, 1: 10, 2: 20}


def test_small_reads_say_nothing_about_rate(tmp_path: Path) -> None:
    """A short read measures latency; it must not make a drive look slow."""
    with rooms(tmp_path, 2) as (room, directories):
        room.observe(directories[0], 4096, 1_000_000)
        room.observe(directories[0], MIB, 0)
        numbers = dealt(room, 10)

    assert Counter(numbers) == {0: 5, 1: 5}


def test_one_slow_read_does_not_condemn(tmp_path: Path) -> None:
    """Rates move slowly: a single stall changes the shares by little."""
    with rooms(tmp_path, 2) as (room, directories):
        for directory in directories:
            room.observe(directory, MIB, 1_000_000)
        room.observe(directories[0], MIB, 1_000_000_000)
        numbers = dealt(room, 100)

    assert 45 <= Counter(numbers)[0] <= 50


def test_a_directory_that_comes_back_does_not_catch_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory without room is passed over, and afterwards takes its turn, not all turns."""
    with rooms(tmp_path, 2) as (room, directories):
        with monkeypatch.context() as patch:
            patch.setattr(directories[1], "available_bytes", lambda: 0)
            assert dealt(room, 50) == [0] * 50
        numbers = dealt(room, 10)

    assert Counter(numbers) == {0: 5, 1: 5}


@pytest.mark.pain("D2")
def test_promises_count_against_the_cap(tmp_path: Path) -> None:
    """Room that was taken and not used yet is not given twice."""
    with rooms(tmp_path, 2, capacity_bytes=3 * MIB) as (room, directories):
        for _ in range(3):
            assert not isinstance(room.take([MIB]), TierError)
        answer = room.take([4096])

        assert isinstance(answer, TierError)
        assert answer.kind is FailureKind.FULL
        assert "cap" in str(answer)
        assert room.free_bytes == 0
        assert room.used_bytes == 0
        directories[0].unreserve(directories[0].reserved_bytes)
        assert room.free_bytes > 0


@pytest.mark.pain("D3")
def test_promises_count_against_the_watermark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Directories on one filesystem share what it may still take."""

    class Status:
        f_frsize = 4096
        f_bavail = (GIB + 3 * MIB) // 4096

    with rooms(tmp_path, 2, min_free_bytes=GIB) as (room, _):
        monkeypatch.setattr(os, "statvfs", lambda _: Status)
        taken = [room.take([MIB]) for _ in range(4)]

    assert [isinstance(one, TierError) for one in taken] == [False, False, False, True]
    assert "1.0 GiB free" in str(taken[3])


def test_as_many_neighbours_as_fit(tmp_path: Path) -> None:
    """Of frames that should lie together, the leading ones that fit are taken in one place."""
    with rooms(tmp_path, 2, capacity_bytes=10 * MIB) as (room, directories):
        first = room.take([MIB] * 7)
        second = room.take([MIB, MIB, 5 * MIB, MIB])
        third = room.take([2 * MIB])

    assert first == (directories[0], 7)
    assert second == (directories[1], 2)
    assert isinstance(third, TierError)
    assert [directory.reserved_bytes for directory in directories] == [7 * MIB, 2 * MIB]


def test_a_filesystem_that_does_not_answer_has_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When statvfs fails, nothing is written there."""

    def broken(_: object) -> object:
        raise OSError(5, "Input/output error")

    with rooms(tmp_path, 1) as (room, _):
        monkeypatch.setattr(os, "statvfs", broken)
        answer = room.take([MIB])

    assert isinstance(answer, TierError)
    assert answer.kind is FailureKind.FULL
