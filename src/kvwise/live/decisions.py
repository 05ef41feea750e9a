"""The decision log: one line of JSON for each decision, once it is known what became of it.

It is for people and their tools; `live/events.py` is what replays. The log never fails a request:
when it cannot be written, or is as long as it may be, it ends and says so.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections import deque
from pathlib import Path
from typing import IO

import msgspec

from kvwise.core.records import Calibration, calibrate
from kvwise.core.words import Decision
from kvwise.errors import ConfigError, FrameError
from kvwise.units import MIB

LOG_BYTES_MAX = 256 * MIB
"""Where a log ends: about half a million decisions."""

LINE_BYTES_MAX = MIB

BEGINNING = b'{"now_ns":'
"""How every line begins."""

_log = logging.getLogger(__name__)


class DecisionLog:
    """A log being written. One thread at a time; the pump's lock sees to that."""

    def __init__(self, path: Path, *, bytes_max: int = LOG_BYTES_MAX) -> None:
        """Start a log. One that is there is kept beside it, with `.old` at its end.

        Raises:
            ConfigError: something else than a log is there, or where the old one goes.
            OSError: the file cannot be created.
        """
        if path.exists():
            old = path.with_name(path.name + ".old")
            for place in (path, old):
                if place.exists() and not is_decision_log(place):
                    raise ConfigError(
                        f"serve.decision_log = {str(path)!r}: {place} exists and is no decision "
                        "log; hint: name a new file"
                    )
            path.replace(old)
        self._file: IO[bytes] | None = _open(path, os.O_EXCL)
        self._path = path
        self._encode = msgspec.json.Encoder().encode
        self._bytes_max = self._left_bytes = bytes_max
        self._moved = False

    @property
    def is_open(self) -> bool:
        """Whether decisions are still written down."""
        return self._file is not None

    def reopen(self) -> None:
        """Go on in whatever lies at the path, soon; from any thread, a signal's handler too."""
        self._moved = True

    def add(self, decision: Decision) -> None:
        """Write a line."""
        if self._file is None:
            return
        line = self._encode(decision) + b"\n"
        if len(line) > self._left_bytes:
            self._end("it reached its bound")
            return
        self._left_bytes -= len(line)
        try:
            self._file.write(line)
        except OSError as error:
            self._end(str(error.strerror))

    def flush(self) -> None:
        """Hand what is buffered to the operating system, and reopen the log if that was asked."""
        if self._moved:
            self._moved = False
            self._go_on()
        if self._file is not None:
            try:
                self._file.flush()
            except OSError as error:
                self._end(str(error.strerror))

    def close(self) -> None:
        """End the log; idempotent."""
        self.flush()
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _go_on(self) -> None:
        """Write to the file at the path, which somebody may have moved; one that ended too."""
        self.close()
        try:
            if self._path.exists() and not is_decision_log(self._path):
                self._end("what lies there now is no decision log")
                return
            self._file = _open(self._path, os.O_APPEND)
            self._left_bytes = self._bytes_max - os.fstat(self._file.fileno()).st_size
        except OSError as error:
            self._end(str(error.strerror))

    def _end(self, why: str) -> None:
        """Stop writing: a full disk must not stop the cache."""
        file, self._file = self._file, None
        _log.warning("the decision log %s ends here: %s", self._path, why)
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()


def _open(path: Path, flag: int) -> IO[bytes]:
    """A file to write to; nobody else may read it."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | flag
    return os.fdopen(os.open(path, flags, 0o600), "wb", buffering=1 << 16)


def is_decision_log(path: Path) -> bool:
    """Whether a file is one, or is empty."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        found = file.read(len(BEGINNING))
    return found in (b"", BEGINNING)


def read_decisions(path: Path, limit: int) -> tuple[list[Decision], dict[str, Calibration]]:
    """The last decisions of a log, newest last, and how good the estimates in all of it were.

    A torn last line is left out.

    Raises:
        FrameError: a line is damaged.
        OSError: the file cannot be read.
    """
    decoder = msgspec.json.Decoder(Decision)
    last: deque[Decision] = deque(maxlen=limit)
    calibration: dict[str, Calibration] = {}
    with path.open("rb") as file:
        number = 0
        while (line := file.readline(LINE_BYTES_MAX)).endswith(b"\n"):
            number += 1
            try:
                last.append(decoder.decode(line))
            except msgspec.MsgspecError as error:
                raise FrameError(f"line {number} of {path} is no decision: {error}") from error
            calibrate(calibration, last[-1])
        if len(line) >= LINE_BYTES_MAX:
            raise FrameError(f"line {number + 1} of {path} has no end")
    return list(last), calibration
