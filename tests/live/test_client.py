"""The client alone: how it treats peers that speak wrongly, and what it keeps and gives up."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kvwise.core.words import Choice, Decision, Why
from kvwise.errors import CacheUnavailable
from kvwise.live import client as client_module
from kvwise.live import wire
from kvwise.live.client import Client
from kvwise.live.clock import deadline_after
from kvwise.live.link import Link
from kvwise.live.messages import Attached, Grant, Grants, Ok, Plan, Problem, Reply, Step
from kvwise.tiers.dram import Arena, ArenaShape
from tests.live.support import PAGE, SPACE, eventually, prompt, question, settings, thread_daemon

Peer = Callable[[socket.socket], None]


@contextmanager
def listening(path: Path, peer: Peer) -> Iterator[str]:
    """A socket whose every connection is handed to `peer`."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen()

    def serve() -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            with sock:
                peer(sock)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield str(path)
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(10)


def says(*replies: Reply, fd: int = -1) -> Peer:
    """A peer that answers the first questions so and then hangs up."""

    def peer(sock: socket.socket) -> None:
        for reply in replies:
            if not sock.recv(65536):
                return
            if fd >= 0 and isinstance(reply, Attached):
                socket.send_fds(sock, [wire.pack(reply)], [fd])
            else:
                sock.sendall(wire.pack(reply))

    return peer


def attached(**more: int) -> Attached:
    """A plausible answer to an attachment."""
    shape = ArenaShape.of(16, PAGE, lease_slots=256)
    facts = {
        "arena_bytes": shape.size_bytes,
        "page_bytes": PAGE,
        "data_offset": shape.data_offset,
        "epoch": 5,
        **more,
    }
    return Attached(**facts, version="0", pid=1)


@pytest.fixture
def arena() -> Iterator[Arena]:
    """A small arena to hand out."""
    arena = Arena.create(ArenaShape.of(16, PAGE, lease_slots=256), huge_pages=False)
    yield arena
    arena.close()


@pytest.mark.parametrize(
    "reply",
    [
        Problem("ConfigError", "no room"),
        Ok(),
        attached(),
    ],
    ids=["refused", "another-reply", "no-descriptor"],
)
def test_who_does_not_let_us_attach_is_unavailable(tmp_path: Path, reply: Reply) -> None:
    """Whatever goes wrong while attaching is one error, and no socket is left behind."""
    with (
        listening(tmp_path / "s", says(reply)) as path,
        pytest.raises(CacheUnavailable),
    ):
        Client(path, "e", timeout_s=0.5)


@pytest.mark.parametrize(
    "lie", [{"arena_bytes": 1 << 40}, {"page_bytes": 1000}, {"data_offset": 3}, {"arena_bytes": 1}]
)
def test_an_arena_of_another_shape_is_not_mapped(
    tmp_path: Path, arena: Arena, lie: dict[str, int]
) -> None:
    """A shape that the descriptor does not hold is refused before anything is read from it."""
    peer = says(attached(**lie), fd=arena.fd)
    with listening(tmp_path / "s", peer) as path, pytest.raises(CacheUnavailable, match="map"):
        Client(path, "e", timeout_s=0.5)


def test_garbage_instead_of_an_answer_is_unavailable(tmp_path: Path) -> None:
    """A peer that is no daemon is told from one that is slow."""

    def peer(sock: socket.socket) -> None:
        sock.recv(65536)
        sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with listening(tmp_path / "s", peer) as path, pytest.raises(CacheUnavailable, match="gone"):
        Client(path, "e", timeout_s=0.5)


def test_a_wrong_reply_is_unavailable(tmp_path: Path, arena: Arena) -> None:
    """A reply of another kind than asked for is no answer."""
    with listening(tmp_path / "s", says(attached(), Ok(), fd=arena.fd)) as path:
        client = Client(path, "e", timeout_s=0.5)
        with pytest.raises(CacheUnavailable, match="Ok"):
            client.status()
        client.close()


def test_a_hung_up_daemon_is_noticed(tmp_path: Path, arena: Arena) -> None:
    """When the daemon closes, the next verb says so at once."""
    with listening(tmp_path / "s", says(attached(), fd=arena.fd)) as path:
        client = Client(path, "e", timeout_s=5.0)
        with pytest.raises(CacheUnavailable, match="gone"):
            client.status()
        client.close()


def test_another_thread_waits_no_longer_than_its_own_timeout(tmp_path: Path, arena: Arena) -> None:
    """While one thread waits for a silent daemon a second one gives up in its own time."""
    silent = threading.Event()

    def peer(sock: socket.socket) -> None:
        says(attached(), fd=arena.fd)(sock)
        silent.wait(10)

    with listening(tmp_path / "s", peer) as path:
        client = Client(path, "e", timeout_s=0.3)
        errors: list[str] = []

        def ask() -> None:
            try:
                client.status()
            except CacheUnavailable as error:
                errors.append(str(error))

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(2.0)
        assert len(errors) == 4
        client.close()
        silent.set()


@contextmanager
def crowded(path: Path) -> Iterator[socket.socket]:
    """A listener that takes nobody in, with a connection that fills its queue."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(0)
        with socket.socket(socket.AF_UNIX) as first, socket.socket(socket.AF_UNIX) as second:
            first.connect(str(path))
            second.setblocking(False)
            with pytest.raises(BlockingIOError):
                second.connect(str(path))
            yield listener


def test_a_place_in_a_full_queue_is_waited_for(tmp_path: Path) -> None:
    """Many engines that attach at once are no sign that nobody listens."""
    path = tmp_path / "s"
    with crowded(path) as listener:
        made: list[Link] = []
        thread = threading.Thread(target=lambda: made.append(Link(str(path), deadline_after(30))))
        thread.start()
        thread.join(0.1)
        had_to_wait = thread.is_alive()
        listener.accept()[0].close()
        thread.join(30)
        made[0].close()

    assert had_to_wait


def test_a_daemon_behind_a_full_queue_is_not_started_again(tmp_path: Path) -> None:
    """The wait ends with the deadline; whoever listens there lives, so nobody is called for."""
    called: list[bool] = []
    path = tmp_path / "s"
    with thread_daemon(settings(tmp_path)):
        client = Client(
            settings(tmp_path).socket_path, "e", timeout_s=0.1, revive=lambda: called.append(True)
        )
    client._path = str(path)
    with crowded(path):
        assert eventually(lambda: "its queue of new connections is full" in complaint(client))
    client.close()

    assert called == []


def complaint(client: Client) -> str:
    """What a client says that cannot ask."""
    with pytest.raises(CacheUnavailable) as caught:
        client.status()
    return str(caught.value)


@pytest.mark.parametrize("user", ["asks", "polls"])
def test_the_arena_of_a_dead_daemon_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: str
) -> None:
    """It stays mapped for copies that are under way, then its memory goes back.

    Whoever only polls for progress, as an engine's workers do, gives it up as well.
    """
    monkeypatch.setattr(client_module, "RETIRE_S", 1.0)
    monkeypatch.setattr(client_module, "RETRY_S", 0.05)
    config = settings(tmp_path)
    with thread_daemon(config):
        client = Client(config.socket_path, "e", timeout_s=2.0)
        client.join(SPACE)
        old = client.pages
    with thread_daemon(config):

        def asks() -> bool:
            try:
                client.ask(question(prompt(1, 1)))
            except CacheUnavailable:
                return False
            return True

        def polls() -> bool:
            client.progress(1)
            return client.pages is not old

        uses = asks if user == "asks" else polls
        assert eventually(uses)
        old[0] = 1
        assert len(client._retired) == 1
        assert eventually(lambda: uses() and not client._retired)
        with pytest.raises(ValueError, match="released"):
            old[0] = 1
        client.close()


LEASE = 5 << 32 | 1


@pytest.mark.parametrize(
    "grant",
    [
        Grant(LEASE, [0], (16).to_bytes(4, "little")),
        Grant(LEASE, [0], b"\xff" * 4),
        Grant(LEASE, [0], b"odd"),
        Grant(LEASE, [0, 1], bytes(12)),
        Grant(LEASE, [0], b""),
        Grant(LEASE, [], bytes(4)),
    ],
    ids=["beyond", "far-beyond", "odd", "uneven", "no-pages", "no-chunks"],
)
def test_pages_that_the_arena_does_not_have_are_refused(
    tmp_path: Path, arena: Arena, grant: Grant
) -> None:
    """Whoever copies goes by page numbers alone, so none is let through that leads elsewhere."""
    peer = says(attached(), grant, Grants([grant]), fd=arena.fd)
    with listening(tmp_path / "s", peer) as path:
        client = Client(path, "e", timeout_s=5)
        for question_about_pages in (lambda: client.want(LEASE, 1), lambda: client.step(Step())):
            with pytest.raises(CacheUnavailable, match="what there is not"):
                question_about_pages()
        client.close()


@pytest.mark.parametrize("wait_s", [float("inf"), float("nan"), -1.0, 1e300])
def test_a_plan_without_a_possible_deadline_is_refused(
    tmp_path: Path, arena: Arena, wait_s: float
) -> None:
    """An engine turns the time into a deadline; what cannot be one ends the connection instead."""
    decision = Decision(1, "r", "t", 17, 0, 0, 0, {}, 0.1, 0.1, 0.1, Choice.LOAD, Why.FORCED)
    plan = Plan(LEASE, 0, 1, 16, ready=True, wait_s=wait_s, decision=decision)
    with listening(tmp_path / "s", says(attached(), plan, fd=arena.fd)) as path:
        client = Client(path, "e", timeout_s=5)
        with pytest.raises(CacheUnavailable, match="not a message"):
            client.ask(question(prompt(1, 1)))
        client.close()
