"""Every change that a tier makes to its files, in order, and the files after any part of them.

Changes are caught where they leave Python, so the tier needs no code for it. An image is what lies
on the medium: the blocks of each file that were written, and its length. It judges nothing.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from kvwise.tiers import directio

BLOCK = 4096


@dataclass(frozen=True)
class Change:
    """One change to one file: `create`, `write`, `punch`, `truncate` or `unlink`."""

    verb: str
    name: str
    offset: int = 0
    data: bytes = b""
    size_bytes: int = 0

    def cut(self, keep_bytes: int) -> Change:
        """A write that stopped after so many bytes."""
        return Change(self.verb, self.name, self.offset, self.data[:keep_bytes])


@dataclass
class Blocks:
    """A file: what was written of it, block by block, and how long it is."""

    written: dict[int, bytes] = field(default_factory=dict)
    size_bytes: int = 0


@dataclass
class Image:
    """All segment files of a tier, by directory and name."""

    files: dict[str, Blocks] = field(default_factory=dict)

    def copy(self) -> Image:
        """The same, to be changed on its own."""
        return Image({n: Blocks(dict(b.written), b.size_bytes) for n, b in self.files.items()})

    def apply(self, change: Change) -> None:
        """Make one change; one to a file that does not exist was lost with it."""
        if change.verb == "create":
            self.files.setdefault(change.name, Blocks())
            return
        file = self.files.get(change.name)
        if file is None:
            return
        if change.verb == "unlink":
            del self.files[change.name]
        elif change.verb == "write":
            _write(file, change.offset, change.data)
        elif change.verb == "punch":
            end = change.offset + change.size_bytes
            for block in range(change.offset // BLOCK, -(-end // BLOCK)):
                file.written.pop(block, None)
        else:
            _truncate(file, change.size_bytes)

    def dump(self, home: Path) -> None:
        """Make these files, holes included, in a directory that has none."""
        for name, file in self.files.items():
            path = home / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as out:
                for block in sorted(file.written):
                    out.seek(block * BLOCK)
                    out.write(file.written[block])
                out.truncate(file.size_bytes)


def _write(file: Blocks, offset: int, data: bytes) -> None:
    """Bytes of a file, from the start of a block; what they leave of the last block stays."""
    for start in range(0, len(data), BLOCK):
        piece, block = data[start : start + BLOCK], (offset + start) // BLOCK
        old = file.written.get(block, bytes(BLOCK))
        file.written[block] = piece + old[len(piece) :]
    file.size_bytes = max(file.size_bytes, offset + len(data))


def _truncate(file: Blocks, size_bytes: int) -> None:
    """Another length for a file; what lies beyond it is gone."""
    last, rest = divmod(size_bytes, BLOCK)
    for block in [b for b in file.written if b >= last + bool(rest)]:
        del file.written[block]
    if rest and last in file.written:
        file.written[last] = file.written[last][:rest].ljust(BLOCK, b"\0")
    file.size_bytes = size_bytes


class Recorder:
    """Changes below a folder, in the order in which they were made.

    Attributes:
        changes: all of them.
        notes: (number of changes made before it, what the caller said) in order.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self.changes: list[Change] = []
        self.notes: list[tuple[int, Any]] = []
        self._lock = threading.RLock()

    def note(self, said: Any) -> None:
        """Remember that something was so after the changes up to now."""
        with self._lock:
            self.notes.append((len(self.changes), said))

    @contextmanager
    def watching(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        """Record until the end of the block."""
        opened, written, cut = os.open, os.pwritev, os.ftruncate
        punched, unlinked = directio.punch, Path.unlink

        def open_(path: str | Path, flags: int, mode: int = 0o777) -> int:
            with self._lock:
                fd = opened(path, flags, mode)
                if flags & os.O_CREAT:
                    self._add("create", Path(path))
            return fd

        def pwritev(fd: int, pieces: Sequence[memoryview], offset: int) -> int:
            with self._lock:
                count = written(fd, pieces, offset)
                self._add("write", _path(fd), offset=offset, data=b"".join(pieces)[:count])
            return count

        def ftruncate(fd: int, size_bytes: int) -> None:
            with self._lock:
                cut(fd, size_bytes)
                self._add("truncate", _path(fd), size_bytes=size_bytes)

        def punch(fd: int, offset: int, size_bytes: int) -> None:
            with self._lock:
                punched(fd, offset, size_bytes)
                self._add("punch", _path(fd), offset=offset, size_bytes=size_bytes)

        def unlink(path: Path, *, missing_ok: bool = False) -> None:
            with self._lock:
                unlinked(path, missing_ok=missing_ok)
                self._add("unlink", path)

        with monkeypatch.context() as patch:
            patch.setattr(os, "open", open_)
            patch.setattr(os, "pwritev", pwritev)
            patch.setattr(os, "ftruncate", ftruncate)
            patch.setattr(directio, "punch", punch)
            patch.setattr(Path, "unlink", unlink)
            yield

    def _add(self, verb: str, path: Path, **more: Any) -> None:
        """Record a change to a segment file; other files do not matter."""
        if path.name.startswith("segment-"):
            self.changes.append(Change(verb, str(path.relative_to(self.home)), **more))


def _path(fd: int) -> Path:
    """The file behind a descriptor."""
    return Path(f"/proc/self/fd/{fd}").readlink()


def images(start: Image, changes: Sequence[Change]) -> Iterator[tuple[int, Image]]:
    """The files after 0, 1, 2, ... changes; each is to be copied by who wants to keep it."""
    image = start.copy()
    yield 0, image
    for count, change in enumerate(changes, 1):
        image.apply(change)
        yield count, image


def cuts(write: Change, rng: random.Random, share: float) -> list[int]:
    """Where a write is cut: after some of its blocks or all, and inside of one or two."""
    between = [at for at in range(BLOCK, len(write.data), BLOCK) if rng.random() < share]
    inside = [rng.randrange(1, len(write.data)) for _ in range(1 + round(share))]
    return between + inside


def power_cut(changes: Sequence[Change], window: int, rng: random.Random) -> Iterator[Change]:
    """Changes of which the last ones reached the medium in part: nothing was ever synchronised.

    Of the last `window` each is lost as a whole or kept, and of each write that is kept some blocks
    may be lost, or be there and hold zeros. A length is kept or lost with the write that made it.
    """
    first = max(0, len(changes) - window)
    yield from changes[:first]
    for change in changes[first:]:
        if rng.random() < 0.3:
            continue
        if change.verb != "write" or rng.random() < 0.3:
            yield change
            continue
        for start in range(0, len(change.data), BLOCK):
            piece, drawn = change.data[start : start + BLOCK], rng.random()
            if drawn < 0.9:
                kept = piece if drawn > 0.1 else bytes(len(piece))
                yield Change("write", change.name, change.offset + start, kept)
