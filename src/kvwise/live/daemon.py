"""The daemon: one node, served over a Unix socket. It moves messages and decides nothing.

One thread looks after every connection; no verb blocks, so none needs more. The socket belongs to
one user: its mode is 0600, the peer's user is checked, and a peer that sends anything but the
protocol loses its own connection and nothing else.
"""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import selectors
import socket
import struct
from collections.abc import Callable

import kvwise
from kvwise.errors import BugError, CacheUnavailable, ConfigError, ProtocolError
from kvwise.live import wire
from kvwise.live.clock import deadline_after, now_ns
from kvwise.live.messages import (
    PROTOCOL,
    Ask,
    Attach,
    Attached,
    Clear,
    Decisions,
    Explain,
    Flush,
    Grants,
    Join,
    Ok,
    Problem,
    Reply,
    Request,
    Status,
    StatusReply,
    Step,
    Want,
)
from kvwise.live.node import Node
from kvwise.live.place import SocketPlace
from kvwise.live.session import Session
from kvwise.units import NS_PER_S

CONNECTIONS_MAX = 1024
CONNECTIONS_MIN = 8
FILES_PER_CONNECTION = 2
FILES_KEPT = 128
"""Descriptors that connections leave to the tiers: a disk that cannot open its files is no disk."""

ATTACH_S = 5.0
"""A connection that has not attached by then is closed."""

LOOK_S = 0.5
"""How often the daemon looks whether it should still run."""

FIRST_CLIENT_S = 60.0
"""How long a daemon that exits when idle waits for its first client."""

RECEIVE_BYTES = 1 << 18
ENGINE_CHARS_MAX = 256
_CREDENTIALS = struct.Struct("3i")
_log = logging.getLogger(__name__)


class _Connection:
    """One peer. `session` is None until it attached."""

    def __init__(self, sock: socket.socket, pid_fd: int) -> None:
        self.sock = sock
        self.pid_fd = pid_fd
        self.unpacker = wire.requests()
        self.out = memoryview(b"")
        self.session: Session | None = None
        self.attach_by_ns = deadline_after(ATTACH_S)


class Daemon:
    """Serves a node until stopped, or until idle if so wished."""

    def __init__(self, node: Node, place: SocketPlace, *, linger_s: float | None = None) -> None:
        """Listen. With `linger_s`, `run` returns so long after the last client left."""
        self._node = node
        self._place = place
        self._listener = place.listen()
        self._listens_ns = now_ns()
        self._lament = ""
        self._linger_s = linger_s
        self._idle_by_ns = deadline_after(FIRST_CLIENT_S)
        self._deaf_until_ns = 0
        self._stopping = False
        self._connections: set[_Connection] = set()
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.settimeout(0)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(self._wake_out, selectors.EVENT_READ, self._woken)

    def stop(self) -> None:
        """Make `run` return soon. From any thread, and from a signal handler."""
        self._stopping = True
        with contextlib.suppress(OSError):
            self._wake_in.send(b"\0")

    def run(self) -> None:
        """Serve.

        Raises:
            CacheUnavailable: the node broke; nothing it holds can be trusted to be found again.
        """
        try:
            while not self._stopping:
                for key, _ in self._selector.select(LOOK_S):
                    key.data()
                self._look()
        finally:
            self._close()

    # --- the loop ---

    def _look(self) -> None:
        """What time brings."""
        if not self._node.pump.is_sound:
            raise CacheUnavailable("the brain broke a promise of its own; see the log above")
        now = now_ns()
        if now - self._listens_ns > LOOK_S * NS_PER_S:
            self._listens_ns = now
            self._restore()
        if 0 < self._deaf_until_ns < now:
            self._deaf_until_ns = 0
            self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        for connection in [c for c in self._connections if c.session is None]:
            if now > connection.attach_by_ns:
                self._drop(connection, "did not attach")
        if self._linger_s is not None:
            if self._connections:
                self._idle_by_ns = now + int(self._linger_s * NS_PER_S)
            elif now > self._idle_by_ns:
                _log.info("the last client left")
                self._stopping = True

    def _restore(self) -> None:
        """Listen again where somebody removed the socket; who is attached is served anyhow."""
        if self._place.is_intact:
            return
        path = self._place.path
        try:
            listener = self._place.restore()
        except ConfigError as error:
            if self._lament != str(error):
                self._lament = str(error)
                _log.warning(
                    "the socket %s was removed and cannot be put back: %s; attached clients are "
                    "served, new ones do not find this daemon", path, error
                )  # fmt: skip
            return
        self._lament = ""
        _log.warning("the socket %s was removed; listening there again", path)
        if not self._deaf_until_ns:
            self._selector.unregister(self._listener)
        self._deaf_until_ns = 0
        self._listener.close()
        self._listener = listener
        self._selector.register(listener, selectors.EVENT_READ, self._accept)

    def _woken(self) -> None:
        """Somebody called `stop`."""
        self._wake_out.recv(64)

    def _accept(self) -> None:
        """Take in a peer, if it is the same user."""
        try:
            sock, _ = self._listener.accept()
        except OSError as error:
            _log.warning("could not accept a connection: %s", error.strerror)
            self._selector.unregister(self._listener)  # or it would be tried again at once
            self._deaf_until_ns = deadline_after(LOOK_S)
            return
        credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid, uid, _ = _CREDENTIALS.unpack(credentials)
        if uid != os.getuid() or len(self._connections) >= _connections_max():
            _log.warning("refused a connection of user %d, process %d", uid, pid)
            sock.close()
            return
        sock.settimeout(0)
        connection = _Connection(sock, _watch(pid))
        self._connections.add(connection)
        self._selector.register(sock, selectors.EVENT_READ, self._reader(connection))
        if connection.pid_fd >= 0:
            self._selector.register(
                connection.pid_fd, selectors.EVENT_READ, self._mourner(connection)
            )

    def _reader(self, connection: _Connection) -> Callable[[], None]:
        """What to do when a connection can be read."""
        return lambda: self._receive(connection)

    def _writer(self, connection: _Connection) -> Callable[[], None]:
        """What to do when a connection can be written again."""
        return lambda: self._send(connection)

    def _mourner(self, connection: _Connection) -> Callable[[], None]:
        """What to do when a peer's process is gone, whoever inherited its socket."""
        return lambda: self._drop(connection, "")

    def _receive(self, connection: _Connection) -> None:
        """Take in bytes, and answer the requests that are whole."""
        if connection not in self._connections:
            return
        try:
            data = connection.sock.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self._drop(connection, str(error.strerror))
            return
        if not data:
            self._drop(connection, "")
            return
        connection.unpacker.feed(data)
        self._answer(connection)

    def _answer(self, connection: _Connection) -> None:
        """Answer what is whole, one reply at a time: a peer that does not read gets no more."""
        try:
            while not connection.out:
                request = connection.unpacker.next()
                if request is None:
                    return
                if isinstance(request, Attach):
                    self._attach(connection, request)
                    continue
                if connection.session is None:
                    raise ProtocolError("spoke before it attached")
                connection.out = memoryview(wire.pack(_serve(connection.session, request)))
                self._send(connection)
                self._node.pump.wake()
        except ProtocolError as error:
            self._drop(connection, str(error))

    def _attach(self, connection: _Connection, attach: Attach) -> None:
        """Make a connection part of a client, and hand the arena over."""
        if connection.session is not None or not 0 < len(attach.engine) <= ENGINE_CHARS_MAX:
            raise ProtocolError("attached twice, or without a proper name")
        if attach.protocol != PROTOCOL:
            problem = f"the daemon speaks protocol {PROTOCOL}, not {attach.protocol}"
            with contextlib.suppress(OSError):
                connection.sock.send(wire.pack(Problem(ConfigError.__name__, problem)))
            raise ProtocolError(problem)
        arena = self._node.arena
        reply = Attached(
            arena_bytes=arena.shape.size_bytes,
            page_bytes=arena.shape.page_bytes,
            data_offset=arena.shape.data_offset,
            epoch=self._node.epoch,
            version=kvwise.__version__,
            pid=os.getpid(),
        )
        try:
            socket.send_fds(connection.sock, [wire.pack(reply)], [arena.fd])
        except OSError as error:
            raise ProtocolError(f"could not take the arena: {error.strerror}") from error
        connection.session = Session(self._node, attach.engine, wake=False)

    def _send(self, connection: _Connection) -> None:
        """Send what the peer takes; go on reading once it took everything."""
        waiting = bool(connection.out)
        try:
            sent = connection.sock.send(connection.out)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self._drop(connection, str(error.strerror))
            return
        connection.out = connection.out[sent:]
        if connection.out:
            data = self._writer(connection)
            self._selector.modify(connection.sock, selectors.EVENT_WRITE, data)
        elif waiting and self._selector.get_key(connection.sock).events & selectors.EVENT_WRITE:
            data = self._reader(connection)
            self._selector.modify(connection.sock, selectors.EVENT_READ, data)
            self._answer(connection)

    def _drop(self, connection: _Connection, why: str) -> None:
        """Close a connection; the client is gone with its last one."""
        if connection not in self._connections:
            return
        if why:
            _log.warning("closed a connection: %s", why)
        self._connections.discard(connection)
        self._selector.unregister(connection.sock)
        connection.sock.close()
        if connection.pid_fd >= 0:
            self._selector.unregister(connection.pid_fd)
            os.close(connection.pid_fd)
        if connection.session is not None:
            connection.session.close()

    def _close(self) -> None:
        """Stop listening and close every connection."""
        if not self._deaf_until_ns:
            self._selector.unregister(self._listener)
        self._listener.close()
        for connection in list(self._connections):
            self._drop(connection, "")
        self._selector.close()
        self._wake_in.close()
        self._wake_out.close()


def _connections_max() -> int:
    """How many connections this process has descriptors for."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    room = (files - FILES_KEPT) // FILES_PER_CONNECTION
    return min(CONNECTIONS_MAX, max(CONNECTIONS_MIN, room))


def _watch(pid: int) -> int:
    """A descriptor that becomes readable when a process ends; -1 where that cannot be had.

    A socket stays open as long as any process holds it, so a child that a killed engine forked
    would keep the engine's leases alive. A peer in another PID namespace cannot be watched.
    """
    try:
        return os.pidfd_open(pid)
    except (OSError, AttributeError):
        return -1


def _serve(session: Session, request: Request) -> Reply:
    """Carry out a verb; what the peer did wrong comes back as a `Problem`."""
    try:
        return _reply(session, request)
    except (BugError, ConfigError, CacheUnavailable) as error:
        return Problem(type(error).__name__, str(error))


def _reply(session: Session, request: Request) -> Reply:
    """Carry out a verb."""
    match request:
        case Step():
            return Grants(session.step(request))
        case Ask():
            return session.ask(request)
        case Want():
            return session.want(request.lease, request.chunks)
        case Join():
            session.join(request.namespace)
            return Ok()
        case Explain():
            return Decisions(session.explain(request.limit))
        case Status():
            return StatusReply(session.status())
        case Clear():
            session.clear(request.space)
            return Ok()
        case Flush():
            return Ok(session.waiting_writes())
        case Attach():
            raise BugError("attached twice")
