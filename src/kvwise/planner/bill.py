"""What a plan comes to in a month and for a million tokens. It decides nothing.

Only prompts are billed: what computing answers costs is the same with any cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kvwise.planner.demand import Demand
from kvwise.planner.prices import MONTH_S
from kvwise.planner.routing import OWN
from kvwise.planner.site import Decision, Site, Verdict

BOUGHT = ("dram", "nvme")
"""Levels that are bought, and whose gains add up."""

OWN_RATIO = f"hit_ratio_{OWN}"

GAINS = {"dram": "of_computing", "nvme": "of_computing_within_rating"}
"""What each of them saves, as a part of all computing."""


def chosen(decisions: Sequence[Decision]) -> tuple[str, ...]:
    """Levels that are bought and are to be."""
    return tuple(
        one.boundary for one in decisions if one.boundary in BOUGHT and one.verdict is Verdict.YES
    )


def net_usd(decisions: Sequence[Decision], levels: Iterable[str]) -> float:
    """What these levels save in a month beyond their cost."""
    numbers = {one.boundary: one.numbers for one in decisions}
    return sum(
        numbers.get(level, {}).get("saves_usd_per_month", 0.0)
        - numbers.get(level, {}).get("costs_usd_per_month", 0.0)
        for level in levels
    )


def bill(site: Site, demand: Demand, decisions: Sequence[Decision]) -> dict[str, float]:
    """Prompts without a cache, with the engines' own, and with the levels that are to be.

    Where requests were routed, hits are those of hosts that each hold their own: the engines' own
    with requests in turn, the levels with the router if it is to be. Else all hosts are one cache.
    What is saved is beside the engines' own; `all_gpus_usd_per_month` is for GPUs that are paid
    whether they compute or not.
    """
    numbers: Mapping[str, dict[str, float]] = {one.boundary: one.numbers for one in decisions}
    without = site.prices.engines(demand.engines, site.gpus)
    levels = chosen(decisions)
    memory, drives = (
        numbers[level]["costs_usd_per_month"] if level in levels else 0.0 for level in BOUGHT
    )
    costs = memory + drives
    own_s, whole_s = _saves(demand, decisions)
    own_saves, whole_saves = (
        site.worth(one, demand)["saves_usd_per_month"] for one in (own_s, whole_s)
    )
    own, whole = without - own_saves, without - whole_saves + costs
    tokens = demand.millions_per_s * MONTH_S
    return {
        "million_tokens_per_month": tokens,
        "without_cache_hosts_busy": demand.engines,
        "own_cache_hosts_busy": demand.engines - own_s / demand.span_s,
        "with_levels_hosts_busy": demand.engines - whole_s / demand.span_s,
        "gpus": site.hosts * site.gpus,
        "gpu_hour_usd": site.prices.gpu_hour.amount,
        "all_gpus_usd_per_month": site.prices.engines(site.hosts, site.gpus),
        "without_cache_usd_per_month": without,
        "own_cache_usd_per_month": own,
        "levels_cost_usd_per_month": costs,
        "memory_cost_usd_per_month": memory,
        "drives_cost_usd_per_month": drives,
        "with_levels_usd_per_month": whole,
        "saved_gpu_usd_per_month": own - (whole - costs),
        "saved_usd_per_month": own - whole,
        "without_cache_usd_per_million_tokens": without / tokens,
        "own_cache_usd_per_million_tokens": own / tokens,
        "with_levels_usd_per_million_tokens": whole / tokens,
    }


def _saves(demand: Demand, decisions: Sequence[Decision]) -> tuple[float, float]:
    """Seconds of computing that the engines' own caches save, and what all that is to be saves."""
    found = {one.boundary: one for one in decisions}
    levels = chosen(decisions)
    router = found.get("router")
    if router is None or OWN_RATIO not in router.numbers:
        own = found["hbm"].numbers["of_computing"] if "hbm" in found else 0.0
        gained = sum(found[level].numbers[GAINS[level]] for level in levels)
        return own * demand.compute_s, (own + gained) * demand.compute_s
    way = "kv_aware" if router.verdict is Verdict.YES else "round_robin"
    own_s, whole_s = (
        demand.saved_by(router.numbers[name]) for name in (OWN_RATIO, f"hit_ratio_{way}")
    )
    if "nvme" in levels:
        drives = found["nvme"].numbers
        unwritten = drives["of_computing"] - drives["of_computing_within_rating"]
        whole_s -= unwritten * demand.compute_s
    return own_s, whole_s
