"""The write budget's memory: a small file beside the objects, so that a restart forgives nothing.

It decides nothing, and never gives more than was there. A file says whether its writer closed it in
order; after a crash nobody knows what was written last, so the bucket is empty then, as it is when
the file is damaged or gone. A clock that jumped can fill the bucket once, never beyond its burst.

Every directory of a tier has the same file, and what counts is the one that knows of most bytes
written: neither their order nor one that is lost, new or back again makes a new budget.

Layout: magic, u32 CRC-32 of the rest, MessagePack. Replaced as a whole, by renaming.
"""

from __future__ import annotations

import logging
import os
import stat
import struct
import threading
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from kvwise.core.balance import Balance
from kvwise.core.words import Budgeted
from kvwise.errors import FrameError
from kvwise.live.clock import now_ns, unix_ns
from kvwise.units import NS_PER_S

MAGIC = b"KVWBUDG2"
NAME = "budget.kvwise"
FILE_BYTES_MAX = 64 * 1024
SAVE_S = 5.0
CLOSE_S = 2.0
"""How long the file may take at the end."""

BYTES_MAX = float(1 << 63)
"""No drive takes so much, and what is added to it in a life can still be written down."""

SPAN_S_MAX = 1e6

_HEAD = struct.Struct("<8sI")
_log = logging.getLogger(__name__)


class Saved(msgspec.Struct, frozen=True):
    """What the file says.

    Attributes:
        unix_ns: when it was written.
        closed: whether nothing was written to the tier since.
    """

    unix_ns: int
    closed: bool
    balance: Balance


def pack(saved: Saved) -> bytes:
    """The bytes of the file."""
    body = msgspec.msgpack.encode(saved)
    return _HEAD.pack(MAGIC, zlib.crc32(body)) + body


def unpack(data: bytes) -> Saved:
    """What the bytes of a file mean.

    Raises:
        FrameError: they are damaged, or of another version.
    """
    if len(data) < _HEAD.size or len(data) > FILE_BYTES_MAX:
        raise FrameError(f"a budget of {len(data)} bytes")
    magic, checksum = _HEAD.unpack_from(data)
    body = data[_HEAD.size :]
    if magic != MAGIC or zlib.crc32(body) != checksum:
        raise FrameError("the budget is damaged, or of another version")
    try:
        saved = msgspec.msgpack.decode(body, type=Saved)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise FrameError(f"the budget is of another version: {error}") from error
    balance = saved.balance
    sizes_bytes = [balance.recent_bytes, balance.written_bytes]
    sizes_bytes += [size for _, size in balance.offered_bytes]
    whole = all(0 <= size <= BYTES_MAX for size in sizes_bytes)
    level_bytes, span_s = balance.level_bytes, balance.span_s
    if not (whole and 0 <= span_s <= SPAN_S_MAX and -BYTES_MAX <= level_bytes <= BYTES_MAX):
        raise FrameError("the budget holds what is no amount")
    return saved


def read(path: Path) -> Saved | None:
    """What a file says, or None where there is none.

    Raises:
        FrameError: it is damaged, or no file but a pipe or a directory.
        OSError: it cannot be read, or is a link.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise FrameError("the budget is no regular file")
        return unpack(file.read(FILE_BYTES_MAX + 1))


def read_all(folders: Sequence[Path]) -> tuple[Saved | None, dict[Path, str]]:
    """What the files of a tier's directories say together, and which say nothing, and why."""
    found, bad = [], {}
    for folder in folders:
        path = folder / NAME
        try:
            if (saved := read(path)) is not None:
                found.append(saved)
        except FrameError as error:
            bad[path] = str(error)
        except OSError as error:
            bad[path] = str(error.strerror)
    best = max(found, key=lambda one: (one.balance.written_bytes, one.unix_ns), default=None)
    return best, bad


class Keeper:
    """The file of one tier's budget, written every few seconds while the tier is written to."""

    def __init__(self, folders: Sequence[Path], tier: int) -> None:
        """Keep the budget of a tier in all folders of its, which this process has locked."""
        self._paths = tuple(folder / NAME for folder in folders)
        self._tier = tier
        self._stop = threading.Event()
        self._ask: Callable[[], Balance] | None = None
        self._saved_bytes = -1
        self._failed: set[Path] = set()
        self._thread = threading.Thread(target=self._run, name="kvwise-budget", daemon=True)

    def begin(self, *, fresh: bool) -> list[Budgeted]:
        """What an earlier life left; nothing where the tier is `fresh` and has no past.

        Where a file is damaged, nobody knows whether it was the one that counts.
        """
        saved, bad = read_all([path.parent for path in self._paths])
        for path, why in bad.items():
            _log.warning("%s: %s; the write budget begins empty", path, why)
        if saved is None:
            return [] if fresh and not bad else [Budgeted(now_ns(), self._tier, Balance())]
        if saved.closed and not bad:
            away_s = max(0, unix_ns() - saved.unix_ns) / NS_PER_S
            return [Budgeted(now_ns(), self._tier, saved.balance, away_s)]
        level_bytes = min(0.0, saved.balance.level_bytes)
        left = replace(saved.balance, level_bytes=level_bytes)
        return [Budgeted(now_ns(), self._tier, left)]

    def start(self, ask: Callable[[], Balance]) -> None:
        """Write down what `ask` says, now and from now on.

        From the first write on the file says that its writer is alive, so a crash is noticed even
        when it comes at once.
        """
        self._ask = ask
        self._save(ask(), closed=False)
        self._thread.start()

    def close(self) -> None:
        """Write it down for the last time. Nothing may be written to the tier afterwards."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(CLOSE_S)
        if self._ask is not None and not self._thread.is_alive():
            self._save(self._ask(), closed=True)

    def _run(self) -> None:
        """Write it down now and then."""
        while self._ask is not None and not self._stop.wait(SAVE_S):
            balance = self._ask()
            if balance.written_bytes != self._saved_bytes:
                self._save(balance, closed=False)

    def _save(self, balance: Balance, *, closed: bool) -> None:
        """Replace the files, for good: one that says `closed` must not come back with the power."""
        data = pack(Saved(unix_ns(), closed, balance))
        for path in self._paths:
            try:
                _replace(path, data)
                self._failed.discard(path)
                self._saved_bytes = balance.written_bytes
            except OSError as error:
                if path not in self._failed:
                    _log.warning("%s cannot be written: %s", path, error.strerror)
                self._failed.add(path)


def _replace(path: Path, data: bytes) -> None:
    """Put bytes in the place of a file; whatever lies where the draft goes is no file of others."""
    draft = path.with_name(path.name + ".new")
    draft.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(draft, flags, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(handle)
    draft.replace(path)
    _sync(path.parent)


def _sync(folder: Path) -> None:
    """See that a name in a folder is on the drive."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
