"""Sim on the command line: totals, failures told in full, and exit codes. Seeds are few here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import kvwise
from kvwise.cli import group
from kvwise.live.events import EventLog
from kvwise.sim.scenario import draw
from kvwise.sim.world import World, run_seed
from tests.sim.canaries import full_is_forgotten


def sim(*arguments: str) -> Result:
    """Run `kvwise sim`."""
    return CliRunner().invoke(group, ["sim", *arguments], standalone_mode=False)


def test_seeds_are_run_and_added_up() -> None:
    """The totals are those of the seeds, as text and as JSON."""
    text = sim("--seeds", "3", "--requests", "10")
    told = json.loads(sim("--seeds", "3", "--requests", "10", "--json").stdout)
    events = sum(run_seed(seed, requests=10).events for seed in range(3))

    assert text.return_value == 0
    assert f"{events} events" in text.stdout
    assert "no rule was broken" in text.stdout
    assert (told["seeds"], told["events"], told["failed"]) == (3, events, [])


def test_processes_find_the_same() -> None:
    """Two processes give the same totals as one."""
    one, two = (
        json.loads(sim("--seeds", "9", "--requests", "5", "--jobs", jobs, "--json").stdout)
        for jobs in ("1", "2")
    )

    for name in ("seeds", "events", "faults", "requests", "loaded_chunks"):
        assert one[name] == two[name]


def test_one_seed_by_its_hexadecimal_name() -> None:
    """`--seed 0x10` runs seed 16 alone."""
    told = json.loads(sim("--seed", "0x10", "--requests", "10", "--json").stdout)

    assert told["seeds"] == 1
    assert told["events"] == run_seed(16, requests=10).events


def test_a_failure_names_seed_and_commit_and_is_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a bug planted the exit code is 1, and the least that fails is printed."""
    full_is_forgotten(monkeypatch)
    told = sim("--seed", "8")

    assert told.return_value == 1
    assert "FAILED seed 8 at commit " in told.stdout
    assert "again: kvwise sim --seed 8 --requests " in told.stdout
    assert "write full: " in told.stdout
    assert "broken: who said full is not asked again before room was made" in told.stdout


def test_where_there_is_no_commit_the_version_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An installed kvwise lies in no repository, and a version is no commit."""
    monkeypatch.setenv("PATH", str(tmp_path))
    (last,) = sim("--seeds", "1", "--requests", "5").stdout.splitlines()[-1:]
    told = json.loads(sim("--seeds", "1", "--requests", "5", "--json").stdout)

    assert last == f"no rule was broken at version {kvwise.__version__}"
    assert told["commit"] == f"version {kvwise.__version__}"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--seed", "twelve"], "'twelve' is not a number"),
        (["--seed", "-5"], "'-5' is below 0"),
        (["--replay", __file__, "--seeds", "5"], "--seeds is for runs with faults, not for --rep"),
        (["--replay", __file__, "--seed", "5"], "--seed is for runs with faults, not for --replay"),
        (["--replay", __file__, "--jobs", "2"], "--jobs is for runs with faults or"),
        (["--replay", __file__, "--grid"], "--grid and --replay are two different things"),
    ],
)
def test_what_cannot_be_meant_is_refused(arguments: list[str], complaint: str) -> None:
    """A seed is a number from 0 on, and a log is replayed without any: anything else is said."""
    told = CliRunner().invoke(group, ["sim", *arguments])

    assert told.exit_code == 2
    assert complaint in told.output


@pytest.mark.parametrize("honest", [True, False])
def test_an_event_log_is_verified(tmp_path: Path, honest: bool) -> None:
    """A log whose commands come again is equal; one that was answered otherwise is not."""
    world = World(draw(7, 10), audit_every=1)
    config = world.node.config
    world.run()
    log = EventLog(tmp_path / "events.kvlog", config)
    for event, commands in world.node.recent:
        log.add(event, commands if honest else [*commands, *commands])
    log.close()
    told = sim("--replay", str(tmp_path / "events.kvlog"), "--json")

    assert told.return_value == (0 if honest else 1)
    assert json.loads(told.stdout)["equal"] is honest
