"""The disk tier when the kernel says no: full, broken, gone. Faults are injected below the tier."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from kvwise.codecs.base import scratch
from kvwise.errors import BugError, ConfigError, FailureKind, TierError
from kvwise.testing.tiers import (
    CAPACITY_BYTES,
    blank,
    content,
    filled,
    key_of,
    put_many,
    put_one,
    read_back,
    record,
    verdicts,
    want,
)
from kvwise.tiers import directio, disk
from kvwise.tiers.base import Placed, Want
from kvwise.tiers.directio import Io
from kvwise.tiers.disk import DiskConfig
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
    assert {seen.key for seen, _ in again.scan()} == {key_of(n) for n in (9, 5, *range(whole))}
    again.close()


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
    assert tier.free_bytes == 36_864
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
    assert list(again.scan()) == []
    assert again.used_bytes == files.used_bytes() == 0
    again.close()


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

    assert {seen.key for seen, _ in tier.scan()} == {key_of(0), key_of(2)}
    assert tier.used_bytes == files.used_bytes()
    tier.close()


# --- our own mistakes ----------------------------------------------------------------------------


def test_freeing_twice_is_our_bug(tmp_path: Path) -> None:
    """A location that is freed again would falsify the accounting, so it is refused."""
    tier = Files((tmp_path,)).open(CAPACITY_BYTES)
    placed = put_one(tier, 1, RAW_BYTES)
    tier.free([placed])
    with pytest.raises(BugError, match="freed before"):
        tier.free([placed])
    tier.close()


def test_foreign_location_is_our_bug(tmp_path: Path) -> None:
    """A location that names a directory this tier does not have is refused."""
    tier = Files((tmp_path,)).open(CAPACITY_BYTES)
    with pytest.raises(BugError, match="not of this tier"):
        tier.free([Placed(3 << 56, 8192)])
    with pytest.raises(BugError, match="not of this tier"):
        list(tier.get([Want(key_of(1), b"", 10, 0, 0, [scratch(10)])]))
    tier.close()


def test_buffers_of_the_wrong_size_are_our_bug(tmp_path: Path) -> None:
    """Buffers must hold exactly the payload; nothing is left reserved after the refusal."""
    tier = Files((tmp_path,)).open(CAPACITY_BYTES)
    free_bytes = tier.free_bytes
    with pytest.raises(BugError):
        tier.put([(record(1, RAW_BYTES), filled(1, RAW_BYTES)), (record(2, 10), blank(11))])
    placed = put_one(tier, 3, RAW_BYTES)
    short = Want(key_of(3), b"", RAW_BYTES, placed.location, placed.stored_bytes, blank(5))
    with pytest.raises(BugError):
        list(tier.get([short]))

    assert free_bytes - tier.free_bytes == tier.used_bytes
    tier.close()


def test_unaligned_buffers_are_our_bug(tmp_path: Path) -> None:
    """Direct I/O on memory that is not aligned is refused by name, not by EINVAL."""
    tier = Files((tmp_path,), io=Io.DIRECT).open(CAPACITY_BYTES)
    with pytest.raises(BugError, match="direct I/O"):
        tier.put([(record(1, 8192), [scratch(3 * 4096)[8 : 8 + 8192]])])

    assert tier.used_bytes == 0
    tier.close()


@pytest.mark.parametrize(
    "config",
    [
        lambda: DiskConfig((), GIB),
        lambda: DiskConfig((Path("a"), Path("a")), GIB),
        lambda: DiskConfig((Path("a"), Path("b/../a")), GIB),
        lambda: DiskConfig((Path("a"),), 0),
        lambda: DiskConfig((Path("a"),), GIB, min_free_bytes=-1),
        lambda: DiskConfig((Path("a"),), GIB, readers=0),
        lambda: DiskConfig((Path("a"),), GIB, segment_bytes=4096),
        lambda: DiskConfig((Path("a"),), GIB, segment_bytes=1 << 50),
    ],
    ids=["none", "twice", "alias", "no-cap", "negative", "no-reader", "tiny", "huge"],
)
def test_impossible_configurations(config: Callable[[], DiskConfig]) -> None:
    """What cannot work is refused before a directory is touched."""
    with pytest.raises(ConfigError):
        config()


# --- at the same time ----------------------------------------------------------------------------


def test_neighbours_move_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch is written and read in few calls, each of about RUN_BYTES."""
    calls = {"pwritev": 0, "preadv": 0}
    tier = Files((tmp_path,), segment_bytes=64 * MIB).open(CAPACITY_BYTES)

    def counted(name: str) -> Vectored:
        real: Vectored = getattr(os, name)

        def call(fd: int, pieces: Sequence[memoryview], offset: int) -> int:
            calls[name] += 1
            return real(fd, pieces, offset)

        return call

    for name in calls:
        monkeypatch.setattr(os, name, counted(name))
    placed = put_many(tier, range(36), 720 * 1024)
    assert verdicts(tier, [want(n, 720 * 1024, p) for n, p in placed.items()]) == [None] * 36

    assert calls["pwritev"] == 12
    assert calls["preadv"] == 12
    tier.close()


def test_stopping_early_waits_for_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After `get` was closed, nothing writes into the buffers any more."""
    tier = Files((tmp_path,), segment_bytes=64 * MIB).open(CAPACITY_BYTES)
    placed = put_many(tier, range(20), 720 * 1024)
    under_way, real = [0], os.preadv

    def slow(fd: int, pieces: Sequence[memoryview], offset: int) -> int:
        under_way[0] += 1
        threading.Event().wait(0.05)
        count = real(fd, pieces, offset)
        under_way[0] -= 1
        return count

    monkeypatch.setattr(os, "preadv", slow)
    reading = tier.get([want(n, 720 * 1024, p) for n, p in placed.items()])
    next(reading)
    reading.close()

    assert under_way == [0]
    tier.close()


def test_closing_answers_what_waits(tmp_path: Path) -> None:
    """Reads that had not started when the tier was closed are answered CLOSED, none is lost."""
    tier = Files((tmp_path,), segment_bytes=64 * MIB).open(CAPACITY_BYTES)
    placed = put_many(tier, range(30), 720 * 1024)
    wants = [want(n, 720 * 1024, p) for n, p in placed.items()]
    reading = tier.get(wants)
    found = dict([next(reading)])
    tier.close()
    found.update(reading)
    answers = [None if (error := found[n]) is None else error.kind for n in range(30)]

    assert set(answers) == {None, FailureKind.CLOSED}
    assert [b"".join(w.buffers) for w, a in zip(wants, answers, strict=True) if a is None] == [
        content(n, 720 * 1024) for n in range(30) if answers[n] is None
    ]


def test_closing_does_not_wait_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a disk that does not answer, close gives up; when it answers, closing again works."""
    files = Files((tmp_path,))
    tier = files.open(CAPACITY_BYTES)
    placed = put_one(tier, 1, RAW_BYTES)
    answer, real, asked = threading.Event(), os.preadv, threading.Event()

    def stuck(fd: int, pieces: Sequence[memoryview], offset: int) -> int:
        asked.set()
        assert answer.wait(30)
        return real(fd, pieces, offset)

    monkeypatch.setattr(os, "preadv", stuck)
    monkeypatch.setattr(disk, "CLOSE_S", 0.05)
    found: list[bytes | FailureKind] = []
    reader = threading.Thread(
        target=lambda: found.append(read_back(tier, 1, RAW_BYTES, placed)), daemon=True
    )
    reader.start()
    assert asked.wait(10)
    tier.close()
    with pytest.raises(ConfigError, match="in use"):
        files.open(CAPACITY_BYTES)
    answer.set()
    reader.join(30)
    tier.close()

    assert found == [content(1, RAW_BYTES)]
    files.open(CAPACITY_BYTES).close()


def test_segment_that_cannot_be_deleted_is_left_to_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When an empty segment cannot be removed, its space is free all the same."""
    files = Files((tmp_path,))
    tier = files.open(CAPACITY_BYTES)
    placed = put_one(tier, 1, RAW_BYTES)

    def broken(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", broken)
        tier.free([placed])
        tier.close()
    assert len(files.segments()) == 1
    assert files.used_bytes() == 0
    again = files.open(CAPACITY_BYTES)
    assert list(again.scan()) == []
    again.close()
    assert files.segments() == []


def test_closed_tier_refuses_free_and_scan(tmp_path: Path) -> None:
    """Verbs that have no answer for each object raise CLOSED."""
    tier = Files((tmp_path,)).open(CAPACITY_BYTES)
    placed = put_one(tier, 1, RAW_BYTES)
    tier.close()
    for verb in (lambda: tier.free([placed]), lambda: list(tier.scan())):
        with pytest.raises(TierError) as raised:
            verb()
        assert raised.value.kind is FailureKind.CLOSED


def test_read_back_after_everything(tmp_path: Path) -> None:
    """A tier that was closed and opened again serves an object that was written before."""
    files = Files((tmp_path,))
    tier = files.open(CAPACITY_BYTES)
    placed = put_one(tier, 1, RAW_BYTES)
    tier.close()
    tier = files.open(CAPACITY_BYTES)

    assert read_back(tier, 1, RAW_BYTES, placed) == content(1, RAW_BYTES)
    tier.close()
