"""Costs: the fits find what generated the samples, and shrug off outliers and nonsense."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwise.core.cost import Burden, Costs, Lane, Pipe, Recompute
from kvwise.core.explore import Explorer
from kvwise.core.plan import Transfer


@given(st.floats(0.0, 0.02), st.floats(1e-5, 2e-3), st.floats(0.0, 3e-7), st.integers(0, 2**16))
def test_recompute_finds_its_parameters(a: float, b: float, g: float, seed: int) -> None:
    """After 60 steps of an engine that follows the law, the next step is predicted within 5 %."""
    costs = Recompute(1e-3)
    for step in range(60):
        new = 64 + (seed + step * 977) % 2000
        cached = (seed + step * 1999) % 8000
        pairs = new * (cached + new / 2)
        costs.learn(new, pairs, a + b * new + g * pairs)
    truth = a + b * 1500 + g * 1500 * (3000 + 750)
    assert costs.weights[0] + costs.seconds(1500, 3000) == pytest.approx(truth, rel=0.05)
    assert min(costs.weights) >= 0.0


def test_one_length_only_still_prices_that_length() -> None:
    """An engine that only ever computes 2,000 tokens at once, ten times faster than guessed."""
    costs = Recompute(1e-3)
    for _ in range(5):
        costs.learn(2000, 2e6, 0.2)
    assert costs.seconds(2000, 0) == pytest.approx(0.2, rel=0.05)
    assert costs.seconds(1000, 0) < 0.15


def test_attention_is_guessed_from_the_model() -> None:
    """Before long prompts were measured, they cost what the model says beside short ones."""
    costs = Recompute(1e-3, 2e-5)
    for _ in range(10):
        costs.learn(500, 125_000.0, 0.05)
    token_s, far = costs.seconds(1000, 0) / 1000, costs.seconds(1000, 100_000) / 1000
    assert token_s == pytest.approx(1e-4, rel=0.1)
    assert far == pytest.approx(token_s * (1 + 2e-5 * 100_000), rel=0.1)


def test_one_stall_does_not_bend_the_fit() -> None:
    """A sample a hundred times too slow moves a prediction by less than 10 %."""
    costs = Recompute(1e-3)
    for step in range(40):
        new = 100 + step * 20
        costs.learn(new, new * new / 2, 1e-3 * new)
    before = costs.seconds(1000, 0)
    costs.learn(500, 125_000.0, 50.0)
    assert costs.seconds(1000, 0) == pytest.approx(before, rel=0.1)


def test_drift_is_followed() -> None:
    """An engine that becomes three times slower is believed within 60 steps."""
    costs = Recompute(1e-3)
    for factor in (1.0, 3.0):
        for step in range(60):
            new = 100 + step * 30 % 900
            costs.learn(new, new * new / 2, factor * 1e-3 * new)
    assert costs.seconds(1000, 0) == pytest.approx(3.0, rel=0.1)


def test_deviation_falls_with_samples() -> None:
    """A first guess is tried without doubt; then steady samples make sure, wild ones do not."""
    wild, steady = Pipe(1e9, 1e-4), Pipe(1e9, 1e-4)
    assert steady.deviation_s(10**8) == 0.0
    for step in range(60):
        size = (1 + step % 13) * 3_000_000
        steady.learn(size, size / 1e9)
        wild.learn(size, size / 1e9 * (0.5 if step % 2 else 1.5))
    assert steady.deviation_s(2 * 10**7) < 0.1 * steady.seconds(2 * 10**7)
    assert wild.deviation_s(2 * 10**7) > 0.3 * wild.seconds(2 * 10**7)


def test_a_bad_first_guess_is_no_noise() -> None:
    """An engine that is steady, but twenty times slower than guessed, is not doubted for that."""
    costs = Recompute(1e-4)
    for step in range(12):
        new = 500 + 40 * (step % 3)
        costs.learn(new, new * new / 2, 2e-3 * new)
    assert costs.deviation_s(1000, 0) < 0.1 * costs.seconds(1000, 0)


def test_a_crowd_is_a_factor() -> None:
    """Steps that take 5 % longer for each further request do not bend the time of one alone."""
    costs = Recompute(1e-3)
    for step in range(400):
        new, requests = 100 + step * 37 % 900, 1 + step % 5
        costs.learn(new, new * new / 2, 1e-3 * new * (1 + 0.05 * (requests - 1)), requests)
    assert costs.seconds(1000, 0) == pytest.approx(1.0, rel=0.06)
    assert costs.crowding(5) == pytest.approx(1.2, abs=0.06)


def test_sizes_that_lie_on_no_line() -> None:
    """Small transfers at a fifth of the rate: each class is predicted within 15 %."""
    pipe = Pipe(1e9, 1e-4)
    for _ in range(40):
        for size, rate in ((10**6, 2e8), (3 * 10**7, 1e9), (3 * 10**8, 1e9)):
            pipe.learn(size, size / rate)
    for size, rate in ((10**6, 2e8), (3 * 10**7, 1e9), (3 * 10**8, 1e9)):
        assert pipe.seconds(size) == pytest.approx(size / rate, rel=0.15)


def test_nothing_costs_nothing() -> None:
    """No tokens, no bytes, no time; and never a negative time."""
    costs = Recompute(1e-3)
    assert costs.seconds(0, 500) == 0.0
    costs.learn(100, 5000.0, 0.0)
    assert costs.seconds(10, 10_000) > 0.0
    assert Pipe(1e9, 1e-3).seconds(0) == 0.0


@given(st.floats(1e8, 2e10), st.floats(0.0, 5e-3))
def test_pipe_finds_rate_and_latency(rate: float, latency: float) -> None:
    """After 40 transfers of mixed sizes, a longer one is predicted within 5 %."""
    pipe = Pipe(1e9, 1e-4)
    for step in range(40):
        size = (1 + step % 13) * 3_000_000
        pipe.learn(size, latency + size / rate)
    assert pipe.seconds(50_000_000) == pytest.approx(latency + 50_000_000 / rate, rel=0.05)
    assert pipe.samples == 40


def times(transfer: Transfer) -> tuple[float, float]:
    """Both times of a transfer."""
    return transfer.total_s, transfer.own_s


def test_queued_bytes_go_first() -> None:
    """A load waits for what its tier still reads, and its copy for the copies before it."""
    costs = Costs([None, Pipe(1e8, 0.0)], Explorer(2), reading=[Lane(), Lane()])
    costs.device[0] = Pipe(1e9, 0.0)
    burden = Burden([0, 10**7], set(), 10**7)
    assert times(costs.transfer(0, 1, burden, 0)) == pytest.approx((0.11, 0.11))
    costs.reading[1].add(5 * 10**7, 0)
    assert times(costs.transfer(0, 1, burden, 0)) == pytest.approx((0.61, 0.11))
    costs.copying[1] = Lane()
    costs.copying[1].add(2 * 10**9, 0)
    assert times(costs.transfer(0, 1, burden, 0)) == pytest.approx((2.01, 0.11))
    assert costs.transfer(0, 2, burden, 0).total_s == pytest.approx(0.61)


def test_what_somebody_else_reads_is_only_waited_for() -> None:
    """Chunks that are on their way cost the rest of their read, and their copy."""
    costs = Costs([None, Pipe(1e8, 0.0)], Explorer(2), reading=[Lane(), Lane()])
    costs.device[0] = Pipe(1e9, 0.0)
    costs.reading[1].add(10**8, 0)
    joined = costs.transfer(0, 1, Burden([0, 0], {1}, 10**8), 250_000_000)
    assert times(joined) == pytest.approx((0.75 + 0.1, 0.1))


def test_a_lane_that_stands_still_is_not_empty() -> None:
    """Time alone takes off what a link carries, but at most half; what arrived is off for good."""
    lane = Lane()
    lane.add(1000, 0)
    assert lane.left_bytes(100.0, 2_000_000_000) == 800
    assert lane.left_bytes(100.0, 60_000_000_000) == 500
    lane.take(900, 60_000_000_000)
    lane.add(900, 61_000_000_000)
    assert lane.left_bytes(100.0, 61_000_000_000) == 900
    lane.take(1000, 61_000_000_000)
    lane.add(50, 90_000_000_000)
    assert lane.left_bytes(100.0, 90_000_000_000) == 50


def test_tiers_read_side_by_side_then_copy() -> None:
    """A load takes as long as its slowest tier, then the copy of everything to the device."""
    costs = Costs(
        [None, Pipe(1e9, 0.0), Pipe(1e8, 0.0)], Explorer(3), reading=[Lane(), Lane(), Lane()]
    )
    costs.device[0] = Pipe(1e10, 0.0)
    transfer = costs.transfer(0, 1, Burden([10**8, 10**8, 10**8], set(), 3 * 10**8), 0)
    assert transfer.total_s == pytest.approx(1.0 + 0.03, rel=1e-6)


@pytest.mark.parametrize("slower", [100, 1000])
def test_an_odd_first_sample_is_soon_forgotten(slower: int) -> None:
    """A tier that was quick once and then is slow, or slower than any guess, is known soon."""
    for first_s in (1e-3, 0.03 * slower):
        pipe = Pipe(1e9, 1e-4)
        pipe.learn(10**6 if first_s == 1e-3 else 3 * 10**7, first_s)
        for _ in range(2):
            pipe.learn(3 * 10**7, 0.03 * slower)
        assert pipe.seconds(3 * 10**7) == pytest.approx(0.03 * slower, rel=0.1)


def test_a_tier_that_changes_is_known_after_four_samples_and_not_doubted() -> None:
    """A hundred times slower, then quick again: no estimate beyond either, no doubt for long."""
    pipe, size = Pipe(1e9, 1e-4), 3 * 10**7
    for seconds in (0.03, 3.0, 0.03):
        for _ in range(12):
            pipe.learn(size, seconds)
            assert 0.02 < pipe.seconds(size) < 3.3
        assert pipe.seconds(size) == pytest.approx(seconds, rel=0.1)
        assert pipe.deviation_s(size) < 0.1 * seconds
