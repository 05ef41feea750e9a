"""Two tiers: what is written to disk under each rule and budget, and how runs are compared."""

from __future__ import annotations

import pytest

from kvwise.core.admit import ADMISSIONS
from kvwise.core.govern import DAY_S
from kvwise.sim.replay.curves import ABLATION, EVERYTHING, RULES, best_at, results_of
from kvwise.sim.replay.profile import DEFAULT, PROFILES
from kvwise.sim.replay.tape import Tape, tape_of
from kvwise.sim.replay.writes import (
    LRU,
    Rule,
    WriteJob,
    WriteRun,
    machine_of,
    per_day_bytes,
    run_writes,
)
from kvwise.units import NS_PER_S
from tests.sim.replay.support import made, trace_of
from tests.sim.trace.support import quiet

OBJECT_BYTES = PROFILES[DEFAULT].kv_bytes_per_token
SECOND = Rule(ADMISSIONS[2], LRU)


def ran(tape: Tape, rule: Rule, share: float | None = None, written_bytes: int = 0) -> WriteRun:
    """A run with memory for a tenth of the blocks and a disk for a third."""
    machine = machine_of(tape, (0.1, 0.34), 56_000_000_000)
    budget = per_day_bytes(tape, written_bytes, share) if share is not None else 0
    return run_writes(tape, PROFILES[DEFAULT], WriteJob(rule, machine, share, budget), quiet)


def test_what_is_written_and_found_adds_up() -> None:
    """Bytes are blocks times their size, and no more is found than was asked for."""
    tape = tape_of(made(150))
    for rule in (*RULES, ABLATION):
        run = ran(tape, rule)
        assert run.requests == tape.requests
        assert run.input_blocks == len(tape.path)
        assert run.disk_bytes_written == run.disk_blocks_written * 512 * OBJECT_BYTES > 0
        assert 0 < run.disk_hits + run.dram_hits <= run.input_blocks
        assert run.loaded_disk_blocks <= run.disk_hits


def test_prompts_that_never_return_are_not_written_on_a_second_touch() -> None:
    """One request for each prompt: writing all writes each block, the other rule none."""
    tape = tape_of(trace_of([[one] * 3 for one in range(60)]))
    assert ran(tape, EVERYTHING).disk_blocks_written == 180
    assert ran(tape, SECOND).disk_blocks_written == 0


def test_a_second_touch_is_remembered_of_blocks_that_left() -> None:
    """A prompt that memory gave up long ago is written when it comes again."""
    tape = tape_of(trace_of([[1, 2, 3], *([one] * 3 for one in range(10, 60)), [1, 2, 3]]))
    assert ran(tape, SECOND).disk_blocks_written == 3


@pytest.mark.parametrize("rule", [*RULES, ABLATION], ids=lambda rule: rule.name)
def test_a_budget_is_kept(rule: Rule) -> None:
    """No more than the budget's rate times the time of the trace, and the same run twice."""
    tape = tape_of(made(150))
    free = ran(tape, EVERYTHING).disk_bytes_written
    one, two = (ran(tape, rule, 0.1, free) for _ in range(2))
    seconds = int(tape.arrival_ns[-1]) / NS_PER_S
    assert 0 < one.disk_bytes_written <= per_day_bytes(tape, free, 0.1) * seconds / DAY_S + 1
    assert one.digest == two.digest


def test_curves_are_straight_from_nothing_and_level_after_the_end() -> None:
    """The best of two curves, between their points and beyond."""
    curves = [[(0, 0), (10, 100), (20, 110)], [(0, 0), (5, 80)]]
    assert [best_at(curves, at) for at in (0, 1, 5, 9, 15, 90)] == [0, 16, 80, 90, 105, 110]


def test_own_runs_are_held_against_the_others() -> None:
    """Only runs of kvwise's own admission have ratios, against the bytes that they wrote."""
    tape = tape_of(made(150))
    machine = machine_of(tape, (0.1, 0.34), 56_000_000_000)
    jobs = [WriteJob(rule, machine) for rule in (*RULES, ABLATION)]
    results = results_of(jobs, [ran(tape, job.rule) for job in jobs])
    assert [result.beside is None for result in results] == [True, True, False, False]
    told = results[-1].to_builtins()
    assert told["ratio"] == pytest.approx(told["disk_hits"] / told["others_disk_hits"])


def test_bytes_and_seconds_are_told_for_the_time_of_the_trace() -> None:
    """Bytes a day are those written over the trace's time; memory's loads count in all seconds."""
    tape = tape_of(made(150))
    run = ran(tape, EVERYTHING)
    days = int(tape.arrival_ns[-1] - tape.arrival_ns[0]) / NS_PER_S / DAY_S
    assert run.disk_bytes_per_day * days == pytest.approx(run.disk_bytes_written, rel=1e-6)
    assert run.total_seconds_saved > run.seconds_saved - run.seconds_lost > 0
    nothing = WriteJob(SECOND, machine_of(tape, (0.1, 0.34), 56_000_000_000), 0.1, 1)
    starved = run_writes(tape, PROFILES[DEFAULT], nothing, quiet)
    assert starved.disk_bytes_per_day == starved.disk_bytes_written == 0
    assert starved.total_seconds_saved > starved.seconds_saved == 0
