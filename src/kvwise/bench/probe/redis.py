"""Owns as much of Redis's protocol as measuring a server takes. It needs no package.

Values expire by themselves within a minute, so that a probe that is killed leaves none for long.
"""

from __future__ import annotations

import os
import socket
import ssl
from pathlib import PurePosixPath
from urllib.parse import SplitResult, unquote, urlsplit

from kvwise.errors import ConfigError

TIMEOUT_S = 5.0
"""How long any answer may take."""
PORT = 6379
EXPIRE_S = 60

_LINE_BYTES_MAX = 4096


class Redis:
    """One connection; `redis://`, `rediss://` and `unix://` addresses are understood."""

    def __init__(self, url: str) -> None:
        """Connect, log in where the address has a password, and choose its database.

        Raises:
            ConfigError: that is no such address.
            OSError: the server cannot be reached, or refuses.
        """
        parts = address(url)
        self._socket = _connect(parts)
        self._answers = self._socket.makefile("rb")
        self._value = bytearray()
        try:
            self._enter(parts)
        except BaseException:
            self.close()
            raise

    def _enter(self, parts: SplitResult) -> None:
        """Log in and choose a database, as the address says."""
        if parts.password:
            user = [unquote(parts.username)] if parts.username else []
            self._ask("AUTH", *user, unquote(parts.password))
        database = PurePosixPath(parts.path).name
        if parts.scheme != "unix" and database:
            self._ask("SELECT", database)

    def touch(self) -> None:
        """The least that can be asked."""
        self._ask("PING")

    def put(self, name: str, value: memoryview) -> None:
        """Store a value for a minute."""
        self._ask("SET", name, value, "EX", str(EXPIRE_S))

    def get(self, name: str) -> int:
        """Fetch a value: how many bytes it has."""
        return self._ask("GET", name)

    def remove(self, name: str) -> None:
        """Give a value up."""
        self._ask("DEL", name)

    def close(self) -> None:
        """End the connection."""
        self._answers.close()
        self._socket.close()

    def _ask(self, *words: str | memoryview) -> int:
        """Send a command and take its answer: a number, or the length of what came.

        Raises:
            OSError: the server refused, or said what is no answer.
        """
        head = f"*{len(words)}\r\n".encode()
        for word in words:
            if isinstance(word, str):
                text = os.fsencode(word)
                head += b"$%d\r\n%s\r\n" % (len(text), text)
            else:
                self._socket.sendall(head + b"$%d\r\n" % word.nbytes)
                self._socket.sendall(word)
                head = b"\r\n"
        self._socket.sendall(head)
        line = self._answers.readline(_LINE_BYTES_MAX)
        kind, text = line[:1], line[1:].strip()
        if kind == b"-":
            raise OSError(f"the server says: {text.decode(errors='replace')}")
        if kind == b"+":
            return 0
        if kind in {b":", b"$"} and text.lstrip(b"-").isdigit():
            return int(text) if kind == b":" else self._take(int(text))
        raise OSError(f"the server says what is no answer: {line[:40]!r}")

    def _take(self, size_bytes: int) -> int:
        """A value of so many bytes; none is no bytes."""
        if size_bytes < 0:
            return 0
        if len(self._value) != size_bytes + 2:
            self._value = bytearray(size_bytes + 2)
        if self._answers.readinto(self._value) != size_bytes + 2:
            raise ConnectionError("the server closed the connection in the middle of a value")
        return size_bytes


def address(url: str) -> SplitResult:
    """The parts of an address.

    Raises:
        ConfigError: it is none.
    """
    hint = "hint: write redis://HOST:6379/0, rediss://... or unix:///PATH"
    try:
        parts = urlsplit(url)
        fits = bool(parts.path if parts.scheme == "unix" else parts.hostname)
        fits = fits and (parts.port is None or parts.port > 0)
    except ValueError as error:
        raise ConfigError(f"{url!r:.80} is no address of a Redis: {error}; {hint}") from error
    if parts.scheme not in {"redis", "rediss", "unix"} or not fits:
        raise ConfigError(f"{url!r:.80} is no address of a Redis; {hint}")
    return parts


def _connect(parts: SplitResult) -> socket.socket:
    """A connection to where an address points."""
    if parts.scheme == "unix":
        near = socket.socket(socket.AF_UNIX)
        near.settimeout(TIMEOUT_S)
        try:
            near.connect(parts.path)
        except OSError:
            near.close()
            raise
        return near
    host = parts.hostname or ""
    near = socket.create_connection((host, parts.port or PORT), TIMEOUT_S)
    near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if parts.scheme == "rediss":
        return ssl.create_default_context().wrap_socket(near, server_hostname=host)
    return near
