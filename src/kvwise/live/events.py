"""The event log: every event in order, and a running digest of the commands that answered it.

Feeding the events of a log to a fresh brain must give the same commands, so every incident can be
replayed. The log never fails a request: when it cannot be written it ends, and says so.

A log is a magic, then records: u32 length, u32 CRC-32 of the rest, u8 kind, MessagePack body, and
for events the 8-byte digest of all commands so far. Kind 0 is the header (how the brain is set up),
255 says that the size bound was reached. A torn last record is what a killed process leaves and is
ignored; any other damage is refused.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, get_args

import msgspec

import kvwise
from kvwise.core.brain import Brain
from kvwise.core.words import Command, Event
from kvwise.core.world import BrainConfig
from kvwise.errors import BugError, ConfigError, FrameError
from kvwise.units import GIB, format_size

MAGIC = b"KVWLOG4\n"
FAMILY = MAGIC[:6]
"""How the logs of every version begin."""

LOG_BYTES_MAX = GIB
"""Where a log ends: about ten million events."""

RECORD_BYTES_MAX = 64 * 1024 * 1024
PAGES_MAX = 1 << 26
"""No arena has more (8 TiB of usual pages): bounds what a hostile header makes a reader hold."""

DIGEST_BYTES = 8
_HEAD = struct.Struct("<II")
_HEADER, _FULL = 0, 255
_EVENTS: tuple[type[Event], ...] = get_args(Event)
_KIND = {kind: number for number, kind in enumerate(_EVENTS, 1)}
_COMMAND = {kind: number for number, kind in enumerate(get_args(Command))}
_log = logging.getLogger(__name__)


class Header(msgspec.Struct, frozen=True):
    """How the brain that heard the events was set up, and which version it was."""

    version: str
    brain: BrainConfig


class _Digest:
    """A digest of all commands so far."""

    def __init__(self) -> None:
        self._hasher = hashlib.blake2b(digest_size=DIGEST_BYTES, person=b"kvwise-log-1")
        self._encode = msgspec.msgpack.Encoder().encode

    def add(self, commands: Sequence[Command]) -> bytes:
        """Take in the commands of one event."""
        self._hasher.update(self._encode([(_COMMAND[type(c)], c) for c in commands]))
        return self._hasher.digest()


class EventLog:
    """A log being written. One thread at a time; the pump's lock sees to that."""

    def __init__(self, path: Path, config: BrainConfig, *, bytes_max: int = LOG_BYTES_MAX) -> None:
        """Start a log. One that is there is kept beside it, with `.old` at its end.

        Raises:
            ConfigError: something else than a log is there, or one that is still being written.
            OSError: the file cannot be created.
        """
        if path.exists():
            old = path.with_name(path.name + ".old")
            _require_log(path)
            if old.exists():
                _require_log(old)
            path.replace(old)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(handle, fcntl.LOCK_EX)
        self._file: IO[bytes] | None = os.fdopen(handle, "wb", buffering=1 << 16)
        self._path = path
        self._digest = _Digest()
        self._encoder = msgspec.msgpack.Encoder()
        self._left_bytes = bytes_max
        header = self._encoder.encode(Header(kvwise.__version__, config))
        self._write(MAGIC + _record(_HEADER, header))

    @property
    def is_open(self) -> bool:
        """Whether events are still recorded."""
        return self._file is not None

    def add(self, event: Event, commands: Sequence[Command]) -> None:
        """Record an event and what it led to."""
        if self._file is None:
            return
        body = self._encoder.encode(event) + self._digest.add(commands)
        record, end = _record(_KIND[type(event)], body), _record(_FULL, b"")
        if len(record) + len(end) > self._left_bytes:
            self._write(end)
            _log.warning("the event log %s reached its bound; nothing more is recorded", self._path)
            self.close()
            return
        self._write(record)

    def flush(self) -> None:
        """Hand what is buffered to the operating system."""
        if self._file is not None:
            try:
                self._file.flush()
            except OSError as error:
                self._give_up(error)

    def close(self) -> None:
        """End the log; idempotent."""
        file = self._file
        if file is not None:
            self.flush()
            self._file = None
            with contextlib.suppress(OSError):  # what cannot be written was reported by `flush`
                file.close()

    def _write(self, data: bytes) -> None:
        """Append bytes."""
        if self._file is not None:
            self._left_bytes -= len(data)
            try:
                self._file.write(data)
            except OSError as error:
                self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        """Stop recording: a full disk must not stop the cache."""
        file, self._file = self._file, None
        _log.warning("the event log %s ends here: %s", self._path, error.strerror)
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()


def _require_log(path: Path) -> None:
    """Refuse to move away what is no event log, or one of a daemon that is alive.

    Raises:
        ConfigError: it is a directory, a device, a file of somebody else, or still being written.
    """
    if path.is_file():
        with path.open("rb") as file:
            found = file.read(len(MAGIC))
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(
                    f"serve.event_log: {str(path)!r} is being written by another daemon; "
                    "hint: name another file"
                ) from None
        if not found or found.startswith(FAMILY):
            return
    raise ConfigError(
        f"serve.event_log: {str(path)!r} exists and is not an event log; hint: name a new file"
    )


def _record(kind: int, body: bytes) -> bytes:
    """One record as it lies in the file."""
    rest = bytes([kind]) + body
    return _HEAD.pack(len(rest), zlib.crc32(rest)) + rest


# --- reading -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Verdict:
    """What replaying a log showed.

    Attributes:
        equal: whether the fresh brain gave the same commands throughout.
        events: how many were replayed.
        complete: whether the log holds everything up to its end, not cut off at its size bound.
        divergence: what differed first; empty when nothing did.
        version: the version that wrote the log.
    """

    equal: bool
    events: int
    complete: bool
    divergence: str
    version: str


UNFIT = (
    ArithmeticError,
    AssertionError,
    BugError,
    LookupError,
    TypeError,
    ValueError,
    struct.error,
)
"""What a brain may answer to an event that no daemon let through, or to a header none wrote."""


def fresh_brain(header: Header) -> Brain:
    """The brain that heard a log's events.

    Raises:
        FrameError: no daemon could set one up like that.
    """
    brain = header.brain
    try:
        if brain.tiers[0].capacity_bytes // brain.page_bytes > PAGES_MAX:
            raise ValueError(f"more than {PAGES_MAX} pages are not believable")
        if any(min(tier.unit_bytes, tier.capacity_bytes + 1) < 1 for tier in brain.tiers):
            raise ValueError("a tier has no capacity, or no unit to give it out in")
        return Brain(brain)
    except UNFIT as error:
        raise FrameError(f"no brain can be set up as the header says: {error}") from error


class Recording:
    """A log being read."""

    def __init__(self, path: Path) -> None:
        """Read the header.

        Raises:
            FrameError: this is not an event log, or its header is damaged.
            OSError: the file cannot be read.
        """
        self._path = path
        self._file = path.open("rb")
        self.complete = True
        try:
            found = self._file.read(len(MAGIC))
            if not found:
                raise FrameError(f"{path} is empty: nothing was written to it yet")
            if not found.startswith(FAMILY):
                raise FrameError(f"{path} is not a kvwise event log")
            if found != MAGIC:
                raise FrameError(
                    f"{path} was written by another version; hint: replay it with that one"
                )
            record = self._record()
            if record is None or record[0] != _HEADER:
                raise FrameError(f"{path} has no header")
            self.header = msgspec.msgpack.decode(record[1], type=Header)
        except msgspec.MsgspecError as error:
            self.close()
            raise FrameError(f"{path} was written by another version: {error}") from error
        except FrameError:
            self.close()
            raise

    def events(self) -> Iterator[tuple[Event, bytes]]:
        """Every event and the digest after it.

        Raises:
            FrameError: a record is damaged.
        """
        decoders = [msgspec.msgpack.Decoder(kind) for kind in _EVENTS]
        while (record := self._record()) is not None:
            kind, body = record
            if kind == _FULL:
                self.complete = False
                return
            if not 1 <= kind <= len(decoders) or len(body) < DIGEST_BYTES:
                raise FrameError(f"{self._path} has a record of unknown kind {kind}")
            try:
                yield decoders[kind - 1].decode(body[:-DIGEST_BYTES]), body[-DIGEST_BYTES:]
            except msgspec.MsgspecError as error:
                raise FrameError(f"{self._path} has a damaged record: {error}") from error

    def close(self) -> None:
        """Close the file; idempotent."""
        self._file.close()

    def _record(self) -> tuple[int, bytes] | None:
        """Kind and body of the next record; None at the end or where a record is torn."""
        head = self._file.read(_HEAD.size)
        if len(head) < _HEAD.size:
            return None
        size, checksum = _HEAD.unpack(head)
        if not 0 < size <= RECORD_BYTES_MAX:
            raise FrameError(f"{self._path} has a record of {format_size(size)}")
        rest = self._file.read(size)
        if len(rest) < size:
            return None
        if zlib.crc32(rest) != checksum:
            raise FrameError(f"{self._path} has a damaged record")
        return rest[0], rest[1:]


def replay(path: Path) -> tuple[Verdict, Brain]:
    """Feed a log to a fresh brain; the brain comes back too, to be asked about its decisions.

    Raises:
        FrameError: this is not a log, or it is damaged.
        OSError: the file cannot be read.
    """
    recording = Recording(path)
    try:
        brain = fresh_brain(recording.header)
        digest, count, divergence = _Digest(), 0, ""
        for event, expected in recording.events():
            try:
                commands = brain.handle(event)
                found = digest.add(commands)
            except UNFIT as error:
                divergence = f"event {count} ({event}) broke the brain: {error!r}"
                break
            if found != expected:
                divergence = f"event {count} ({event}) now leads to {commands}"
                break
            count += 1
        verdict = Verdict(
            equal=not divergence,
            events=count,
            complete=recording.complete,
            divergence=divergence,
            version=recording.header.version,
        )
        return verdict, brain
    finally:
        recording.close()
