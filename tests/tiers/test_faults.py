"""The disk tier when the kernel says no: full, broken, gone. Faults are injected below the tier."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from kvwise.codecs.base import scratch
from kvwise.errors import FailureKind, TierError
from kvwise.testing.tiers import (
    CAPACITY_BYTES,
    content,
    filled,
    key_of,
    put_many,
    put_one,
    read_back,
    record,
    scanned,
    verdicts,
    want,
)
from kvwise.tiers import directio
from kvwise.tiers.base import Placed
from kvwise.tiers.segments import ERRORS_MAX
from kvwise.units import GIB, MIB
from tests.tiers.media import Files

Vectored = Callable[[int, Sequence[memoryview], int], int]
RAW_BYTES = 100_000


def kinds(answers: Sequence[Placed | TierError]) -> list[FailureKind | None]:
    """How each put ended."""
    return [None if isinstance(answer, Placed) else answer.kind for answer in answers]


def path_of(fd: int) -> Path:
    """The file behind a descriptor."""
    return Path(f"/proc/self/fd/{fd}").readlink()


def fail(monkeypatch: pytest.MonkeyPatch, call: str, code: int, home: Path | None = None) -> None:
    """Make a vectored call fail for files in a directory, or everywhere."""
    real: Vectored = getattr(os, call)

    def failing(fd: int, pieces: Sequence[memoryview], offset: int) -> int:
        if home is None or path_of(fd).is_relative_to(home):
            raise OSError(code, os.strerror(code))
        return real(fd, pieces, offset)

    monkeypatch.setattr(os, call, failing)


def broken_punch(*_: int) -> None:
    """A medium that cannot give space back any more."""
    raise OSError(errno.EIO, os.strerror(errno.EIO))


# --- full ----------------------------------------------------------------------------------------


@pytest.mark.pain("W1", "D8")
@pytest.mark.parametrize("room_bytes", [0, 4096, 104_448, 110_000, 250_000])
def test_medium_full_in_the_middle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room_bytes: int
) -> None:
    """When the filesystem fills up during a run, whole frames stay and the rest leaves nothing."""
    files = Files((tmp_path,))
    tier = files.open(CAPACITY_BYTES)
    put_one(tier, 9, RAW_BYTES)
    real, left = os.pwritev, [room_bytes - room_bytes % 4096]

    def filling(fd: int, pieces: Sequence[memoryview], offset: int) -> int:
        joined = scratch(sum(piece.nbytes for piece in pieces))
        joined[:] = b"".join(pieces)
        count = min(left[0], joined.nbytes)
        if not count:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        left[0] -= count
        return real(fd, [joined[:count]], offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", filling)
        answers = tier.put([(record(n, RAW_BYTES), filled(n, RAW_BYTES)) for n in range(3)])
    whole = room_bytes // 106_496

    assert kinds(answers) == [None] * whole + [FailureKind.FULL] * (3 - whole)
    assert tier.used_bytes == files.used_bytes() == (1 + whole) * 106_496
    put_one(tier, 5, RAW_BYTES)
    tier.close()
    again = files.open(CAPACITY_BYTES)
    assert {seen.key for seen, _ in scanned(again)} == {key_of(n) for n in (9, 5, *range(whole))}
    again.close()


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_write_that_fails_after_any_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """An object whose write failed, wherever it stopped, is a miss now and after a kill.

    Elsewhere: an object whose store had failed was served, and users read gibberish.
    """
    sizes = (5000, 20_000, 9000)
    ends = (12_288, 36_864, 53_248)
    for blocks in range(ends[-1] // 4096):
        files = Files((tmp_path / str(blocks),))
        tier = files.open(CAPACITY_BYTES)
        real = os.pwritev

        def failing(fd: int, pieces: Sequence[memoryview], offset: int, stop: int = blocks) -> int:
            joined = scratch(stop * 4096)
            joined[:] = b"".join(pieces)[: joined.nbytes]
            if joined.nbytes:
                real(fd, [joined], offset)  # noqa: B023 - called before the next turn
            raise OSError(code, os.strerror(code))

        with monkeypatch.context() as patch:
            patch.setattr(os, "pwritev", failing)
            answers = tier.put([(record(n, s), filled(n, s)) for n, s in enumerate(sizes)])
        assert not any(isinstance(answer, Placed) for answer in answers)
        assert tier.used_bytes == files.used_bytes() == 0
        put_one(tier, 7, 5000)
        shutil.copytree(tmp_path / str(blocks), tmp_path / "killed")
        killed = Files((tmp_path / "killed",)).open(CAPACITY_BYTES)
        assert {seen.key for seen, _ in scanned(killed)} == {key_of(7)}
        killed.close()
        tier.close()
        shutil.rmtree(tmp_path / "killed")


@pytest.mark.pain("D3")
def test_watermark_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A put that would leave the filesystem with less than its minimum is FULL."""
    real = os.statvfs
    files = Files((tmp_path,), min_free_bytes=GIB)
    tier = files.open(CAPACITY_BYTES)

    def nearly_full(path: Path) -> object:
        class Status:
            f_frsize = real(path).f_frsize
            f_bavail = (GIB + 250_000 - files.used_bytes()) // f_frsize

        return Status

    monkeypatch.setattr(os, "statvfs", nearly_full)
    assert tier.free_bytes == 249_856
    answers = tier.put([(record(n, RAW_BYTES), filled(n, RAW_BYTES)) for n in range(5)])

    assert kinds(answers) == [None, None, FailureKind.FULL, FailureKind.FULL, FailureKind.FULL]
    assert tier.free_bytes == 32_768  # a footer will need a block
    tier.close()


def test_one_filesystem_is_counted_once(tmp_path: Path) -> None:
    """Two directories on one filesystem do not promise the same room twice."""
    single = Files((tmp_path / "a",)).open(1 << 60)
    one = single.free_bytes
    single.close()
    double = Files((tmp_path / "a", tmp_path / "b")).open(1 << 60)

    assert abs(double.free_bytes - one) < one // 10
    double.close()


# --- broken --------------------------------------------------------------------------------------


def test_failing_directory_does_not_fail_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory that keeps failing is given up; the other one goes on storing and loading."""
    bad, good = tmp_path / "bad", tmp_path / "good"
    files = Files((bad, good))
    tier = files.open(CAPACITY_BYTES)
    before = {n: put_one(tier, n, RAW_BYTES) for n in range(8)}
    fail(monkeypatch, "pwritev", errno.EIO, bad)
    fail(monkeypatch, "preadv", errno.EIO, bad)
    for number in range(100, 100 + 2 * ERRORS_MAX):
        tier.put([(record(number, RAW_BYTES), filled(number, RAW_BYTES))])
    after = put_many(tier, range(200, 208), RAW_BYTES)
    found = verdicts(tier, [want(n, RAW_BYTES, p) for n, p in {**before, **after}.items()])
    homes = [files.spot(p)[0].parent for p in {**before, **after}.values()]

    assert [kind is None for kind in found] == [home == good for home in homes]
    assert set(found) == {None, FailureKind.IO}
    assert len(tier.down) == 1
    assert "bad" in tier.down[0]
    tier.close()


def test_what_cannot_be_read_stays_until_something_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record that failed is given back once the medium is known to read, and not before."""
    files = Files((tmp_path,))
    tier = files.open(CAPACITY_BYTES)
    bad, good = (put_one(tier, number, RAW_BYTES) for number in range(2))
    with monkeypatch.context() as patch:
        fail(patch, "preadv", errno.EIO)
        assert read_back(tier, 0, RAW_BYTES, bad) is FailureKind.IO
        tier.free([bad])
        other = put_one(tier, 2, RAW_BYTES)
    assert tier.used_bytes == sum(one.stored_bytes for one in (bad, good, other))
    assert read_back(tier, 1, RAW_BYTES, good) == content(1, RAW_BYTES)
    assert tier.used_bytes == good.stored_bytes + other.stored_bytes
    tier.free([other])
    assert tier.used_bytes == good.stored_bytes
    tier.close()


def test_a_medium_that_reads_again_after_a_restart_has_it_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was dropped because nothing could be read is found by the next start."""
    files = Files((tmp_path,))
    tier = files.open(CAPACITY_BYTES)
    placed = [put_one(tier, number, RAW_BYTES) for number in range(2)]
    with monkeypatch.context() as patch:
        fail(patch, "preadv", errno.EIO)
        for number, one in enumerate(placed):
            assert read_back(tier, number, RAW_BYTES, one) is FailureKind.IO
            tier.free([one])
    tier.close()
    again = files.open(CAPACITY_BYTES)
    assert len(scanned(again)) == 2
    again.close()


def test_a_medium_that_fails_loses_nothing_that_was_not_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What goes along with a record that failed, as its suffix does, is there after a restart."""
    files = Files((tmp_path,))
    tier = files.open(CAPACITY_BYTES)
    bad, suffix = (put_one(tier, number, RAW_BYTES) for number in range(2))
    with monkeypatch.context() as patch:
        fail(patch, "preadv", errno.EIO)
        assert read_back(tier, 0, RAW_BYTES, bad) is FailureKind.IO
        tier.free([bad, suffix])
    assert not tier.down
    tier.close()
    again = files.open(CAPACITY_BYTES)
    assert len(scanned(again)) == 2
    again.close()


def test_one_bad_sector_holds_nothing_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes along with a record that failed can be read, so both are given back at once."""
    tier = Files((tmp_path,)).open(CAPACITY_BYTES)
    bad, suffix = (put_one(tier, number, RAW_BYTES) for number in range(2))
    with monkeypatch.context() as patch:
        fail(patch, "preadv", errno.EIO)
        assert read_back(tier, 0, RAW_BYTES, bad) is FailureKind.IO
    tier.free([bad])
    assert tier.used_bytes == bad.stored_bytes + suffix.stored_bytes
    tier.free([suffix])
    assert tier.used_bytes == 0
    tier.close()


def test_segment_that_cannot_be_opened_is_io(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too few descriptors, or rights taken away: an I/O fault for these objects, not a miss."""
    tier = Files((tmp_path,)).open(CAPACITY_BYTES)
    placed = put_one(tier, 1, RAW_BYTES)
    real = os.open

    def refusing(path: Path, flags: int, mode: int = 0o777) -> int:
        if "segment" in str(path):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return real(path, flags, mode)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refusing)
        assert read_back(tier, 1, RAW_BYTES, placed) is FailureKind.IO
        answers = tier.put([(record(2, 5 * MIB), filled(2, 5 * MIB))])
        assert kinds(answers) == [FailureKind.IO]
    assert read_back(tier, 1, RAW_BYTES, placed) == content(1, RAW_BYTES)
    assert tier.used_bytes == placed.stored_bytes
    tier.close()


def test_failed_write_that_cannot_be_taken_back_stays_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes of a failed put that could not be punched count until a restart cleans up."""
    files = Files((tmp_path,))
    tier = files.open(CAPACITY_BYTES)
    with monkeypatch.context() as patch:
        fail(patch, "pwritev", errno.EIO)
        patch.setattr(directio, "punch", broken_punch)
        tier.put([(record(1, RAW_BYTES), filled(1, RAW_BYTES))])

    assert tier.used_bytes == 106_496
    tier.close()
    again = files.open(CAPACITY_BYTES)
    assert scanned(again) == []
    assert again.used_bytes == files.used_bytes() == 0
    again.close()


@pytest.mark.pain("D7")
def test_every_directory_down_is_io(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With nothing left to write to, puts fail as I/O and not as a full cache."""
    tier = Files((tmp_path,)).open(CAPACITY_BYTES)
    placed = put_one(tier, 1, RAW_BYTES)
    fail(monkeypatch, "pwritev", errno.EIO)
    for number in range(ERRORS_MAX + 1):
        answers = tier.put([(record(number, RAW_BYTES), filled(number, RAW_BYTES))])
        assert kinds(answers) == [FailureKind.IO]

    assert tier.down
    assert tier.free_bytes == 0
    with pytest.raises(TierError, match="given up") as raised:
        tier.free([placed])
    assert raised.value.kind is FailureKind.IO
    tier.close()


def test_errors_in_between_are_forgiven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only failures in a row give a directory up."""
    tier = Files((tmp_path,)).open(CAPACITY_BYTES)
    for number in range(2 * ERRORS_MAX):
        with monkeypatch.context() as patch:
            fail(patch, "pwritev", errno.EIO)
            tier.put([(record(number, RAW_BYTES), filled(number, RAW_BYTES))])
        put_one(tier, 100 + number, RAW_BYTES)

    assert tier.down == ()
    tier.close()


def test_want_of_descriptors_is_not_the_mediums_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process without a descriptor or memory to spare fails the call, not the directory."""
    tier = Files((tmp_path,)).open(CAPACITY_BYTES)
    placed = put_one(tier, 1, RAW_BYTES)
    for number in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
        with monkeypatch.context() as patch:
            fail(patch, "preadv", number)
            for _ in range(ERRORS_MAX):
                (error,) = verdicts(tier, [want(1, RAW_BYTES, placed)])
                assert error is FailureKind.IO

    assert tier.down == ()
    assert read_back(tier, 1, RAW_BYTES, placed) == content(1, RAW_BYTES)
    tier.close()


@pytest.mark.parametrize("code", [errno.ENODEV, errno.EROFS, errno.ESTALE])
def test_gone_device_is_given_up_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """A device that went away needs no second try."""
    tier = Files((tmp_path,)).open(CAPACITY_BYTES)
    with monkeypatch.context() as patch:
        fail(patch, "pwritev", code)
        tier.put([(record(1, RAW_BYTES), filled(1, RAW_BYTES))])

    assert len(tier.down) == 1
    tier.close()


def test_removed_directory_is_given_up(tmp_path: Path) -> None:
    """When somebody removes a directory, its objects fail and the other one goes on."""
    files = Files((tmp_path / "a", tmp_path / "b"))
    tier = files.open(CAPACITY_BYTES)
    placed = {n: put_one(tier, n, RAW_BYTES) for n in range(8)}
    shutil.rmtree(tmp_path / "a")
    found = verdicts(tier, [want(n, RAW_BYTES, p) for n, p in placed.items()])
    homes = [files.spot(p)[0].parent.name for p in placed.values()]

    assert [kind is None for kind in found] == [home == "b" for home in homes]
    assert len(tier.down) == 1
    more = put_many(tier, range(20, 24), RAW_BYTES)
    assert {files.spot(p)[0].parent.name for p in more.values()} == {"b"}
    tier.close()


@pytest.mark.pain("C7")
def test_one_bad_sector_harms_one_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read error in the middle of a run fails the object it is in; the neighbours load."""
    files = Files((tmp_path,))
    tier = files.open(CAPACITY_BYTES)
    placed = put_many(tier, range(5), RAW_BYTES)
    _, start = files.spot(placed[2])
    bad, real = range(start + 50_000, start + 54_000), os.preadv

    def scratched(fd: int, pieces: Sequence[memoryview], offset: int) -> int:
        if offset < bad.stop and offset + sum(piece.nbytes for piece in pieces) > bad.start:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(fd, pieces, offset)

    monkeypatch.setattr(os, "preadv", scratched)
    found = verdicts(tier, [want(n, RAW_BYTES, p) for n, p in placed.items()])

    assert found == [None, None, FailureKind.IO, None, None]
    assert tier.down == ()
    tier.close()


def test_failed_punch_stays_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes that could not be given back still count, and the caller hears of it."""
    files = Files((tmp_path,))
    tier = files.open(CAPACITY_BYTES)
    placed = put_many(tier, range(2), RAW_BYTES)

    with monkeypatch.context() as patch:
        patch.setattr(directio, "punch", broken_punch)
        with pytest.raises(TierError) as raised:
            tier.free([placed[0]])
    assert raised.value.kind is FailureKind.IO
    assert tier.used_bytes == files.used_bytes()
    tier.close()


def test_sick_segment_does_not_stop_the_scan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A segment that cannot be read is skipped and stays counted; the others are found."""
    files = Files((tmp_path,), segment_bytes=MIB)
    tier = files.open(CAPACITY_BYTES)
    placed = {n: put_one(tier, n, 600_000) for n in range(3)}
    tier.close()
    sick = files.spot(placed[1])[0]
    tier = files.open(CAPACITY_BYTES)
    fail(monkeypatch, "preadv", errno.EIO, sick)

    assert {seen.key for seen, _ in scanned(tier)} == {key_of(0), key_of(2)}
    assert tier.used_bytes == files.used_bytes()
    tier.close()
