"""Moving bytes between memory and files, whatever the kernel makes of it. No tier is involved."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwise.codecs.base import BLOCK_BYTES, scratch
from kvwise.errors import BugError, ConfigError
from kvwise.tiers import directio
from kvwise.tiers.directio import Io

Vectored = Callable[[int, Sequence[memoryview], int], int]


def blocks(*counts: int) -> list[memoryview]:
    """Aligned pieces of so many blocks, every block with its own bytes."""
    pieces, number = [], 0
    for count in counts:
        piece = scratch(count * BLOCK_BYTES)
        for start in range(0, piece.nbytes, BLOCK_BYTES):
            piece[start : start + BLOCK_BYTES] = number.to_bytes(4, "little") * 1024
            number += 1
        pieces.append(piece)
    return pieces


def opened(path: Path, io: Io) -> int:
    """A file to read and write."""
    return os.open(path, os.O_RDWR | os.O_CREAT | directio.open_flags(io), 0o600)


@pytest.mark.parametrize("io", [Io.DIRECT, Io.BUFFERED])
def test_more_pieces_than_one_call_takes(tmp_path: Path, io: Io) -> None:
    """Lists longer than the kernel's limit are moved in several calls."""
    sent, back = blocks(*[1] * 2500), blocks(*[0] * 3, *[1] * 2500)
    fd = opened(tmp_path / "f", io)

    assert directio.write_all(fd, sent, BLOCK_BYTES) == (2500 * BLOCK_BYTES, None)
    assert directio.read_all(fd, back[3:], BLOCK_BYTES) == (2500 * BLOCK_BYTES, None)
    assert back[3:] == sent
    os.close(fd)


@given(st.lists(st.integers(1, 6), min_size=1, max_size=6), st.lists(st.integers(1, 7)))
def test_short_calls_are_continued(counts: list[int], steps: list[int]) -> None:
    """However the kernel cuts a transfer into pieces, all bytes arrive in order."""
    sent = blocks(*counts)
    medium = bytearray(sum(piece.nbytes for piece in sent))
    shorts = iter(steps)

    def some(_: int, pieces: Sequence[memoryview], offset: int) -> int:
        data = b"".join(pieces)[: next(shorts, 100) * BLOCK_BYTES]
        medium[offset : offset + len(data)] = data
        return len(data)

    assert directio._move(some, 0, sent, 0) == (len(medium), None)
    assert medium == b"".join(sent)


def failing(after: int, code: int) -> Vectored:
    """A vectored call that moves so many bytes, then fails."""
    left = [after]

    def call(_: int, pieces: Sequence[memoryview], __: int) -> int:
        if not left[0]:
            raise OSError(code, os.strerror(code))
        count = min(left[0], sum(piece.nbytes for piece in pieces))
        left[0] -= count
        return count

    return call


@pytest.mark.pain("D8")
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_failure_half_way_says_how_far(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """A write that fails after some blocks reports them, and the error."""
    monkeypatch.setattr(os, "pwritev", failing(2 * BLOCK_BYTES, code))
    written, error = directio.write_all(0, blocks(1, 3), 0)

    assert written == 2 * BLOCK_BYTES
    assert error is not None
    assert error.errno == code


def test_write_that_stops_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that takes no more bytes and names no error has run out of space."""
    monkeypatch.setattr(os, "pwritev", lambda *_: 0)
    written, error = directio.write_all(0, blocks(1), 0)

    assert written == 0
    assert error is not None
    assert error.errno == errno.ENOSPC


@pytest.mark.parametrize("io", [Io.DIRECT, Io.BUFFERED])
def test_end_of_file_is_no_error(tmp_path: Path, io: Io) -> None:
    """Reading beyond the end gives the bytes there are, also when they are no whole block."""
    (tmp_path / "f").write_bytes(b"x" * (BLOCK_BYTES + 100))
    fd = opened(tmp_path / "f", io)

    assert directio.read_all(fd, blocks(1, 1, 1), 0) == (BLOCK_BYTES + 100, None)
    assert directio.read_all(fd, blocks(1), 4 * BLOCK_BYTES) == (0, None)
    os.close(fd)


@pytest.mark.pain("D7")
def test_unaligned_memory_is_our_bug() -> None:
    """Memory that direct I/O would refuse is refused before the kernel sees it."""
    directio.require_aligned(blocks(1, 2))
    for piece in (scratch(2 * BLOCK_BYTES)[8:], scratch(BLOCK_BYTES)[:100]):
        with pytest.raises(BugError, match="direct I/O"):
            directio.require_aligned([piece])


def test_punched_blocks_leave_the_disk(tmp_path: Path) -> None:
    """A punched range gives its blocks back, and is skipped when looking for data."""
    fd = opened(tmp_path / "f", Io.BUFFERED)
    directio.write_all(fd, blocks(10), 0)
    os.fsync(fd)
    before = os.fstat(fd).st_blocks
    directio.punch(fd, BLOCK_BYTES, 4 * BLOCK_BYTES)

    assert before - os.fstat(fd).st_blocks == 4 * BLOCK_BYTES // 512
    assert directio.next_data(fd, 0) == 0
    assert directio.next_data(fd, BLOCK_BYTES) == 5 * BLOCK_BYTES
    assert directio.next_data(fd, 10 * BLOCK_BYTES) is None
    os.close(fd)


def test_punching_a_closed_file_fails(tmp_path: Path) -> None:
    """What the C library reports arrives as an OSError with its code."""
    with pytest.raises(OSError, match="Bad file descriptor"):
        directio.punch(-1, 0, BLOCK_BYTES)


def test_looking_for_data_in_no_file_fails() -> None:
    """Only the end of the data is an answer; every other error is one."""
    with pytest.raises(OSError, match="Bad file descriptor"):
        directio.next_data(-1, 0)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("after", [0, 2 * BLOCK_BYTES])
def test_probe_of_a_full_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, after: int
) -> None:
    """Without room for three blocks the same way is found, and said not to have been tried."""
    found = directio.probe(tmp_path, Io.AUTO)
    assert found.tried
    for io, expected in ((Io.AUTO, found.io), (Io.BUFFERED, Io.BUFFERED)):
        monkeypatch.setattr(os, "pwritev", failing(after, code))

        assert directio.probe(tmp_path, io) == (expected, False)
    assert list(tmp_path.iterdir()) == []


def test_probe_of_a_full_directory_still_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What can be seen without room, a missing punch and a failing read, is still refused."""
    monkeypatch.setattr(os, "pwritev", failing(0, errno.ENOSPC))
    for module, name, code in (
        (directio, "punch", errno.EOPNOTSUPP),
        (os, "preadv", errno.EIO),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, failing(0, code))
            with pytest.raises(ConfigError, match=os.strerror(code)):
                directio.probe(tmp_path, Io.BUFFERED)
    with monkeypatch.context() as patch:
        patch.setattr(os, "preadv", lambda _, pieces, __: pieces[0][:1].nbytes)
        with pytest.raises(ConfigError, match="not zeros"):
            directio.probe(tmp_path, Io.BUFFERED)
    monkeypatch.setattr(directio, "punch", failing(0, errno.ENOSPC))

    assert directio.probe(tmp_path, Io.BUFFERED) == (Io.BUFFERED, False)


def test_probe_touches_nothing_of_others(tmp_path: Path) -> None:
    """Links and directories with the name of a probe stay as they are, and are not written to."""
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    (tmp_path / f"probe-{os.getpid()}.tmp").symlink_to(victim)
    (tmp_path / "probe-1.tmp").mkdir()
    before = set(tmp_path.iterdir())
    directio.probe(tmp_path, Io.AUTO)

    assert set(tmp_path.iterdir()) == before
    assert victim.read_bytes() == b"precious"


def test_probe_leaves_nothing(tmp_path: Path) -> None:
    """Trying a directory finds direct I/O or the fallback, and removes its file."""
    found = directio.probe(tmp_path, Io.AUTO)

    assert found.tried
    assert found.io in {Io.DIRECT, Io.BUFFERED}
    assert directio.probe(tmp_path, Io.BUFFERED) == (Io.BUFFERED, True)
    assert list(tmp_path.iterdir()) == []


def refuse_direct(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """Make this machine's filesystems refuse O_DIRECT with an error."""
    real = os.open

    def strict(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_DIRECT:
            raise OSError(code, os.strerror(code))
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", strict)


@pytest.mark.pain("H5", "D13")
def test_probe_falls_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where direct I/O is refused, AUTO uses the page cache and DIRECT is a configuration error."""
    refuse_direct(monkeypatch, errno.EINVAL)

    assert directio.probe(tmp_path, Io.AUTO) == (Io.BUFFERED, True)
    with pytest.raises(ConfigError, match="direct I/O"):
        directio.probe(tmp_path, Io.DIRECT)


def test_probe_reports_a_sick_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An I/O error while trying is reported, not taken for missing support."""
    refuse_direct(monkeypatch, errno.EIO)
    with pytest.raises(ConfigError, match="Input/output error"):
        directio.probe(tmp_path, Io.AUTO)


@pytest.mark.pain("D7")
def test_probe_believes_only_what_it_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A filesystem that accepts writes and loses them is refused."""
    monkeypatch.setattr(os, "pwritev", lambda _, pieces, __: sum(p.nbytes for p in pieces))
    with pytest.raises(ConfigError, match="not what was written"):
        directio.probe(tmp_path, Io.BUFFERED)


@pytest.mark.pain("D13")
def test_probe_refuses_what_cannot_punch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A filesystem that cannot or does not give holes back is refused with that reason."""
    monkeypatch.setattr(directio, "punch", lambda *_: None)
    with pytest.raises(ConfigError, match="gives no space back"):
        directio.probe(tmp_path, Io.AUTO)
