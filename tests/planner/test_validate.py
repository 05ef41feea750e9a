"""Predictions beside measurements: ways to a break-even, the shape of a trace, and verdicts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvwise.errors import ConfigError, TraceError
from kvwise.planner.validate import (
    Check,
    Drive,
    Host,
    Line,
    Shape,
    crossing,
    crossings,
    invented,
    lengths_around,
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


CHECKED = (320, 480, 640, 800, 1120, 1440, 2240)


def loads(drive: Drive) -> dict[int, list[float]]:
    """Loads from a drive, without any noise."""
    each_s = TOKEN_BYTES / drive.bytes_per_s
    return {n: [drive.first_byte_s + 0.015 + n * each_s] * 2 for n in CHECKED}


COMPUTED = {n: [law(n), law(n)] for n in CHECKED}


def test_drives_are_made_so_that_each_has_a_break_even() -> None:
    """All are as far away, the slower the longer; the one in the middle is where it should be."""
    fast, middle, slow = HOST.drives((0.25, 0.45, 0.6), 900)
    ends = [HOST.break_even_tokens(drive, 128, 3840) for drive in (fast, middle, slow)]

    assert fast.bytes_per_s > middle.bytes_per_s > slow.bytes_per_s
    assert fast.first_byte_s == middle.first_byte_s == slow.first_byte_s > 0
    assert ends[1] == pytest.approx(900, rel=0.01)
    assert (ends[0] or 0) < 720
    assert (ends[2] or 0) > 1100


@pytest.mark.parametrize("share", [0.25, 0.45, 0.6])
def test_both_ways_find_the_same_break_even(share: float) -> None:
    """What is predicted from some lengths is measured at others, and varies as they do."""
    (drive,) = HOST.drives((share,), 900)
    assert HOST.break_even_tokens(drive, 128, 3840) == pytest.approx(900, rel=0.01)
    assert crossing(loads(drive), COMPUTED) == pytest.approx(900, rel=0.01)

    noisy = {n: [0.95 * law(n), law(n), law(n), 1.05 * law(n)] for n in CHECKED}
    four = {n: times * 2 for n, times in loads(drive).items()}
    low, high = crossings(four, noisy, 1) or (0.0, 0.0)
    assert 700 < low < 898
    assert 902 < high < 1200
    assert crossings(four, noisy, 1) == (low, high)


def test_single_lengths_do_not_move_a_break_even_far() -> None:
    """One length at which the machine was another one is a seventh of what is fitted."""
    (drive,) = HOST.drives((0.45,), 900)
    odd = COMPUTED | {800: [1.1 * law(800)] * 2}

    assert crossing(loads(drive), odd) == pytest.approx(900, rel=0.08)


def test_computing_may_grow_faster_than_any_law() -> None:
    """Where times are those of no machine, as a busy one has them, there is a break-even too."""
    (drive,) = HOST.drives((0.45,), 900)
    steep = {n: [law(900) * (n / 900) ** 2.3] * 2 for n in CHECKED}

    assert crossing(loads(drive), steep) == pytest.approx(900, rel=0.06)


def test_there_may_be_no_break_even() -> None:
    """A drive so fast or so slow that one way always wins has none, nor has too little measured."""
    slow, fast = {n: [9.0] * 2 for n in CHECKED}, {n: [0.001] * 2 for n in CHECKED}
    (drive,) = HOST.drives((0.45,), 900)

    assert HOST.break_even_tokens(Drive(1e6), 128, 3840) is None
    assert HOST.break_even_tokens(Drive(1e12), 1280, 3840) is None
    assert crossing(slow, COMPUTED) is None
    assert crossing(fast, COMPUTED) is None
    assert crossing({320: [1.0], 480: [0.1]}, COMPUTED) is None
    assert crossings(slow, COMPUTED, 1) is None
    assert crossings({n: [1.0] for n in CHECKED}, {n: [law(n)] for n in CHECKED}, 1) is None
    assert crossings(loads(drive), COMPUTED, 1) is not None


def test_a_disk_that_is_too_slow_cannot_be_slowed_down() -> None:
    """Where the disk itself takes as long as the fastest drive would, it is said."""
    slow = replace(HOST, disk=Line(0.015, 3e-4))

    with pytest.raises(ConfigError, match=r"no drive in between can be made; hint: use a faster"):
        slow.drives((0.25, 0.45), 900)


def test_lengths_that_are_compared_are_none_that_predictions_know() -> None:
    """They are whole chunks around the break-even, and no longer than they may be."""
    apart = {448, 1024}

    assert lengths_around(900, (0.5, 1.1, 2.0), 32, apart, 2080) == [480, 992, 1792]
    assert lengths_around(900, (0.5, 1.15, 2.0), 32, apart, 1024) == [480, 992]
    assert lengths_around(3, (0.5,), 32, set(), 1024) == [32]


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
