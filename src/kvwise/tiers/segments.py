"""One directory of segment files: append, read, punch, walk. It knows no cap and no payload.

A segment is a file of frames, one after another, that is only ever appended to, and a footer that
names them. Freed frames become holes; a segment without a live byte is deleted. A new process never
appends to an old segment, so every segment was written by one version of the format.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from kvwise.codecs.base import BLOCK_BYTES, scratch
from kvwise.codecs.frame import Header
from kvwise.errors import BugError, ConfigError, FailureKind, TierError
from kvwise.tiers import directio, footer
from kvwise.tiers.directio import Io
from kvwise.tiers.extents import SEGMENTS_MAX, Extent, merged
from kvwise.tiers.footer import Entries
from kvwise.tiers.walk import Walked, walk

ERRORS_MAX = 3
"""Failures in a row after which a directory is given up until the next start."""

WALKERS = 8
"""Segments of a directory that are read back at one time: drives need a queue for small reads."""

LOCK_NAME = "kvwise.lock"
_NAME = re.compile(r"^segment-([0-9a-f]{8})\.kvw$")
_OURS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # says nothing about the medium
_GONE = (errno.ENODEV, errno.ENXIO, errno.EROFS, errno.ESTALE)
_log = logging.getLogger(__name__)

Admit = Callable[["Directory", int], bool]
"""Asks for room for a footer of so many bytes: True when it is reserved, False to do without."""


@dataclass(slots=True)
class _Tail:
    """The segment that is being appended to, and the frames that its footer will name."""

    segment: int
    fd: int
    offset: int = 0
    frames: list[tuple[Header, int]] = field(default_factory=list)


class Directory:
    """One directory of segments, locked for this process; thread-safe.

    Attributes:
        path, number: which of the configured directories it is.
        io: how its files are accessed.
        device: number of its filesystem.
        down: why the directory is no longer used; empty while it is.
    """

    def __init__(self, path: Path, number: int, *, io: Io, segment_bytes: int) -> None:
        self.path = path
        self.number = number
        self.down = ""
        self._segment_bytes = segment_bytes
        self._lock = threading.Lock()
        self._appending = threading.Lock()
        self._errors = 0
        self._unread: set[tuple[int, int]] = set()
        self._doubtful: list[Extent] = []
        self._reserved = 0
        self._tail: _Tail | None = None
        self._lock_fd = _lock_directory(path)
        try:
            _remove_probes(path)
            self.io, tried = directio.probe(path, io, path / LOCK_NAME)
            self.device = path.stat().st_dev
            self._live = dict(_segments(path))
            self._footers: dict[int, Extent] = {}
        except OSError as error:
            os.close(self._lock_fd)
            raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
        except ConfigError:
            os.close(self._lock_fd)
            raise
        if not tried:
            _log.warning("%s has no room: what is there is served, nothing is written", path)
        self._used = sum(self._live.values())
        self._unwalked = sorted(self._live)
        self._next = self._after(max(self._live, default=0))

    @property
    def used_bytes(self) -> int:
        """Bytes its segments hold: live frames and footers; by what they take if not walked yet."""
        return self._used

    @property
    def footer_bytes(self) -> int:
        """Bytes of the footer that the present segment would get now."""
        tail = self._tail
        return footer.size_bytes(len(tail.frames)) if tail else 0

    @property
    def held_bytes(self) -> int:
        """Bytes used or promised."""
        with self._lock:
            return self._used + self._reserved

    @property
    def reserved_bytes(self) -> int:
        """Bytes promised to frames that are not written yet."""
        return self._reserved

    def available_bytes(self) -> int:
        """Bytes that the filesystem has left; 0 when it does not answer."""
        try:
            status = os.statvfs(self.path)
        except OSError as error:
            self._fail(error)
            return 0
        return status.f_bavail * status.f_frsize

    def reserve(self, size_bytes: int) -> None:
        """Promise room to a frame; the promise ends in `append` or `unreserve`."""
        with self._lock:
            self._reserved += size_bytes

    def unreserve(self, size_bytes: int) -> None:
        """Take a promise back."""
        with self._lock:
            self._reserved -= size_bytes

    def append(
        self, pieces: Sequence[memoryview], headers: Sequence[Header], admit: Admit
    ) -> tuple[list[Extent], TierError | None]:
        """Write frames side by side, for which room was reserved.

        Returns:
            Where the leading frames that were written are, and why the others were not.
        """
        with self._appending:
            return self._append(pieces, headers, admit)

    def read(self, extent: Extent, pieces: Sequence[memoryview]) -> tuple[int, TierError | None]:
        """Fill the pieces from an extent: bytes that came, and why not more if it is a fault."""
        if self.down:
            return 0, TierError(FailureKind.IO, self.down)
        try:
            fd = self._open(extent.segment, os.O_RDONLY | directio.open_flags(self.io))
        except FileNotFoundError as error:
            return 0, None if self._lock_file_exists() else self._fail(error)
        except OSError as error:
            return 0, self._fail(error)
        try:
            count, problem = directio.read_all(fd, pieces, extent.offset)
        finally:
            os.close(fd)
        if problem is not None:
            with self._lock:
                self._unread.add((extent.segment, extent.offset))
            return count, self._fail(problem)
        self._errors = 0
        self._trust()
        return count, None

    def _trust(self) -> None:
        """The medium can be read: what could not be, and is not wanted any more, may go."""
        if self._unread:
            with self._lock:
                extents, self._doubtful = self._doubtful, []
                self._unread.clear()
            self.free(extents)

    def free(self, extents: Iterable[Extent]) -> TierError | None:
        """Give extents back to the filesystem; an error when the medium kept some.

        After a read that failed nothing goes until something can be read: it may be the whole
        medium that fails, and then the records are there again after the next start.
        """
        if self.down:
            return TierError(FailureKind.IO, self.down)
        failure = None
        for extent in merged(self._surely([*extents])):
            try:
                self._free(extent)
            except OSError as error:
                failure = self._fail(error)
        return failure

    def _surely(self, given: list[Extent]) -> list[Extent]:
        """What may go: in doubt all of it if the first that did not fail can be read, else none."""
        fresh = (one for one in given if (one.segment, one.offset) not in self._unread)
        if self._unread and (one := next(fresh, None)):
            self.read(Extent(one.segment, one.offset, BLOCK_BYTES), [scratch(BLOCK_BYTES)])
        with self._lock:
            if self._unread:
                self._doubtful += given
                return []
        return given

    def walk(self, codecs: frozenset[int]) -> Iterator[tuple[int, Walked]]:
        """Every segment of earlier processes, with the frames that one of `codecs` can read.

        What is no such frame is given back, except a segment of another format: that one stays,
        counted in `used_bytes`. A second walk finds nothing.

        Headers are small reads, so segments are walked side by side, a group at a time.
        """
        with ThreadPoolExecutor(WALKERS, thread_name_prefix="kvwise-walk") as pool:
            while self._unwalked:
                group = self._unwalked[: 2 * WALKERS]
                del self._unwalked[: 2 * WALKERS]
                found = pool.map(lambda segment: self._walk(segment, codecs), group)
                yield from zip(group, found, strict=True)

    def bytes_of(self, segment: int) -> int:
        """Bytes that one segment holds."""
        with self._lock:
            return self._live.get(segment, 0) + self._footer_of(segment)

    def drop_footer(self, segment: int) -> None:
        """Cut the footer of a segment off; what the medium keeps of it stays counted."""
        with self._lock:
            extent = self._footers.pop(segment, None)
        if extent is None:
            return
        try:
            fd = self._open(segment, os.O_RDWR)
            try:
                os.ftruncate(fd, extent.offset)
            finally:
                os.close(fd)
        except OSError as error:
            self._fail(error)
            with self._lock:
                self._footers[segment] = extent
            return
        with self._lock:
            self._used -= extent.size_bytes

    def close(self, admit: Admit = lambda *_: False) -> None:
        """Give up files and lock; idempotent. Nobody may be appending or reading."""
        if self._lock_fd < 0:
            return
        if self._tail:
            self._seal(self._tail, admit)
            self._retire(self._tail)
        self._tail = None
        os.close(self._lock_fd)
        self._lock_fd = -1

    def _append(
        self, pieces: Sequence[memoryview], headers: Sequence[Header], admit: Admit
    ) -> tuple[list[Extent], TierError | None]:
        """As `append`, on one thread at a time."""
        extents: list[Extent] = []
        sizes = [header.frame_bytes for header in headers]
        total, kept, failure = sum(sizes), 0, None
        try:
            tail = self._tail_for(total, admit)
            start, tail.offset = tail.offset, tail.offset + total
            written, error = directio.write_all(tail.fd, pieces, start)
            for header, size in zip(headers, sizes, strict=True):
                if kept + size > written:
                    break
                extents.append(Extent(tail.segment, start + kept, size))
                tail.frames.append((header, start + kept))
                kept += size
            if error is not None:
                failure = self._fail(error)
                kept += self._take_back(tail, start + kept, total - kept)
        except OSError as error:
            failure = self._fail(error)
        with self._lock:
            self._reserved -= total
            self._used += kept
            if kept and self._tail:
                self._live[self._tail.segment] += kept
            if failure is None:
                self._errors = 0
        return extents, failure

    def _walk(self, segment: int, codecs: frozenset[int]) -> Walked:
        """What one segment holds; brings its accounting from disk bytes to live bytes."""
        path = self._file(segment)
        try:
            fd = self._open(segment, os.O_RDWR | directio.open_flags(self.io))
            try:
                found = walk(fd, segment, codecs)
                if found.unknown:
                    _log.warning("%s is of another format: left alone, and counted as used", path)
                    return found
                for start, size_bytes in found.dead:
                    directio.punch(fd, start, size_bytes)
                if not found.footer_bytes:
                    os.ftruncate(fd, found.end)
            finally:
                os.close(fd)
        except OSError as error:
            self._fail(error)
            return Walked()
        with self._lock:
            self._used += found.entries.live_bytes + found.footer_bytes - self._live[segment]
            self._live[segment] = found.entries.live_bytes
            if found.footer_bytes:
                self._footers[segment] = Extent(segment, found.end, found.footer_bytes)
        self._shed(segment)
        return found

    def _tail_for(self, size_bytes: int, admit: Admit) -> _Tail:
        """The segment to append so many bytes to, a new one when the present one is full."""
        tail = self._tail
        if tail and tail.offset + size_bytes <= self._segment_bytes:
            return tail
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | directio.open_flags(self.io)
        fresh = _Tail(self._next, self._open(self._next, flags))
        if tail:
            self._seal(tail, admit)
        with self._lock:
            self._live[fresh.segment] = 0
            self._tail, self._next = fresh, self._after(self._next)
        if tail:
            self._retire(tail)
        return fresh

    def _seal(self, tail: _Tail, admit: Admit) -> None:
        """Write the footer of a segment behind its frames, where it pays and there is room."""
        entries = Entries.of(tail.frames)
        size_bytes = footer.size_bytes(len(entries), len(entries.kinds))
        pays = footer.pays(size_bytes, self._live[tail.segment])
        sound = not self.down and len(entries.kinds) <= footer.KINDS_MAX
        if not pays or not sound:
            return
        try:
            block = footer.pack(entries, tail.segment, tail.offset)
        except OSError as error:  # no memory for it: a hint may be missing, a put must not fail
            self._fail(error)
            return
        if not admit(self, size_bytes):
            return
        _, problem = directio.write_all(tail.fd, [block], tail.offset)
        kept_bytes = size_bytes
        if problem is not None:
            self._fail(problem)
            kept_bytes = self._take_back(tail, tail.offset, size_bytes)
        with self._lock:
            self._reserved -= size_bytes
            self._used += kept_bytes
            self._footers[tail.segment] = Extent(tail.segment, tail.offset, kept_bytes)

    def _after(self, segment: int) -> int:
        """The number for the next segment; after the last one there can be, from the start."""
        while True:
            segment = (segment + 1) % SEGMENTS_MAX
            if segment not in self._live and not os.path.lexists(self._file(segment)):
                return segment

    def _retire(self, tail: _Tail) -> None:
        """Stop appending to a segment."""
        os.close(tail.fd)
        self._shed(tail.segment)

    def _free(self, extent: Extent) -> None:
        """Punch one extent; what then is not worth its bytes any more goes too."""
        try:
            fd = self._open(extent.segment, os.O_RDWR)
        except FileNotFoundError:
            if not self._lock_file_exists():
                raise  # the whole directory is out of sight, its bytes may come back
        else:
            try:
                directio.punch(fd, extent.offset, extent.size_bytes)
            finally:
                os.close(fd)
        with self._lock:
            if self._live.get(extent.segment, 0) < extent.size_bytes:
                raise BugError(f"{extent} was freed before, or never written")
            self._used -= extent.size_bytes
            self._live[extent.segment] -= extent.size_bytes
            appending = self._tail is not None and self._tail.segment == extent.segment
        if not appending:
            self._shed(extent.segment)

    def _take_back(self, tail: _Tail, offset: int, size_bytes: int) -> int:
        """Leave nothing visible of frames that failed; the bytes that stay on the medium."""
        try:
            directio.punch(tail.fd, offset, size_bytes)
        except OSError as error:
            self._fail(error)
            return size_bytes
        return 0

    def _shed(self, segment: int) -> None:
        """Delete a segment without a live byte, or cut off a footer that does not pay any more."""
        with self._lock:
            live_bytes, footer_bytes = self._live.get(segment), self._footer_of(segment)
        if not live_bytes:
            self._delete(segment)
        elif not footer.pays(footer_bytes, live_bytes):
            self.drop_footer(segment)

    def _footer_of(self, segment: int) -> int:
        """Bytes of the footer that a segment has."""
        extent = self._footers.get(segment)
        return extent.size_bytes if extent else 0

    def _delete(self, segment: int) -> None:
        """Remove the file of a segment that holds nothing but perhaps its footer."""
        try:
            self._file(segment).unlink(missing_ok=True)
        except OSError as error:
            self._fail(error)  # a file without frames stays; the next start removes it
            return
        with self._lock:
            self._live.pop(segment, None)
            self._used -= self._footer_of(segment)
            self._footers.pop(segment, None)

    def _fail(self, error: OSError) -> TierError:
        """What a failed call means; gives the directory up when it is gone or keeps failing."""
        if error.errno in directio.FULL_ERRORS:
            return TierError(FailureKind.FULL, f"{self.path}: {error.strerror}", retryable=True)
        if error.errno in _OURS:
            return TierError(FailureKind.IO, f"{self.path}: {error.strerror}", retryable=True)
        self._errors += 1
        gone = error.errno in _GONE or not self._lock_file_exists()
        if not self.down and (gone or self._errors >= ERRORS_MAX):
            self.down = f"{self.path} is given up until the next start: {error.strerror}"
            _log.error("%s", self.down)
        return TierError(FailureKind.IO, f"{self.path}: {error.strerror}")

    def _open(self, segment: int, flags: int) -> int:
        """A descriptor of a segment; a link that took its place is not followed."""
        return os.open(self._file(segment), flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)

    def _file(self, segment: int) -> Path:
        """Path of a segment."""
        return self.path / f"segment-{segment:08x}.kvw"

    def _lock_file_exists(self) -> bool:
        """Whether the directory that was opened is still where it was."""
        return (self.path / LOCK_NAME).exists()


def _lock_directory(path: Path) -> int:
    """Create the directory if need be, and lock it; the descriptor that holds the lock."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(path / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(f"{path} cannot be used by the disk tier: {error.strerror}") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise ConfigError(
            f"{path} is in use by another kvwise process; give each its own directory"
        ) from None
    except OSError as error:
        os.close(fd)
        raise ConfigError(f"{path} cannot be locked: {error.strerror}") from error
    return fd


def _remove_probes(path: Path) -> None:
    """Remove the files that killed processes left while they tried a directory out."""
    with os.scandir(path) as entries:
        for entry in entries:
            ours = fnmatchcase(entry.name, directio.PROBE_NAMES)
            if ours and entry.is_file(follow_symlinks=False):
                Path(entry.path).unlink(missing_ok=True)


def _segments(path: Path) -> Iterator[tuple[int, int]]:
    """Number and bytes on disk of every segment file in a directory.

    Links are not followed: recovery cuts files off, and must not cut those of somebody else.
    """
    with os.scandir(path) as entries:
        for entry in entries:
            name = _NAME.match(entry.name)
            if name and entry.is_file(follow_symlinks=False):
                yield int(name[1], 16), entry.stat().st_blocks * 512
