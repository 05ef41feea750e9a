"""What the disk tier finds again after restarts, crashes and damage between frames. Real files."""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from kvwise.codecs import frame
from kvwise.codecs.base import Codec
from kvwise.codecs.plain import PLAIN
from kvwise.errors import ConfigError, FailureKind
from kvwise.testing.codecs import Deflate
from kvwise.testing.memory import header_of
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
from kvwise.tiers import directio
from kvwise.tiers.base import Placed
from kvwise.tiers.directio import Io
from kvwise.tiers.disk import DiskTier
from kvwise.units import MIB
from tests.tiers.media import Files


def found_keys(tier: DiskTier) -> set[bytes]:
    """Keys that a scan finds."""
    return {seen.key for seen, _ in scanned(tier)}


def keys(*numbers: int) -> set[bytes]:
    """Keys of these objects."""
    return {key_of(number) for number in numbers}


@pytest.mark.pain("D10")
def test_a_second_opener_is_refused(tmp_path: Path) -> None:
    """A directory belongs to one process at a time, and is free again after close."""
    files = Files((tmp_path,))
    first = files.open(CAPACITY_BYTES)
    with pytest.raises(ConfigError, match="in use by another kvwise process"):
        files.open(CAPACITY_BYTES)
    first.close()
    files.open(CAPACITY_BYTES).close()


def test_a_refused_opener_lets_go(tmp_path: Path) -> None:
    """When the second of two directories is taken, the first is not kept locked."""
    taken = Files((tmp_path / "b",)).open(CAPACITY_BYTES)
    with pytest.raises(ConfigError):
        Files((tmp_path / "a", tmp_path / "b")).open(CAPACITY_BYTES)
    Files((tmp_path / "a",)).open(CAPACITY_BYTES).close()
    taken.close()


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    """A path that cannot be a directory is a configuration error that names it."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="file"):
        Files((tmp_path / "file",)).open(CAPACITY_BYTES)


def test_a_refused_directory_is_not_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory that cannot be used is refused by name and can be opened once it is mended."""

    def broken(*_: object) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", broken)
        with pytest.raises(ConfigError, match="cannot be read: Input/output error"):
            Files((tmp_path,)).open(CAPACITY_BYTES)
    with monkeypatch.context() as patch:
        patch.setattr(directio, "punch", broken)
        with pytest.raises(ConfigError, match="cannot be used"):
            Files((tmp_path,)).open(CAPACITY_BYTES)
    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", broken)
        with pytest.raises(ConfigError, match="cannot be locked"):
            Files((tmp_path,)).open(CAPACITY_BYTES)
    tier = Files((tmp_path,)).open(CAPACITY_BYTES)
    assert tier.io == (directio.probe(tmp_path, Io.AUTO).io,)
    tier.close()


@pytest.mark.pain("S3")
def test_only_the_owner_can_read(tmp_path: Path) -> None:
    """What is cached tells what was asked: directory and files are closed to others."""
    tier = Files((tmp_path / "new",)).open(CAPACITY_BYTES)
    put_one(tier, 1, 5000)
    tier.close()

    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
    assert {p.stat().st_mode & 0o777 for p in (tmp_path / "new").iterdir()} == {0o600}


def test_segments_roll_over_and_go_when_empty(tmp_path: Path) -> None:
    """A full segment is followed by another; one with nothing left in it is deleted."""
    files = Files((tmp_path,), segment_bytes=MIB)
    tier = files.open(CAPACITY_BYTES)
    placed = {n: put_one(tier, n, 300_000) for n in range(9)}
    spots = {n: files.spot(p)[0] for n, p in placed.items()}

    assert len(set(spots.values())) == 3
    tier.free([placed[n] for n in (0, 1, 2)])
    assert files.segments() == sorted({spots[3], spots[8]})
    tier.free([placed[n] for n in range(3, 9)])
    assert files.segments() == [spots[8]]
    tier.close()
    assert files.segments() == []


def test_an_object_larger_than_a_segment(tmp_path: Path) -> None:
    """One object may be larger than a segment; it gets a file of its own."""
    tier = Files((tmp_path,), segment_bytes=MIB).open(CAPACITY_BYTES)
    placed = put_many(tier, range(2), 5 * MIB + 1)

    assert read_back(tier, 1, 5 * MIB + 1, placed[1]) == content(1, 5 * MIB + 1)
    tier.close()


def test_nothing_but_the_payload_reaches_the_disk(tmp_path: Path) -> None:
    """Padding is zeros: bytes of other objects that lie behind in memory stay in memory."""
    files = Files((tmp_path,))
    tier = files.open(CAPACITY_BYTES)
    page = bytearray(b"secret of a neighbour " * 1000)[:8192]
    buffers = blank(8192)
    buffers[0][:] = page
    put_many(tier, range(10, 14), 9001)
    piece = buffers[0][:5000]
    (placed,) = tier.put([(record(1, 5000), [piece])])
    assert isinstance(placed, Placed)
    path, start = files.spot(placed)
    tier.close()

    assert path.read_bytes()[start + 4096 + 5000 :] == bytes(2 * 4096 - 5000)


@pytest.mark.pain("D11")
def test_other_files_are_left_alone(tmp_path: Path) -> None:
    """Files that are not ours stay; a probe that a killed process left goes."""
    for name in ("notes.txt", "segment-1.kvw", "segment-00000001.kvw.bak", "probe-77.tmp"):
        (tmp_path / name).write_text("not a segment")
    (tmp_path / "probe-1.tmp").mkdir()
    tier = Files((tmp_path,)).open(CAPACITY_BYTES)

    assert found_keys(tier) == set()
    assert tier.used_bytes == 0
    tier.close()
    (tmp_path / "probe-1.tmp").rmdir()  # a directory is nothing that a probe leaves
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"notes.txt", "segment-1.kvw", "segment-00000001.kvw.bak", "kvwise.lock"}


def test_what_only_looks_like_a_segment_is_left_alone(tmp_path: Path) -> None:
    """A link is not followed and cut off, a directory is not counted, neither is overwritten."""
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious" * 1000)
    home = tmp_path / "home"
    files = Files((home,))
    files.open(CAPACITY_BYTES).close()
    (home / "segment-00000001.kvw").symlink_to(victim)
    for number in range(2, 8):
        (home / f"segment-{number:08x}.kvw").mkdir()

    tier = files.open(CAPACITY_BYTES)
    assert tier.used_bytes == 0
    assert found_keys(tier) == set()
    put_one(tier, 1, 5000)
    tier.close()

    assert victim.read_bytes() == b"precious" * 1000
    assert found_keys(files.open(CAPACITY_BYTES)) == keys(1)


def test_after_the_last_number_comes_the_first(tmp_path: Path) -> None:
    """A file with the highest number does not push the next segment out of what a token can say."""
    files = Files((tmp_path,))
    files.open(CAPACITY_BYTES).close()
    (tmp_path / "segment-ffffffff.kvw").write_bytes(b"x" * 8192)
    tier = files.open(CAPACITY_BYTES)

    placed = put_one(tier, 1, 5000)

    assert read_back(tier, 1, 5000, placed) == content(1, 5000)
    tier.close()


def test_new_life_new_segment(tmp_path: Path) -> None:
    """A restarted tier never appends to a segment that an earlier one wrote."""
    files = Files((tmp_path,))
    tier = files.open(CAPACITY_BYTES)
    first = files.spot(put_one(tier, 1, 5000))[0]
    tier.close()
    tier = files.open(CAPACITY_BYTES)
    list(tier.scan())

    assert files.spot(put_one(tier, 2, 5000))[0] > first
    tier.close()


@pytest.mark.pain("D5")
def test_old_bytes_count_before_the_scan(tmp_path: Path) -> None:
    """What lies on the disk counts against the cap even when nobody has scanned yet."""
    files = Files((tmp_path,))
    tier = files.open(CAPACITY_BYTES)
    put_many(tier, range(4), 200_000)
    tier.close()
    tier = files.open(MIB)
    (answer,) = tier.put([(record(9, 400_000), filled(9, 400_000))])

    assert not isinstance(answer, Placed)
    assert answer.kind is FailureKind.FULL
    tier.close()


def test_scan_is_for_the_start(tmp_path: Path) -> None:
    """A second scan finds nothing, whatever was stored meanwhile."""
    tier = Files((tmp_path,)).open(CAPACITY_BYTES)
    put_many(tier, range(4), 500_000)

    assert found_keys(tier) == set()
    assert found_keys(tier) == set()
    tier.close()


@pytest.mark.pain("W13")
@pytest.mark.parametrize("keep_bytes", [0, 1, 4095, 4096, 8192, 50_000, 102_399])
def test_torn_tail_is_dropped(tmp_path: Path, keep_bytes: int) -> None:
    """A last frame that was cut off is not found, and takes no space after the scan."""
    files = Files((tmp_path,))
    tier = files.open(CAPACITY_BYTES)
    placed = put_many(tier, range(3), 98_000)
    tier.close()
    files.cut(placed[2], keep_bytes)
    tier = files.open(CAPACITY_BYTES)

    assert found_keys(tier) == keys(0, 1)
    assert tier.used_bytes == files.used_bytes() == placed[0].stored_bytes * 2
    tier.close()


def test_damaged_header_hides_one_frame_only(tmp_path: Path) -> None:
    """Frames behind a broken header are found again; the broken one is given back."""
    files = Files((tmp_path,), segment_bytes=8 * MIB)
    tier = files.open(CAPACITY_BYTES)
    placed = put_many(tier, range(4), 1_500_000)
    tier.close()
    files.cut_footers()
    files.overwrite(placed[1], 20, b"damage")
    tier = files.open(CAPACITY_BYTES)
    found = {seen.key: spot for seen, spot in scanned(tier)}

    assert set(found) == keys(0, 2, 3)
    assert tier.used_bytes == files.used_bytes() == placed[0].stored_bytes * 3
    assert read_back(tier, 2, 1_500_000, found[key_of(2)]) == content(2, 1_500_000)
    tier.close()


def test_payload_that_looks_like_a_header(tmp_path: Path) -> None:
    """Magic bytes inside a payload behind a broken header are not taken for a frame."""
    files = Files((tmp_path,), segment_bytes=8 * MIB)
    tier = files.open(CAPACITY_BYTES)
    buffers = blank(20 * 4096)
    for start in range(0, 20 * 4096, 4096):
        buffers[0][start : start + 8] = frame.MAGIC
    (placed,) = tier.put([(record(1, 20 * 4096), buffers)])
    assert isinstance(placed, Placed)
    put_one(tier, 2, 9000)
    tier.close()
    files.overwrite(placed, 20, b"damage")
    tier = files.open(CAPACITY_BYTES)

    assert found_keys(tier) == keys(2)
    assert tier.used_bytes == files.used_bytes()
    tier.close()


@pytest.mark.pain("D11")
def test_segment_of_pure_noise_goes(tmp_path: Path) -> None:
    """A file with our name and nothing of ours in it is removed."""
    (tmp_path / "segment-00000005.kvw").write_bytes(content(1, 3 * MIB + 77))
    files = Files((tmp_path,))
    tier = files.open(CAPACITY_BYTES)

    assert found_keys(tier) == set()
    assert files.segments() == []
    assert tier.used_bytes == 0
    tier.close()


def other_frame(number: int, version: int) -> bytes:
    """A whole frame of a version that does not exist."""
    data = content(number, 8000)
    block = bytearray(frame.pack(header_of(record(number, 8000), [memoryview(data)])))
    block[8:10] = version.to_bytes(2, "little")
    seed = frame._HEADER_SEED
    block[-8:] = xxhash.xxh3_64_intdigest(bytes(block[:-8]), seed).to_bytes(8, "little")
    return bytes(block) + data + bytes(192)


@pytest.mark.parametrize("version", [0, frame.VERSION + 1, 0xFFFF])
def test_segments_of_other_versions_stay_and_count(tmp_path: Path, version: int) -> None:
    """Segments of a version that nobody here knows are kept, counted, and never appended to."""
    path = tmp_path / "segment-00000007.kvw"
    path.write_bytes(other_frame(1, version) + other_frame(2, version))
    files = Files((tmp_path,))
    tier = files.open(CAPACITY_BYTES)

    assert found_keys(tier) == set()
    assert tier.used_bytes == files.used_bytes() == 6 * 4096
    assert files.spot(put_one(tier, 3, 5000))[0] == tmp_path / "segment-00000008.kvw"
    tier.close()
    assert path.read_bytes() == other_frame(1, version) + other_frame(2, version)


def test_an_empty_file_is_an_empty_segment(tmp_path: Path) -> None:
    """A segment that was created and never written goes at the next start."""
    files = Files((tmp_path,))
    (tmp_path / "segment-00000007.kvw").touch()
    os.truncate(tmp_path / "segment-00000007.kvw", 3 * 4096)
    (tmp_path / "segment-00000008.kvw").touch()
    tier = files.open(CAPACITY_BYTES)

    assert found_keys(tier) == set()
    assert tier.used_bytes == files.used_bytes() == 0
    assert files.segments() == []
    tier.close()


def compressible(number: int) -> list[memoryview]:
    """A payload of 200 KiB that deflates well."""
    buffers = blank(200 * 1024)
    for piece in buffers:
        piece[:] = bytes([number, 1, 2, 3]) * (piece.nbytes // 4)
    return list(buffers)


def lives(tmp_path: Path, *codecs: Codec) -> list[set[bytes]]:
    """Keys found by one life after another; the first stores 1 encoded and 2 plain."""
    found = []
    for life, codec in enumerate(codecs):
        files = Files((tmp_path,), codec=codec)
        tier = files.open(CAPACITY_BYTES)
        found.append(found_keys(tier))
        if life == 0:
            tier.put([(record(1, 200 * 1024), compressible(1))])
            put_one(tier, 2, 200 * 1024)
        assert tier.used_bytes == files.used_bytes()
        tier.close()
    return found


def test_codec_is_read_back(tmp_path: Path) -> None:
    """An encoded object takes less space, and decodes after a restart; noise stays plain."""
    tier = Files((tmp_path,), codec=Deflate()).open(CAPACITY_BYTES)
    answers = tier.put(
        [(record(1, 200 * 1024), compressible(1)), (record(2, 200 * 1024), filled(2, 200 * 1024))]
    )
    placed = [answer for answer in answers if isinstance(answer, Placed)]
    tier.close()
    tier = Files((tmp_path,), codec=Deflate()).open(CAPACITY_BYTES)
    wants = [want(n, 200 * 1024, placed[n - 1]) for n in (1, 2)]

    assert found_keys(tier) == keys(1, 2)
    assert placed[0].stored_bytes < placed[1].stored_bytes == 4096 + 200 * 1024
    assert verdicts(tier, wants) == [None, None]
    assert b"".join(wants[0].buffers) == b"".join(compressible(1))
    tier.close()


def test_unknown_codec_is_given_back(tmp_path: Path) -> None:
    """Objects in a codec that is no longer configured are dropped; plain ones stay."""
    assert lives(tmp_path, Deflate(), PLAIN, Deflate()) == [set(), keys(2), keys(2)]


def test_damaged_encoded_object_is_corrupt(tmp_path: Path) -> None:
    """The checksum of the stored bytes is verified before anything is decoded."""
    files = Files((tmp_path,), codec=Deflate())
    tier = files.open(CAPACITY_BYTES)
    (placed,) = tier.put([(record(1, 200 * 1024), compressible(1))])
    assert isinstance(placed, Placed)
    files.overwrite(placed, 4096 + 50, b"!")

    assert read_back(tier, 1, 200 * 1024, placed) is FailureKind.CORRUPT
    tier.close()


def test_frame_with_an_unexpected_codec_is_corrupt(tmp_path: Path) -> None:
    """A header that names a codec of another size class than the place suggests is refused."""
    files = Files((tmp_path,))
    tier = files.open(CAPACITY_BYTES)
    placed = put_one(tier, 1, 8192)
    data = content(1, 8192)
    honest = header_of(record(1, 8192), [memoryview(data)])
    for codec in (Deflate.id, 5):
        block = bytearray(frame.pack(honest))
        block[10:12] = codec.to_bytes(2, "little")
        seed = frame._HEADER_SEED
        block[-8:] = xxhash.xxh3_64_intdigest(bytes(block[:-8]), seed).to_bytes(8, "little")
        files.overwrite(placed, 0, bytes(block))

        assert read_back(tier, 1, 8192, placed) is FailureKind.CORRUPT
    tier.close()


def whole_frame(number: int) -> bytes:
    """A frame as this version writes it."""
    data = content(number, 3000 + 700 * number)
    header = header_of(record(number, len(data)), [memoryview(data)])
    return (frame.pack(header) + data).ljust(header.frame_bytes, b"\0")


@pytest.mark.pain("D6")
@given(
    st.lists(
        st.tuples(st.sampled_from(["frame", "noise", "magic", "hole"]), st.integers(1, 4)),
        max_size=12,
    ),
    st.integers(0, 5000),
)
def test_any_mixture_of_frames_and_rubbish(mixture: list[tuple[str, int]], torn: int) -> None:
    """Whatever lies between them, whole frames are found, rubbish goes, and space adds up."""
    with tempfile.TemporaryDirectory() as home:
        path, frames = Path(home) / "segment-00000003.kvw", 0
        with path.open("wb") as file:
            for number, (kind, blocks) in enumerate(mixture):
                if kind == "frame":
                    file.write(whole_frame(number))
                    frames += 1
                elif kind == "hole":
                    file.truncate(file.seek(blocks * 4096, os.SEEK_CUR))
                else:
                    start = frame.MAGIC if kind == "magic" else b""
                    file.write((start + content(number, 4096))[:4096] * blocks)
            file.write(whole_frame(40)[:torn])
        files = Files((Path(home),))
        tier = files.open(CAPACITY_BYTES)
        found = found_keys(tier)

        assert found == keys(*(n for n, (kind, _) in enumerate(mixture) if kind == "frame"))
        assert len(found) == frames
        assert tier.used_bytes == files.used_bytes()
        tier.close()


def test_lost_segment_is_missing(tmp_path: Path) -> None:
    """A segment that somebody removed makes its objects MISSING, and freeing them still works."""
    files = Files((tmp_path,))
    tier = files.open(CAPACITY_BYTES)
    placed = put_many(tier, range(2), 600_000)
    later = put_one(tier, 2, 600_000)
    files.spot(placed[0])[0].unlink()

    assert read_back(tier, 0, 600_000, placed[0]) is FailureKind.MISSING
    assert read_back(tier, 2, 600_000, later) == content(2, 600_000)
    tier.free([placed[0], placed[1]])
    assert tier.used_bytes == files.used_bytes() == later.stored_bytes
    assert tier.down == ()
    tier.close()


def test_location_of_another_directory_count(tmp_path: Path) -> None:
    """Wants are answered by the directory in their location, each with its own bytes."""
    files = Files((tmp_path / "a", tmp_path / "b"))
    tier = files.open(CAPACITY_BYTES)
    placed = {n: put_one(tier, n, 100_000) for n in range(6)}
    used = {files.spot(p)[0].parent for p in placed.values()}
    wants = [want(n, 100_000, spot) for n, spot in placed.items()]

    assert used == {tmp_path / "a", tmp_path / "b"}
    assert verdicts(tier, wants) == [None] * 6
    tier.close()
