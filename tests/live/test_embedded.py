"""Embedded daemons: started once whoever asks, shared, brought back, gone with the last client."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kvwise import config as configuration
from kvwise.config import Config
from kvwise.errors import CacheUnavailable
from kvwise.live import embedded
from kvwise.live.blocks import get, put
from tests.live.support import SPACE, eventually, payloads, prompt, thread_daemon
from tests.live.support import settings as small
from tests.processes import is_gone

ASKER = """
import sys, time
from kvwise import config
from kvwise.live import embedded
client = embedded.connect(config.load(sys.argv[1]), sys.argv[2])
print(client.status()["pid"], flush=True)
sys.stdin.readline()
client.close()
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """A configuration whose embedded daemon lives in a runtime directory of its own."""
    runtime = tmp_path / "r"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    return small(tmp_path, disk=True, serve_linger_s=0.2, serve_metrics="127.0.0.1:9761")


def test_it_starts_serves_and_leaves(config: Config) -> None:
    """The first client starts it; after the last one left it writes to disk and exits."""
    keys = prompt(1, 5)
    client = embedded.connect(config, "engine")
    client.join(SPACE)
    put(client, SPACE, keys, payloads(keys))
    pid = client.status()["pid"]
    assert embedded.socket_path(config).is_socket()
    client.close()
    assert eventually(lambda: is_gone(pid))
    assert not embedded.socket_path(config).exists()

    again = embedded.connect(config, "engine")
    again.join(SPACE)
    assert get(again, SPACE, keys) == payloads(keys)
    pid = again.status()["pid"]
    again.close()
    assert eventually(lambda: is_gone(pid))


def test_of_many_that_ask_at_once_one_starts_it(config: Config, tmp_path: Path) -> None:
    """Several processes with equal configurations end up at the same daemon."""
    file = tmp_path / "kvwise.toml"
    file.write_text(configuration.render(config))
    askers = [
        subprocess.Popen(
            [sys.executable, "-c", ASKER, str(file), f"engine-{n}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for n in range(4)
    ]
    pids = set()
    for asker in askers:
        assert asker.stdout is not None
        pids.add(int(asker.stdout.readline()))
    for asker in askers:
        asker.communicate("go\n", timeout=30)

    assert len(pids) == 1
    pid = pids.pop()
    assert eventually(lambda: is_gone(pid))


def test_a_killed_one_is_brought_back(config: Config) -> None:
    """The client that finds nobody starts a new daemon beside its own work."""
    client = embedded.connect(config, "engine")
    client.join(SPACE)
    pid = client.status()["pid"]
    os.kill(pid, signal.SIGKILL)

    def is_back() -> bool:
        try:
            return bool(client.status()["pid"] != pid)
        except CacheUnavailable:
            return False

    assert eventually(is_back, 30)
    pid = client.status()["pid"]
    client.close()
    assert eventually(lambda: is_gone(pid))


def test_one_that_cannot_start_says_why(config: Config, tmp_path: Path) -> None:
    """The error of the daemon reaches the engine."""
    (tmp_path / "disk").write_text("a file where the directory should be")

    with pytest.raises(CacheUnavailable, match="disk"):
        embedded.connect(config, "engine")


def test_a_url_is_used_and_nothing_is_started(config: Config, tmp_path: Path) -> None:
    """With client.url the daemon there is used, whatever the rest says."""
    served = small(tmp_path, serve_socket=str(tmp_path / "served.sock"))
    told = small(tmp_path, client_url=served.socket_path)
    with thread_daemon(served):
        client = embedded.connect(told, "engine")
        assert client.status()["pid"] == os.getpid()
        client.close()

    assert not embedded.socket_path(told).exists()
    with pytest.raises(CacheUnavailable):
        embedded.connect(told, "engine")


def test_the_clients_side_does_not_make_another_daemon(config: Config, tmp_path: Path) -> None:
    """Daemons are told apart by what they are, not by how clients use them."""
    slower = small(
        tmp_path, disk=True, serve_linger_s=0.2, serve_metrics="127.0.0.1:9761", client_load="sync"
    )
    larger = small(tmp_path, disk=True, dram_size="2MiB")

    assert embedded.socket_path(slower) == embedded.socket_path(config)
    assert embedded.socket_path(larger) != embedded.socket_path(config)


def test_it_is_not_bound_to_the_core_that_its_engine_computes_on(config: Config) -> None:
    """It runs wherever the process that started the engine may; the engine stays where it was."""
    cores = os.sched_getaffinity(0)
    if len(cores) < 2:
        pytest.skip("there is only one core")
    bound = {min(cores)}
    script = f"import os; os.sched_setaffinity(0, {bound})\n{ASKER}"
    script = script.replace('["pid"]', '["pid"], os.sched_getaffinity(0)')
    file = Path(os.environ["XDG_RUNTIME_DIR"]) / "kvwise.toml"
    file.write_text(configuration.render(config))
    engine = subprocess.Popen(
        [sys.executable, "-c", script, str(file), "engine"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert engine.stdout is not None
    pid, engine_cores = engine.stdout.readline().split(maxsplit=1)
    threads = [int(entry.name) for entry in Path(f"/proc/{pid}/task").iterdir()]
    daemon_cores = {os.sched_getaffinity(thread) == cores for thread in threads}
    engine.communicate("\n", timeout=30)

    assert engine_cores.strip() == str(bound)
    assert daemon_cores == {True}
    assert eventually(lambda: is_gone(int(pid)))
