"""What the disk tier makes of its callers: mistakes, batches, closing early. On real files."""

from __future__ import annotations

import errno
import os
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
    scanned,
    verdicts,
    want,
)
from kvwise.tiers import disk
from kvwise.tiers.base import Placed, Want
from kvwise.tiers.directio import Io
from kvwise.tiers.disk import DiskConfig
from kvwise.units import GIB, MIB
from tests.tiers.media import Files

Vectored = Callable[[int, Sequence[memoryview], int], int]
RAW_BYTES = 100_000


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

    assert free_bytes - tier.free_bytes == tier.used_bytes + 4096  # for the footer
    tier.close()


@pytest.mark.pain("D7")
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


def test_neighbours_move_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch is written and read in few calls, each of about the size of its runs."""
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

    assert calls["pwritev"] == 3
    assert calls["preadv"] == 6
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
    assert scanned(again) == []
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
