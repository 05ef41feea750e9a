"""A place: a path at which one daemon of one user listens. It speaks no protocol.

A lock file beside the socket belongs to the daemon while it lives, so a socket that a killed daemon
left is reclaimed, and a live one is refused, without asking anybody.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
import threading
from pathlib import Path

from kvwise.errors import ConfigError
from kvwise.live.clock import deadline_after, seconds_until

BACKLOG = 1024
"""Connections that may wait to be taken in: engines of a whole node may start at once. The kernel
lowers it to net.core.somaxconn."""

_File = tuple[int, int]
"""Device and inode: the same path may hold another file by now."""


class SocketPlace:
    """The right to listen at a path: a lock held for as long as the daemon lives."""

    def __init__(self, path: Path, *, wait_s: float = 0.0) -> None:
        """Take the lock, waiting at most `wait_s` for a daemon that is going.

        Raises:
            ConfigError: another daemon listens there, or the directory is not safe.
        """
        self.path = path
        self._made: _File | None = None
        safe_directory(path.parent)
        self._lock = _open_lock(self._lock_path)
        deadline_ns, pause = deadline_after(wait_s), threading.Event()
        while not self._take():
            if not seconds_until(deadline_ns):
                owner = os.pread(self._lock, 32, 0).decode(errors="replace").strip()
                os.close(self._lock)
                raise ConfigError(
                    f"another daemon (pid {owner or 'unknown'}) serves {path}; hint: use that one, "
                    "stop it, or choose another --socket"
                )
            pause.wait(0.02)
        self._sign()

    @property
    def is_intact(self) -> bool:
        """Whether the socket that `listen` made still lies at the path."""
        return self._made is not None and _file(self.path) == self._made

    def restore(self) -> socket.socket:
        """A new listening socket, after somebody removed ours, its directory, or both.

        Raises:
            ConfigError: another daemon has the path by now, or it cannot be listened at.
        """
        safe_directory(self.path.parent)
        status = os.fstat(self._lock)
        if _file(self._lock_path) != (status.st_dev, status.st_ino):
            lock, self._lock = self._lock, _open_lock(self._lock_path)
            if not self._take():
                os.close(self._lock)
                self._lock = lock
                raise ConfigError(f"another daemon serves {self.path} now")
            os.close(lock)
            self._sign()
        return self.listen()

    def listen(self) -> socket.socket:
        """A listening socket at the path, in place of one that a dead daemon left.

        Raises:
            ConfigError: something else is there.
        """
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISSOCK(self.path.lstat().st_mode):
                raise ConfigError(f"{self.path} exists and is not a socket; hint: move it away")
            self.path.unlink()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(str(self.path))
            self.path.chmod(0o600)
            listener.listen(BACKLOG)
        except OSError as error:
            listener.close()
            raise ConfigError(
                f"cannot listen at {self.path}: {error.strerror or error}; hint: choose another "
                "--socket"
            ) from error
        listener.settimeout(0)
        self._made = _file(self.path)
        return listener

    def close(self) -> None:
        """Remove the socket and give the lock back. The lock file stays: removing it would race."""
        if self.is_intact:
            self.path.unlink(missing_ok=True)
        os.close(self._lock)

    @property
    def _lock_path(self) -> str:
        """Where the lock file lies."""
        return f"{self.path}.lock"

    def _sign(self) -> None:
        """Write down who holds the lock, for whoever is refused."""
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, str(os.getpid()).encode(), 0)

    def _take(self) -> bool:
        """Try to lock."""
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno != errno.EWOULDBLOCK:
                raise
            return False
        return True


def _file(path: str | Path) -> _File | None:
    """Which file lies at a path; None where there is none."""
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _open_lock(path: str) -> int:
    """A lock file of ours: a link that somebody put there is not followed.

    Raises:
        ConfigError: it cannot be had.
    """
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(
            f"cannot lock {path}: {error.strerror}; hint: choose another --socket"
        ) from error


def safe_directory(path: Path) -> None:
    """Make a directory for sockets that only this user can enter; one that is there must be ours.

    Raises:
        ConfigError: it belongs to somebody else, or others may write to it.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.stat()
    except OSError as error:
        raise ConfigError(f"cannot make {path}: {error.strerror}") from error
    others_write = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if status.st_uid not in (os.getuid(), 0) or (
        others_write and not status.st_mode & stat.S_ISVTX
    ):
        raise ConfigError(
            f"{path} can be changed by other users; hint: chmod 700, or choose another --socket"
        )
