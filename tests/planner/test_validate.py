"""Predictions beside measurements: ways to a break-even, the shape of a trace, and verdicts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvwise.errors import TraceError
from kvwise.planner.validate import (
    Check,
    Host,
    Line,
    Shape,
    crossing,
    invented,
    scaled,
    times_of,
)
from kvwise.sim.trace.distance import measure_reuse
from tests.sim.replay.support import trace_of
from tests.sim.trace.support import quiet

TOKEN_BYTES = 23_040
LENGTHS = (128, 256, 768, 1280, 1920, 2688, 3840)


def law(tokens: float) -> float:
    """Seconds of computing on a machine that is made up."""
    return 0.02 + 7e-4 * tokens + 1.6e-7 * tokens * tokens / 2


HOST = Host(
    oracle=times_of("made up", {n: [law(n)] for n in LENGTHS}),
    memory=Line(0.01, 2e-6),
    disk=Line(0.015, 2e-5),
    token_bytes=TOKEN_BYTES,
)


@pytest.mark.parametrize("tokens", [900, 1500, 2300])
def test_both_ways_find_the_same_break_even(tokens: int) -> None:
    """At the rate for a length, prediction and measurement find that length again."""
    rate = HOST.rate_for(tokens)
    checked = (512, 1024, 1600, 2304, 3264)
    computed = {n: [law(n), law(n)] for n in checked}
    loaded = {n: [0.015 + n * TOKEN_BYTES / rate] * 2 for n in checked}

    assert HOST.break_even_tokens(rate, 128, 3840) == pytest.approx(tokens, rel=0.01)
    assert crossing(loaded, computed) == pytest.approx(tokens, rel=0.03)


def test_there_may_be_no_break_even() -> None:
    """A disk so fast or so slow that one way always wins has none, nor has too little measured."""
    slow, fast = {n: [9.0] for n in LENGTHS}, {n: [0.001] for n in LENGTHS}
    computed = {n: [law(n)] for n in LENGTHS}

    assert HOST.break_even_tokens(1e6, 128, 3840) is None
    assert HOST.break_even_tokens(1e12, 1280, 3840) is None
    assert crossing(slow, computed) is None
    assert crossing(fast, computed) is None
    assert crossing({128: [1.0], 256: [0.1]}, computed) is None


def test_a_load_is_a_line() -> None:
    """Fixed time and rate come from medians; neither is ever negative."""
    line = Line.through({100: [0.3, 0.2, 0.2], 200: [0.3], 400: [0.5, 0.5, 9.0]})
    steep = Line.through({100: [0.1], 200: [0.3]})

    assert [line.fixed_s, line.token_s] == pytest.approx([0.1, 0.001])
    assert line.seconds(100, 0.01) == pytest.approx(1.1)
    assert [steep.fixed_s, steep.token_s] == pytest.approx([0.0, 0.0014])
    assert Line.through({100: [0.3], 200: [0.2]}) == Line(0.25, 0.0)


def test_a_hit_waits_for_what_it_loads_and_what_is_left() -> None:
    """Without a hit a request computes; with one it loads that part and computes after it."""
    assert HOST.ttft_s(0, 1000) == pytest.approx(law(1000), rel=0.01)
    rest = law(1500) - law(1000)
    assert HOST.ttft_s(1000, 500) == pytest.approx(0.01 + 1000 * 2e-6 + rest, rel=0.03)


def test_a_scaled_trace_keeps_its_families() -> None:
    """Blocks change their size, long prompts are cut, and what belongs together stays so."""
    trace = invented(400, 1)
    small = scaled(trace, 120, 32, 60, 1)
    whole, part = (measure_reuse(one, quiet) for one in (trace, small))

    assert len(small.requests) == 120
    assert all(len(one.blocks) <= 60 for one in small.requests)
    assert all(one.input_tokens == 32 * len(one.blocks) + 1 for one in small.requests)
    ratio = whole.hit_blocks / whole.input_blocks
    assert part.hit_blocks / part.input_blocks == pytest.approx(ratio, abs=0.1)
    assert [one.arrival_ns for one in small.requests] == sorted(
        one.arrival_ns for one in small.requests
    )


def test_one_beginning_for_all_makes_no_family() -> None:
    """Prompts that share only what everybody has are drawn each for itself."""
    trace = trace_of([[1, 2, 10 + n] for n in range(50)])

    assert len(scaled(trace, 10, 32, 8, 1).requests) == 10
    assert len(scaled(trace_of([[1, 2]] * 30), 10, 32, 8, 1).requests) == 10


def test_a_check_can_fail() -> None:
    """Off by more than it may be, in either direction, or with a side missing: it does not hold."""
    ratio = Check("x", "tokens", 119.0, 100.0, 0.2)
    plain = Check("hits", "of blocks", 0.400, 0.395, 0.01, is_ratio=False)

    assert ratio.holds
    assert plain.holds
    assert not replace(ratio, predicted=121.0).holds
    assert not replace(ratio, predicted=79.0).holds
    assert not replace(ratio, measured=None).holds
    assert not replace(plain, measured=0.389).holds
    assert replace(ratio, predicted=121.0).row()["off"] == pytest.approx(0.21)


def test_hits_of_a_shape_are_those_of_an_exact_lru() -> None:
    """A small LRU keeps the root of a prompt when another one comes between."""
    shape = Shape.of(trace_of([[1, 2, 3], [4, 5], [1, 2, 3], [1, 2, 3]]), quiet)

    assert shape.capacity_blocks == 3
    assert shape.hits == (0, 0, 1, 3)
    assert shape.hit_ratio == pytest.approx(4 / 11)
    with pytest.raises(TraceError, match="nothing of blocks"):
        Shape.of(trace_of([[], []]), quiet)


def test_what_a_busy_machine_upsets_is_taken_together() -> None:
    """Lengths whose times are in the wrong order become one between them, which is in order."""
    found = times_of("busy", {100: [0.1], 200: [0.5, 0.5, 9.0], 300: [0.3], 400: [0.45], 800: [1]})

    assert [tokens for tokens, _ in found.knots] == [100, 250, 400, 800]
    assert [seconds for _, seconds in found.knots] == pytest.approx([0.1, 0.4, 0.45, 1.0])
