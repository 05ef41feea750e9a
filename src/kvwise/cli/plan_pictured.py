"""What the pictures of a plan show, as numbers. It draws nothing and decides nothing."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvwise.cli.model import TOKENS, loading
from kvwise.cli.plan_told import Plan
from kvwise.planner.below import decided, priced

SHARES = (0.25, 0.5, 0.75, 0.9)
CURVE_POINTS = 48
CURVE_SPAN = 500.0
"""The curve of sizes goes from so small a part of all that can be hit."""

LENGTHS = tuple(1_024 * 2**step for step in range(8))
CLASSES = (2_048, 8_192, 32_768)
"""Bounds between classes of requests, in tokens of the prompt."""

NETWORKS = ("network-400g", "object-store")


def pictured(plan: Plan) -> dict[str, Any]:
    """What pictures show, by name of `kvwise plan --json`."""
    rank = plan.site.model.of_rank(plan.site.gpus)
    lengths = loading(plan.oracle, rank, plan.site.kept, plan.known.tiers, TOKENS)["lengths"]
    some = bool(plan.demand.reuse)
    return {
        "sizes": _sizes(plan) if some else [],
        "curve": _curve(plan) if some else {},
        "loading": lengths,
        "break_even": _break_even(plan),
        "kappa": _kappa(plan) if some else [],
    }


def _sizes(plan: Plan) -> list[dict[str, Any]]:
    """Hits of the sizes of the plan, and of some others."""
    site, demand = priced(plan.taken, plan.demand), plan.demand
    each = site.token_bytes
    device, memory = site.device_tokens * each, site.memory_bytes
    sizes = {"GPUs alone": device, "with memory": memory, "with drives": memory + site.disk_bytes}
    every = [(label, size, True) for label, size in sizes.items() if size]
    others = {f"{share:.0%} of all hits": demand.capacity_for(share) * each for share in SHARES}
    others["all that can be hit"] = demand.capacity_for(1.0) * each
    every += [(label, size, False) for label, size in others.items()]
    return [
        {
            "label": label,
            "bytes": size,
            "hit_ratio": demand.saving(size / each).hit_ratio,
            "is_here": is_here,
        }
        for label, size, is_here in sorted(every, key=lambda one: one[1])
    ]


def _curve(plan: Plan) -> dict[str, Any]:
    """Hits by size, and the knee: where the curve is furthest above a straight line to its end."""
    demand, each = plan.demand, plan.site.token_bytes
    most = demand.capacity_for(1.0)
    tokens = np.geomspace(most / CURVE_SPAN, most, CURVE_POINTS)
    ratios = [demand.saving(float(count)).hit_ratio for count in tokens]
    above = np.array(ratios) / max(ratios[-1], 1e-9) - tokens / most
    knee = int(above.argmax())
    points = [
        {"bytes": float(count * each), "hit_ratio": ratio}
        for count, ratio in zip(tokens, ratios, strict=True)
    ]
    return {"points": points, "knee": points[knee]}


def _break_even(plan: Plan) -> dict[str, Any]:
    """The rate that a host must load at to beat computing, by length, and rates of its tiers."""
    site, demand = plan.site, plan.demand
    rank = site.model.of_rank(site.gpus)
    points = []
    for count in LENGTHS:
        whole = float(site.model.sequence_bytes(count, site.kept))
        needed = whole / plan.oracle.seconds(count) / 1e9
        points.append({"tokens": count, "needed_gb_per_s": needed})
    usual = max(1, demand.typical_tokens)
    whole = float(site.model.sequence_bytes(usual, site.kept))
    held = float(rank.sequence_bytes(usual, site.kept))
    tiers = {f"memory, {site.gpus} GPUs": site.dram.read_gb_per_s * whole / held}
    if site.drives:
        named = f"{site.drives} x {site.drive.name}"
        tiers[named] = site.drives * site.drive.read_gb_per_s
    for name in NETWORKS:
        if name in plan.known.tiers:
            tiers[name] = plan.known.tiers[name].read_gb_per_s
    return {"points": points, "tiers": tiers}


def _kappa(plan: Plan) -> list[dict[str, Any]]:
    """Cached over new tokens by class, and from where on each tier is slower than computing."""
    site, demand = plan.site, plan.demand
    verdicts = {one.boundary: one.verdict for one in plan.decisions}
    taken = decided(plan.taken, demand, verdicts)
    held = taken.memory_tokens + taken.disk_bytes / taken.token_bytes
    rank = site.model.of_rank(site.gpus)
    found = []
    for one in demand.classes(held, CLASSES):
        length = max(1, int((one.cached_tokens + one.new_tokens) / one.requests))
        new_s = demand.computing_one(length) / length
        whole = float(site.model.sequence_bytes(length, site.kept)) / length
        part = float(rank.sequence_bytes(length, site.kept)) / length
        limits = {"memory": new_s * site.dram.read_gb_per_s * 1e9 / part}
        if site.drives:
            limits["drives"] = new_s * site.drives * site.drive.read_gb_per_s * 1e9 / whole
        found.append(
            {
                "class": one.label,
                "requests": one.requests,
                "kappa": one.cached_tokens / max(1.0, one.new_tokens),
                "kappa_critical": limits,
                "transfer_bound": {
                    tier: float((one.ratios > limit).sum()) / one.requests
                    for tier, limit in limits.items()
                },
            }
        )
    return found
