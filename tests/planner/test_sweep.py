"""The search for sizes: what it looks at, what it may not choose, and machines that it runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest

from kvwise.errors import ConfigError
from kvwise.planner.catalogue import find_model
from kvwise.planner.demand import Demand
from kvwise.planner.families import family_of_each
from kvwise.planner.hardware import read_hardware
from kvwise.planner.prefill import Prefill
from kvwise.planner.prices import Prices
from kvwise.planner.shapes import Precision, Precisions
from kvwise.planner.site import Site
from kvwise.planner.sweep import (
    Candidate,
    Guess,
    Limits,
    best_guesses,
    candidates,
    choose,
    guess,
    host_share,
    least_tokens,
    ranks_of,
    stack_for,
    trial_of,
    variations,
)
from kvwise.sim.replay.full import NO_CACHE, STACK, run_full
from kvwise.sim.replay.tape import tape_of
from kvwise.sim.trace.distance import measure_reuse
from tests.sim.replay.support import made
from tests.sim.trace.support import quiet

KNOWN = read_hardware()
MODEL = find_model("llama-3.1-8b")
GPU = KNOWN.gpu("h100-sxm")
TRACE = made(400, ("chat",))
BASE = Site(
    model=MODEL,
    kept=Precisions(),
    gpus=4,
    hbm_bytes=GPU.hbm_gb * 1e9,
    weight_bytes=2.0,
    hosts=2,
    dram=KNOWN.tiers["dram-pcie5"],
    dram_bytes=1e12,
    drive=KNOWN.tiers["nvme-gen5"],
    drives=4,
    drive_bytes=7.68e12,
    prices=Prices.of(KNOWN, "h100-sxm", "nvme-gen5"),
)


@cache
def demands() -> dict[int, Demand]:
    """The trace, by GPUs of an engine."""
    reuse = measure_reuse(TRACE, quiet)
    return {ranks: Demand(TRACE, reuse, Prefill(MODEL, GPU, ranks)) for ranks in (1, 2, 4)}


@cache
def every() -> Sequence[Candidate]:
    """All combinations."""
    ranks = ranks_of(4, is_estimated=True)
    return list(candidates(BASE, KNOWN, "h100-sxm", ranks, least_tokens(TRACE)))


@cache
def guesses() -> Sequence[Guess]:
    """All of them on the curve."""
    return [guess(one, demands()) for one in every()]


def cost(one: Guess) -> float:
    """What is to be least."""
    return one.usd_per_million_tokens


def test_all_combinations_can_be_had() -> None:
    """Every one has all GPUs, room for weights and the longest request, and a use for memory."""
    assert len(every()) > 200
    for one in every():
        site = one.site
        assert site.hosts * site.gpus == 8
        assert site.device_tokens / site.hosts >= least_tokens(TRACE)
        assert site.memory_tokens > site.device_tokens
        assert bool(one.drive) == bool(site.drives)
    assert {one.site.gpus for one in every()} == {1, 2, 4}
    assert ranks_of(4, is_estimated=False) == (4,)


def test_more_memory_never_leaves_more_to_compute() -> None:
    """On the curve the same combination with more memory needs no more GPU-seconds."""
    left: dict[tuple[object, ...], list[tuple[float, float]]] = {}
    for one in guesses():
        found = one.candidate
        key = (found.kind, found.hbm_share, found.drive, found.site.drives)
        left.setdefault(key, []).append((found.site.dram_bytes, one.gpu_s))
    for found_s in left.values():
        ordered = [gpu_s for _, gpu_s in sorted(found_s)]
        assert ordered == sorted(ordered, reverse=True)


def test_the_budget_is_kept_to() -> None:
    """What costs more a month is never looked at; where all do, that is said."""
    free = best_guesses(guesses(), Limits(), cost, 3)
    dear = max(one.candidate.costs_usd_per_month for one in guesses())
    cheap = min(one.candidate.costs_usd_per_month for one in guesses())
    tight = best_guesses(guesses(), Limits(usd_per_month=(cheap + dear) / 8), cost, 3)

    assert len({one.candidate.kind for one in free}) == len(free) == 3
    assert free[0].usd_per_million_tokens == min(map(cost, guesses()))
    assert all(one.candidate.costs_usd_per_month <= (cheap + dear) / 8 for one in tight)
    with pytest.raises(ConfigError, match="hint: a larger --budget"):
        best_guesses(guesses(), Limits(usd_per_month=cheap / 2), cost, 3)
    with pytest.raises(ConfigError, match="hint: more --tp"):
        best_guesses([], Limits(), cost, 3)


def test_a_host_gets_whole_families_or_every_other_request() -> None:
    """Routed by prefix, nobody's family is on two hosts; in turn, requests are dealt out."""
    routed = host_share(TRACE, 2, in_turn=False)
    dealt = host_share(TRACE, 2, in_turn=True)
    family = dict(zip(map(id, TRACE.requests), family_of_each(TRACE.requests), strict=True))
    mine = {family[id(one)] for one in routed.requests}
    rest = [one for one in TRACE.requests if one not in routed.requests]

    assert 100 < len(routed.requests) < 300
    assert mine.isdisjoint(family[id(one)] for one in rest)
    assert dealt.requests == TRACE.requests[::2]


def test_a_combination_runs_as_a_machine() -> None:
    """The stack has its sizes and its write budget, and its cache leaves less to compute."""
    one = next(one for one in every() if one.drive and one.site.gpus == 4)
    oracle = Prefill(MODEL, GPU, 4)
    stack = stack_for(one, oracle)
    tape = tape_of(host_share(TRACE, one.site.hosts, in_turn=False))
    ours, without = (run_full(tape, stack, name, 1.0, quiet) for name in (STACK, NO_CACHE))
    trial = trial_of(one, ours, without, float(tape.input_tokens.sum()) / 1e6)

    assert stack.disk is not None
    assert stack.disk.drives == one.site.drives
    assert stack.dram.size == int(one.site.dram_bytes)
    assert stack.brain.write_bytes_per_day == int(one.site.budget_bytes / one.site.hosts)
    assert trial.gpu_s <= trial.gpu_s_without
    assert trial.told()["kv"] == one.site.kept.kv.name.lower()
    assert choose([trial], Limits(ttft_s=1e-9), lambda found: found.gpu_s) is None
    assert choose([trial], Limits(), lambda found: found.gpu_s) == trial
    assert stack_for(replace(one, shared=True), oracle).network is not None


def test_what_is_no_size_is_turned_one_at_a_time() -> None:
    """Policy, codec, routing and a shared tier, where there is anything to turn."""
    drives = next(one for one in every() if one.drive and one.site.kept.kv is Precision.BF16)
    plain = replace(drives, drive="", site=replace(drives.site, drives=0, hosts=1))

    assert [len(variations(one)) for one in (drives, plain)] == [4, 1]
    assert all(one != drives for one in variations(drives))
