"""A real vLLM with kvwise: every token is the one that computing everything would have given.

Each equality has a control in which the cached bytes are wrong and the tokens must differ, so that
a test that loads nothing cannot pass.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from tests.engines.support import Processes, finish, real_model

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

Seen = dict[str, Any]
KINDS = {
    "sync": ("llama", {"client.load": "sync"}),
    "async": ("llama", {"client.load": "async"}),
    "hybrid": ("hybrid", {}),
}
PROMPT_TOKENS = (372, 438, 400)


def tokens(answers: list[Seen]) -> list[list[int]]:
    """The generated tokens of each answer."""
    return [answer["tokens"] for answer in answers]


def loaded(answers: list[Seen]) -> list[int]:
    """The tokens of each answer that kvwise says it loaded."""
    return [answer["said"].get("load_tokens", 0) for answer in answers]


def assert_diverse(answers: list[Seen]) -> None:
    """Text that repeats itself would be equal whatever its KV."""
    for answer in answers:
        assert len(set(answer["tokens"])) > len(answer["tokens"]) * 2 // 3


def life(processes: Processes, kind: str) -> Seen:
    """One engine through everything that `life` does; chunked prefill of 256 tokens."""
    model, extra = KINDS[kind]

    def run() -> Seen:
        rig = {"model": processes.model(model), "extra": extra, "max_num_batched_tokens": 256}
        return finish(processes.start("life", rig))

    return processes.once(f"life {kind}", run)


@pytest.mark.pain("W3", "G6")
@pytest.mark.parametrize("kind", KINDS)
def test_loaded_tokens_are_the_computed_ones(processes: Processes, kind: str) -> None:
    """After vLLM forgot everything, prompts are loaded and give the same tokens."""
    seen = life(processes, kind)
    assert_diverse(seen["cold"])
    assert tokens(seen["loaded"]) == tokens(seen["cold"]) == tokens(seen["again"])
    assert all(count >= 256 for count in (seen["loaded"][0]["cached"], loaded(seen["loaded"])[2]))
    assert all(
        have < all_ for have, all_ in zip(loaded(seen["loaded"]), PROMPT_TOKENS, strict=True)
    )


@pytest.mark.pain("W3")
@pytest.mark.parametrize("kind", KINDS)
def test_wrong_bytes_give_other_tokens(processes: Processes, kind: str) -> None:
    """The control: with every cached bit flipped, no prompt gives the tokens it should."""
    seen = life(processes, kind)
    assert loaded(seen["corrupted"]) == loaded(seen["loaded"])
    for wrong, right in zip(tokens(seen["corrupted"]), tokens(seen["cold"]), strict=True):
        assert wrong != right


@pytest.mark.pain("W9")
@pytest.mark.parametrize("kind", KINDS)
def test_prompts_of_one_batch_share_what_is_loaded(processes: Processes, kind: str) -> None:
    """Two prompts with a common prefix arrive together: it is loaded once, and both are right."""
    seen = life(processes, kind)
    assert tokens(seen["together"]) == tokens(seen["cold"])
    assert sum(loaded(seen["together"])) == sum(loaded(seen["loaded"]))
    assert min(answer["cached"] for answer in seen["together"]) >= 256


@pytest.mark.pain("W4", "W11", "C6")
@pytest.mark.parametrize("kind", KINDS)
def test_a_failed_load_is_computed_instead(processes: Processes, kind: str) -> None:
    """Wrong bytes on the device and a lost lease: the tokens are right all the same."""
    seen = life(processes, kind)
    right = tokens(seen["cold"]) + tokens(seen["plain"])
    for failing in ("failing", "failing_together"):
        assert tokens(seen[failing]) == right
        problems = [answer["said"].get("problem") for answer in seen[failing]]
        assert problems[0] == "lease lost during the copy"
    assert seen["counters"]["kvwise_failed_loads/lease lost during the copy"] >= 5


@pytest.mark.pain("W11")
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_computed_on_a_failed_load_is_kept(processes: Processes, kind: str) -> None:
    """What was stored while loads failed is loaded later, and is right."""
    seen = life(processes, kind)
    right = tokens(seen["cold"]) + tokens(seen["plain"])
    for after in ("after", "after_together"):
        assert tokens(seen[after]) == right
        assert seen[after][3]["cached"] > seen["cold"][1]["cached"]


@pytest.mark.pain("O1")
@pytest.mark.parametrize("kind", KINDS)
def test_numbers_add_up(processes: Processes, kind: str) -> None:
    """VLLM's metrics name the tier, and kvwise counts what it loaded and stored."""
    counters = life(processes, kind)["counters"]
    host = counters["prompt_tokens_cached_by_source/host"]
    assert host == counters["external_prefix_cache_hits"] > 0
    assert counters["prompt_tokens_cached_by_source/external_unspecified"] == 0
    assert 0 < counters["kvwise_loaded_tokens/dram"] <= host
    assert counters["kvwise_stored_bytes"] / counters["kvwise_stored_tokens"] == 4096


@pytest.mark.pain("W12", "C3")
@pytest.mark.parametrize("load", ["sync", "async"])
def test_preempted_requests_come_back_right(processes: Processes, load: str) -> None:
    """With too few blocks for all, requests are preempted and resumed without a wrong token."""
    rig = {
        "model": processes.model("llama"),
        "extra": {"client.load": load},
        "num_gpu_blocks_override": 24,
        "max_model_len": 512,
    }
    seen = finish(processes.start("preempted", rig))
    assert seen["preemptions"] > 0
    assert_diverse(seen["alone"])
    assert tokens(seen["together"]) == tokens(seen["loaded"]) == tokens(seen["alone"])
    assert min(loaded(seen["loaded"])) >= 128


@pytest.mark.pain("W9", "H4")
@pytest.mark.parametrize("kind", KINDS)
def test_a_storm_is_weathered(processes: Processes, kind: str) -> None:
    """Sixteen prompts with common beginnings and too few blocks, while every third load fails.

    Whatever is preempted, shared, loaded, spoilt and computed again: all tokens are right, and no
    lease is left behind.
    """
    model, extra = KINDS[kind]
    rig = {
        "model": processes.model(model),
        "extra": extra,
        "num_gpu_blocks_override": 48,
        "max_model_len": 512,
        "max_num_batched_tokens": 512,
    }
    seen = finish(processes.start("storm", rig))
    assert_diverse(seen["alone"])
    for name in ("round 0", "round 1", "round 2", "calm"):
        assert tokens(seen[name]) == tokens(seen["alone"]), name
    assert seen["preemptions"] > 0
    assert seen["counters"]["kvwise_failed_loads/lease lost during the copy"] >= 2
    assert sum(loaded(seen["calm"])) > 500
    assert seen["status"]["levels"]["leases"] == {"load": 0, "store": 0}


@pytest.mark.parametrize("kind", KINDS)
def test_policy_fail_ends_one_request(processes: Processes, kind: str) -> None:
    """With vLLM's policy `fail` a failed load is an error of its request and of nobody else."""
    model, extra = KINDS[kind]
    rig = {"model": processes.model(model), "extra": extra, "policy": "fail"}
    seen = finish(processes.start("failed_policy", rig))
    assert [answer["finish"] for answer in seen["failing"]] == ["error"]
    assert tokens(seen["after"]) == tokens(seen["loaded"]) == tokens(seen["cold"])
    assert min(answer["cached"] for answer in seen["loaded"]) >= 256


@pytest.mark.pain("M3")
def test_an_aborted_load_gives_everything_back(processes: Processes) -> None:
    """A request that is aborted while it loads leaves no block, no request and no lease behind."""
    rig = {"model": processes.model("llama"), "extra": {"client.load": "async"}}
    seen = finish(processes.start("aborted", rig))
    assert seen["status"] == ["WAITING_FOR_REMOTE_KVS"]
    assert seen["held_blocks"] > 0
    assert (seen["blocks_missing"], seen["left"]) == (0, 0)
    assert seen["leases"]["levels"]["leases"] == {"load": 0, "store": 0}
    assert tokens(seen["after"]) == tokens(seen["cold"])
    assert loaded(seen["after"]) == [256]


def manners(processes: Processes) -> Seen:
    """One engine for salts, hints and a reset."""

    def run() -> Seen:
        return finish(processes.start("manners", {"model": processes.model("llama"), "extra": {}}))

    return processes.once("manners", run)


def test_salts_are_kept_apart(processes: Processes) -> None:
    """A salted prompt hits only what was stored with the same salt."""
    seen = manners(processes)
    assert (loaded(seen["salted"]), loaded(seen["salted_again"])) == ([0], [256])
    assert tokens(seen["salted_again"]) == tokens(seen["cold"])


def test_hints_are_obeyed(processes: Processes) -> None:
    """`no_load` computes what is there, `no_store` leaves nothing behind; answers say so."""
    seen = manners(processes)
    assert seen["no_load"][0]["said"] == {"choice": "recompute", "why": "disabled"}
    assert tokens(seen["no_load"]) == tokens(seen["cold"])
    assert loaded(seen["not_stored"]) == [0]
    assert seen["not_stored"][0]["said"]["why"] == "no_match"


def test_hints_reach_the_cache(processes: Processes) -> None:
    """What a request wants kept is kept, and its answer names what was no hint."""
    seen = manners(processes)
    said = seen["kept"][0]["said"]
    assert "ttl_s = -1 is ignored" in said["problem"]
    assert "no_store = 1 is ignored" in said["problem"]
    assert tokens(seen["kept"]) == tokens(seen["cold"])
    assert seen["status"]["levels"]["hint_pinned_bytes"] > 0


def test_steps_are_timed(processes: Processes) -> None:
    """The cache learns from the scheduler's rhythm how long tokens take."""
    (costs,) = manners(processes)["status"]["costs"]["namespaces"].values()
    assert costs["samples"] >= 3


@pytest.mark.pain("R4", "R6")
def test_events_tell_what_kvwise_holds(processes: Processes) -> None:
    """Chunks are announced in vLLM's own words when they are stored, and when they turn out gone.

    The hashes are those of the device's blocks, parents before children, with the right tokens.
    """
    rig = {"model": processes.model("llama"), "extra": {}, "events": True}
    events = finish(processes.start("announced", rig))["events"]
    held: dict[int, list[int]] = {}
    device: dict[int, list[int]] = {}
    for event in events:
        if event["kind"] == "BlockStored":
            place = held if event["medium"] == "CPU" else device
            assert event["parent"] is None or event["parent"] in place
            for number, hash_ in enumerate(event["hashes"]):
                place[hash_] = event["tokens"][number * 32 : number * 32 + 32]
    assert len(held) >= 12
    assert held.items() <= device.items()
    gone = [
        event for event in events if event["kind"] == "BlockRemoved" and event["medium"] != "GPU"
    ]
    assert {event["medium"] for event in gone} == {"CPU", "STORAGE"}
    assert all(set(event["hashes"]) <= held.keys() for event in gone)


def test_a_reset_forgets_and_stops_sharing(processes: Processes) -> None:
    """After `reset_prefix_cache(reset_connector=True)` nothing stored before is found."""
    done, answer = manners(processes)["reset"]
    assert done
    assert (answer["said"]["why"], answer["cached"]) == ("no_match", 0)


@pytest.mark.pain("H4")
def test_two_ranks_hold_a_part_each(processes: Processes) -> None:
    """With tensor parallelism both ranks store and load their own heads, and the text is right."""
    daemon = processes.daemon("ranks")
    daemon.start()
    rig = {
        "model": processes.model("llama"),
        "extra": {"client.url": str(daemon.socket)},
        "tensor_parallel_size": 2,
        "distributed_executor_backend": "mp",
    }
    several = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "0|1" if (os.cpu_count() or 1) > 1 else "0|0",
    }
    more = {"socket": str(daemon.socket)}
    seen = finish(processes.start("ranks", rig, more=more, **several))
    assert_diverse(seen["cold"])
    assert tokens(seen["loaded"]) == tokens(seen["cold"])
    assert loaded(seen["loaded"])[0] >= 256
    assert all(
        wrong != right
        for wrong, right in zip(tokens(seen["corrupted"]), tokens(seen["cold"]), strict=True)
    )
    assert (
        seen["counters"]["kvwise_stored_bytes"] / seen["counters"]["kvwise_stored_tokens"] == 4096
    )


def test_engines_share_a_daemon_and_it_outlives_them(processes: Processes) -> None:
    """Two engines at a time fill one cache; a third finds at once what they left."""
    daemon = processes.daemon("shared")
    daemon.start()
    rig = {"model": processes.model("llama"), "extra": {"client.url": str(daemon.socket)}}
    both = [processes.start("visit", rig) for _ in range(2)]
    one, other = (finish(child) for child in both)
    third = finish(processes.start("visit", rig))
    assert_diverse(one["first"])
    for seen in (one, other, third):
        assert tokens(seen["first"]) == tokens(seen["loaded"]) == tokens(one["first"])
        assert loaded(seen["loaded"])[0] >= 256
    assert loaded(third["first"])[0] >= 256


@pytest.mark.pain("D4")
def test_a_killed_daemon_is_done_without_and_used_again(processes: Processes) -> None:
    """While it is away everything is computed; when it is back the disk still has everything."""
    daemon = processes.daemon("killed")
    daemon.start()
    pause = daemon.socket.parent / "pause"
    rig = {"model": processes.model("llama"), "extra": {"client.url": str(daemon.socket)}}
    child = processes.start("deserted", rig, more={"pause": str(pause)})
    for stage, act in (("away", daemon.kill), ("back", daemon.start)):
        await_file(Path(f"{pause}.{stage}"), child.poll)
        act()
        Path(f"{pause}.{stage}").unlink()
    seen = finish(child)
    assert tokens(seen["away"]) == tokens(seen["back"]) == tokens(seen["cold"])
    assert (loaded(seen["away"]), seen["away_s"] < 10) == ([0, 0, 0], True)
    assert loaded(seen["back"])[0] >= 256
    assert seen["back"][0]["said"]["tiers"].get("disk", 0) >= 256
    assert seen["counters"]["prompt_tokens_cached_by_source/disk"] >= 256
    assert tokens(seen["corrupted"])[0] != tokens(seen["cold"])[0]


def await_file(path: Path, ended: Any) -> None:
    """Wait until a child has put a file there."""
    deadline = time.monotonic() + 120
    while not path.exists():
        assert ended() is None, "the child ended before"
        assert time.monotonic() < deadline, f"no {path.name} within two minutes"
        time.sleep(0.05)


def test_a_real_model_in_bfloat16(processes: Processes) -> None:
    """SmolLM2 gives the same text with loaded KV, and another one when its bytes are wrong."""
    model = real_model()
    if model is None:
        pytest.skip("SmolLM2 is not provisioned; set KVWISE_SMOLLM2")
    rig = {"model": str(model), "extra": {}, "dtype": "bfloat16"}
    seen = finish(processes.start("real", rig))
    assert seen["loaded"][0]["cached"] >= seen["prompt_tokens"] * 3 // 4
    assert tokens(seen["loaded"]) == tokens(seen["cold"])
    assert len(set(seen["cold"][0]["tokens"])) > 24
    assert tokens(seen["corrupted"]) != tokens(seen["cold"])


@pytest.mark.pain("C4", "G6")
@pytest.mark.parametrize(
    ("rig", "words"),
    [
        ({"kind": "mla", "attention_backend": "CPU_MLA"}, "prefix caching is off"),
        ({"kind": "hybrid", "extra": {"client.load": "sync"}}, "2 KV cache groups"),
        ({"kind": "llama", "extra": {"client.chunk_tokens": 48}}, "multiple of the block of 32"),
    ],
)
def test_what_cannot_be_served_is_refused(processes: Processes, rig: Seen, words: str) -> None:
    """The engine does not start, and the message says what to change."""
    given: Seen = {"extra": {}, **rig}
    given["model"] = processes.model(given.pop("kind"))
    with pytest.raises(AssertionError, match=words):
        finish(processes.start("visit", given))
