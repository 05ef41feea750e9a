"""A client's ear: answers from a daemon that may say anything. It owns no verb.

A thread plays the daemon: whoever connects is told the whole input at once, with a descriptor
beside it, and is then hung up on. The client asks one question of each kind.
"""

from __future__ import annotations

import logging
import os
import socket
import tempfile
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

from kvwise.core.words import Choice, Decision, Why
from kvwise.live import wire
from kvwise.live.client import Client
from kvwise.live.clock import deadline_after
from kvwise.live.leases import join_lease, unpack_pages
from kvwise.live.messages import (
    Attached,
    Decisions,
    Grant,
    Grants,
    Ok,
    Plan,
    Problem,
    Reply,
    StatusReply,
    Step,
)
from kvwise.tiers.dram import ArenaShape
from tests.fuzz.mutate import split
from tests.live.support import PAGE, SPACE, prompt, question

SHAPE = ArenaShape.of(16, PAGE, lease_slots=256)
_EPOCH = 7
_TIMEOUT_S = 5.0


class Daemon:
    """What a client takes for its daemon: it says all at once and hangs up when asked more."""

    def __init__(self, path: str) -> None:
        self.data = b""
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(path)
        self._listener.listen(8)
        self._arena = os.memfd_create("arena")
        os.ftruncate(self._arena, SHAPE.size_bytes)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        """Serve until the listener is closed."""
        with suppress(OSError):
            while True:
                peer, _ = self._listener.accept()
                with peer, suppress(BrokenPipeError, ConnectionResetError):
                    self._serve(peer)

    def _serve(self, peer: socket.socket) -> None:
        """Answer one client."""
        socket.send_fds(peer, [self.data or b"\0"], [self._arena])
        answers, unpacker = len(split(self.data)), wire.requests()
        while said := peer.recv(1 << 16):
            unpacker.feed(said)
            while unpacker.next() is not None:
                answers -= 1
            if answers < 0:
                return

    def close(self) -> None:
        """Stop listening."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(5)
        self._listener.close()
        os.close(self._arena)


def open_client(stack: ExitStack) -> Callable[[bytes], None]:
    """A new client for each input; it ends on the first error that an engine would see."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvwise-fuzz-")))
    path = str(folder / "d.sock")
    daemon = Daemon(path)
    stack.callback(daemon.close)
    log = logging.getLogger("kvwise.live.client")
    stack.callback(log.setLevel, log.level)
    log.setLevel(logging.CRITICAL)  # it says what the daemon complains about, once for each input

    def attempt(data: bytes) -> None:
        daemon.data = data
        client = Client(path, "engine", timeout_s=_TIMEOUT_S)
        try:
            _talk(client)
        finally:
            client.close()

    return attempt


def _talk(client: Client) -> None:
    """Ask one question of each kind; what comes back must be what an engine can use."""
    assert client.pages.nbytes >= client.page_bytes > 0
    client.join(SPACE)
    plan = client.ask(question(prompt(1, 3)))
    grant = client.want(plan.lease, plan.chunks)
    deadline_after(plan.wait_s)
    _require(client, grant)
    for lease in (plan.lease, grant.lease):
        ready, _ = client.progress(lease)
        assert ready >= 0
    for granted in client.step(Step()):
        _require(client, granted)
    client.explain()
    client.status()
    client.clear()
    client.flush(0.0)


def _require(client: Client, grant: Grant) -> None:
    """Whoever copies would stay inside the arena."""
    pages = unpack_pages(grant.pages)
    assert all((page + 1) * client.page_bytes <= client.pages.nbytes for page in pages)
    assert len(pages) % max(1, len(grant.chunks)) == 0


def streams() -> list[bytes]:
    """What a daemon answers to these questions, and some of what it answers otherwise."""
    attached = Attached(SHAPE.size_bytes, PAGE, SHAPE.data_offset, _EPOCH, "0.1.0", 1)
    decision = Decision(
        1, "r", "tiny", 49, 0, 48, 48, {"dram": 48}, 0.1, 0.2, 0.1, Choice.LOAD, Why.FORCED
    )
    lease = join_lease(_EPOCH, 1)
    plan = Plan(lease, 0, 3, 48, ready=True, wait_s=1.0, decision=decision)
    grant = Grant(lease, [0, 1, 2], bytes(36))
    good: list[Reply] = [
        attached,
        Ok(),
        plan,
        grant,
        Grants([grant]),
        Decisions([decision]),
        StatusReply({"levels": {"clients": 1}}),
        Ok(),
        Ok(0),
    ]
    rows: list[list[Reply]] = [
        good,
        [attached, Problem("ConfigError", "no")],
        [attached, Ok(), Problem("BugError", "no")],
        [Problem("ConfigError", "no")],
        [*good[:4], Ok()],
    ]
    return [b"".join(bytes(wire.pack(message)) for message in row) for row in rows]
