"""The client: a `Cache` over a socket to a daemon. It never makes a caller wait longer than agreed.

A daemon that answers late is asked nothing more until it has answered, and looking whether it has
costs no time; one that is gone is looked for again now and then. In between every verb fails at
once, which the caller treats as a miss. A daemon that comes back is used again: namespaces are
joined anew and its arena is mapped in place of the old one.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar

import msgspec

from kvwise.core.words import Decision, Namespace
from kvwise.errors import CacheUnavailable, ConfigError, ProtocolError
from kvwise.live.clock import deadline_after, now_ns, seconds_until
from kvwise.live.leases import require_pages, split_lease
from kvwise.live.link import Link
from kvwise.live.messages import (
    PROTOCOL,
    Ask,
    Attach,
    Attached,
    Clear,
    Decisions,
    Explain,
    Fill,
    Flush,
    Grant,
    Grants,
    Join,
    Ok,
    Plan,
    Problem,
    Release,
    Reply,
    Request,
    Status,
    StatusReply,
    Step,
    Want,
)
from kvwise.tiers.dram import Arena, ArenaShape

RETRY_S = 1.0
"""How often a daemon that is gone is looked for."""

CONNECT_S = 5.0
"""How long the first attachment may take."""

PEEK_NS = 20_000_000
"""How often polling for progress looks whether the daemon still lives."""

REVIVE_S = 15.0
"""How often a daemon that is gone is started again, where that is the client's business."""

RETIRE_S = 60.0
"""How long the arena of a dead daemon stays mapped for copies that still read its address."""

UNSENT_MAX = 8192
"""Fills and releases kept for a daemon that does not answer: as many as there can be leases."""

FLUSH_LOOK_S = 0.01
R = TypeVar("R")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Mapped:
    """An arena and the daemon it belongs to; replaced as a whole, so readers need no lock."""

    arena: Arena
    epoch: int


@dataclass(slots=True)
class _Talk:
    """The conversation of one process; a fork starts a new one."""

    pid: int = field(default_factory=os.getpid)
    lock: threading.Lock = field(default_factory=threading.Lock)
    link: Link | None = None
    joined: set[bytes] = field(default_factory=set)
    fills: deque[Fill] = field(default_factory=lambda: deque(maxlen=UNSENT_MAX))
    releases: deque[Release] = field(default_factory=lambda: deque(maxlen=UNSENT_MAX))
    retry_ns: int = 0
    peek_ns: int = 0
    revive_ns: int = 0


class Client:
    """An engine's access to a daemon. Any thread may call any method, and so may a forked child."""

    def __init__(
        self,
        path: str,
        engine: str,
        *,
        timeout_s: float,
        revive: Callable[[], None] | None = None,
    ) -> None:
        """Attach to the daemon at `path`.

        Args:
            path: its socket.
            engine: connections with the same name are one client.
            timeout_s: how long a verb may take.
            revive: called on a thread of its own when nobody listens at `path` any more.

        Raises:
            CacheUnavailable: no daemon answered.
        """
        self._path = path
        self._engine = engine
        self._timeout_s = timeout_s
        self._revive = revive
        self._spaces: dict[bytes, Namespace] = {}
        self._mapped: _Mapped | None = None
        self._retired: list[tuple[int, Arena]] = []
        self._closed = False
        self._talk = _Talk()
        try:
            with self._talk.lock:
                self._attached(self._talk, deadline_after(max(CONNECT_S, timeout_s)))
        except CacheUnavailable:
            self.close()
            raise

    # --- verbs ---

    def join(self, namespace: Namespace) -> None:
        """Open a namespace. From here on the client joins it anew with every daemon that it finds.

        Raises:
            ConfigError: the daemon cannot take its objects.
        """
        try:
            self._call(Join(namespace), Ok)
        except CacheUnavailable:
            self._spaces[namespace.digest] = namespace
            raise
        self._spaces[namespace.digest] = namespace
        self._mine().joined.add(namespace.digest)

    def ask(self, ask: Ask) -> Plan:
        """Plan a request."""
        return self._call(ask, Plan)

    def want(self, lease: int, chunks: int) -> Grant:
        """Start a planned load."""
        return self._call(Want(lease, chunks), Grant)

    def step(self, step: Step) -> list[Grant]:
        """Say everything of one engine step, and what earlier steps could not say."""
        return self._call(step, Grants).grants

    def explain(self, limit: int = 20) -> list[Decision]:
        """The last decisions, newest last."""
        return self._call(Explain(limit), Decisions).decisions

    def status(self) -> dict[str, Any]:
        """Counters and levels."""
        return self._call(Status(), StatusReply).status

    def clear(self, space: bytes = b"") -> None:
        """Drop what is not in use."""
        self._call(Clear(space), Ok)

    def flush(self, timeout_s: float) -> bool:
        """Wait until deferred writes are done; False when time ran out."""
        deadline_ns, pause = deadline_after(timeout_s), threading.Event()
        while self._call(Flush(), Ok).value:
            if not seconds_until(deadline_ns):
                return False
            pause.wait(FLUSH_LOOK_S)
        return True

    # --- shared memory ---

    def progress(self, lease: int) -> tuple[int, bool]:
        """(chunks of the lease that are in the arena, whether it failed or ended)."""
        epoch, number = split_lease(lease)
        alive = self._look(urgent=epoch != self._map().epoch)
        mapped = self._map()
        if epoch != mapped.epoch or not alive:
            return 0, True
        return mapped.arena.progress_read(number)

    @property
    def page_bytes(self) -> int:
        """Bytes of one arena page."""
        return self._map().arena.shape.page_bytes

    @property
    def pages(self) -> memoryview:
        """The arena's pages."""
        return self._map().arena.pages

    @property
    def address(self) -> int:
        """Address of `pages` in this process."""
        return self._map().arena.address

    def close(self) -> None:
        """Detach and unmap; idempotent."""
        self._closed = True
        talk = self._talk
        if talk.lock.acquire(timeout=self._timeout_s):
            try:
                if talk.link is not None:
                    talk.link.close()
                    talk.link = None
            finally:
                talk.lock.release()
        for _, arena in self._retired:
            arena.close()
        self._retired.clear()
        if self._mapped is not None:
            self._mapped.arena.close()

    # --- talking ---

    def _call(self, request: Request, kind: type[R]) -> R:
        """Ask the daemon.

        Raises:
            CacheUnavailable: it is gone, did not answer in time, or found fault with the request.
            ConfigError: it refused a namespace.
        """
        deadline_ns = deadline_after(self._timeout_s)
        talk = self._mine()
        if not talk.lock.acquire(timeout=self._timeout_s):
            self._keep(talk, request)
            raise CacheUnavailable("another thread waits for the daemon")
        try:
            try:
                link = self._attached(talk, deadline_ns)
            except CacheUnavailable:
                self._keep(talk, request)
                raise
            reply = self._round(talk, link, self._with_unsent(talk, request), deadline_ns)
        finally:
            talk.lock.release()
        if isinstance(reply, Grant | Grants):
            self._require_pages(reply)
        if isinstance(reply, kind):
            return reply
        if isinstance(reply, Problem):
            _refused(reply)
        raise CacheUnavailable(f"expected {kind.__name__}, the daemon said {type(reply).__name__}")

    def _attached(self, talk: _Talk, deadline_ns: int) -> Link:
        """A link that owes nothing, attached, with every namespace joined."""
        if self._closed:
            raise CacheUnavailable("the client is closed")
        self._unmap_retired()
        link = talk.link
        if link is None:
            link = self._connect(talk, deadline_ns)
            attach = Attach(PROTOCOL, self._engine)
            self._settle(talk, attach, self._round(talk, link, attach, deadline_ns))
        elif link.owed is not None:
            owed = link.owed
            self._settle(talk, owed, self._round(talk, link, None, now_ns()))
        for digest, namespace in list(self._spaces.items()):
            if digest not in talk.joined:
                reply = self._round(talk, link, Join(namespace), deadline_ns)
                if isinstance(reply, Problem):
                    raise CacheUnavailable(reply.message)
                talk.joined.add(digest)
        return link

    def _connect(self, talk: _Talk, deadline_ns: int) -> Link:
        """A new connection, when it is time to try again."""
        if now_ns() < talk.retry_ns:
            raise CacheUnavailable("the daemon is gone")
        try:
            talk.link = Link(self._path, deadline_ns)
        except TimeoutError as error:
            self._lost(talk)
            raise CacheUnavailable(
                f"the daemon at {self._path} took no connection in time: {error}"
            ) from error
        except OSError as error:
            self._lost(talk)
            if self._mapped is not None and self._revive is not None:
                self._bring_back(talk, self._revive)
            raise CacheUnavailable(
                f"no daemon at {self._path}: {error.strerror or error}"
            ) from error
        return talk.link

    def _round(self, talk: _Talk, link: Link, request: Request | None, deadline_ns: int) -> Reply:
        """One question and its answer; without a question, the answer that is owed."""
        try:
            if request is None:
                return link.collect(deadline_ns)
            return link.ask(request, deadline_ns)
        except TimeoutError as error:
            if request is not None:
                self._keep(talk, request)
            raise CacheUnavailable("the daemon did not answer in time") from error
        except (OSError, ProtocolError) as error:
            if request is not None:
                self._keep(talk, request)
            self._lost(talk)
            raise CacheUnavailable(f"the daemon is gone: {error}") from error

    def _lost(self, talk: _Talk) -> None:
        """The connection is no more."""
        if talk.link is not None:
            talk.link.close()
            talk.link = None
        talk.joined.clear()
        talk.retry_ns = deadline_after(RETRY_S)

    def _settle(self, talk: _Talk, question: Request, reply: Reply) -> None:
        """Take in an answer that nobody waits for any more: what it granted is given back."""
        if isinstance(question, Attach):
            self._map_anew(talk, reply)
        elif isinstance(question, Join) and isinstance(reply, Ok):
            talk.joined.add(question.namespace.digest)
        elif isinstance(reply, Grants):
            talk.fills.extend(Fill(grant.lease, 0) for grant in reply.grants if grant.lease)
        elif isinstance(reply, Plan | Grant) and reply.lease:
            talk.releases.append(Release(reply.lease, failed=True))

    def _require_pages(self, reply: Grant | Grants) -> None:
        """Refuse grants of pages that the arena does not have.

        Raises:
            CacheUnavailable: there are some; nothing that was granted may be used.
        """
        count = self._map().arena.shape.page_count
        try:
            for grant in [reply] if isinstance(reply, Grant) else reply.grants:
                require_pages(grant.pages, len(grant.chunks), count)
        except ProtocolError as error:
            raise CacheUnavailable(f"the daemon granted what there is not: {error}") from error

    # --- what could not be said ---

    def _keep(self, talk: _Talk, request: Request) -> None:
        """Keep the ends of leases that a step could not tell; telling them twice does no harm."""
        if isinstance(request, Step):
            talk.fills.extend(request.fills)
            talk.releases.extend(request.releases)

    def _with_unsent(self, talk: _Talk, request: Request) -> Request:
        """A step with the ends that are still to be told to this daemon."""
        if not isinstance(request, Step) or not (talk.fills or talk.releases):
            return request
        epoch = self._map().epoch
        fills = [end for end in _drained(talk.fills) if split_lease(end.lease)[0] == epoch]
        releases = [end for end in _drained(talk.releases) if split_lease(end.lease)[0] == epoch]
        return msgspec.structs.replace(
            request, fills=fills + request.fills, releases=releases + request.releases
        )

    # --- the daemon's memory ---

    def _map(self) -> _Mapped:
        """What is mapped now."""
        if self._mapped is None:
            raise CacheUnavailable("no arena is mapped")
        return self._mapped

    def _map_anew(self, talk: _Talk, reply: Reply) -> None:
        """Map the arena of the daemon that was just attached to."""
        link = talk.link
        if link is None or not isinstance(reply, Attached):
            self._lost(talk)
            detail = reply.message if isinstance(reply, Problem) else type(reply).__name__
            raise CacheUnavailable(f"the daemon did not let us attach: {detail}")
        before = self._mapped
        if before is not None and before.arena.shape.page_bytes != reply.page_bytes:
            self._lost(talk)
            raise CacheUnavailable(
                f"the daemon came back with pages of {reply.page_bytes} bytes; hint: restart the "
                "engine, or the daemon with its old dram.page"
            )
        if before is not None and before.epoch == reply.epoch:
            return
        try:
            shape = ArenaShape(reply.arena_bytes, reply.page_bytes, reply.data_offset)
            arena = Arena.attach(link.take_arena(), shape)
        except (ProtocolError, ConfigError, OSError) as error:
            self._lost(talk)
            raise CacheUnavailable(f"cannot map the daemon's arena: {error}") from error
        self._mapped = _Mapped(arena, reply.epoch)
        if before is not None:
            self._retired.append((deadline_after(RETIRE_S), before.arena))

    def _unmap_retired(self) -> None:
        """Give up arenas of dead daemons once no copy can still read them."""
        while self._retired and now_ns() > self._retired[0][0]:
            self._retired.pop(0)[1].close()

    def _look(self, *, urgent: bool) -> bool:
        """Whether the daemon lives, as far as its socket tells; looks for a successor if not.

        Looks only now and then, or when it is urgent: a lease of another daemon turned up.
        """
        talk, now = self._mine(), now_ns()
        if not urgent and now - talk.peek_ns < PEEK_NS:
            return talk.link is not None
        if talk.lock.acquire(blocking=False):
            try:
                talk.peek_ns = now
                self._unmap_retired()
                if talk.link is not None and talk.link.is_dead():
                    self._lost(talk)
                if talk.link is None:
                    talk.retry_ns = 0 if urgent else talk.retry_ns
                    self._attached(talk, deadline_after(self._timeout_s))
            except CacheUnavailable as error:
                _log.debug("no daemon: %s", error)
            finally:
                talk.lock.release()
        return talk.link is not None and not self._closed

    # --- processes ---

    def _mine(self) -> _Talk:
        """This process's conversation; a child that was forked begins its own."""
        if self._talk.pid != os.getpid():
            self._talk = _Talk()
        return self._talk

    def _bring_back(self, talk: _Talk, revive: Callable[[], None]) -> None:
        """Have a daemon started, on a thread of its own, unless that was tried a moment ago."""
        if now_ns() < talk.revive_ns:
            return
        talk.revive_ns = deadline_after(REVIVE_S)

        def run() -> None:
            try:
                revive()
            except (CacheUnavailable, ConfigError, OSError) as error:
                _log.warning("could not start the cache daemon again: %s", error)

        threading.Thread(target=run, name="kvwise-revive", daemon=True).start()


def _drained(ends: deque[R]) -> list[R]:
    """Everything in a queue to which other threads may add meanwhile; the queue is empty then."""
    return [ends.popleft() for _ in range(len(ends))]


def _refused(problem: Problem) -> NoReturn:
    """Raise what the daemon complained about; a bug of ours must not stop the engine."""
    if problem.kind == ConfigError.__name__:
        raise ConfigError(problem.message)
    _log.error("the daemon refused a request: %s", problem.message)
    raise CacheUnavailable(problem.message)
