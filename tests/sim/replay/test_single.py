"""One tier over a trace: the brain against exact distances, determinism, and what adds up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwise.core.policies import POLICIES
from kvwise.errors import ConfigError, TraceError
from kvwise.sim.replay.profile import DEFAULT, PROFILES
from kvwise.sim.replay.single import Job, Run, run_single
from kvwise.sim.replay.sweep import bounds_of
from kvwise.sim.replay.tape import tape_of
from kvwise.sim.trace.assembly import Options
from kvwise.sim.trace.records import Trace
from tests.sim.replay.support import made, trace_of
from tests.sim.trace.support import SAMPLE, load, published, quiet, reuse_of

K, M = 1_000, 1_000_000
PROFILE = PROFILES[DEFAULT]
TOKENS = 16
PROMPTS = st.lists(st.lists(st.integers(0, 2), max_size=7), max_size=20)


def ran(trace: Trace, tokens: int, *, policy: str = "lru", plan: str = "auto") -> Run:
    """Run a trace."""
    return run_single(tape_of(trace), PROFILE, Job(policy, plan, tokens), quiet)


@given(PROMPTS, st.integers(1, 12), st.sampled_from(["auto", "load", "recompute"]))
def test_lru_is_the_exact_lru(prompts: list[list[int]], blocks: int, plan: str) -> None:
    """At every capacity the brain's LRU hits exactly the blocks that stack distances say."""
    trace = trace_of(prompts, TOKENS)
    if not len(trace.parents):
        return
    run, reuse = ran(trace, blocks * TOKENS, plan=plan), reuse_of(trace)

    assert run.hit_blocks == int(reuse.hits(blocks).sum())
    assert run.requests == len(prompts)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_policy_lies_within_the_bounds(policy: str) -> None:
    """No policy hits more than foresight does, and what it holds was written."""
    trace = made(400)
    reuse = reuse_of(trace)
    for blocks in (50, 500, 2_000):
        run = ran(trace, blocks * 512, policy=policy)
        bounds = bounds_of(reuse, blocks)

        assert run.input_blocks == reuse.input_blocks
        assert 0 < run.hit_blocks <= bounds.clairvoyant_hit_ratio * run.input_blocks + 1e-6
        assert run.hit_blocks + run.blocks_written + run.not_taken() == run.input_blocks


def test_the_same_again_is_the_same() -> None:
    """Equal inputs give equal runs, the digest of all commands included; others do not."""
    trace = made(300)
    first, again, other = (ran(trace, tokens) for tokens in (200 * K, 200 * K, 201 * K))

    assert first == again
    assert first.digest != other.digest


def test_plans_load_or_do_not() -> None:
    """Loading always loads all hits, never loads none, and both hit the same."""
    trace = made(300)
    always, never, auto = (ran(trace, 1 * M, plan=p) for p in ("load", "recompute", "auto"))

    assert always.hit_blocks == never.hit_blocks == auto.hit_blocks == always.loaded_blocks
    assert never.loaded_blocks == never.seconds_saved == 0
    assert auto.seconds_saved >= always.seconds_saved - always.seconds_lost > 0
    assert never.gpu_s - always.gpu_s == pytest.approx(computed_s(always))
    assert auto.seconds_lost == 0


def computed_s(run: Run) -> float:
    """Seconds of computing that a run without losses was spared: what it won and what it loaded."""
    size_bytes = run.loaded_blocks * 512 * PROFILE.kv_bytes_per_token
    loads_s = size_bytes / PROFILE.link_bytes_per_s
    return run.seconds_saved + loads_s + run.loads * PROFILE.link_latency_s


def test_what_cannot_be_is_refused() -> None:
    """A cache without room for a block, and a trace without blocks, are errors with a hint."""
    with pytest.raises(ConfigError, match=r"15 tokens hold no block of 16; hint: "):
        ran(trace_of([[1]], TOKENS), 15)
    with pytest.raises(TraceError, match=r"azure tells nothing of blocks.*; hint: "):
        tape_of(load(SAMPLE["azure"]))
    with pytest.raises(TraceError, match=r"all prompts of this trace are empty.*; hint: "):
        tape_of(trace_of([[], []]))


CURVES = [
    pytest.param(
        "mooncake_conversation_trace.jsonl.gz",
        Options(),
        {3 * M: 0.1361, 30 * M: 0.3588},
        id="mooncake",
    ),
    pytest.param(
        "weka", Options(models_apart=False, start_every_s=600.0), {1 * M: 0.9340}, id="weka"
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options", "curve"), CURVES)
def test_published_traces_have_their_lru_curves(
    name: str, options: Options, curve: dict[int, float]
) -> None:
    """The brain's LRU gives the published hit ratios, which are those of exact distances."""
    trace = load(published(name), options=options)
    for tokens, expected in curve.items():
        run = ran(trace, tokens)

        assert run.hit_blocks / run.input_blocks == pytest.approx(expected, abs=0.005)
