"""Peers that send anything but the protocol: they lose their own connection and nothing else."""

from __future__ import annotations

import errno
import os
import socket
import struct
import time
from typing import NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwise.config import Config
from kvwise.errors import ProtocolError
from kvwise.live import daemon as daemon_module
from kvwise.live import wire
from kvwise.live.blocks import get
from kvwise.live.daemon import Daemon
from kvwise.live.messages import FRAME_BYTES_MAX, PROTOCOL, Attach, Fill, Request, Status, Step
from tests.live.support import SPACE, client_of, prompt


def raw(config: Config) -> socket.socket:
    """A bare connection."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(10)
    sock.connect(config.socket_path)
    return sock


class OutOfFiles:
    """A listener of a process that has no descriptor left."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener

    def fileno(self) -> int:
        """The real one's."""
        return self._listener.fileno()

    def accept(self) -> NoReturn:
        """Fail."""
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


HOSTILE = {
    "garbage": b"\xff" * 4096,
    "huge-length": struct.pack("<I", FRAME_BYTES_MAX + 1),
    "empty-frame": struct.pack("<I", 0),
    "not-a-message": struct.pack("<I", 4) + b"\xc1\xc1\xc1\xc1",
    "wrong-type": struct.pack("<I", 1) + b"\x2a",
    "no-attach": bytes(wire.pack(Status())),
    "old-protocol": bytes(wire.pack(Attach(PROTOCOL + 1, "x"))),
    "no-name": bytes(wire.pack(Attach(PROTOCOL, ""))),
    "long-name": bytes(wire.pack(Attach(PROTOCOL, "x" * 10_000))),
    "attached-twice": bytes(wire.pack(Attach(PROTOCOL, "x"))) * 2,
    "deep": struct.pack("<I", 5000) + b"\x91" * 5000,
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_bytes_close_only_their_connection(
    config: Config, running: Daemon, data: bytes
) -> None:
    """Whoever sends anything but the protocol is cut off; others are served as before."""
    client = client_of(config)
    with raw(config) as sock:
        sock.sendall(data)
        while sock.recv(65536):
            pass

    assert get(client, SPACE, prompt(1, 1)) == []
    client.close()


@given(data=st.binary(max_size=200))
def test_any_bytes_decode_or_are_refused(data: bytes) -> None:
    """A frame of any content is a message or a `ProtocolError`, never another error."""
    unpacker = wire.requests()
    unpacker.feed(struct.pack("<I", len(data)) + data)

    try:
        message = unpacker.next()
    except ProtocolError:
        return
    assert message is not None


@pytest.mark.parametrize("size", [1, 3, 7, 1 << 20])
def test_frames_are_cut_wherever_bytes_arrive(size: int) -> None:
    """All at once or byte by byte, with half a frame behind: the same messages."""
    messages: list[Request] = [Attach(PROTOCOL, "x"), Status(), Step(fills=[Fill(1, 2)])]
    stream = b"".join(bytes(wire.pack(message)) for message in messages) + b"\x10\x00"
    unpacker, found = wire.requests(), []
    for start in range(0, len(stream), size):
        unpacker.feed(stream[start : start + size])
        while (message := unpacker.next()) is not None:
            found.append(message)

    assert found == messages


def test_a_peer_that_does_not_read_is_not_waited_for(config: Config, running: Daemon) -> None:
    """A peer that asks and asks without reading fills its own buffers; others are served."""
    client = client_of(config)
    with raw(config) as sock:
        sock.sendall(wire.pack(Attach(PROTOCOL, "deaf")))
        sock.settimeout(0.5)
        with pytest.raises(TimeoutError):
            sock.sendall(bytes(wire.pack(Status())) * 200_000)

        client.status()  # or it raises, after its timeout

        sock.settimeout(10)
        assert sock.recv(1 << 16)
    client.close()


def test_a_peer_that_never_attaches_is_dropped(
    config: Config, running: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A silent connection is closed after a while."""
    monkeypatch.setattr("kvwise.live.daemon.ATTACH_S", 0.1)
    with raw(config) as sock:
        assert sock.recv(1) == b""


def test_there_is_a_bound_on_connections(
    config: Config, running: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond the bound a connection is closed at once; those before it stay."""
    monkeypatch.setattr("kvwise.live.daemon.CONNECTIONS_MAX", 2)
    first, second = client_of(config, "a"), client_of(config, "b")
    with raw(config) as third:
        assert third.recv(1) == b""

    assert first.status()["levels"]["clients"] == 2
    first.close()
    second.close()


def test_connections_leave_descriptors_to_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process with few descriptors takes few connections, one with many takes the usual."""
    for files, most in ((64, 8), (1024, 448), (1 << 20, 1024)):
        monkeypatch.setattr("resource.getrlimit", lambda _, files=files: (files, files))
        assert daemon_module._connections_max() == most


def test_a_connection_that_cannot_be_accepted_is_not_tried_at_once(
    config: Config,
    running: Daemon,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Out of descriptors the daemon pauses, serves those it has, and accepts again later."""
    client = client_of(config)
    with monkeypatch.context() as patch:
        patch.setattr(running, "_listener", OutOfFiles(running._listener))
        with raw(config):
            time.sleep(0.3)
            assert get(client, SPACE, prompt(1, 1)) == []
    refusals = [line for line in caplog.messages if "could not accept" in line]

    client_of(config, "later").close()

    assert len(refusals) == 1
    client.close()
