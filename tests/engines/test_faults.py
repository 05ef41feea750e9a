"""What breaks below, beside or above a real vLLM: tokens stay right, waits end, nothing leaks.

Each fault strikes a real daemon in a process of its own, or the engine. Afterwards four things are
looked at: the tokens are those of computing everything, the request waited no longer than its
deadlines allow, the cache is used again (or says what it gave up), and whatever daemon and engine
hold is at the level of before. `KVWISE_FAULT_TABLE=PATH` writes down what was seen.
"""

from __future__ import annotations

import errno
import itertools
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kvwise.core.keys import ROOT
from kvwise.units import MIB
from tests.engines import fault_records as damage
from tests.engines.fault_case import (
    NEW,
    PLAN_S,
    PROMPTS,
    STORED,
    WARM,
    Case,
    Row,
    Seen,
    Stage,
    case,
    loaded,
    rig,
)
from tests.engines.fault_records import Damage, Found
from tests.engines.fault_stage import (
    ANSWER_S,
    CLIENT_S,
    START_S,
    Engine,
    HurtDaemon,
    can_mount,
    eventually,
    small_filesystem,
)
from tests.engines.rig import LONG
from tests.engines.support import Processes

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

COMPUTE_S = 5.0
"""Far more than computing a prompt takes, even on a busy machine."""


@pytest.fixture(scope="module")
def stage(processes: Processes) -> Iterator[Stage]:
    """An engine that outlives every daemon of this module; at the end the table is written."""
    socket = processes.directory / "faults.sock"
    first = HurtDaemon(processes.directory / "faults-first", socket, {})
    processes.own(first.kill)
    first.start()
    engine = Engine(processes, rig(processes, socket))
    assert engine.end(START_S)
    made = Stage(processes, engine, socket, first.disk)
    made.right((*STORED, *NEW))
    first.equip()
    for prompt in STORED:
        engine.ask("forget")
        engine.ask("run", prompts=[prompt])
        first.flush()
    first.stop()
    yield made
    engine.kill()
    if path := os.environ.get("KVWISE_FAULT_TABLE"):
        head = "| fault | tokens equal | wait s | recovered | leak |\n|---|---|---|---|---|\n"
        Path(path).write_text(head + "".join(f"{row}\n" for row in made.rows))


def first_of(made: Case, number: int) -> Found:
    """The first record of the chain of a prompt; prompts count from 0, `WARM` is the first."""
    chain = damage.chains(made.daemon.segments())[number]
    assert chain[0].header.parent == ROOT
    return chain[0]


# --- what the disk says --------------------------------------------------------------------------

READ_S = PLAN_S + CLIENT_S + COMPUTE_S
HARMS: dict[str, Damage] = {
    "flipped bit in the payload": damage.flip_payload,
    "flipped bit in the header": damage.flip_header,
    "record of another key": damage.rename_key,
    "truncated record": damage.truncate,
}
ON_LONG, ON_OTHER = 1, 2


def test_forged_bytes_give_other_tokens(stage: Stage) -> None:
    """The control: with wrong bytes on disk behind right checksums the tokens are others."""
    with case(stage, "control: forged payload") as made:
        made.start()
        damage.forge(first_of(made, ON_LONG))
        answers = made.run(PROMPTS)["answers"]
        right = stage.right(PROMPTS)
        wrong = [answer["tokens"] != good for answer, good in zip(answers, right, strict=True)]
        made.row.tokens = f"{wrong.count(False)} of 3, as it must be"
        assert all(loaded(answer, "disk") for answer in answers)
        assert wrong == [True, False, True]


@pytest.mark.pain("W4", "C7", "H6")
@pytest.mark.parametrize("harm", HARMS)
def test_damage_under_a_daemon(stage: Stage, harm: str) -> None:
    """A record that is damaged while the daemon lives is noticed when it is read, and computed."""
    with case(stage, f"{harm}, found by a read") as made:
        made.start()
        HARMS[harm](first_of(made, ON_OTHER))
        answers = made.suffer(READ_S)["answers"]
        assert [loaded(answer) > 0 for answer in answers] == [True, False, True]
        assert answers[1]["said"]["problem"] == "lease ended"
        assert set(made.failures()) <= {"disk|corrupt", "disk|missing"}
        assert made.failures()
        made.recover()
        made.settle()


@pytest.mark.parametrize("harm", [harm for harm in HARMS if "payload" not in harm])
def test_damage_between_lives(stage: Stage, harm: str) -> None:
    """Damage done while no daemon lives is left out at the start."""
    with case(stage, f"{harm}, between lives") as made:
        HARMS[harm](first_of(made, ON_OTHER))
        made.start()
        answers = made.suffer(READ_S)["answers"]
        assert [loaded(answer) > 0 for answer in answers] == [True, False, True]
        made.recover()
        made.settle()


@pytest.mark.pain("C7")
def test_a_bad_sector(stage: Stage) -> None:
    """One record cannot be read (EIO): it is computed, its neighbours are loaded."""
    with case(stage, "read error (EIO), one record") as made:
        made.start()
        bad = first_of(made, ON_OTHER)
        sector = {"errno": errno.EIO, "name": bad.path.name, "first": bad.offset, "last": bad.end}
        with made.daemon.ordered(read=sector):
            answers = made.suffer(READ_S)["answers"]
            assert [loaded(answer) > 0 for answer in answers] == [True, False, True]
            assert made.failures() == {"disk|io": 1}
            assert made.daemon.status()["down"] == {"disk": []}
            made.recover()
            made.settle()


@pytest.mark.pain("D7")
@pytest.mark.parametrize("verb", ["read", "write"])
def test_a_dead_drive(stage: Stage, verb: str) -> None:
    """Every read or every write fails (EIO): the tier is reported down, the arena goes on serving.

    After a restart what was on disk is there.
    """
    with case(stage, f"{verb} error (EIO), always") as made:
        made.start()
        with made.daemon.ordered(**{verb: {"errno": errno.EIO}}):
            made.suffer(READ_S, PROMPTS if verb == "read" else NEW)
            assert "given up" in down(made)[0]
            made.recover(PROMPTS if verb == "read" else NEW, tier="dram")
        made.start()
        made.recover(tier="disk")
        made.row.recovered += " after a restart; down is reported"
        made.settle()


def down(made: Case) -> list[str]:
    """Why the disk was given up, after some more use if need be."""
    numbers = itertools.count()

    def look() -> list[str]:
        made.run((f"{next(numbers)} more. {WARM}",))
        reasons: list[str] = made.daemon.status()["down"]["disk"]
        return reasons

    return list(eventually(look, bool))


# --- no room -------------------------------------------------------------------------------------


def goes_on_writing(made: Case) -> bool:
    """Whether more and more reaches the disk again."""

    def look() -> int:
        made.warm()
        return on_disk(made)

    before = look()
    return bool(eventually(look, lambda objects: bool(objects > before)) > before)


def on_disk(made: Case) -> int:
    """Objects that the disk tier holds."""
    objects: int = made.daemon.status()["levels"]["tiers"]["disk"]["objects"]
    return objects


def free_bytes(place: Path) -> int:
    """What a filesystem has left."""
    status = os.statvfs(place)
    return status.f_bavail * status.f_frsize


def test_a_full_medium(stage: Stage) -> None:
    """Every write fails for want of space (ENOSPC): the arena serves, and writing goes on later."""
    with case(stage, "disk full (ENOSPC)") as made:
        made.start()
        with made.daemon.ordered(write={"errno": errno.ENOSPC}):
            made.suffer(READ_S, NEW)
            made.recover(NEW, tier="dram")
            assert set(made.failures()) == {"disk|full"}
            assert made.daemon.status()["down"] == {"disk": []}
        assert goes_on_writing(made)
        made.settle()


@pytest.mark.pain("D3")
def test_a_full_filesystem(stage: Stage) -> None:
    """Somebody else fills the filesystem: the tier takes no more of it until there is room."""
    if not can_mount():
        pytest.skip("only root can mount a small filesystem")
    place = stage.processes.directory / "small"
    caps = {"disk.size": "40MiB", "disk.min_free": "1MiB"}
    with (
        small_filesystem(place, "64m"),
        case(stage, "disk full (filesystem)", caps, disk=place / "disk") as made,
    ):
        made.start()
        before = on_disk(made)
        (place / "filler").write_bytes(bytes(free_bytes(place) - MIB))
        made.suffer(READ_S, NEW)
        made.recover(NEW, tier="dram")
        assert on_disk(made) <= before
        assert free_bytes(place) >= MIB
        (place / "filler").unlink()
        assert goes_on_writing(made)
        made.settle()


@pytest.mark.pain("P8")
def test_a_full_arena(stage: Stage) -> None:
    """Four chunks fit the arena and eight prompts of three want in at once, twice."""
    crowd = tuple(f"{number} of eight. {WARM}" for number in range(8))
    stage.right(crowd)
    with case(stage, "arena full", {"dram.size": "2MiB"}) as made:
        made.start()
        made.suffer(READ_S, crowd, together=True)
        made.suffer(READ_S, crowd, together=True)
        refused = made.daemon.status()["counters"]["refused"]
        assert refused["dram|no_room"] > 0
        made.recover((LONG,))
        made.settle()


# --- slow, gone, frozen --------------------------------------------------------------------------


@contextmanager
def held_load(made: Case) -> Iterator[None]:
    """The engine is in the middle of several loads that the medium holds back."""
    with made.daemon.ordered(read={"hold": True}):
        made.stage.engine.ask("forget")
        made.stage.engine.begin("run", prompts=PROMPTS, together=True)
        jobs = eventually(
            lambda: made.daemon.status()["levels"]["jobs"]["load"], lambda count: count > 1
        )
        assert jobs > 1
        yield


def test_a_slow_tier(stage: Stage) -> None:
    """A read that takes too long is given up at its deadline, and its tokens are computed."""
    with case(stage, "slow tier, deadline 0.5 s", {"plan.timeout_s": 0.5}) as made:
        made.start()
        with made.daemon.ordered(read={"hold": True}):
            answers = made.suffer(0.5 + CLIENT_S + COMPUTE_S)["answers"]
            assert [answer["said"]["problem"] for answer in answers] == ["deadline"] * 3
            assert max(answer["said"]["actual_s"] for answer in answers) < 0.5 + CLIENT_S
        made.recover()
        made.settle()


def test_a_daemon_killed_before_a_load(stage: Stage) -> None:
    """While it is away everything is computed; the next one is used, and has what was on disk."""
    with case(stage, "daemon SIGKILL before a load") as made:
        made.start()
        made.daemon.kill()
        answers = made.suffer(CLIENT_S + COMPUTE_S)["answers"]
        assert not any(loaded(answer) for answer in answers)
        made.daemon.start()
        made.recover(tier="disk")
        made.warm()
        made.settle()


def test_a_daemon_killed_during_a_load(stage: Stage) -> None:
    """The load is over as soon as the daemon is, and is computed."""
    with case(stage, "daemon SIGKILL during a load") as made:
        made.start()
        with held_load(made):
            made.daemon.kill()
            answers = made.judge(stage.engine.end(), CLIENT_S + COMPUTE_S)["answers"]
        assert [answer["said"].get("problem") for answer in answers[:2]] == ["lease ended"] * 2
        made.daemon.start()
        made.recover(tier="disk")
        made.warm()
        made.settle()


@pytest.mark.pain("D4")
def test_a_daemon_killed_while_it_writes(stage: Stage) -> None:
    """Half a record is on disk: the next daemon does not take it for one."""
    with case(stage, "daemon SIGKILL in the middle of a write") as made:
        made.start()
        with made.daemon.ordered(write={"torn": True, "hold": True}):
            made.suffer(READ_S, NEW[:1])
            jobs = eventually(lambda: made.daemon.status()["levels"]["jobs"]["store"], bool)
            assert jobs > 0
            made.daemon.kill()
        made.daemon.start()
        made.warm()
        answers = made.suffer(READ_S, NEW)["answers"]
        assert not any(loaded(answer) for answer in answers)
        made.recover(NEW)
        made.settle()


def test_a_daemon_frozen_between_requests(stage: Stage) -> None:
    """An engine asks once, waits as long as agreed, and asks no more until it was answered."""
    with case(stage, "daemon SIGSTOP between requests") as made:
        made.start()
        made.daemon.signal(signal.SIGSTOP)
        answers = made.suffer(2 * CLIENT_S + COMPUTE_S)["answers"]
        made.daemon.signal(signal.SIGCONT)
        assert not any(loaded(answer) for answer in answers)
        made.recover()
        made.settle()


def test_a_daemon_frozen_during_a_load(stage: Stage) -> None:
    """The load ends at its deadline; what could not be said is said when the daemon is awake."""
    with case(stage, "daemon SIGSTOP during a load") as made:
        made.start()
        with held_load(made):
            made.daemon.signal(signal.SIGSTOP)
            bound_s = PLAN_S + 2 * CLIENT_S + COMPUTE_S
            answers = made.judge(stage.engine.end(), bound_s)["answers"]
            made.daemon.signal(signal.SIGCONT)
        assert [answer["said"].get("problem") for answer in answers[:2]] == ["deadline"] * 2
        made.recover()
        made.settle()


# --- the engine ----------------------------------------------------------------------------------


@pytest.mark.pain("M1")
def test_engines_are_killed(stage: Stage) -> None:
    """One dies in the middle of a store, a later one in the middle of a load; both leave nothing.

    The half-stored chunk is a miss, and whoever comes next gets the right tokens.
    """
    with case(stage, "engine SIGKILL while it stores") as made:
        made.start()
        victim = Engine(stage.processes, rig(stage.processes, stage.socket))
        assert victim.end(START_S)
        mark = stage.processes.directory / "half"
        assert victim.ask("stall_stores", mark=str(mark))
        victim.begin("run", prompts=NEW[:1])
        assert eventually(mark.exists, bool, ANSWER_S)
        assert made.daemon.status()["levels"]["leases"]["store"] == 1
        victim.kill()
        answers = made.suffer(READ_S, NEW)["answers"]
        assert not loaded(answers[0])
        made.recover(NEW)
        made.settle()
        killed_while_loading(made)


def killed_while_loading(made: Case) -> None:
    """A new engine finds what there is, and is killed in the middle of a load."""
    made.row = Row("engine SIGKILL while it loads")
    made.stage.rows.append(made.row)
    victim = Engine(made.stage.processes, rig(made.stage.processes, made.stage.socket))
    assert victim.end(START_S)
    seen = made.judge(victim.ask("run", prompts=PROMPTS), READ_S)
    assert all(loaded(answer) for answer in seen["answers"])
    made.daemon.flush()
    made.start()
    with made.daemon.ordered(read={"hold": True}):
        assert victim.ask("attach")
        victim.ask("forget")
        victim.begin("run", prompts=[LONG])
        leases = eventually(lambda: made.daemon.status()["levels"]["leases"]["load"], bool)
        assert leases == 1
        victim.kill()
        left = eventually(lambda: made.daemon.status()["levels"], lambda seen: not held(seen))
        assert not held(left)
    made.suffer(READ_S)
    made.recover()
    made.settle()


def held(levels: Seen) -> int:
    """Load leases, and engines beside the first."""
    return int(levels["leases"]["load"] + levels["clients"] - 1)


@pytest.mark.pain("M3")
def test_a_request_aborted_during_its_load(stage: Stage) -> None:
    """Its blocks, lease and pins are given back; the read that is under way harms nobody."""
    with case(stage, "client abort during a load") as made:
        made.start()
        with made.daemon.ordered(read={"hold": True}):
            stage.engine.ask("forget")
            aborted = stage.engine.ask("abort", prompt=LONG)
            assert aborted["status"] == ["WAITING_FOR_REMOTE_KVS"]
            leases = lambda: made.daemon.status()["levels"]["leases"]["load"]  # noqa: E731
            assert eventually(leases, lambda count: not count) == 0
            made.row.wait_s, made.row.bound_s = aborted["seconds"], CLIENT_S + COMPUTE_S
            assert aborted["seconds"] < made.row.bound_s
        made.suffer(READ_S)
        made.recover()
        made.settle()
