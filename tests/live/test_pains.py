"""What hurt users of other caches, shown not to happen in a whole store: real files, real sockets.

Each test is named after its row in the table of the testing page.
"""

from __future__ import annotations

import errno
import http.client
import os
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from kvwise.codecs.base import BLOCK_BYTES
from kvwise.codecs.frame import MAGIC
from kvwise.config import Config
from kvwise.live import clock, wire
from kvwise.live.blocks import get, put
from kvwise.live.client import Client
from kvwise.live.daemon import Daemon
from kvwise.live.messages import PROTOCOL, Attach, Request
from kvwise.live.node import LEASE_SLOTS, Node
from kvwise.live.session import Session
from kvwise.live.stats import MetricsServer
from kvwise.live.store import Store
from kvwise.tiers.dram import SLOT_BYTES
from kvwise.units import MIB, NS_PER_S
from tests.live.support import (
    PAGE,
    SPACE,
    client_of,
    eventually,
    payloads,
    prompt,
    question,
    settings,
)

DAY_NS = 24 * 3600 * NS_PER_S


def cut_short(path: Path) -> None:
    """Half of a file is lost."""
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)


def flip_bits(path: Path, *, headers: bool) -> None:
    """One bit is turned in each block that is a header, or in each that is none."""
    data = bytearray(path.read_bytes())
    for at in range(0, len(data), BLOCK_BYTES):
        if data.startswith(MAGIC, at) is headers:
            data[at + 100] ^= 1
    path.write_bytes(data)


SPOIL: dict[str, Callable[[Path], None]] = {
    "deleted": Path.unlink,
    "cut short": cut_short,
    "headers damaged": partial(flip_bits, headers=True),
    "payloads damaged": partial(flip_bits, headers=False),
}


@pytest.mark.pain("C7", "H6", "D8")
@pytest.mark.parametrize("how", SPOIL)
def test_c7_h6_d8_what_is_spoilt_on_disk_fails_once_and_is_a_miss(
    config: Config, tmp_path: Path, how: str
) -> None:
    """Files that somebody deleted, cut or damaged: one failed load, a miss, and fresh bytes again.

    Never a wrong byte, never the same promise twice.
    """
    keys = prompt(1, 6)
    first = Store.open(config)
    first.join(SPACE)
    put(first, SPACE, keys, payloads(keys))
    assert first.flush(10)
    first.close()
    store = Store.open(config)
    store.join(SPACE)
    assert store.status()["levels"]["tiers"]["disk"]["objects"] == 6
    for segment in (tmp_path / "disk").glob("segment-*"):
        SPOIL[how](segment)

    found = get(store, SPACE, keys)
    is_right = found == payloads(keys)[: len(found)]
    asked_again = store.ask(question(keys, "again")).chunks

    assert is_right
    assert len(found) < 6
    assert asked_again < 6
    assert sum(store.status()["counters"]["failures"].values()) >= 1
    put(store, SPACE, keys, payloads(keys))
    assert get(store, SPACE, keys) == payloads(keys)
    store.check()
    store.close()


@pytest.mark.pain("D7")
def test_d7_what_a_drive_did_not_give_for_a_while_is_there_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prefix cannot be read, its suffix is dropped with it: the next life has both."""

    def failing(_fd: int, _pieces: object, _offset: int) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    config, keys = settings(tmp_path, disk=True), prompt(1, 6)
    store = Store.open(config)
    store.join(SPACE)
    assert put(store, SPACE, keys, payloads(keys)) == 6
    assert store.flush(30.0)
    store.close()

    store = Store.open(config)
    store.join(SPACE)
    with monkeypatch.context() as patch:
        patch.setattr(os, "preadv", failing)
        assert get(store, SPACE, keys[:16]) == []
        assert not get(store, SPACE, keys)
        store.close()

    store = Store.open(config)
    store.join(SPACE)
    found = get(store, SPACE, keys)
    assert len(found) == 6
    assert found == payloads(keys)
    store.close()


@pytest.mark.pain("K5")
def test_k5_what_is_there_is_found_while_others_write(tmp_path: Path) -> None:
    """Four writers of other keys, four readers of one prompt: it is never reported missing."""
    config = settings(tmp_path, dram_size="64MiB")
    store = Store.open(config)
    store.join(SPACE)
    keys = prompt(999, 8)
    put(store, SPACE, keys, payloads(keys))
    missed: list[str] = []

    def write(number: int) -> None:
        for turn in range(60):
            other = prompt(number * 100 + turn, 4)
            put(store, SPACE, other, payloads(other))

    def read(number: int) -> None:
        for turn in range(60):
            chunks = store.ask(question(keys, f"reader {number}")).chunks
            if chunks != 8:
                missed.append(f"{chunks} chunks in turn {turn} of reader {number}")

    jobs = [(role, number) for number in range(4) for role in (write, read)]
    threads = [threading.Thread(target=role, args=(number,)) for role, number in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert missed == []
    assert store.status()["levels"]["tiers"]["dram"]["objects"] == 8 + 4 * 60 * 4
    assert get(store, SPACE, keys) == payloads(keys)
    store.close()


@pytest.mark.pain("M4")
def test_m4_memory_is_what_was_set(tmp_path: Path) -> None:
    """With every page written the arena takes what was set, and a table of 1 MiB for leases."""
    size_bytes = 32 * MIB
    store = Store.open(settings(tmp_path, dram_size=size_bytes))
    store.join(SPACE)
    for seed in range(40):
        keys = prompt(seed, 100)
        put(store, SPACE, keys, payloads(keys))
    arena, pages = store.status()["arena"], store.status()["levels"]["pages_free"]

    assert pages < 100 * 3
    assert arena["pages"] * PAGE == size_bytes
    assert arena["resident_bytes"] > size_bytes * 0.9
    assert arena["resident_bytes"] <= size_bytes + LEASE_SLOTS * SLOT_BYTES
    store.close()


@pytest.mark.pain("H1", "H2")
def test_h1_h2_a_silent_engine_stays_attached(
    config: Config, running: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A day passes on the daemon's clock without a word; leases and connection are as they were."""
    client = client_of(config)
    keys = prompt(1, 2)
    put(client, SPACE, keys, payloads(keys))
    real = clock.now_ns
    for module in ("daemon", "pump", "session"):
        monkeypatch.setattr(f"kvwise.live.{module}.now_ns", lambda: real() + DAY_NS)
    time.sleep(0.8)  # the daemon looks around every half second

    assert get(client, SPACE, keys) == payloads(keys)
    assert client.status()["levels"]["clients"] == 1
    client.close()


def answer_to(sock: socket.socket, question: Request) -> bytes:
    """The first byte that comes back; nothing from whoever hangs up."""
    try:
        sock.sendall(wire.pack(question))
        return sock.recv(1)
    except (BrokenPipeError, ConnectionResetError):
        return b""


@pytest.mark.pain("S1", "S2", "S3")
def test_s1_s2_s3_a_peer_of_another_user_is_turned_away(
    config: Config, running: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel says who is at the other end; whoever is not the daemon's user hears nothing."""
    client = client_of(config)
    with monkeypatch.context() as patch:
        patch.setattr("os.getuid", lambda: 12345)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
            stranger.settimeout(10)
            stranger.connect(config.socket_path)
            assert answer_to(stranger, Attach(PROTOCOL, "stranger")) == b""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as friend:
        friend.settimeout(10)
        friend.connect(config.socket_path)
        assert answer_to(friend, Attach(PROTOCOL, "friend")) != b""

    assert eventually(lambda: client.status()["levels"]["clients"] == 1)
    client.close()


@pytest.fixture
def scraped(tmp_path: Path) -> tuple[Node, MetricsServer]:
    """A store whose metrics are served on loopback."""
    node = Node(settings(tmp_path))
    return node, MetricsServer("127.0.0.1:0", node.latencies, node.status)


@pytest.mark.pain("S1", "S2")
def test_s1_s2_nothing_can_be_changed_over_http(scraped: tuple[Node, MetricsServer]) -> None:
    """The only port answers scrapes: no method and no path clears, stops or runs anything."""
    node, server = scraped
    store = Store(node, Session(node, "engine"))
    store.join(SPACE)
    keys = prompt(1, 3)
    put(store, SPACE, keys, payloads(keys))
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        for path in ("/", "/clear", "/flush", "/run", "/-/quit"):
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
            connection.request(method, path, body=b"import os")
            connection.getresponse().read()
            connection.close()

    assert get(store, SPACE, keys) == payloads(keys)
    assert store.status()["levels"]["blocks"] == 3
    server.close()
    store.close()


@pytest.mark.pain("O5")
def test_o5_what_is_held_and_what_is_free_are_gauges_of_their_own(
    scraped: tuple[Node, MetricsServer],
) -> None:
    """A full cache that moves nothing shows what it holds; a load under way is another gauge."""
    node, server = scraped
    store = Store(node, Session(node, "engine"))
    store.join(SPACE)
    keys = prompt(1, 10)
    put(store, SPACE, keys, payloads(keys))

    def gauges() -> tuple[int, int, int]:
        levels = node.status()["levels"]
        used = levels["tiers"]["dram"]["used_bytes"]
        return used, levels["pages_free"], levels["leases"]["load"]

    still = gauges()
    plan = store.ask(question(keys))
    store.want(plan.lease, plan.chunks)

    assert still == (10 * 3 * PAGE, MIB // PAGE - 30, 0)
    assert gauges() == (*still[:2], 1)
    server.close()
    store.close()


@pytest.mark.pain("K2", "K4")
def test_k4_k2_the_second_round_hits_all_that_the_first_stored(config: Config) -> None:
    """What was admitted is found the next time, whole, from the disk too, and not stored again."""
    store = Store.open(config)
    store.join(SPACE)
    prompts = [prompt(seed, 12) for seed in range(8)]
    for keys in prompts:
        assert put(store, SPACE, keys, payloads(keys)) == 12
        assert store.flush(10)
    written = store.status()["counters"]["written_bytes"]

    assert [len(get(store, SPACE, keys)) for keys in prompts] == [12] * 8
    stored_again = [put(store, SPACE, keys, payloads(keys)) for keys in prompts]

    assert store.status()["counters"]["dropped"].get("dram|evicted", 0) > 0
    assert stored_again == [0] * 8
    assert store.status()["counters"]["written_bytes"]["disk"] == written["disk"]
    store.close()


@pytest.mark.pain("C9")
def test_c9_a_handle_that_is_over_is_harmless(config: Config, running: Daemon) -> None:
    """Wanted, released and filled long after they ended: nothing moves, nothing is lost."""
    client: Client = client_of(config)
    keys = prompt(1, 3)
    put(client, SPACE, keys, payloads(keys))
    plan = client.ask(question(keys))
    client.want(plan.lease, plan.chunks)
    get(client, SPACE, keys)
    client.ask(question(keys, "r"))
    for _ in range(3):
        assert client.want(plan.lease, 3).chunks == []
        assert client.progress(plan.lease)[1]

    assert get(client, SPACE, keys) == payloads(keys)
    client.close()
    watcher = client_of(config, "watcher")
    assert eventually(lambda: watcher.status()["levels"]["leases"] == {"load": 0, "store": 0})
    watcher.close()
