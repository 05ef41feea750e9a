"""A daemon's ear: streams of bytes from a peer that may say anything. It owns no verb.

The daemon is a real one with a real store behind it. Its loop is turned by hand, on this thread, so
that nothing that goes wrong is lost on another one.
"""

from __future__ import annotations

import logging
import math
import os
import socket
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from kvwise.core.keys import ROOT
from kvwise.errors import ProtocolError
from kvwise.live import wire
from kvwise.live.daemon import Daemon
from kvwise.live.messages import (
    PROTOCOL,
    Ask,
    Attach,
    Clear,
    Explain,
    Fill,
    Flush,
    Join,
    Offer,
    Problem,
    Release,
    Reply,
    Request,
    Status,
    Step,
    Timing,
    Want,
)
from kvwise.live.node import Node
from kvwise.live.place import SocketPlace
from tests.live.support import CHUNK, SPACE, prompt, settings

EPOCH = 7
_TURNS_MAX = 10_000
_CHECK_EVERY = 200


def open_daemon(stack: ExitStack) -> Callable[[bytes], None]:
    """One daemon for all inputs; each input is everything that one connection says."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvwise-fuzz-")))
    config = settings(folder)
    place = SocketPlace(Path(config.socket_path))
    stack.callback(place.close)
    node = Node(config)
    stack.callback(node.close, 0.0)
    node.epoch = EPOCH
    daemon = Daemon(node, place)
    log = logging.getLogger("kvwise.live.daemon")
    stack.callback(log.setLevel, log.level)
    log.setLevel(logging.CRITICAL)  # it says why it hung up, once for each input
    stack.callback(daemon._close)
    tried = 0

    def attempt(data: bytes) -> None:
        nonlocal tried
        tried += 1
        said = _said(daemon, config.socket_path, data)
        assert node.pump.is_sound
        if tried % _CHECK_EVERY == 0:
            _check(node)
        if not said:
            raise ProtocolError("closed")
        if isinstance(last := said[-1], Problem):
            raise ProtocolError(last.message)

    return attempt


def _turn(daemon: Daemon) -> bool:
    """What the daemon does in one turn of its loop; whether there was anything."""
    ready = daemon._selector.select(0)
    for key, _ in ready:
        key.data()
    daemon._look()
    return bool(ready)


def _said(daemon: Daemon, path: str, data: bytes) -> list[Reply]:
    """Everything that the daemon answers to a stream; descriptors it passes are closed."""
    answers: list[Reply] = []
    unpacker = wire.replies()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        peer.connect(path)
        peer.setblocking(False)
        peer.send(data or b"\0")
        peer.shutdown(socket.SHUT_WR)
        for _ in range(_TURNS_MAX):
            busy = _turn(daemon)
            try:
                got, fds, _, _ = socket.recv_fds(peer, 1 << 18, 4)
            except BlockingIOError:
                assert busy, "the daemon neither answers nor hangs up"
                continue
            except ConnectionResetError:  # it hung up on bytes that it had not read
                break
            for fd in fds:
                os.close(fd)
            if not got:
                break
            unpacker.feed(got)
            while (answer := unpacker.next()) is not None:
                answers.append(answer)
        else:
            raise AssertionError("the daemon does not come to an end")
    while daemon._connections:
        assert _turn(daemon), "the daemon keeps a connection that is closed"
    return answers


def _check(node: Node) -> None:
    """The brain keeps its promises, and nobody who left holds anything."""
    node.pump.check()
    status = node.status()
    levels = status["levels"]
    assert levels["leases"] == {"load": 0, "store": 0}
    assert levels["clients"] == 0
    for costs in status["costs"]["namespaces"].values():
        assert all(math.isfinite(number) for number in costs.values())


def streams() -> list[bytes]:
    """What engines say: every verb, alone and in the order of a request's life."""
    attach, join = Attach(PROTOCOL, "engine"), Join(SPACE)
    keys, space = prompt(1, 3), SPACE.digest
    ask = Ask("r", space, keys, 0, 3 * CHUNK + 1)
    offer = Offer("r", space, ROOT, keys, 3 * CHUNK + 1)
    step = Step([Fill(1, 2)], [Release(1, 4096, 10, 20)], [offer], [Timing(space, 100, 5e3, 0.01)])
    rows: list[list[Request]] = [
        [attach],
        [attach, Status()],
        [attach, Explain(5), Flush(), Clear(), Clear(space)],
        [attach, join, ask],
        [attach, join, Step(offers=[offer]), ask, Want(1, 3)],
        [attach, join, step, Status()],
        [attach, join, ask, Want(EPOCH << 32 | 1, 3), step],
        [Status()],
        [Attach(PROTOCOL + 1, "old")],
    ]
    return [b"".join(bytes(wire.pack(message)) for message in row) for row in rows]
