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
            ConfigError: something else than a log is there.
            OSError: the file cannot be created.
        """
        if path.exists():
            if not is_decision_log(path):
                raise ConfigError(
                    f"serve.decision_log = {str(path)!r} exists and is no decision log; "
                    "hint: name a new file"
                )
            path.replace(path.with_name(path.name + ".old"))
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._file: IO[bytes] | None = os.fdopen(handle, "wb", buffering=1 << 16)
        self._path = path
        self._encode = msgspec.json.Encoder().encode
        self._left_bytes = bytes_max

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
        """Hand what is buffered to the operating system."""
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

    def _end(self, why: str) -> None:
        """Stop writing: a full disk must not stop the cache."""
        file, self._file = self._file, None
        _log.warning("the decision log %s ends here: %s", self._path, why)
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()


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
