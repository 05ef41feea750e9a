"""The disk tier on filesystems that are full, read-only or gone. They are real, mounted here."""

from __future__ import annotations

import logging
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from kvwise.errors import ConfigError, FailureKind, TierError
from kvwise.testing.tiers import (
    CAPACITY_BYTES,
    assert_adds_up,
    content,
    filled,
    key_of,
    put_one,
    read_back,
    record,
    scanned,
    verdicts,
    want,
)
from kvwise.tiers import directio
from kvwise.tiers.base import Placed
from kvwise.tiers.directio import Io
from kvwise.tiers.disk import DiskTier
from kvwise.units import MIB
from tests.tiers.media import Files
from tests.tiers.mounts import ext4_image, mounted

RAW_BYTES = 90_000
ROOM_BYTES = 12 * MIB


@pytest.fixture(params=["tmpfs", "ext4"])
def small(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A directory on a small filesystem of its own."""
    options = ["-t", "tmpfs", "-o", f"size={ROOM_BYTES}", "none"]
    if request.param == "ext4":
        options = ["-o", "loop", str(ext4_image(tmp_path / "small.img", 2 * ROOM_BYTES))]
    with mounted(tmp_path / "small", *options) as home:
        yield home / "kvwise"


@contextmanager
def read_only(home: Path) -> Iterator[None]:
    """Whatever is opened below a directory cannot be written for a while."""
    with mounted(home, "--bind", str(home)):
        subprocess.run(["mount", "-o", "remount,bind,ro", str(home)], check=True)
        yield


def fill(tier: DiskTier, first: int) -> dict[int, Placed]:
    """Store objects until one is refused, which must be because there is no room."""
    placed: dict[int, Placed] = {}
    for number in range(first, first + 1000):
        (answer,) = tier.put([(record(number, RAW_BYTES), filled(number, RAW_BYTES))])
        if isinstance(answer, TierError):
            assert answer.kind is FailureKind.FULL
            return placed
        placed[number] = answer
    raise AssertionError("the filesystem is never full")


def fill_up(path: Path) -> None:
    """Leave not a block of a filesystem, by a file that is none of ours."""
    with suppress(OSError), path.open("wb", 0) as file:
        while file.write(bytes(4096)):
            pass
    assert shutil.disk_usage(path).free < 4096


def whole(tier: DiskTier, placed: dict[int, Placed]) -> bool:
    """Whether all of these load with their bytes."""
    return all(
        read_back(tier, number, RAW_BYTES, spot) == content(number, RAW_BYTES)
        for number, spot in placed.items()
    )


@pytest.mark.parametrize("min_free_bytes", [0, 2 * MIB])
def test_a_disk_that_is_full(small: Path, min_free_bytes: int) -> None:
    """Until the last block objects are stored, then refused; what is freed is used again.

    Elsewhere: a cap that was only advice, and no free space left for others.
    """
    files = Files((small,), min_free_bytes=min_free_bytes)
    tier = files.open(1 << 40)
    placed = fill(tier, 0)
    for turn in range(3):
        assert tier.used_bytes == files.used_bytes()
        assert_adds_up(tier, placed.values())
        assert shutil.disk_usage(small).free >= min_free_bytes
        gone = sorted(placed)[turn::4]
        tier.free([placed.pop(number) for number in gone])
        more = fill(tier, 1000 * (turn + 1))
        assert len(more) >= len(gone) - 2
        placed |= more
    assert whole(tier, placed)
    tier.close()
    tier = files.open(1 << 40)

    assert {seen.key for seen, _ in scanned(tier)} == {key_of(number) for number in placed}
    assert tier.used_bytes == files.used_bytes()
    tier.close()


@pytest.mark.pain("D3")
def test_a_disk_that_somebody_else_fills(small: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Without a block left, puts and footers are refused, and everything stored stays whole.

    A start changes nothing about that: it needs no block, nor does it try to write one for itself.
    """
    files = Files((small,))
    tier = files.open(1 << 40)
    placed = {number: put_one(tier, number, RAW_BYTES) for number in range(30)}
    other = small.parent / "other"
    fill_up(other)
    assert fill(tier, 100) == {}
    assert tier.down == ()
    assert whole(tier, placed)
    ways = tier.io
    tier.close()
    (small / "kvwise.lock").unlink()
    with caplog.at_level(logging.WARNING):
        tier = files.open(1 << 40)

    assert "has no room" in caplog.text
    assert tier.io == ways
    assert {seen.key for seen, _ in scanned(tier)} == {key_of(number) for number in range(30)}
    assert tier.used_bytes == files.used_bytes()
    assert whole(tier, placed)
    assert fill(tier, 100) == {}
    assert tier.down == ()
    other.unlink()
    placed[100] = put_one(tier, 100, RAW_BYTES)
    assert whole(tier, placed)
    tier.close()
    assert {path.name for path in small.iterdir() if path.suffix != ".kvw"} == {"kvwise.lock"}


def test_a_full_disk_beside_a_good_one(small: Path, tmp_path: Path) -> None:
    """One drive that somebody else filled stops neither the start nor the other drive."""
    small.mkdir()
    fill_up(small.parent / "other")
    tier = Files((small, tmp_path / "good")).open(CAPACITY_BYTES)
    for number in range(10):
        put_one(tier, number, RAW_BYTES)

    assert tier.down == ()
    assert list(small.glob("segment-*")) == []
    tier.close()


def test_a_disk_without_room_for_a_file(tmp_path: Path) -> None:
    """Where not even an empty file can be made, a start asks the files that are there."""
    options = ["-t", "tmpfs", "-o", "nr_inodes=10", "none"]
    with mounted(tmp_path / "small", *options) as home:
        files = Files((home / "kvwise",))
        tier = files.open(CAPACITY_BYTES)
        placed = {number: put_one(tier, number, RAW_BYTES) for number in range(5)}
        ways = tier.io
        tier.close()
        with suppress(OSError):
            for number in range(20):
                (home / f"other-{number}").touch()
        for io in (Io.AUTO, *ways, Io.BUFFERED):
            tier = Files((home / "kvwise",), io=io).open(CAPACITY_BYTES)
            assert tier.io == ((Io.BUFFERED,) if io is Io.BUFFERED else ways)
            assert len(scanned(tier)) == 5
            assert whole(tier, placed)
            assert fill(tier, 100) == {}
            assert tier.down == ()
            tier.close()
        with pytest.raises(ConfigError, match="No space left"):
            directio.probe(home / "kvwise", Io.AUTO)


def test_a_disk_that_turns_read_only(small: Path, tmp_path: Path) -> None:
    """One drive that takes no writes is given up; the other goes on, and nothing is lost."""
    files = Files((small, tmp_path / "other"))
    tier = files.open(CAPACITY_BYTES)
    placed = {number: put_one(tier, number, RAW_BYTES) for number in range(20)}
    tier.close()
    tier = files.open(CAPACITY_BYTES)
    list(tier.scan())
    with read_only(small.parent):
        assert whole(tier, placed)
        for number in range(100, 110):
            (answer,) = tier.put([(record(number, RAW_BYTES), filled(number, RAW_BYTES))])
            if isinstance(answer, Placed):
                placed[number] = answer
        assert len(tier.down) == 1
        assert "small" in tier.down[0]
        assert len(placed) == 29
        assert whole(tier, {n: spot for n, spot in placed.items() if n >= 100})
        tier.close()
        with pytest.raises(ConfigError, match="Read-only file system"):
            files.open(CAPACITY_BYTES)
    tier = files.open(CAPACITY_BYTES)

    assert {seen.key for seen, _ in scanned(tier)} == {key_of(number) for number in placed}
    assert tier.used_bytes == files.used_bytes()
    tier.close()


def test_a_disk_that_is_unmounted(tmp_path: Path) -> None:
    """What is on a drive that went away fails and is not lost; the other drive goes on."""
    image = ext4_image(tmp_path / "away.img", 2 * ROOM_BYTES)
    files = Files((tmp_path / "away", tmp_path / "stays"))
    with mounted(files.directories[0], "-o", "loop", str(image)):
        tier = files.open(CAPACITY_BYTES)
        placed = {number: put_one(tier, number, RAW_BYTES) for number in range(20)}
    found = verdicts(tier, [want(n, RAW_BYTES, spot) for n, spot in placed.items()])
    homes = [files.spot(spot)[0].parent.name for spot in placed.values()]
    assert [kind is None for kind in found] == [name == "stays" for name in homes]
    assert set(found) == {None, FailureKind.IO}
    assert len(tier.down) == 1
    with pytest.raises(TierError, match="given up"):
        tier.free(list(placed.values()))
    fresh = put_one(tier, 100, RAW_BYTES)
    assert files.spot(fresh)[0].parent.name == "stays"
    tier.close()
    with mounted(files.directories[0], "-o", "loop", str(image)):
        tier = files.open(CAPACITY_BYTES)
        away = {key_of(n) for n, name in zip(placed, homes, strict=True) if name == "away"}

        assert {seen.key for seen, _ in scanned(tier)} == away | {key_of(100)}
        assert tier.used_bytes == files.used_bytes()
        tier.close()


def test_a_cap_that_shrank_over_two_disks(tmp_path: Path) -> None:
    """A smaller cap holds over all directories together, and what is kept is whole."""
    files = Files((tmp_path / "a", tmp_path / "b"))
    tier = files.open(CAPACITY_BYTES)
    for number in range(60):
        put_one(tier, number, RAW_BYTES)
    tier.close()
    for capacity_bytes in (4 * MIB, 2 * MIB, 100_000, 5000):
        tier = files.open(capacity_bytes)
        kept = scanned(tier)

        assert tier.used_bytes == files.used_bytes() <= capacity_bytes
        assert_adds_up(tier, [spot for _, spot in kept])
        assert tier.used_bytes > capacity_bytes - 200_000
        numbers = {key_of(number): number for number in range(60)}
        assert whole(tier, {numbers[seen.key]: spot for seen, spot in kept})
        tier.close()
