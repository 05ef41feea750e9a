"""`kvwise serve` and `kvwise explain` as a person meets them."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest

from kvwise import cli
from kvwise import config as configuration
from kvwise.config import Config
from kvwise.live.blocks import get, put
from kvwise.live.client import Client
from kvwise.live.store import Store
from tests.live.support import (
    SPACE,
    payloads,
    prompt,
    question,
    served,
    settings,
    spawn,
    thread_daemon,
)


def history(config: Config) -> None:
    """A store with one load and one miss behind it."""
    store = Store.open(config)
    store.join(SPACE)
    keys = prompt(1, 4)
    put(store, SPACE, keys, payloads(keys))
    get(store, SPACE, keys)
    get(store, SPACE, prompt(2, 4))
    store.close()


def test_print_config_is_a_file_that_means_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What --print-config prints can be loaded and is the effective configuration."""
    disk = str(tmp_path / "d")
    arguments = ["--dram", "1GiB", "--disk", disk, "--disk-size", "2GiB", "--metrics", ""]

    assert cli.run(["serve", *arguments, "--socket", str(tmp_path / "s"), "--print-config"]) == 0

    file = tmp_path / "kvwise.toml"
    file.write_text(capsys.readouterr().out)
    config = configuration.load(file)
    assert config.dram.size == 1 << 30
    assert config.disk.paths == (disk,)
    assert config.serve.metrics == ""
    assert config.serve.socket == str(tmp_path / "s")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--dram", "many"], "dram.size"),
        (["--disk", "/somewhere"], "disk.size"),
        (["--disk-size", "1GiB"], "disk.paths"),
        (["--dram", "8KiB"], "dram.page"),
        (["--dram", "1000TiB"], "lower it"),
        (["--metrics", "nowhere"], "host:port"),
        (["--config", "/does/not/exist"], "/does/not/exist"),
        (["--socket", "/" + "x" * 200], "shorter"),
        (["--socket", "/proc/x"], "another --socket"),
        (["--event-log", "/dev"], "name a new file"),
        (["--disk", "", "--disk-size", "1GiB"], "disk.paths"),
    ],
)
def test_wrong_settings_end_with_a_hint(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A setting that cannot work ends with status 2, names the key and says what to do."""
    before = ["--socket", str(tmp_path / "s"), "--dram", "16MiB", "--metrics", ""]

    assert cli.run(["serve", *before, *arguments]) == 2

    assert words in capsys.readouterr().err


def test_a_limit_on_threads_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the kernel gives no thread, the limits that may be the cause are named."""

    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    before = ["--socket", str(tmp_path / "s"), "--dram", "16MiB", "--metrics", ""]

    assert cli.run(["serve", *before]) == 2

    assert "hint: raise ulimit -u, TasksMax= or --pids-limit" in capsys.readouterr().err


def test_the_ready_line_can_be_read(tmp_path: Path) -> None:
    """One line says where it listens and what it has."""
    config = settings(tmp_path, disk=True, write_per_day="3GiB")
    file = tmp_path / "kvwise.toml"
    file.write_text(configuration.render(config))
    process = subprocess.Popen(
        [sys.executable, "-m", "kvwise", "serve", "--config", str(file)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)

    assert config.socket_path in line
    assert "1.0 MiB of memory" in line
    assert "16.0 MiB of disk" in line
    assert "; 3.0 GiB may be written to disk in a day" in line
    assert process.returncode == 0
    assert "SIGINT: writing what was deferred" in errors


FROZEN = """
import runpy, time
from kvwise.tiers.segments import Directory
append = Directory.append
def frozen(self, *arguments):
    time.sleep(60)
    return append(self, *arguments)
Directory.append = frozen
runpy.run_module("kvwise", run_name="__main__", alter_sys=True)
"""
"""A daemon whose drive answers no write for a minute."""


def test_a_second_signal_ends_at_once(tmp_path: Path) -> None:
    """Whoever does not want to wait for deferred writes need not: a frozen write ends too."""
    daemon = spawn(settings(tmp_path, disk=True), tmp_path, program=("-c", FROZEN))
    client = daemon.client()
    client.join(SPACE)
    keys = prompt(1, 20)
    put(client, SPACE, keys, payloads(keys))
    client.close()
    daemon.send(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        daemon.process.wait(0.5)

    daemon.send(signal.SIGTERM)

    assert daemon.process.wait(1.5) == 1
    daemon.end()


def test_metrics_are_served(tmp_path: Path) -> None:
    """The ready line tells where; port 0 takes any."""
    config = settings(tmp_path, serve_metrics="127.0.0.1:0")
    with served(config, tmp_path) as daemon:
        assert daemon.facts["write_bytes_per_day"] == 0
        assert str(daemon.facts["metrics"]).startswith("http://127.0.0.1:")


def test_explain_asks_a_daemon(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The last decisions of a daemon that is named or configured, in words and as JSON."""
    config = settings(tmp_path)
    keys = prompt(1, 4)
    with thread_daemon(config):
        client = Client(config.socket_path, "engine", timeout_s=5.0)
        client.join(SPACE)
        put(client, SPACE, keys, payloads(keys))
        get(client, SPACE, keys)
        client.close()
        assert cli.run(["explain", "--url", config.socket_path]) == 0
        text = capsys.readouterr().out
        file = tmp_path / "kvwise.toml"
        file.write_text(f'[serve]\nsocket = "{config.socket_path}"\n', encoding="utf-8")
        assert cli.run(["explain", "--config", str(file), "--json", "-n", "1"]) == 0
        (decision,) = json.loads(capsys.readouterr().out)["decisions"]

    assert "policy" in text
    assert decision["choice"] == "load"
    assert decision["load_tokens"] == len(keys)


@pytest.mark.parametrize("name", ["[/b]", "[red]x", "\x1b[2J\x07", "\n" * 9, "x" * 1000])
def test_explain_obeys_no_name(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A request's name, which its sender chose, is shown and neither rendered nor obeyed."""
    config = settings(tmp_path)
    with thread_daemon(config):
        client = Client(config.socket_path, "engine", timeout_s=5.0)
        client.join(SPACE)
        client.ask(question(prompt(1, 4), name))
        client.close()
        assert cli.run(["explain", "--url", config.socket_path]) == 0
    text = capsys.readouterr().out

    shown = "".join(letter if letter.isprintable() else "?" for letter in name)[:8]
    assert shown in text
    assert "\x1b[2J" not in text
    assert len(text) < 2000


def test_explain_points_elsewhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a daemon, it names the options, or the daemon that an engine started for itself."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert cli.run(["explain"]) == 1
    assert "--url, or an event log with --log" in capsys.readouterr().err

    (tmp_path / "kvwise").mkdir()
    listed = tmp_path / "kvwise" / "embedded-0123.sock"
    listed.touch()
    assert cli.run(["explain"]) == 1
    assert f"--url {listed}" in capsys.readouterr().err


def test_explain_draws_no_picture_of_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever asked for a file is told that there is none."""
    config, picture = settings(tmp_path), tmp_path / "seen.svg"
    with thread_daemon(config):
        asked = ["explain", "--url", config.socket_path, "--svg", str(picture)]
        assert cli.run(asked) == 2

    assert "there are no decisions" in capsys.readouterr().err
    assert not picture.exists()


def test_explain_tells_a_daemon_that_hangs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The socket was named right, so naming it is no advice."""
    path = tmp_path / "s"
    with closing(socket.socket(socket.AF_UNIX)) as deaf:
        deaf.bind(str(path))
        deaf.listen()
        assert cli.run(["explain", "--url", str(path)]) == 1

    said = capsys.readouterr().err
    assert "did not answer in time" in said
    assert "hangs" in said
    assert "--url" not in said


def test_explain_reads_a_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An event log explains itself without a daemon, and can be verified."""
    log = tmp_path / "log"
    history(settings(tmp_path, serve_event_log=str(log)))

    assert cli.run(["explain", "--log", str(log)]) == 0
    text = capsys.readouterr().out
    assert cli.run(["explain", "--log", str(log), "--replay"]) == 0
    verdict = capsys.readouterr().out

    assert "nothing" in text
    assert verdict.startswith("equal: ")


def test_an_empty_log_is_said_to_be_empty(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A log that nothing was written to yet is no log of nothing, and cannot be verified."""
    log = tmp_path / "log"
    log.touch()

    assert cli.run(["explain", "--log", str(log)]) == 0
    assert capsys.readouterr().out == f"{log} is empty: nothing was written to it yet\n"
    assert cli.run(["explain", "--log", str(log), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["decisions"] == []
    assert cli.run(["explain", "--log", str(log), "--replay"]) == 1
    assert f"{log} is empty" in capsys.readouterr().err


def test_a_log_that_differs_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A divergence is status 1, and --json tells where."""
    from kvwise.core.words import Ended, Tick, TierSpec
    from kvwise.core.world import BrainConfig
    from kvwise.live.events import EventLog

    path = tmp_path / "log"
    log = EventLog(path, BrainConfig(4096, (TierSpec("dram", 1 << 20, 4096, 0, 1e10, 0.0),)))
    log.add(Tick(1), [Ended(3)])
    log.close()

    assert cli.run(["explain", "--log", str(path), "--replay", "--json"]) == 1

    assert not json.loads(capsys.readouterr().out)["equal"]


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["--replay"], 2, "--log"),
        (["--svg", "x.svg", "--json"], 2, "--svg draws what --json does not print"),
        (["-n", "0"], 2, "range"),
        (["-n", "9" * 30], 2, "range"),
        (["--url", "/nobody/here"], 1, "no daemon"),
        (["--log", __file__], 1, "not a kvwise event log"),
        (["--log", __file__, "--url", "/nobody/here"], 2, "asks no daemon"),
        (["--log", __file__, "--config", __file__], 2, "asks no daemon"),
    ],
)
def test_explain_says_what_is_wrong(
    arguments: list[str], status: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """No daemon, no log or no replay without a log: one line that says so."""
    assert cli.run(["explain", *arguments]) == status

    assert words in capsys.readouterr().err
