"""A link: one connection to a daemon, one question at a time. It asks nothing twice.

When time runs out the question stays owed: its answer will still come, so the connection is kept,
and only after that answer may the next question be asked. Closing instead would tell the daemon
that this client is gone while its copies are still running.
"""

from __future__ import annotations

import os
import socket
import threading

from kvwise.errors import ProtocolError
from kvwise.live import wire
from kvwise.live.clock import seconds_until
from kvwise.live.messages import Attach, Reply, Request

RECEIVE_BYTES = 1 << 18

DOOR_LOOK_S = 0.005
"""How often a daemon is tried whose queue of new connections is full."""


class Link:
    """A connected socket.

    Attributes:
        owed: the question whose answer has not come yet.
        arena_fd: the descriptor that came with the answer to `Attach`, until somebody takes it.
    """

    def __init__(self, path: str, deadline_ns: int) -> None:
        """Connect.

        Raises:
            TimeoutError: somebody listens there, but did not let us in within the deadline.
            OSError: nobody listens there.
        """
        self.owed: Request | None = None
        self.arena_fd = -1
        self._out = memoryview(b"")
        self._unpacker = wire.replies()
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._connect(path, deadline_ns)
        except OSError:
            self._sock.close()
            raise

    def ask(self, request: Request, deadline_ns: int) -> Reply:
        """Ask, and wait for the answer.

        Raises:
            TimeoutError: no answer yet; it stays owed.
            OSError: the connection is broken.
            ProtocolError: the peer does not speak our protocol.
        """
        if self.owed is not None:
            raise ProtocolError("an answer is owed already")
        self.owed = request
        self._out = memoryview(wire.pack(request))
        return self.collect(deadline_ns)

    def collect(self, deadline_ns: int) -> Reply:
        """The owed answer; a deadline in the past only looks. Raises as `ask` does."""
        try:
            while self._out:
                self._limit(deadline_ns)
                self._out = self._out[self._sock.send(self._out) :]
            while (reply := self._unpacker.next()) is None:
                self._limit(deadline_ns)
                data = self._receive()
                if not data:
                    raise ConnectionResetError("the daemon closed the connection")
                self._unpacker.feed(data)
        except BlockingIOError as error:
            raise TimeoutError("no answer yet") from error
        self.owed = None
        return reply

    def is_dead(self) -> bool:
        """Whether the peer is gone; looks without waiting and takes nothing."""
        try:
            self._sock.settimeout(0)
            return not self._sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def close(self) -> None:
        """Close the socket, and the arena's descriptor if nobody took it; idempotent."""
        self._sock.close()
        if self.arena_fd >= 0:
            os.close(self.arena_fd)
            self.arena_fd = -1

    def take_arena(self) -> int:
        """The arena's descriptor; from here on it is the caller's.

        Raises:
            ProtocolError: none came.
        """
        fd, self.arena_fd = self.arena_fd, -1
        if fd < 0:
            raise ProtocolError("the daemon sent no arena")
        return fd

    def _connect(self, path: str, deadline_ns: int) -> None:
        """Connect; where the queue of new connections is full, wait for a place in it.

        The kernel does not wait for that place on a socket that has a timeout: it says EAGAIN.
        """
        pause = threading.Event()
        while True:
            self._sock.settimeout(max(seconds_until(deadline_ns), 1e-3))
            try:
                self._sock.connect(path)
            except BlockingIOError as error:
                left_s = seconds_until(deadline_ns)
                if not left_s:
                    raise TimeoutError("its queue of new connections is full") from error
                pause.wait(min(DOOR_LOOK_S, left_s))
            else:
                return

    def _limit(self, deadline_ns: int) -> None:
        """Let the next call wait until the deadline; not at all once that has passed."""
        self._sock.settimeout(seconds_until(deadline_ns))

    def _receive(self) -> bytes:
        """What arrived; a descriptor may come with the answer to `Attach`, and only then."""
        if not isinstance(self.owed, Attach):
            return self._sock.recv(RECEIVE_BYTES)
        data, fds, _, _ = socket.recv_fds(self._sock, RECEIVE_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
        for fd in fds:
            if self.arena_fd >= 0:
                os.close(self.arena_fd)
            self.arena_fd = fd
        return data
