"""The daemon and its clients when processes die, freeze, come back, lie or are hostile."""

from __future__ import annotations

import os
import pty
import shutil
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvwise.config import Config, render
from kvwise.core.keys import ROOT
from kvwise.errors import CacheUnavailable
from kvwise.live.blocks import get, put
from kvwise.live.client import PEEK_NS, RETRY_S
from kvwise.live.daemon import Daemon
from kvwise.live.leases import split_lease
from kvwise.live.messages import (
    Fill,
    Offer,
    Step,
)
from tests.live.support import (
    PAGE,
    SPACE,
    asks,
    client_of,
    eventually,
    payloads,
    prompt,
    question,
    served,
    settings,
    spawn,
    thread_daemon,
)
from tests.processes import in_shared_memory

HOLDER = """
import sys, time
from kvwise.core.keys import ROOT
from kvwise.live.client import Client
from kvwise.live.messages import Offer, Step
from tests.live.support import SPACE, prompt, question
from kvwise.live.blocks import put
import os
client = Client(sys.argv[1], "doomed", timeout_s=5.0)
client.join(SPACE)
(grant,) = client.step(Step(offers=[Offer("r", SPACE.digest, ROOT, prompt(5, 10))]))
plan = client.ask(question(prompt(1, 4)))
client.want(plan.lease, plan.chunks)
if len(sys.argv) > 2 and not os.fork():
    time.sleep(60)
print("holding", plan.chunks, flush=True)
time.sleep(60)
"""


# --- clients that die -----------------------------------------------------------------------------


@pytest.mark.pain("M1")
@pytest.mark.parametrize("forked", [False, True], ids=["alone", "with-a-forked-child"])
def test_a_killed_client_releases_everything(
    config: Config, running: Daemon, tmp_path: Path, forked: bool
) -> None:
    """After SIGKILL its leases end and its pages are free, though a child holds its socket."""
    watcher = client_of(config, "watcher")
    keys = prompt(1, 4)
    put(watcher, SPACE, keys, payloads(keys))
    script = tmp_path / "holder.py"
    script.write_text(HOLDER)
    holder = subprocess.Popen(
        [sys.executable, str(script), config.socket_path, *(["fork"] if forked else [])],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"PYTHONPATH": str(Path.cwd())},
    )
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == "holding 4\n"
        assert watcher.status()["levels"]["leases"] == {"load": 1, "store": 1}

        holder.kill()

        def is_released() -> bool:
            levels = watcher.status()["levels"]
            return bool(levels["leases"] == {"load": 0, "store": 0} and levels["clients"] == 1)

        assert eventually(is_released)
        assert watcher.status()["levels"]["pages_free"] == (1 << 20) // PAGE - 4 * 3
    finally:
        os.killpg(holder.pid, signal.SIGKILL)
        holder.wait()
        holder.stdout.close()
        watcher.close()


@pytest.mark.pain("H2")
def test_a_client_lives_as_long_as_one_connection(config: Config, running: Daemon) -> None:
    """Scheduler and worker are one client: leases outlive the connection that asked for them."""
    scheduler, worker = client_of(config), client_of(config)
    (grant,) = scheduler.step(Step(offers=[Offer("r", SPACE.digest, ROOT, prompt(1, 2))]))

    scheduler.close()
    time.sleep(0.1)
    assert worker.progress(grant.lease) == (0, False)

    worker.close()
    watcher = client_of(config, "watcher")
    assert eventually(lambda: watcher.status()["levels"]["leases"]["store"] == 0)
    watcher.close()


def test_a_forked_child_talks_for_itself(config: Config, running: Daemon) -> None:
    """A child uses a connection of its own; the parent's conversation is undisturbed."""
    client = client_of(config)
    keys = prompt(1, 2)
    put(client, SPACE, keys, payloads(keys))
    script = (
        "import os, sys\n"
        "from kvwise.live.client import Client\n"
        "from kvwise.live.blocks import get\n"
        "from tests.live.support import SPACE, payloads, prompt\n"
        "client = Client(sys.argv[1], 'parent', timeout_s=5.0)\n"
        "client.join(SPACE)\n"
        "keys = prompt(1, 2)\n"
        "good = lambda n: get(client, SPACE, keys[:n]) == payloads(keys[:n])\n"
        "assert good(32)\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    os._exit(0 if all(good(16) for _ in range(50)) else 1)\n"
        "assert all(good(32) for _ in range(50))\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
    )
    subprocess.run(
        [sys.executable, "-c", script, config.socket_path],
        check=True,
        timeout=60,
        env=os.environ | {"PYTHONPATH": str(Path.cwd())},
    )
    client.close()


# --- daemons that freeze, die and come back -------------------------------------------------------


def test_a_frozen_daemon_costs_one_timeout(config: Config, tmp_path: Path) -> None:
    """A stopped daemon makes the first verb wait its timeout and the others not at all."""
    with served(config, tmp_path) as daemon:
        client = daemon.client(timeout_s=0.25)
        client.join(SPACE)
        daemon.send(signal.SIGSTOP)
        times = []
        for _ in range(200):
            begin = time.monotonic()
            with pytest.raises(CacheUnavailable):
                client.ask(question(prompt(1, 3)))
            times.append(time.monotonic() - begin)
        waits = [seconds for seconds in times if seconds > 0.2]
        assert times[0] < 5.0
        assert len(waits) <= 1 + sum(times) // RETRY_S
        assert statistics.median(times) < 0.0025

        daemon.send(signal.SIGCONT)

        assert eventually(lambda: asks(client))
        client.close()


def test_what_a_frozen_daemon_granted_late_is_given_back(config: Config, tmp_path: Path) -> None:
    """Grants that came after the deadline go back, and fills that were not heard are told again."""
    with served(config, tmp_path) as daemon:
        client = daemon.client(timeout_s=0.25)
        client.join(SPACE)
        (first,) = client.step(Step(offers=[Offer("r", SPACE.digest, ROOT, prompt(1, 5))]))
        daemon.send(signal.SIGSTOP)
        late = Step(
            fills=[Fill(first.lease, 5)], offers=[Offer("s", SPACE.digest, ROOT, prompt(2, 7))]
        )
        with pytest.raises(CacheUnavailable):
            client.step(late)
        with pytest.raises(CacheUnavailable):
            client.step(Step())
        daemon.send(signal.SIGCONT)

        def is_settled() -> bool:
            if not asks(client):
                return False
            client.step(Step())
            levels = client.status()["levels"]
            return bool(levels["leases"]["store"] == 0 and levels["blocks"] == 5)

        assert eventually(is_settled)
        client.close()


@pytest.mark.pain("D4", "D6")
def test_a_killed_daemon_loses_only_memory(config: Config, tmp_path: Path) -> None:
    """After SIGKILL and restart every object that was on disk hits, and the client goes on."""
    keys = prompt(1, 20)
    with served(config, tmp_path) as daemon:
        client = daemon.client(timeout_s=2.0)
        client.join(SPACE)
        put(client, SPACE, keys, payloads(keys))
        assert client.flush(10)
        old_address = client.address
        daemon.end(signal.SIGKILL)
        with pytest.raises(CacheUnavailable):
            client.ask(question(keys))
    with served(config, tmp_path) as daemon:
        assert daemon.facts["objects"] == 20
        assert eventually(lambda: asks(client), RETRY_S * 3)

        assert get(client, SPACE, keys) == payloads(keys)

        assert client.status()["counters"]["hit_tokens"] == {"disk": 20 * 16}
        assert client.address != old_address
        client.close()


def test_a_dead_daemon_costs_nothing_between_tries(config: Config, tmp_path: Path) -> None:
    """With nobody at the socket verbs fail at once, and progress of a load fails too."""
    with served(config, tmp_path) as daemon:
        client = daemon.client(timeout_s=2.0)
        client.join(SPACE)
        (grant,) = client.step(Step(offers=[Offer("r", SPACE.digest, ROOT, prompt(1, 2))]))
        daemon.end(signal.SIGKILL)
        time.sleep(2 * PEEK_NS / 1e9)
        assert client.progress(grant.lease)[1]
        times = []
        for _ in range(100):
            begin = time.monotonic()
            with pytest.raises(CacheUnavailable):
                client.ask(question(prompt(1, 3)))
            times.append(time.monotonic() - begin)
        assert statistics.median(times) < 0.005
        client.close()


def test_a_lease_never_survives_its_daemon(config: Config, tmp_path: Path) -> None:
    """A worker that slept through a restart follows the new daemon and refuses the old leases."""
    with served(config, tmp_path) as daemon:
        scheduler, worker = daemon.client(timeout_s=2.0), daemon.client(timeout_s=2.0)
        scheduler.join(SPACE)
        (old,) = scheduler.step(Step(offers=[Offer("r", SPACE.digest, ROOT, prompt(1, 2))]))
        daemon.end(signal.SIGKILL)
    with served(config, tmp_path):
        assert eventually(lambda: asks(scheduler), RETRY_S * 3)
        (new,) = scheduler.step(Step(offers=[Offer("r", SPACE.digest, ROOT, prompt(1, 2))]))
        assert split_lease(new.lease)[0] != split_lease(old.lease)[0]
        address = worker.address

        assert worker.progress(new.lease) == (0, False)
        assert worker.address != address
        assert worker.progress(old.lease)[1]
        scheduler.step(Step(fills=[Fill(old.lease, 2)]))
        assert worker.progress(new.lease) == (0, False)

        scheduler.close()
        worker.close()


def test_a_daemon_with_other_pages_is_not_used(config: Config, tmp_path: Path) -> None:
    """A copier that planned for one page size must not meet another; it says what to do."""
    with served(config, tmp_path) as daemon:
        client = daemon.client(timeout_s=2.0)
        daemon.end(signal.SIGKILL)
        assert not asks(client)
    with served(settings(tmp_path, dram_page=8192), tmp_path):
        time.sleep(RETRY_S)
        with pytest.raises(CacheUnavailable, match="restart the engine"):
            client.ask(question(prompt(1, 1)))
        client.close()


@pytest.mark.pain("M5")
def test_nothing_is_left_in_shared_memory(config: Config, tmp_path: Path) -> None:
    """A daemon killed with all its memory in use leaves no file in /dev/shm."""
    with served(config, tmp_path) as daemon:
        client = daemon.client()
        client.join(SPACE)
        keys = prompt(1, 100)
        put(client, SPACE, keys, payloads(keys))
        named = in_shared_memory(daemon.process.pid)
        daemon.end(signal.SIGKILL)
        client.close()

    assert named == set()


# --- starting and stopping ------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_daemon_writes_what_was_deferred(
    config: Config, tmp_path: Path, number: signal.Signals
) -> None:
    """The first signal ends it in order: status 0, everything on disk, no socket left."""
    keys = prompt(1, 30)
    with served(config, tmp_path) as daemon:
        client = daemon.client()
        client.join(SPACE)
        put(client, SPACE, keys, payloads(keys))
        assert daemon.end(number) == 0
        client.close()
    assert not Path(config.socket_path).exists()

    with served(config, tmp_path) as daemon:
        assert daemon.facts["objects"] == 30


def test_a_terminal_that_ends_stops_its_daemon(config: Config, tmp_path: Path) -> None:
    """A daemon that somebody runs by hand goes in order with the terminal."""
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        pytest.skip("these tests run under nohup, so the daemon is to outlive a hangup")
    ours, theirs = pty.openpty()
    daemon = spawn(config, tmp_path, stdin=theirs)
    try:
        assert daemon.end(signal.SIGHUP) == 0
    finally:
        daemon.end(signal.SIGKILL)
        os.close(ours)
        os.close(theirs)


@pytest.mark.pain("D10")
def test_two_daemons_cannot_share_a_disk(config: Config, running: Daemon, tmp_path: Path) -> None:
    """A second daemon on the same directory refuses to start and names it."""
    other = settings(tmp_path, disk=True, serve_socket=str(tmp_path / "b.sock"))
    (tmp_path / "second.toml").write_text(render(other))
    done = subprocess.run(
        [sys.executable, "-m", "kvwise", "serve", "--config", str(tmp_path / "second.toml")],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.returncode == 2
    assert str(tmp_path / "disk") in done.stderr
    assert "in use" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_removed_cache_directory_is_a_few_lines(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """Whoever removes the directory under a daemon learns it, and not once for each record.

    What memory has wholly is still found; the other policies leave last blocks to the disk first.
    """
    config = settings(tmp_path, disk=True, evict_policy="lru")
    with thread_daemon(config):
        client = client_of(config)
        for seed in range(40):
            put(client, SPACE, prompt(seed, 4), payloads(prompt(seed, 4)))
        assert client.flush(10)
        shutil.rmtree(tmp_path / "disk")

        found = [len(get(client, SPACE, prompt(seed, 4))) for seed in range(40)]

        assert found[0] == 0
        assert found[-1] == 4
        put(client, SPACE, prompt(1, 4), payloads(prompt(1, 4)))
        assert get(client, SPACE, prompt(1, 4)) == payloads(prompt(1, 4))
        client.close()
    assert "is given up until the next start" in caplog.text
    assert len(caplog.messages) < 10


def test_an_idle_daemon_leaves(tmp_path: Path) -> None:
    """With --exit-when-idle it outlives its last client by the linger time, then exits with 0."""
    config = settings(tmp_path, serve_linger_s=0.3)
    daemon = spawn(config, tmp_path, "--exit-when-idle")
    client = daemon.client()
    time.sleep(1.2)
    assert daemon.process.poll() is None

    client.close()

    assert daemon.process.wait(10) == 0
    daemon.end()
