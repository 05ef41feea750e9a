"""Recorded sessions: when their requests come, at every pace, and whose blocks they have."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from kvwise.sim.trace.assembly import Options, Pace
from kvwise.sim.trace.records import Trace
from kvwise.units import NS_PER_S
from tests.sim.trace.support import SAMPLE, load, published


def arrivals(trace: Trace) -> list[tuple[float, int, int]]:
    """When requests arrive, of which agent and which of its turns."""
    return [(r.arrival_ns / NS_PER_S, r.agent, r.turn) for r in trace.requests]


def test_a_session_at_its_own_pace() -> None:
    """Requests arrive as recorded; those of a subagent count from its start."""
    trace = load(SAMPLE["weka"])

    assert arrivals(trace) == [(0.0, 0, 1), (10.5, 1, 1), (17.5, 1, 2), (22.0, 0, 2), (30.0, 0, 3)]
    assert [r.think_ns for r in trace.requests] == [0, 0, 3 * NS_PER_S, 5 * NS_PER_S, 28 * NS_PER_S]
    assert [r.api_ns for r in trace.requests][:4] == [
        2 * NS_PER_S,
        4 * NS_PER_S,
        2 * NS_PER_S,
        None,
    ]
    assert [r.after_tool for r in trace.requests] == [False, False, True, True, False]


def test_times_of_subagents_may_count_from_the_session(tmp_path: Path) -> None:
    """With absolute times a subagent's first request is at its own time, not later."""
    told = msgspec.json.decode(SAMPLE["weka"].read_bytes())
    for request in told["requests"][1]["requests"]:
        request["t"] += 10.5
    path = tmp_path / "absolute.json"
    path.write_bytes(msgspec.json.encode(told))
    options = Options(absolute_subagents=True)

    assert arrivals(load(path, options=options)) == arrivals(load(SAMPLE["weka"]))


def test_pauses_alone() -> None:
    """As if answers came at once: pauses add up, and the session waits for its subagent."""
    trace = load(SAMPLE["weka"], options=Options(pace=Pace.THINK))

    assert arrivals(trace) == [(0.0, 0, 1), (8.5, 1, 1), (11.5, 1, 2), (11.5, 0, 2), (28.0, 0, 3)]


def test_the_servers_times_scaled() -> None:
    """Twice the server's times: every answer takes twice as long, pauses stay."""
    trace = load(SAMPLE["weka"], options=Options(pace=Pace.SCALED, api_factor=2.0))

    assert arrivals(trace) == [(0.0, 0, 1), (12.5, 1, 1), (23.5, 1, 2), (27.5, 0, 2), (32.0, 0, 3)]


def test_scaling_by_one_is_the_recorded_pace() -> None:
    """Where pauses were recorded to the second, factor 1 gives the recorded arrivals to that."""
    folder = published("weka")
    recorded = load(folder)
    scaled = load(folder, options=Options(pace=Pace.SCALED))
    by_key = {(r.session, r.turn): r.arrival_ns for r in recorded.requests}
    away_s = [
        abs(r.arrival_ns - by_key[r.session, r.turn]) / NS_PER_S / r.turn for r in scaled.requests
    ]

    assert sum(one <= 1.0 for one in away_s) / len(away_s) > 0.98


def test_models_share_no_blocks() -> None:
    """The subagent's model has blocks of its own, unless models are to be mixed."""
    apart = load(SAMPLE["weka"])
    mixed = load(SAMPLE["weka"], options=Options(models_apart=False))

    assert apart.requests[0].blocks[0] != apart.requests[1].blocks[0]
    assert mixed.requests[0].blocks[:2] == mixed.requests[1].blocks[:2]
    assert (len(apart.parents), len(mixed.parents)) == (7, 5)


@pytest.mark.parametrize(
    ("options", "starts_s"),
    [
        (Options(), [0.0, 0.0]),
        (Options(start_every_s=600), [0.0, 600.0]),
        (Options(in_turn=True), [0.0, 31.0]),
    ],
)
def test_sessions_start_when_they_are_told(
    options: Options, starts_s: list[float], tmp_path: Path
) -> None:
    """Together, at a distance, or when the one before has its last answer; ids are its own."""
    for name in ("a.json", "b.json"):
        shutil.copy(SAMPLE["weka"], tmp_path / name)
    trace = load(tmp_path, options=options)
    first = {r.session: r for r in reversed(trace.requests)}

    assert [first[n].arrival_ns / NS_PER_S for n in (0, 1)] == starts_s
    assert first[0].blocks[0] != first[1].blocks[0]


def test_global_ids_are_shared_by_sessions(tmp_path: Path) -> None:
    """Where a file says that its ids are global, sessions have blocks in common."""
    text = SAMPLE["weka"].read_text().replace('"local"', '"global"')
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text(text)

    assert len(load(tmp_path).parents) == 7


def test_published_subagents_are_read() -> None:
    """Recorded sessions with subagents: each has requests of its own, after its start."""
    trace = load(published("weka_subagents"))
    agents = {(r.session, r.agent) for r in trace.requests if r.agent}

    assert len(trace.requests) == 1114
    assert len(agents) == 12
    assert sum(r.agent > 0 for r in trace.requests) == 109
