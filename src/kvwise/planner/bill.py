"""What a plan comes to in a month and for a million tokens. It decides nothing.

Only prompts are billed: what computing answers costs is the same with any cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kvwise.planner.demand import Demand
from kvwise.planner.prices import MONTH_S
from kvwise.planner.site import Decision, Site, Verdict

BOUGHT = ("dram", "nvme")
"""Levels that are bought, and whose gains add up."""


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
    """Prompts without a cache, with the engines' own, and with the levels that are to be."""
    numbers: Mapping[str, dict[str, float]] = {one.boundary: one.numbers for one in decisions}
    without = site.prices.engines(demand.engines, site.gpus)
    own = without - numbers.get("hbm", {}).get("saves_usd_per_month", 0.0)
    levels = chosen(decisions)
    costs = sum(numbers[level]["costs_usd_per_month"] for level in levels)
    whole = own - net_usd(decisions, levels)
    tokens = demand.millions_per_s * MONTH_S
    return {
        "million_tokens_per_month": tokens,
        "without_cache_usd_per_month": without,
        "own_cache_usd_per_month": own,
        "levels_cost_usd_per_month": costs,
        "with_levels_usd_per_month": whole,
        "without_cache_usd_per_million_tokens": without / tokens,
        "own_cache_usd_per_million_tokens": own / tokens,
        "with_levels_usd_per_million_tokens": whole / tokens,
    }
