"""Segments with a footer: found quickly, believed only where the file agrees, never a wrong hit."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import xxhash

from kvwise.codecs import frame
from kvwise.codecs.base import BLOCK_BYTES
from kvwise.errors import FailureKind
from kvwise.testing.tiers import (
    CAPACITY_BYTES,
    SPACE,
    assert_adds_up,
    blank,
    content,
    filled,
    key_of,
    put_many,
    read_back,
    record,
    scanned,
    verdicts,
)
from kvwise.tiers import directio, disk, footer
from kvwise.tiers.base import Placed, Want
from kvwise.tiers.directio import Io
from kvwise.tiers.footer import Entries
from kvwise.units import KIB, MIB
from tests.tiers.media import Files

RAW_BYTES = 16_000
FRAME_BYTES = 20_480
COUNT = 120
"""Objects of two whole segments and a bit."""

GOLDEN = Path(__file__).parent.parent / "golden"
Damage = Callable[[Path, Path], None]


def stored(tmp_path: Path) -> tuple[Files, dict[int, Placed]]:
    """Objects 0 to `COUNT` in segments that were all closed in order."""
    files = Files((tmp_path,), segment_bytes=MIB)
    tier = files.open(CAPACITY_BYTES)
    placed: dict[int, Placed] = {}
    for first in range(0, COUNT, 10):
        placed |= put_many(tier, range(first, first + 10), RAW_BYTES)
    tier.close()
    return files, placed


def found(files: Files) -> dict[bytes, Placed]:
    """What the next life finds; its accounting must be what lies on the disk."""
    tier = files.open(CAPACITY_BYTES)
    seen = {one.key: spot for one, spot in scanned(tier)}
    assert tier.used_bytes == files.used_bytes()
    assert_adds_up(tier, seen.values())
    for number in range(COUNT):
        if spot := seen.get(key_of(number)):
            assert read_back(tier, number, RAW_BYTES, spot) == content(number, RAW_BYTES)
    tier.close()
    return seen


def footers(files: Files) -> list[int]:
    """Where the footer of each segment starts; 0 where there is none."""
    ends = [path.read_bytes()[-40:] for path in files.segments()]
    return [int.from_bytes(end[24:32], "little") if end[:8] == footer.MAGIC else 0 for end in ends]


def count_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of all reads from now on."""
    real, sizes = os.preadv, []

    def reading(fd: int, pieces: Sequence[memoryview], offset: int) -> int:
        sizes.append(sum(piece.nbytes for piece in pieces))
        return real(fd, pieces, offset)

    monkeypatch.setattr(os, "preadv", reading)
    return sizes


@pytest.mark.pain("D6")
def test_a_closed_segment_is_found_by_its_footer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restart reads the end of each segment, and no header."""
    files, placed = stored(tmp_path)
    tier = files.open(CAPACITY_BYTES)
    sizes = count_reads(monkeypatch)
    seen = {one.key: spot for one, spot in scanned(tier)}
    tier.close()

    assert len(sizes) == len(files.segments()) == 3
    assert seen == {key_of(number): spot for number, spot in placed.items()}


def test_without_footers_the_same_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that was killed leaves no footer in its last segment: its headers are read."""
    files, placed = stored(tmp_path)
    files.cut_footers()
    tier = files.open(CAPACITY_BYTES)
    sizes = count_reads(monkeypatch)
    seen = {one.key: spot for one, spot in scanned(tier)}
    tier.close()

    assert len(sizes) >= COUNT
    assert seen == {key_of(number): spot for number, spot in placed.items()}


def test_a_scan_tells_records_in_large_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Segments are told together, each namespace for itself, no batch larger than agreed."""
    monkeypatch.setattr(disk, "FOUND_MAX", 50)
    files = Files((tmp_path / "a", tmp_path / "b"), segment_bytes=MIB)
    tier = files.open(CAPACITY_BYTES)
    spaces = {number: b"odd namespace..." if number % 3 else SPACE for number in range(240)}
    for first in range(0, 240, 8):
        objects = [
            (replace(record(n, RAW_BYTES), space=spaces[n]), filled(n, RAW_BYTES))
            for n in range(first, first + 8)
        ]
        assert all(isinstance(answer, Placed) for answer in tier.put(objects))
    tier.close()
    tier = files.open(CAPACITY_BYTES)
    batches = list(tier.scan())
    tier.close()
    keys = {b.space: b"" for b in batches}
    for batch in batches:
        keys[batch.space] += batch.keys

    assert max(len(batch.locations) // 8 for batch in batches) <= 50
    assert len(batches) <= 2 + 2 * 240 // 50
    for space, joined in keys.items():
        found = {joined[at : at + 16] for at in range(0, len(joined), 16)}
        assert found == {key_of(number) for number, own in spaces.items() if own == space}


def _torn(path: Path, _: Path) -> None:
    os.truncate(path, path.stat().st_size - 100)


def _half(path: Path, _: Path) -> None:
    os.truncate(path, path.stat().st_size // BLOCK_BYTES * BLOCK_BYTES - BLOCK_BYTES)


def _flipped(path: Path, _: Path) -> None:
    with path.open("r+b") as file:
        file.seek(-BLOCK_BYTES + 300, os.SEEK_END)
        file.write(b"?")


def _foreign(path: Path, other: Path) -> None:
    data = other.read_bytes()
    with path.open("r+b") as file:
        file.seek(-BLOCK_BYTES, os.SEEK_END)
        file.write(data[-BLOCK_BYTES:])


def _newer(path: Path, _: Path) -> None:
    data = bytearray(path.read_bytes()[-BLOCK_BYTES:])
    data[-32:-30] = (footer.VERSION + 1).to_bytes(2, "little")
    data[-8:] = footer._checksum(memoryview(data)).to_bytes(8, "little")
    with path.open("r+b") as file:
        file.seek(-BLOCK_BYTES, os.SEEK_END)
        file.write(data)


def _followed(path: Path, _: Path) -> None:
    with path.open("ab") as file:
        file.write(b"something else" * 3000)


def _huge(path: Path, _: Path) -> None:
    with path.open("r+b") as file:
        file.seek(-24, os.SEEK_END)
        file.write((path.stat().st_size // 50).to_bytes(4, "little"))


@pytest.mark.parametrize("damage", [_torn, _half, _flipped, _foreign, _newer, _followed, _huge])
def test_a_footer_that_cannot_be_used_costs_nothing(tmp_path: Path, damage: Damage) -> None:
    """Torn, damaged, of another segment, of a later version, no longer the end: headers count."""
    files, placed = stored(tmp_path)
    first, other = files.segments()[:2]
    damage(first, other)

    assert found(files) == {key_of(number): spot for number, spot in placed.items()}
    assert [bool(start) for start in footers(files)] == [False, True, True]


def test_freed_frames_are_not_found(tmp_path: Path) -> None:
    """A footer names frames that were freed later; their holes say so in every life."""
    files, placed = stored(tmp_path)
    left = set(range(COUNT))
    for life in range(3):
        gone = set(range(life, COUNT, 7)) & left
        tier = files.open(CAPACITY_BYTES)
        list(tier.scan())
        tier.free([placed[number] for number in sorted(gone)])
        tier.close()
        left -= gone

        assert set(found(files)) == {key_of(number) for number in left}
        assert footers(files)[0]


def test_a_footer_that_does_not_pay_goes(tmp_path: Path) -> None:
    """With few frames left, the footer is given back; what is left is found by its headers."""
    files, placed = stored(tmp_path)
    first = [n for n, spot in placed.items() if files.spot(spot)[0] == files.segments()[0]]
    tier = files.open(CAPACITY_BYTES)
    list(tier.scan())
    gone = first[: -(256 * KIB // FRAME_BYTES)]
    tier.free([placed[number] for number in gone])
    assert tier.used_bytes == files.used_bytes()
    tier.close()

    assert not footers(files)[0]
    assert set(found(files)) == {key_of(n) for n in range(COUNT)} - {key_of(n) for n in gone}


def test_an_emptied_segment_goes_with_its_footer(tmp_path: Path) -> None:
    """When the last frame is freed, nothing of the segment is left or counted."""
    files, placed = stored(tmp_path)
    tier = files.open(CAPACITY_BYTES)
    list(tier.scan())
    tier.free(list(placed.values()))

    assert tier.used_bytes == files.used_bytes() == 0
    assert files.segments() == []
    tier.close()


def test_objects_come_before_footers(tmp_path: Path) -> None:
    """Where the cap leaves no room for a footer, none is written, and no object is refused."""
    files = Files((tmp_path,), segment_bytes=MIB)
    capacity_bytes = 100 * FRAME_BYTES
    tier = files.open(capacity_bytes)
    free_bytes = tier.free_bytes
    for first in range(0, 100, 50):
        put_many(tier, range(first, first + 50), RAW_BYTES)
        assert tier.used_bytes == files.used_bytes() <= capacity_bytes
        assert tier.free_bytes <= free_bytes - tier.used_bytes
    tier.close()

    assert files.used_bytes() == capacity_bytes
    assert footers(files) == [0, 0]


def test_no_footer_takes_the_room_of_a_puts_last_object(tmp_path: Path) -> None:
    """A put of many segments that fits to the byte is written whole, in several runs."""
    files = Files((tmp_path,), segment_bytes=MIB)
    tier = files.open(500 * FRAME_BYTES)
    placed = put_many(tier, range(500), RAW_BYTES)
    assert tier.used_bytes == 500 * FRAME_BYTES
    assert len(placed) == 500
    tier.close()


def test_footers_count_under_a_smaller_cap(tmp_path: Path) -> None:
    """Under a cap that fits the frames and not all footers, one footer goes and one object."""
    files, _ = stored(tmp_path)
    tier = files.open(COUNT * FRAME_BYTES)

    assert len(scanned(tier)) == COUNT - 1
    assert tier.used_bytes == files.used_bytes() <= COUNT * FRAME_BYTES
    tier.close()


@pytest.mark.parametrize("lost", [range(1), range(2, 3), range(5), range(1, 9)])
def test_lost_blocks_under_a_footer(tmp_path: Path, lost: range) -> None:
    """After a power failure blocks that a footer names may be missing: those objects are gone."""
    files, placed = stored(tmp_path)
    path, start = files.spot(placed[3])
    fd = os.open(path, os.O_RDWR)
    directio.punch(fd, start + lost.start * BLOCK_BYTES, len(lost) * BLOCK_BYTES)
    os.close(fd)
    hit = {key_of(3)} | ({key_of(4)} if lost.stop > 5 else set())

    assert set(found(files)) == {key_of(number) for number in range(COUNT)} - hit


def test_a_wrong_footer_is_never_a_wrong_hit(tmp_path: Path) -> None:
    """A whole footer that gives each place to another key makes misses, and space comes back.

    Elsewhere: the index named a key whose value was not there.
    """
    files, placed = stored(tmp_path)
    path = files.segments()[0]
    data = memoryview(bytearray(path.read_bytes()))
    said = footer.trailer(data)
    true = footer.unpack(data[said.start :], said)
    wrong = Entries(true.kinds, true.keys[::-1], true.parents, true.offsets, true.sizes, true.kind)
    with path.open("r+b") as file:
        file.seek(said.start)
        file.write(footer.pack(wrong, said.segment, said.start))
    tier = files.open(CAPACITY_BYTES)
    numbers = {key_of(number): number for number in range(COUNT)}
    mine = [(r.key, spot) for r, spot in scanned(tier) if files.spot(spot)[0] == path]

    assert len(mine) == len(true)
    for key, spot in mine:
        answer = read_back(tier, numbers[key], RAW_BYTES, spot)
        assert answer in (FailureKind.CORRUPT, content(numbers[key], RAW_BYTES))
    tier.free([spot for _, spot in mine])
    assert tier.used_bytes == files.used_bytes()
    assert_adds_up(tier, [spot for spot in placed.values() if files.spot(spot)[0] != path])
    tier.close()


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_footer_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Objects are stored all the same, and nothing of the footer is left or counted."""
    files = Files((tmp_path,), segment_bytes=MIB)
    tier = files.open(CAPACITY_BYTES)
    real = os.pwritev

    def failing(fd: int, pieces: Sequence[memoryview], offset: int) -> int:
        if pieces[0].nbytes == BLOCK_BYTES and bytes(pieces[0][-40:-32]) == footer.MAGIC:
            real(fd, [pieces[0]], offset)
            raise OSError(code, os.strerror(code))
        return real(fd, pieces, offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", failing)
        for first in range(0, COUNT, 10):
            put_many(tier, range(first, first + 10), RAW_BYTES)
        assert tier.used_bytes == files.used_bytes() == COUNT * FRAME_BYTES
        tier.close()

    assert tier.down == ()
    assert footers(files) == [0, 0, 0]
    assert len(found(files)) == COUNT


def test_a_footer_that_cannot_be_taken_back_stays_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a failing medium keeps of a footer counts until the next start cleans up."""
    files, placed = stored(tmp_path)
    tier = files.open(CAPACITY_BYTES)
    list(tier.scan())

    def broken(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    first = [spot for spot in placed.values() if files.spot(spot)[0] == files.segments()[0]]
    with monkeypatch.context() as patch:
        patch.setattr(os, "ftruncate", broken)
        tier.free(first[:-3])
        assert tier.used_bytes == files.used_bytes()
        patch.setattr(Path, "unlink", broken)
        tier.free(first[-3:])
        assert tier.used_bytes == files.used_bytes()
    tier.close()
    assert len(files.segments()) == 3
    assert len(found(files)) == COUNT - len(first)
    assert len(files.segments()) == 2


@pytest.mark.parametrize("io", [Io.AUTO, Io.BUFFERED])
def test_a_link_in_place_of_a_segment_is_not_followed(tmp_path: Path, io: Io) -> None:
    """A segment that was replaced by a link while in use is neither read, punched nor cut off."""
    home = tmp_path / "home"
    files = Files((home,), segment_bytes=MIB, io=io)
    tier = files.open(CAPACITY_BYTES)
    placed = put_many(tier, range(60), RAW_BYTES)
    tier.close()
    tier = files.open(CAPACITY_BYTES)
    list(tier.scan())
    path = files.segments()[0]
    victim = tmp_path / "victim"
    path.rename(victim)
    path.symlink_to(victim)
    before = victim.read_bytes()

    assert read_back(tier, 0, RAW_BYTES, placed[0]) is FailureKind.IO
    with pytest.raises(Exception, match="symbolic links"):
        tier.free([placed[0]])
    tier.close()
    assert victim.read_bytes() == before


def test_frames_of_a_later_version_hide_behind_no_footer(tmp_path: Path) -> None:
    """A segment of a later version is left alone although its footer could be read."""
    files, _ = stored(tmp_path)
    path = files.segments()[0]
    data = bytearray(path.read_bytes())
    for start in range(0, len(data) - BLOCK_BYTES, FRAME_BYTES):
        block = data[start : start + BLOCK_BYTES]
        block[8:10] = (frame.VERSION + 1).to_bytes(2, "little")
        seal = xxhash.xxh3_64_intdigest(bytes(block[:-8]), frame._HEADER_SEED)
        block[-8:] = seal.to_bytes(8, "little")
        data[start : start + BLOCK_BYTES] = block
    data[-30:-28] = (frame.VERSION + 1).to_bytes(2, "little")
    data[-8:] = footer._checksum(memoryview(data)[-BLOCK_BYTES:]).to_bytes(8, "little")
    path.write_bytes(data)
    tier = files.open(CAPACITY_BYTES)

    assert path not in {files.spot(spot)[0] for _, spot in scanned(tier)}
    assert tier.used_bytes == files.used_bytes()
    tier.close()
    assert path.read_bytes() == data


def test_segments_of_every_version_ever_are_read(tmp_path: Path) -> None:
    """A segment of golden frames, without a footer, is found and loads."""
    golden = [path.read_bytes() for path in sorted(GOLDEN.glob("frame-*.bin"))]
    (tmp_path / "segment-00000007.kvw").write_bytes(b"".join(golden))
    tier = Files((tmp_path,)).open(CAPACITY_BYTES)
    found = scanned(tier)
    wants = [
        Want(r.key, r.space, r.raw_bytes, p.location, p.stored_bytes, blank(r.raw_bytes))
        for r, p in found
    ]

    assert len(found) == len(golden) > 0
    assert verdicts(tier, wants) == [None] * len(golden)
    assert [b"".join(w.buffers) for w in wants] == [
        data[4096 : 4096 + w.raw_bytes] for data, w in zip(golden, wants, strict=True)
    ]
    tier.close()
