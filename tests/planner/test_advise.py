"""Decisions from a trace: sizes and rates that are known, and what must differ."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from kvwise.errors import ConfigError
from kvwise.planner.advise import decide, routes
from kvwise.planner.routing import WITH_MEMORY, WITHOUT_MEMORY
from kvwise.planner.shapes import Precision, Precisions
from kvwise.planner.site import Verdict, size_text
from kvwise.planner.stack import Places, stack_of
from kvwise.sim.trace.records import Request, Trace
from tests.planner.support import KNOWN, advise, by_boundary, demand_of, site_of
from tests.sim.replay.support import made
from tests.sim.trace.support import load, published, quiet


@cache
def conversation() -> Trace:
    """The published trace of a chat cluster."""
    return load(published("mooncake_conversation_trace.jsonl.gz"))


def test_a_chat_cluster_as_it_is_known() -> None:
    """Memory for nine in ten hits, terabytes a day, and drive writes are those known of it."""
    decisions = by_boundary(advise(site_of(), demand_of(conversation())))
    dram, nvme = decisions["dram"].numbers, decisions["nvme"].numbers

    assert dram["bytes_for_90_percent_of_hits"] / 2**40 == pytest.approx(4.80, rel=0.005)
    assert nvme["written_tb_per_day"] == pytest.approx(749, rel=0.005)
    assert nvme["written_twice_seen_tb_per_day"] == pytest.approx(181, rel=0.005)
    assert nvme["dwpd_needed"] == pytest.approx(12.2 * 1.1, rel=0.01)
    assert nvme["years_writing_everything"] < 1
    assert decisions["reuse"].numbers["reuse"] == pytest.approx(0.3664, abs=0.0005)
    assert {name: one.verdict for name, one in decisions.items()} == {
        "reuse": Verdict.YES,
        "quantise": Verdict.MAYBE,
        "hbm": Verdict.HAVE,
        "dram": Verdict.YES,
        "nvme": Verdict.YES,
        "shared": Verdict.NO,
        "compression": Verdict.MAYBE,
        "router": Verdict.YES,
    }
    router = decisions["router"].numbers
    assert router["hit_ratio_kv_aware"] > 0.99 * router["hit_ratio_one_cache"]
    assert router["hit_ratio_round_robin"] < 0.8 * router["hit_ratio_kv_aware"]


def test_a_small_latent_needs_no_drives() -> None:
    """The same requests on a model with a fifth of the bytes: memory is enough, drives are not."""
    site = replace(site_of("deepseek-v3", "h200-sxm"), weight_bytes=1.0, dram_bytes=2e12)
    decisions = by_boundary(advise(site, demand_of(conversation(), "deepseek-v3", "h200-sxm")))

    assert decisions["dram"].numbers["bytes_for_90_percent_of_hits"] / 2**40 == pytest.approx(
        1.03, rel=0.005
    )
    assert decisions["nvme"].verdict is Verdict.NO
    assert decisions["compression"].verdict is Verdict.NO


def test_unique_prompts_stop_at_once() -> None:
    """Prompts that nobody sends again: do not offload, and nothing more is asked."""
    (only,) = advise(site_of(), demand_of(made(300, ("oneshot",))))

    assert (only.boundary, only.verdict) == ("reuse", Verdict.NO)


def test_slow_drives_are_refused_and_counted() -> None:
    """Drives that load slower than the GPUs compute are no; how many would do is said."""
    demand = demand_of(made(2_000, ("chat",)))
    slow = replace(KNOWN.tiers["nvme-gen4"], read_gb_per_s=0.5)
    small = replace(site_of(), hosts=1, dram_bytes=20e9, hbm_bytes=20e9, drives=1, drive=slow)
    refused = by_boundary(advise(small, demand))["nvme"]
    many = int(refused.numbers["drives_per_host_to_be_quicker"])
    taken = by_boundary(advise(replace(small, drives=many), demand))["nvme"]

    assert refused.verdict is Verdict.NO
    assert refused.numbers["speedup"] < 1.1
    assert many > 1
    assert taken.verdict is Verdict.YES
    assert taken.numbers["speedup"] >= 1.1


def test_what_is_small_already() -> None:
    """KV in FP8 is not to be quantised again, nor does it shrink any more."""
    site = replace(site_of(), kept=Precisions(Precision.FP8))
    decisions = by_boundary(advise(site, demand_of(made(2_000, ("chat",)))))

    assert decisions["quantise"].verdict is Verdict.HAVE
    assert decisions["compression"].verdict is not Verdict.MAYBE


def test_weights_that_do_not_fit() -> None:
    """A model larger than its GPUs leaves no room for KV there, and that is said."""
    site = replace(site_of("llama-3.1-405b"), hosts=1)
    decisions = by_boundary(advise(site, demand_of(made(500), "llama-3.1-405b")))

    assert set(decisions) == {"reuse", "hbm"}
    assert decisions["hbm"].verdict is Verdict.NO
    assert "need 12 such GPUs, and a host has 8" in decisions["hbm"].why


def test_less_memory_than_the_gpus_have() -> None:
    """A tier below what is above it adds nothing, and that is the reason that is given."""
    site = replace(site_of(), dram_bytes=1e9)
    dram = by_boundary(advise(site, demand_of(made(1_000, ("chat",)))))["dram"]

    assert dram.verdict is Verdict.NO
    assert "no more than the GPUs hold" in dram.why


def test_snapshots_take_room() -> None:
    """A hybrid's tokens cost their share of a snapshot, on GPUs and below."""
    plain = replace(site_of("qwen3.5-27b"), gpus=4)
    counted = replace(plain, snapshot_tokens=2_349.0)

    assert plain.token_bytes == 65_536
    assert counted.token_bytes == pytest.approx(2 * plain.token_bytes, rel=0.001)
    assert counted.device_tokens == pytest.approx(plain.device_tokens / 2, rel=0.05)


def test_more_of_anything_hits_no_less() -> None:
    """A larger cache saves as much and more, up to one that never forgets."""
    demand = demand_of(made(1_000))
    saved = [demand.saving(tokens).saved_s for tokens in (0, 1e4, 1e5, 1e6, 1e8, float("inf"))]

    assert saved == sorted(saved)
    assert saved[0] == 0 < saved[-1] <= demand.compute_s


@pytest.mark.parametrize(("drives", "drive_bytes"), [(0, 7.68e12), (4, 0.0)])
def test_no_drives_in_any_way(drives: int, drive_bytes: float) -> None:
    """No drives, or drives of no size, are no drives; nothing else is said otherwise for it."""
    site = replace(site_of(), hosts=1, dram_bytes=20e9, hbm_bytes=20e9)
    site = replace(site, drives=drives, drive_bytes=drive_bytes)
    decisions = by_boundary(advise(site, demand_of(made(1_000, ("chat",)))))

    assert decisions["nvme"].why == "no drives are given"
    assert decisions["nvme"].verdict is decisions["compression"].verdict is Verdict.NO


@pytest.mark.parametrize("dram_bytes", [0.0, 20e9, 200e9, 1e14])
def test_one_size_of_memory(dram_bytes: float) -> None:
    """Gain, dollars, verdict and the daemon's configuration are all of the size that is priced."""
    demand = demand_of(made(1_500, ("chat",)))
    site = replace(site_of(), hosts=1, dram_bytes=dram_bytes, hbm_bytes=20e9)
    decisions = advise(site, demand)
    dram = by_boundary(decisions)["dram"]
    size = dram.numbers["bytes"]
    held = demand.saving(max(site.device_tokens, size / site.token_bytes))
    saved_s = held.saved_s - demand.saving(site.device_tokens).saved_s

    assert size <= dram_bytes
    assert size <= dram.numbers["bytes_for_90_percent_of_hits"] + 1e9
    assert dram.numbers["hit_ratio"] == pytest.approx(held.hit_ratio)
    assert dram.numbers["of_computing"] == pytest.approx(saved_s / demand.compute_s)
    assert dram.numbers["saves_usd_per_month"] == pytest.approx(
        site.worth(saved_s, demand)["saves_usd_per_month"]
    )
    assert dram.numbers["costs_usd_per_month"] == pytest.approx(site.prices.memory(size))
    stack = stack_of(site, demand, decisions, Places())
    assert (dram.verdict is Verdict.YES) is (dram_bytes > 0)
    if dram.verdict is Verdict.YES:
        assert stack is not None
        assert stack["dram"]["size"] == f"{size / 1e9:.0f}GB"
        assert size_text(size) in dram.why


@pytest.mark.parametrize("turned", ["memory", "drives"])
def test_the_router_has_what_is_decided(turned: str) -> None:
    """A level that is not to be adds nothing to what requests are routed to, as if it were away."""
    demand = demand_of(made(1_500, ("chat",)))
    dear = replace(site_of().prices.dram_gb, amount=1e9)
    site = replace(site_of(), hosts=3, dram_bytes=20e9, hbm_bytes=20e9)
    if turned == "memory":
        site = replace(site, drives=0, prices=replace(site.prices, dram_gb=dear))
        other = replace(site, dram_bytes=0.0)
    else:
        site = replace(site, prices=replace(site.prices, drive_tb=dear))
        other = replace(site, drives=0)
    decisions, away = by_boundary(advise(site, demand)), by_boundary(advise(other, demand))

    assert decisions["dram" if turned == "memory" else "nvme"].verdict is Verdict.NO
    assert decisions["router"].numbers == away["router"].numbers
    assert decisions["shared"].numbers == away["shared"].numbers


def test_memory_that_only_hosts_apart_need() -> None:
    """As one cache the GPUs are enough; where each holds its own memory pays, and is a maybe."""
    demand = demand_of(made(1_500, ("agent",)), "llama-3.1-8b", "l40s")
    site = replace(site_of("llama-3.1-8b", "l40s"), gpus=1, hosts=7, drives=0, dram_bytes=64e9)
    as_one = by_boundary(decide(site, demand, {}))
    routed = routes(site, demand, quiet)
    apart = by_boundary(decide(site, demand, routed))
    dram = apart["dram"]

    assert as_one["dram"].verdict is Verdict.NO
    assert dram.verdict is Verdict.MAYBE
    assert dram.numbers["saves_usd_per_month"] >= dram.numbers["costs_usd_per_month"]
    ratios = (dram.numbers[f"hit_ratio_routed_to_{name}"] for name in ("gpus", "memory"))
    assert next(ratios) == apart["router"].numbers["hit_ratio_kv_aware"] < next(ratios)
    assert stack_of(site, demand, list(apart.values()), Places()) is None
    dram_gb = replace(site.prices.dram_gb, amount=1e6)
    dear = replace(site, prices=replace(site.prices, dram_gb=dram_gb))
    refused = by_boundary(decide(dear, demand, routes(dear, demand, quiet)))
    assert refused["dram"].verdict is Verdict.NO


def test_memory_counts_for_hosts_apart() -> None:
    """Memory is told as one cache and as hosts hold it; where only one of both pays it is maybe."""
    demand = demand_of(made(1_500, ("chat",)))
    site = replace(site_of(), hosts=3, dram_bytes=20e9, hbm_bytes=20e9, drives=0)
    routed = dict(routes(site, demand, quiet))
    found = by_boundary(decide(site, demand, routed))
    dram = found["dram"]
    gained = demand.saved_by(routed[WITH_MEMORY].hit_ratio - routed[WITHOUT_MEMORY].hit_ratio)

    assert dram.verdict is Verdict.YES
    assert dram.numbers["of_computing_apart"] == pytest.approx(gained / demand.compute_s)
    assert routed[WITH_MEMORY].hit_ratio == routed["kv_aware"].hit_ratio
    assert "as one cache" in dram.why
    assert "in hosts that each hold their own" in dram.why
    routed[WITH_MEMORY] = replace(
        routed[WITH_MEMORY], hit_ratio=routed[WITHOUT_MEMORY].hit_ratio + 0.001
    )
    lost = decide(site, demand, routed)
    assert by_boundary(lost)["dram"].verdict is Verdict.MAYBE
    assert stack_of(site, demand, lost, Places()) is None


def test_drives_behind_gpus_alone() -> None:
    """Where memory is not to be, drives are held against the GPUs, and their daemon has some."""
    demand = demand_of(made(2_000, ("chat",)))
    cheap = replace(site_of().prices.drive_tb, amount=1.0)
    site = replace(site_of(), hosts=1, dram_bytes=0.0, hbm_bytes=20e9, drive_bytes=1e12)
    site = replace(site, prices=replace(site.prices, drive_tb=cheap))
    decisions = advise(site, demand)
    found, stack = by_boundary(decisions), stack_of(site, demand, decisions, Places())

    assert (found["dram"].verdict, found["nvme"].verdict) == (Verdict.NO, Verdict.YES)
    assert stack is not None
    assert stack["dram"]["size"] == "5GB"
    assert found["nvme"].numbers["costs_usd_per_month"] == pytest.approx(
        site.prices.drives(site.disk_bytes) + site.prices.memory(5e9)
    )


@pytest.mark.parametrize("arrivals_ns", [[0], [0, 0, 0], [5, 900_000_000]])
def test_no_time_no_rates(arrivals_ns: list[int]) -> None:
    """Requests that come all at once, or alone, have no rate; none is made up."""
    trace = made(len(arrivals_ns), ("chat",))
    requests = tuple(
        Request(at, one.input_tokens, one.output_tokens, one.blocks)
        for one, at in zip(trace.requests, arrivals_ns, strict=True)
    )
    with pytest.raises(ConfigError, match="no rates to plan for; hint: "):
        demand_of(replace(trace, requests=requests))
