"""How a probe measures servers: a real Redis where there is one, and peers that say anything."""

from __future__ import annotations

import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import util
from pathlib import Path

import pytest

from kvwise.bench.probe import servers
from kvwise.bench.probe.redis import Redis, address
from kvwise.bench.probe.servers import Place, measure_server, require_place
from kvwise.errors import ConfigError
from kvwise.units import MIB

START_S = 10.0
WAIT_S = 30.0
PASSWORD = "a b/c"


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A real server on a socket, which wants a password."""
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed")
    folder = tmp_path_factory.mktemp("redis")
    command = ["redis-server", "--port", "0", "--unixsocket", "s", "--save", "", "--dir", "."]
    command += ["--requirepass", PASSWORD]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL) as server:
        deadline = time.monotonic() + START_S
        while not (folder / "s").exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        yield folder / "s"
        server.terminate()


def test_a_real_redis_is_measured_and_left_as_it_was(
    redis: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Objects are written and read within the bytes allowed, and none is there afterwards."""
    monkeypatch.setattr(servers, "SLICE_S", 0.05)
    place = require_place("redis", f"unix://:a%20b%2Fc@{redis}")

    found = measure_server(place, 64 * MIB, time.monotonic() + WAIT_S, lambda _: None)

    assert found.skipped == []
    assert {(row["way"], row["depth"]) for row in found.rows} == {
        (way, depth) for way in ("read", "write") for depth in (1, servers.DEPTH)
    }
    assert all(row["gbps"] > 0 and row["round_trip_us"] > 0 for row in found.rows)
    assert all(row["path"] == f"unix://{redis}" for row in found.rows)
    connection = Redis(place.url)
    assert connection._ask("DBSIZE") == 0
    connection.put("a", memoryview(b"value"))
    assert connection.get("a") == 5
    assert connection.get("b") == 0
    connection.remove("a")
    connection.close()


def test_a_wrong_password_is_told_in_the_servers_words(redis: Path) -> None:
    """A server that refuses is named, without the password."""
    place = require_place("redis", f"unix://:wrong@{redis}")

    (said,) = measure_server(place, MIB, time.monotonic() + 2.0, lambda _: None).skipped

    assert "WRONGPASS" in said
    assert "wrong@" not in said


@contextmanager
def peer(answer: bytes) -> Iterator[str]:
    """The address of a server that says one thing, to whatever it is asked, and hangs up."""

    def serve(listener: socket.socket) -> None:
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return
            with near:
                near.recv(4096)
                near.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        yield f"redis://127.0.0.1:{port}"
        listener.shutdown(socket.SHUT_RDWR)
    thread.join()


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (b"-ERR unknown\r\n", "the server says: ERR unknown"),
        (b"hello\r\n", "is no answer"),
        (b"$99999\r\nshort", "in the middle of a value"),
        (b"", "is no answer"),
    ],
)
def test_peers_that_talk_nonsense_are_told(answer: bytes, told: str) -> None:
    """Whatever comes instead of an answer is a reason, and no figure."""
    with peer(answer) as url:
        found = measure_server(Place("redis", url), MIB, time.monotonic() + 2.0, lambda _: None)

    assert found.rows == []
    assert told in found.skipped[0]


def test_a_server_that_is_not_there_is_told() -> None:
    """Nobody at an address is a reason with that address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"redis://127.0.0.1:{listener.getsockname()[1]}/0"
    (said,) = measure_server(Place("redis", url), MIB, time.monotonic() + 1.0, print).skipped

    assert said.startswith(f"{url}: ")
    assert "refused" in said


@pytest.mark.parametrize("url", ["", "redis://", "http://a", "redis://a:99999", "unix://"])
def test_addresses_are_refused_at_once(url: str) -> None:
    """What is no address of a Redis is refused with one that is."""
    with pytest.raises(ConfigError, match="hint: write redis://HOST"):
        address(url)


def test_an_object_store_needs_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without obstore the reason says what to install; a name without a scheme is refused."""
    monkeypatch.setattr(util, "find_spec", lambda _: None)
    place = require_place("objects", "s3://key:secret@bucket/x?token=1")

    (said,) = measure_server(place, MIB, 0.0, lambda _: None).skipped

    assert said == "s3://bucket/x: obstore is not installed; hint: pip install obstore"
    with pytest.raises(ConfigError, match="hint: s3://BUCKET"):
        require_place("objects", "bucket")


@pytest.mark.skipif(util.find_spec("obstore") is None, reason="obstore is not installed")
def test_an_object_store_is_measured_and_left_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package's store in a folder takes objects, gives them back, and is empty afterwards."""
    monkeypatch.setattr(servers, "SLICE_S", 0.05)
    place = require_place("objects", f"file://{tmp_path}")

    found = measure_server(place, 64 * MIB, time.monotonic() + WAIT_S, lambda _: None)

    assert found.skipped == []
    assert {row["way"] for row in found.rows} == {"read", "write"}
    assert list(tmp_path.iterdir()) == []
