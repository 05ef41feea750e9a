"""The decision log: one line for each decision, with its outcome; bounded, and it harms nobody."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import msgspec
import pytest
from click.testing import CliRunner

from kvwise.cli.explain import command as explain
from kvwise.core.words import Choice, Decision, Ending, Why
from kvwise.errors import ConfigError, FrameError
from kvwise.live.blocks import put
from kvwise.live.decisions import DecisionLog, read_decisions
from kvwise.live.messages import Ask, Release, Step
from kvwise.live.node import Node
from kvwise.live.store import Store
from kvwise.units import NS_PER_S
from tests.live.support import (
    CHUNK,
    SPACE,
    eventually,
    payloads,
    prompt,
    question,
    served,
    settings,
)


def decision(number: int) -> Decision:
    """A load that was expected to take 0.2 s and took 0.1 s."""
    return Decision(
        now_ns=number,
        request=f"r{number}",
        namespace="t",
        total_tokens=33,
        local_tokens=0,
        match_tokens=32,
        load_tokens=32,
        tiers={"dram": 16, "disk": 16},
        load_s=0.2,
        recompute_s=0.4,
        margin=0.1,
        choice=Choice.LOAD,
        why=Why.FASTER,
        actual_s=0.1,
        ending=Ending.LOADED,
    )


def test_what_is_written_is_read(tmp_path: Path) -> None:
    """The last ones come back, newest last; the estimates of all of them are judged."""
    path = tmp_path / "decisions.jsonl"
    log = DecisionLog(path)
    for number in range(5):
        log.add(decision(number))
    log.close()
    last, estimates = read_decisions(path, 2)
    assert last == [decision(3), decision(4)]
    assert estimates["disk"].loads == 5
    assert estimates["disk"].mean_bias == pytest.approx(1.0)
    assert estimates["disk"].mean_error == pytest.approx(1.0)


def test_a_log_ends_at_its_bound_and_keeps_the_one_before(tmp_path: Path) -> None:
    """No line is cut, and a log of the life before lies beside."""
    path = tmp_path / "decisions.jsonl"
    for _ in range(2):
        log = DecisionLog(path, bytes_max=1000)
        for number in range(50):
            log.add(decision(number))
        log.close()
    assert 0 < path.stat().st_size <= 1000
    assert len(read_decisions(path, 50)[0]) == path.read_bytes().count(b"\n")
    assert path.with_name("decisions.jsonl.old").exists()


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    """What is no decision log is neither overwritten nor believed; a torn line is left out."""
    path = tmp_path / "notes"
    path.write_text("mine\n")
    with pytest.raises(ConfigError, match="hint"):
        DecisionLog(path)
    with pytest.raises(FrameError, match="line 1"):
        read_decisions(path, 5)
    path.write_bytes(msgspec.json.encode(decision(1)) + b'\n{"now_ns":2')
    assert read_decisions(path, 5)[0] == [decision(1)]


def test_every_request_of_a_store_gets_its_line(tmp_path: Path) -> None:
    """A miss, a hit that was loaded and one that was not used; `explain` shows them."""
    path = tmp_path / "decisions.jsonl"
    keys = prompt(1, 3)
    with closing(Store.open(settings(tmp_path, serve_decision_log=str(path)))) as store:
        store.join(SPACE)
        asks = [Ask(name, SPACE.digest, keys, 0, 3 * CHUNK + 1) for name in ("miss", "hit", "no")]
        store.ask(asks[0])
        put(store, SPACE, keys, payloads(keys))
        hit = store.ask(asks[1])
        store.want(hit.lease, hit.chunks)
        store.step(Step(releases=[Release(hit.lease, 1000, 1000, 2_000_000)]))
        store.step(Step(releases=[Release(store.ask(asks[2]).lease)]))
    lines, estimates = read_decisions(path, 10)
    assert [(line.request, line.ending) for line in lines] == [
        ("miss", Ending.COMPUTED),
        ("hit", Ending.LOADED),
        ("no", Ending.UNUSED),
    ]
    assert lines[1].actual_s == pytest.approx(0.002)
    assert estimates["dram"].loads == 1
    shown = CliRunner().invoke(explain, ["--log", str(path)], standalone_mode=False)
    assert "the load took 2.0 ms" in shown.output
    assert "dram: estimates of 1 load " in shown.output


def test_a_pin_that_was_refused_is_said(tmp_path: Path) -> None:
    """Only for a request whose wish to keep blocks was not followed."""
    path = tmp_path / "decisions.jsonl"
    log = DecisionLog(path)
    log.add(decision(1))
    log.add(replace(decision(2), pin_refused=True))
    log.close()
    shown = CliRunner().invoke(explain, ["--log", str(path)], standalone_mode=False).output
    assert "pin_s" not in shown.partition("r2")[0]
    assert "its pin_s was not followed" in shown.partition("r2")[2]


def test_times_in_a_log_count_back_from_its_end(tmp_path: Path) -> None:
    """A log of any age tells how far apart its decisions were, and says from where it counts."""
    path = tmp_path / "decisions.jsonl"
    log = DecisionLog(path)
    for second in (0, 90, 95):
        log.add(replace(decision(1), now_ns=second * NS_PER_S))
    log.close()
    shown = CliRunner().invoke(explain, ["--log", str(path)], standalone_mode=False).output
    assert re.findall(r"-\d+ \w+", shown) == ["-1 min", "-5 s", "-0 s"]
    assert shown.startswith("times count back from the last decision")


def test_a_picture_of_what_is_shown(tmp_path: Path) -> None:
    """The same words, in a file that asks for nothing from outside."""
    path, picture = tmp_path / "decisions.jsonl", tmp_path / "explain.svg"
    log = DecisionLog(path, bytes_max=10**6)
    log.add(decision(1))
    log.close()
    arguments = ["--log", str(path), "--svg", str(picture)]
    shown = CliRunner().invoke(explain, arguments, standalone_mode=False)
    assert shown.exception is None
    drawn = ET.fromstring(picture.read_text("utf-8"))
    words = "".join(drawn.itertext()).replace("\xa0", " ")
    for cell in re.split(r"\s\s+|\n", shown.output.strip()):
        assert cell in words
    assert "url(" not in picture.read_text("utf-8").replace("url(#", "")


def test_any_terminal_can_show_it(tmp_path: Path) -> None:
    """Names that its encoding lacks are escaped, and one that claims no width gets lines."""
    path = tmp_path / "decisions.jsonl"
    log = DecisionLog(path)
    log.add(replace(decision(1), request="r-日本"))
    log.close()
    shown = subprocess.run(
        [sys.executable, "-m", "kvwise", "explain", "--log", str(path)],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii", "COLUMNS": "0"},
        timeout=30,
        check=True,
    ).stdout
    assert b"r-\\u65e5\\u672c" in shown
    assert b"the load took 100" in shown


def test_what_is_kept_of_others_is_left_alone(tmp_path: Path) -> None:
    """A file of others where the log before would be kept stays, and the start is refused."""
    for name, value in (("decision", tmp_path / "d.json"), ("event", tmp_path / "e.kvlog")):
        more: dict[str, Any] = {f"serve_{name}_log": str(value)}
        config = settings(tmp_path, **more)
        Node(config).close(1)
        old = value.with_name(value.name + ".old")
        old.write_text("mine")
        with pytest.raises(ConfigError, match=r"\.old'? exists and is"):
            Node(config)
        assert old.read_text() == "mine"
        assert value.exists()
        old.unlink()
        Node(config).close(1)
        assert old.exists()


@pytest.mark.parametrize(("event", "decision"), [("a", "a"), ("a", "a.old"), ("a.old", "a")])
def test_logs_do_not_share_a_file(tmp_path: Path, event: str, decision: str) -> None:
    """Two logs that would replace each other are refused, and nothing is made."""
    paths = {"event": tmp_path / event, "decision": tmp_path / decision}
    more: dict[str, Any] = {f"serve_{name}_log": str(path) for name, path in paths.items()}
    with pytest.raises(ConfigError, match="name two files"):
        Node(settings(tmp_path, **more))
    assert not any(path.exists() for path in paths.values())


def test_a_log_can_be_rotated(tmp_path: Path) -> None:
    """SIGHUP leaves the daemon alive, which goes on in a new file; nothing is lost."""
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        pytest.skip("these tests run under nohup, which has daemons deaf to a hangup")
    path, moved = tmp_path / "d.json", tmp_path / "d.json.1"
    with served(settings(tmp_path, serve_decision_log=str(path)), tmp_path) as daemon:
        client = daemon.client()
        client.join(SPACE)
        client.ask(question(prompt(1, 2), "first"))
        path.rename(moved)
        daemon.send(signal.SIGHUP)
        assert eventually(path.exists)
        client.ask(question(prompt(2, 2), "second"))
        daemon.send(signal.SIGHUP)
        assert eventually(lambda: path.stat().st_size > 0)
        assert client.status()["decision_log"]
        path.rename(tmp_path / "d.json.2")
        path.mkdir()
        daemon.send(signal.SIGHUP)
        assert eventually(lambda: not client.status()["decision_log"])
        client.close()
    assert [one.request for one in read_decisions(moved, 9)[0]] == ["first"]
    assert [one.request for one in read_decisions(tmp_path / "d.json.2", 9)[0]] == ["second"]
