"""A whole stack over a trace: times worked out by hand, what adds up, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvwise.errors import ConfigError
from kvwise.sim.replay.full import (
    ALWAYS,
    NO_CACHE,
    STACK,
    VARIANTS,
    WRITE_ALL,
    Account,
    _Run,
    capacity_blocks,
    run_full,
)
from kvwise.sim.replay.profile import DEFAULT, PROFILES
from kvwise.sim.replay.stack import Disk, Stack, read_stack, stack_of
from kvwise.sim.replay.sweep import bounds_of
from kvwise.sim.replay.tape import Tape, tape_of
from kvwise.units import NS_PER_S
from tests.sim.replay.support import made, trace_of
from tests.sim.trace.support import quiet, reuse_of

PROFILE = PROFILES[DEFAULT]
TOKENS = 512
OBJECT_BYTES = TOKENS * PROFILE.kv_bytes_per_token
SECTIONS: dict[str, dict[str, Any]] = {
    "engine": {"count": 2},
    "device": {"kv_tokens": 30_000},
    "dram": {"size": "20GiB"},
    "disk": {
        "size": "200GiB",
        "read_bytes_per_s": "14GB",
        "write_bytes_per_s": "10GB",
        "drives": 2,
    },
}


def stack(**changes: dict[str, Any]) -> Stack:
    """A small stack, with other values for some keys."""
    names = {**SECTIONS, **changes}
    return stack_of(
        {name: {**SECTIONS.get(name, {}), **changes.get(name, {})} for name in names}, "made"
    )


@cache
def chats() -> Tape:
    """A trace that is made up."""
    return tape_of(made(400))


def ran(tape: Tape, machines: Stack, variant: str = STACK, speed: float = 1.0) -> Account:
    """Run one variant."""
    return run_full(tape, machines, variant, speed, quiet)


def with_outputs(tape: Tape, *tokens: int) -> Tape:
    """The same prompts with answers of so many tokens."""
    columns = tape.output_tokens.copy()
    columns[:] = tokens
    return replace(tape, output_tokens=columns)


def test_alone_a_prompt_takes_its_steps() -> None:
    """A prompt of an idle engine is computed in steps of so many tokens, each by the law."""
    tape = tape_of(trace_of([[1, 2, 3, 4, 5]], TOKENS))
    found = ran(tape, stack(engine={"count": 1, "step_tokens": 1_000}))
    steps = [(1_000, 0), (1_000, 1_000), (560, 2_000)]

    assert found.ttft_s == pytest.approx(
        [sum(PROFILE.step_s + PROFILE.compute_s(*step) for step in steps)]
    )


def test_who_decodes_is_interrupted_at_the_next_step() -> None:
    """A prompt that comes while another request decodes waits for the step that is under way."""
    tape = with_outputs(tape_of(trace_of([[1], [2]], TOKENS)), 1_000, 1)
    found = ran(tape, stack(engine={"count": 1}))
    first_s = PROFILE.step_s + PROFILE.compute_s(TOKENS, 0)
    each_s = PROFILE.decode_step_s + PROFILE.decode_token_s
    waits_s = each_s - (1.0 - first_s) % each_s
    mixed_s = first_s + PROFILE.decode_token_s

    assert found.ttft_s == pytest.approx([first_s, waits_s + mixed_s])


def test_a_prompt_comes_back_from_memory() -> None:
    """What no longer is on the device is copied from memory, but for the last block."""
    prompts = [[1, 1, 1], [2, 2, 2], [1, 1, 1]]
    tape = with_outputs(tape_of(trace_of(prompts, TOKENS)), 1, 1, 1)
    found = ran(tape, stack(engine={"count": 1}, device={"kv_tokens": 4 * TOKENS}))
    load_s = PROFILE.load_s(2 * OBJECT_BYTES)
    step_s = PROFILE.step_s + PROFILE.compute_s(TOKENS, 2 * TOKENS)

    assert found.hit_tokens == {"device": 0, "dram": 2 * TOKENS}
    assert found.read_bytes["dram"] == 2 * OBJECT_BYTES
    assert found.ttft_s[2] == pytest.approx(load_s + step_s)


@pytest.mark.parametrize(
    ("rate", "codec", "smaller"),
    [
        ("40MB", "auto", True),
        ("40GB", "auto", False),
        ("40GB", "dense", True),
        ("40MB", "off", False),
    ],
)
def test_drives_that_are_slow_get_smaller_objects(rate: str, codec: str, smaller: bool) -> None:
    """A codec is chosen on slow drives only, unless it is told; then more is held and less read."""
    disk = {"read_bytes_per_s": rate, "codec": codec, "drives": 1, "size": "60GiB"}
    brain = {"plan": "load", "eviction": "lru"}
    machines = stack(dram={"size": "4GiB"}, disk=disk, brain=brain)
    run = _Run(chats(), machines, STACK, 1.0)
    run.run(quiet)
    held = run._node.brain.snapshot()["levels"]["tiers"]["disk"]
    assert held["objects"] > 50
    assert (held["used_bytes"] < 0.9 * held["objects"] * OBJECT_BYTES) is smaller


def test_a_prompt_comes_back_from_drives() -> None:
    """What was evicted from memory is read from the drives, written there only once."""
    prompts = [[1, 1, 1], [2, 2, 2], [3, 3, 3], [1, 1, 1]]
    tape = with_outputs(tape_of(trace_of(prompts, TOKENS)), 1, 1, 1, 1)
    machines = stack(
        engine={"count": 1},
        device={"kv_tokens": 4 * TOKENS},
        dram={"size": 6 * OBJECT_BYTES},
        brain={"eviction": "lru"},
    )
    found = ran(tape, machines, ALWAYS)
    read_s = 1e-4 + 2 * OBJECT_BYTES / 28e9
    step_s = PROFILE.step_s + PROFILE.compute_s(TOKENS, 2 * TOKENS)

    assert found.hit_tokens == {"device": 0, "disk": 2 * TOKENS}
    assert found.read_bytes["disk"] == 2 * OBJECT_BYTES
    assert found.written_bytes["disk"] == 9 * OBJECT_BYTES
    assert found.ttft_s[3] == pytest.approx(read_s + PROFILE.load_s(OBJECT_BYTES) + step_s)


def test_a_prompt_comes_back_over_the_network() -> None:
    """Without drives, what was evicted from memory is fetched from the store below it."""
    prompts = [[1, 1, 1], [2, 2, 2], [3, 3, 3], [1, 1, 1]]
    tape = with_outputs(tape_of(trace_of(prompts, TOKENS)), 1, 1, 1, 1)
    rates = {"size": "1TB", "read_bytes_per_s": "50GB", "write_bytes_per_s": "50GB"}
    sections = {**SECTIONS, "network": rates, "dram": {"size": 6 * OBJECT_BYTES}}
    sections |= {"engine": {}, "device": {"kv_tokens": 4 * TOKENS}, "brain": {"eviction": "lru"}}
    del sections["disk"]
    found = ran(tape, stack_of(sections, "made"), ALWAYS)
    read_s = 1e-3 + 2 * OBJECT_BYTES / 50e9
    step_s = PROFILE.step_s + PROFILE.compute_s(TOKENS, 2 * TOKENS)

    assert found.hit_tokens == {"device": 0, "network": 2 * TOKENS}
    assert found.life_years is None
    assert found.ttft_s[3] == pytest.approx(read_s + PROFILE.load_s(OBJECT_BYTES) + step_s)


@pytest.mark.parametrize("engines", [1, 3, 8])
def test_engines_of_a_node_share_what_one_computed(engines: int) -> None:
    """However many there are: in turn, each loads from memory what the first one computed."""
    tape = with_outputs(tape_of(trace_of([[1, 1, 1]] * engines, TOKENS)), *[1] * engines)
    found = ran(tape, stack(engine={"count": engines, "routing": "in-turn"}))

    assert found.hit_tokens == {"device": 0} | (
        {"dram": 2 * TOKENS * (engines - 1)} if engines > 1 else {}
    )
    assert found.computed_tokens == 3 * TOKENS + (engines - 1) * TOKENS


def test_two_engines_that_want_the_same_read_it_once() -> None:
    """A prefix that a drive is reading for one request is not read again for another."""
    prompts = [[1, 1, 1], [2, 2, 2], [3, 3, 3], [1, 1, 1], [1, 1, 1]]
    tape = with_outputs(tape_of(trace_of(prompts, TOKENS)), 1, 1, 1, 1, 1)
    arrivals = tape.arrival_ns.copy()
    arrivals[4] = arrivals[3] + 1_000
    machines = stack(
        engine={"count": 2, "routing": "in-turn"},
        device={"kv_tokens": 4 * TOKENS},
        dram={"size": 6 * OBJECT_BYTES},
        brain={"eviction": "lru"},
    )
    found = ran(replace(tape, arrival_ns=arrivals), machines, ALWAYS)

    assert found.hit_tokens == {"device": 0, "disk": 4 * TOKENS}
    assert found.read_bytes["disk"] == 2 * OBJECT_BYTES


def one_shots() -> Tape:
    """Prompts that are never seen again."""
    return tape_of(trace_of([[number] * 3 for number in range(200)], TOKENS))


@pytest.mark.parametrize(
    ("brain", "variant", "everything"),
    [
        ({"eviction": "worth"}, STACK, False),
        ({"eviction": "worth", "min_chance": 0.0}, STACK, True),
        ({"eviction": "lru"}, STACK, True),
        ({"eviction": "lru", "min_chance": 0.5}, STACK, False),
        ({"eviction": "s3fifo"}, ALWAYS, True),
        ({"eviction": "worth", "min_chance": 1.0, "write_bytes_per_day": 1}, WRITE_ALL, True),
    ],
)
def test_only_who_learns_refuses(brain: dict[str, Any], variant: str, *, everything: bool) -> None:
    """One-shot prompts are refused once that is learned, or by a chance that was set."""
    found, blocks = ran(one_shots(), stack(brain=brain), variant), one_shots().distinct_blocks
    shares = [found.written_bytes[tier] / (blocks * OBJECT_BYTES) for tier in ("dram", "disk")]

    if everything:
        assert shares == [1, pytest.approx(1, abs=4 / blocks)]  # the last one is on its way
    else:
        assert max(shares) < 0.5


def test_what_is_held_against_writes_what_saves_nothing() -> None:
    """A drive that is slower than computing is written all the same, and by this stack not."""
    machines = stack(disk={"read_bytes_per_s": 1e7}, brain={"eviction": "lru"})
    ours, held = (ran(one_shots(), machines, name) for name in (STACK, WRITE_ALL))

    assert ours.written_bytes["disk"] == 0
    assert held.written_bytes["disk"] >= (one_shots().distinct_blocks - 3) * OBJECT_BYTES


PROMPTS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=12)


@settings(deadline=None)
@given(
    prompts=PROMPTS,
    objects=st.tuples(st.integers(1, 8), st.integers(1, 12)),
    running_max=st.integers(1, 3),
    variant=st.sampled_from(VARIANTS),
    speed=st.sampled_from([1.0, 100.0]),
)
def test_any_small_stack_serves_everything(
    prompts: list[list[int]],
    objects: tuple[int, int],
    running_max: int,
    variant: str,
    speed: float,
) -> None:
    """However little room there is, every request is served, and the brain's state is sound."""
    tape = tape_of(trace_of(prompts, TOKENS))
    machines = stack(
        engine={"count": 2, "running_max": running_max, "step_tokens": 700},
        device={"kv_tokens": 7 * TOKENS},
        dram={"size": objects[0] * OBJECT_BYTES},
        disk={"size": objects[1] * OBJECT_BYTES, "read_bytes_per_s": 1e10},
    )
    run = _Run(tape, machines, variant, speed)
    found = run.run(quiet)
    run._node.brain.check()

    assert found.computed_tokens + sum(found.hit_tokens.values()) == tape.input_tokens.sum()
    assert found.requests == len(prompts)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("routing", ["least-work", "prefix", "in-turn"])
def test_every_token_is_accounted_for(variant: str, routing: str) -> None:
    """Each token of a prompt is computed or comes from one tier, and no bytes from nowhere."""
    tape, machines = chats(), stack(engine={"count": 2, "routing": routing})
    found = ran(tape, machines, variant)
    bound = bounds_of(reuse_of(made(400)), capacity_blocks(machines, TOKENS))
    loaded = sum(tokens for tier, tokens in found.hit_tokens.items() if tier != "device")

    assert found.computed_tokens + sum(found.hit_tokens.values()) == tape.input_tokens.sum()
    assert found.read_bytes["dram"] == loaded * PROFILE.kv_bytes_per_token
    assert 0 < sum(found.used_blocks.values()) <= found.found_blocks
    assert {tier: blocks * TOKENS for tier, blocks in found.used_blocks.items()} == found.hit_tokens
    assert found.hit_ratio <= bound.clairvoyant_hit_ratio
    assert len(found.ttft_s) == tape.requests
    assert min(found.ttft_s) > 0
    assert 0 < found.gpu_s < found.seconds * 2


def test_without_cache_nothing_moves() -> None:
    """The run without a cache loads and writes nothing, and computes more than the others."""
    none, some = (ran(chats(), stack(), variant) for variant in (NO_CACHE, STACK))

    assert set(none.read_bytes.values()) == set(none.written_bytes.values()) == {0}
    assert set(none.hit_tokens) == {"device"}
    assert none.computed_tokens > some.computed_tokens
    assert none.life_years is None
    assert some.against(none)[0] > some.against(none)[1]


def test_the_same_again_is_the_same() -> None:
    """Equal inputs give equal accounts, the digest of all commands included; others do not."""
    first, again = (ran(chats(), stack()) for _ in range(2))
    faster = ran(chats(), stack(), speed=4.0)

    assert first == again
    assert first.digest != faster.digest
    assert faster.seconds < first.seconds / 2
    assert sum(faster.ttft_s) > sum(first.ttft_s)


def test_time_begins_with_the_first_request() -> None:
    """Timestamps since 1970 give what those since the first request give."""
    epoch_ns = 1_760_000_000 * NS_PER_S
    late = replace(chats(), arrival_ns=chats().arrival_ns + epoch_ns)

    assert ran(late, stack()) == ran(chats(), stack())


@pytest.mark.parametrize(("days", "speed"), [(30, 1.0), (30_000, 1.0), (0.1, 1e-5)])
def test_nothing_happens_quickly(days: float, speed: float) -> None:
    """Long pauses are passed over, and change nothing of what is kept and used again."""
    tape = with_outputs(tape_of(trace_of([[1, 1], [2, 2], [1, 1]], TOKENS)), 1, 1, 1)
    pause_ns = np.array([0, 0, round(days * 86_400 * NS_PER_S)])
    far = replace(tape, arrival_ns=tape.arrival_ns + pause_ns)
    machines = stack(
        engine={"count": 1},
        device={"kv_tokens": 3 * TOKENS},
        dram={"size": 4 * OBJECT_BYTES},
    )
    found = ran(far, machines, speed=speed)

    assert found.seconds == pytest.approx(int(far.arrival_ns[2]) / speed / NS_PER_S, abs=1.0)
    assert found.written_bytes["disk"] == 4 * OBJECT_BYTES
    assert found.hit_tokens["dram"] == TOKENS


def test_time_ends() -> None:
    """What takes more than 64 bits of nanoseconds is refused, not run into."""
    far = replace(chats(), arrival_ns=chats().arrival_ns * 100_000)
    with pytest.raises(ConfigError, match="more than 146 years of simulated time; hint: "):
        ran(far, stack(), speed=1e-6)


def test_late_loads_are_given_up_and_computed() -> None:
    """Loads that drives are too slow for end at their deadline, and their prompts are computed."""
    slow = {"read_bytes_per_s": 1e6, "write_bytes_per_s": 1e12}
    machines = stack(
        device={"kv_tokens": 20_000},
        dram={"size": 20 * OBJECT_BYTES},
        disk=slow,
        brain={"load_timeout_s": 0.5},
    )
    found = ran(chats(), machines, ALWAYS)

    assert found.late > 0
    assert found.computed_tokens + sum(found.hit_tokens.values()) == chats().input_tokens.sum()


def test_drives_last_as_their_maker_says() -> None:
    """Drives that are written whole once a day last for their warranty, less what is lost."""
    disk = Disk(size=10**12, read_bytes_per_s=1e9, write_bytes_per_s=1e9, drives=2)

    assert disk.life_years(10**12, 86_400) == pytest.approx(5.0 / 1.1)
    assert disk.life_years(0, 86_400) is None


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "device: it is missing"),
        ("", "begins with [device]"),
        ("", "begins with [dram]"),
        ("engine = 1", "engine: it is a section, which begins with [engine]"),
        (
            "[engine]\nsteps_s = 2\ntoken_s = 0.0",
            "steps_s: there is no such key; is it step_s?",
        ),
        ("[engine]\nsteps_s = 2\ntoken_s = 0.0", "engine.token_s: expected `float` > 0"),
        ("[disk]\nsize = 1\n[brain]\neviction = 'x'", "disk.write_bytes_per_s: it is missing"),
        ("[disk]\nsize = 1\n[brain]\neviction = 'x'", "brain.eviction: there is no 'x', only"),
        ("[engine]\ncount = 0", "engine.count: "),
        ("[engine]\ncounts = 1", "counts"),
        ('[engine]\nprofile = "x"', "there is no 'x'"),
        ('[engine]\nrouting = "x"', "engine.routing: "),
        ("[engine]\ntoken_s = -1.0", "token_s: "),
        ("[engine]\ntoken_s = 1e3", "token_s: expected `float` <= 10"),
        ("[engine]\nstep_s = 1e9", "step_s: expected `float` <= 3600"),
        ("[engine]\npair_s = 1e9", "pair_s: expected `float` <= 1"),
        ("[engine]\ndecode_step_s = 1e9", "decode_step_s: expected `float` <= 3600"),
        ("[engine]\nlink_bytes_per_s = 1e-300", "link_bytes_per_s: expected `float` >= 1"),
        ("[engine]\n[device]\nkv_tokens = 1e3", "device.kv_tokens: "),
        ("[engine]\n[device]\nkv_tokens = 1000", "dram"),
        ('[engine]\n[device]\nkv_tokens = 1000\n[dram]\nsize = "1XB"', "dram.size: not a size"),
        ('[engine]\n[device]\nkv_tokens = 9\n[dram]\nsize = "1TB"\n[brian]', "brian"),
        (
            '[engine]\n[device]\nkv_tokens = 9\n[dram]\nsize = "1TB"\n[brain]\neviction = "x"',
            "brain.eviction: there is no 'x'",
        ),
        (
            '[engine]\n[device]\nkv_tokens = 9\n[dram]\nsize = "1TB"\n[disk]\nsize = "1TB"',
            "read_bytes_per_s",
        ),
        (
            (
                'device.kv_tokens = 9\ndram.size = "1TB"\ndisk.size = "1TB"\ndisk.mixed = 1.5\n'
                "disk.read_bytes_per_s = 1e9\ndisk.write_bytes_per_s = 1e9"
            ),
            "disk.mixed: ",
        ),
        (
            (
                'device.kv_tokens = 9\ndram.size = "1TB"\ndisk.size = "1TB"\n'
                "disk.read_bytes_per_s = 1e9\ndisk.write_bytes_per_s = 1e-300"
            ),
            "disk.write_bytes_per_s: expected `float` >= 1",
        ),
    ],
)
def test_a_wrong_stack_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    """What cannot be a stack is an error that names the file and the key."""
    path = tmp_path / "stack.toml"
    path.write_text(text)

    with pytest.raises(ConfigError) as caught:
        read_stack(path)
    assert str(path) in str(caught.value)
    assert complaint in str(caught.value)


def test_sizes_of_a_fleet_have_a_unit() -> None:
    """A petabyte is one, and its binary kin too."""
    machines = stack(
        dram={"size": "2PiB"}, disk={"size": "1.5PB"}, brain={"write_bytes_per_day": "1TB"}
    )

    assert (machines.dram.size, machines.disk and machines.disk.size) == (2 << 50, 15 * 10**14)
    assert machines.brain.write_bytes_per_day == 10**12


def test_a_stack_that_can_not_serve_the_trace_is_refused() -> None:
    """Devices without room for the longest request, and an arena without any, name their keys."""
    with pytest.raises(ConfigError, match=r"device\.kv_tokens: 1024 tokens .*; hint: at least"):
        ran(chats(), stack(device={"kv_tokens": 1_024}))
    with pytest.raises(ConfigError, match=r"dram\.size: 1024 bytes hold no object"):
        ran(chats(), stack(dram={"size": 1_024}))
