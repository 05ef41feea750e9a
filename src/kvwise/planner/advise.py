"""The sequence of decisions: from reuse to the router, each with a verdict and the numbers behind.

A level is looked at only as far as those before it leave something to gain. Pure: it is told what a
trace demands and what a host has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import ceil

from kvwise.planner import below
from kvwise.planner.below import GAIN_MIN
from kvwise.planner.demand import Demand, Saving
from kvwise.planner.routing import OWN, ROUTES, WITH_MEMORY, WITHOUT_MEMORY, Report, Routed
from kvwise.planner.shapes import Precision
from kvwise.planner.site import HBM_SHARE, Decision, Site, Verdict, usd
from kvwise.planner.sizes import sized, told, weighed

REUSE_MIN = 0.02

UNEQUAL = 2
"""So many of a hundred lie between shares of blocks and of computing where it is said why."""

RANKS = (1, 2, 4, 8, 16, 32, 64)
"""What is offered where a host has too few GPUs."""

PARTS = (0.25, 0.5, 1.0)
"""Of the memory that each host might need, what is tried."""


def routes(site: Site, demand: Demand, report: Report) -> Mapping[str, Routed]:
    """What each way to send requests hits with the levels that are to be; none without a choice.

    Beside them stands what requests in turn hit without any of these levels, and what memory
    brings to hosts that each hold their own. `report` hears what is being looked at.
    """
    site = sized(site, demand)
    verdicts = _verdicts(site, demand, {})
    if "dram" not in verdicts or site.hosts == 1:
        return {}
    found = _apart(site, demand, verdicts, report)
    taken = below.decided(site, demand, _verdicts(site, demand, found))
    own = site.device_tokens / site.hosts
    each = _all_tokens(taken) / site.hosts
    found |= {name: demand.routed(name, site.hosts, each, report) for name in ROUTES}
    found[OWN] = demand.routed("round_robin", site.hosts, own, report)
    return found


def _verdicts(site: Site, demand: Demand, routed: Mapping[str, Routed]) -> dict[str, Verdict]:
    """What comes of each level."""
    return {one.boundary: one.verdict for one in decide(site, demand, routed)}


def _apart(
    site: Site, demand: Demand, verdicts: Mapping[str, Verdict], report: Report
) -> dict[str, Routed]:
    """What hosts that each hold their own hit without memory and with it, by cached prefixes.

    Memory that is to be is held against the GPUs alone. Where it is not to be, sizes of it are
    tried, if what there is leaves enough to gain.
    """
    taken, hosts = below.decided(site, demand, verdicts), site.hosts
    is_to_be = verdicts["dram"] is Verdict.YES
    held = site.device_tokens if is_to_be else _all_tokens(taken)
    without = demand.routed("kv_aware", hosts, held / hosts, report)
    if is_to_be:
        found = [demand.routed("kv_aware", hosts, taken.memory_tokens / hosts, report)]
    else:
        missed_s = demand.saved_by(demand.reuse - without.hit_ratio * demand.again)
        gains = missed_s >= GAIN_MIN * demand.compute_s
        found = _tried(site, demand, report) if gains else []
    return {WITHOUT_MEMORY: without, WITH_MEMORY: found[0]} if found else {}


def _tried(site: Site, demand: Demand, report: Report) -> list[Routed]:
    """The size of memory in each host that saves most beyond its price, by cached prefixes."""
    most = min(site.dram_bytes / site.token_bytes, demand.capacity_for(below.ENOUGH))
    sizes = [part * most for part in PARTS if part * most > site.device_tokens / site.hosts]
    tried = [demand.routed("kv_aware", site.hosts, size, report) for size in sizes]

    def net_usd(one: Routed) -> float:
        costs = site.prices.memory(site.hosts * one.tokens_per_host * site.token_bytes)
        saved_s = demand.saved_by(one.hit_ratio * demand.again)
        return site.worth(saved_s, demand)["saves_usd_per_month"] - costs

    return [max(tried, key=net_usd)] if tried else []


def decide(site: Site, demand: Demand, routed: Mapping[str, Routed]) -> list[Decision]:
    """Decide level after level; where no requests were routed, nothing is said of routing.

    Hosts get more memory than they have where they may and that is better than drives.
    """
    found = [_reuse(site, demand)]
    if found[0].verdict is Verdict.NO:
        return found
    device = demand.saving(site.device_tokens)
    if not site.device_tokens:
        return [*found, _hbm(site, demand, device)]
    found += [_quantise(site, demand, device), _hbm(site, demand, device)]
    given, sizes = site, weighed(site, demand)
    site = replace(given, dram_bytes=sizes.taken.host_bytes, dram_most_bytes=0.0)
    memory = below.dram(site, demand, device)
    if WITH_MEMORY in routed:
        apart = routed[WITHOUT_MEMORY], routed[WITH_MEMORY]
        memory = below.apart(site, demand, memory, *apart)
    behind, disk = below.behind(site, demand, memory)
    found += told(given, sizes, memory, disk)
    whole = below.decided(site, demand, {"dram": memory.verdict, "nvme": disk.verdict})
    pooled = demand.saving(_all_tokens(whole))
    alone, is_routed = site.hosts == 1, OWN in routed
    if alone or is_routed:
        found.append(_alone_shared() if alone else _shared(site, demand, pooled, routed))
    found.append(below.compression(behind, demand, disk))
    if alone or is_routed:
        found.append(_alone_router() if alone else _router(site, demand, pooled, routed))
    return found


def _all_tokens(site: Site) -> float:
    """Tokens that all levels of a site together hold."""
    return site.memory_tokens + site.disk_bytes / site.token_bytes


def _reuse(site: Site, demand: Demand) -> Decision:
    """Whether anything comes back at all."""
    whole = demand.saving(float("inf"))
    part = whole.saved_s / max(demand.compute_s, 1e-9)
    numbers = {
        "reuse": demand.reuse,
        "engines_busy_with_prefill": demand.engines,
        "of_computing": part,
        **site.worth(whole.saved_s, demand),
    }
    if part < REUSE_MIN:
        why = f"prompts hardly come back: a cache that never forgets would save {part:.1%}"
        return Decision("reuse", Verdict.NO, why, numbers, "trace")
    why = (
        f"{demand.reuse:.0%} of the blocks come back; a cache that never forgets would save "
        f"{part:.0%} of all computing{_unequal(demand.reuse, part)}"
    )
    return Decision("reuse", Verdict.YES, why, numbers, "estimate")


def _unequal(reuse: float, part: float) -> str:
    """Why blocks and computing are not the same share, where they are not."""
    if abs(round(100 * part) - round(100 * reuse)) < UNEQUAL:
        return ""
    return ": a token takes the longer the more there are before it, as it attends to all of them"


def _quantise(site: Site, demand: Demand, device: Saving) -> Decision:
    """Whether half the bytes would tell, before anything is bought."""
    if site.kept.kv is not Precision.BF16:
        why = f"KV is kept in {site.kept.kv.name} already"
        return Decision("quantise", Verdict.HAVE, why, {}, "trace")
    half = demand.saving(2 * site.device_tokens)
    gain = (half.saved_s - device.saved_s) / demand.compute_s
    money = site.worth(half.saved_s - device.saved_s, demand)
    numbers = {
        "token_bytes_bf16": site.token_bytes,
        "device_hit_ratio_bf16": device.hit_ratio,
        "device_hit_ratio_fp8": half.hit_ratio,
        "of_computing": gain,
        "costs_usd_per_month": 0.0,
        **money,
    }
    if gain < GAIN_MIN:
        why = f"FP8 KV would double what fits on the GPUs, which saves {gain:.1%} of computing"
        return Decision("quantise", Verdict.NO, why, numbers, "estimate")
    why = (
        f"FP8 KV doubles what fits on the GPUs and halves every load and write: "
        f"{gain:.0%} of computing saved, {usd(money['saves_usd_per_month'])} a month, for nothing "
        "but quality, which you must judge"
    )
    return Decision("quantise", Verdict.MAYBE, why, numbers, "estimate")


def _hbm(site: Site, demand: Demand, device: Saving) -> Decision:
    """What the engine's own cache brings already."""
    numbers = {
        "capacity_tokens": site.device_tokens,
        "hit_ratio": device.hit_ratio,
        "of_computing": device.saved_s / demand.compute_s,
        "costs_usd_per_month": 0.0,
        **site.worth(device.saved_s, demand),
    }
    if not site.device_tokens:
        least = ceil(site.model.weights * site.weight_bytes / (HBM_SHARE * site.hbm_bytes))
        enough = (one for one in RANKS if one >= least and not site.model.uneven(one))
        asked = next((f"--tp {one}" for one in enough), "--tp")
        why = f"the weights need {least} such GPUs, and a host has {site.gpus}: give more ({asked})"
        return Decision("hbm", Verdict.NO, why, numbers, "estimate")
    as_one = ", all hosts as one cache" if site.hosts > 1 else ""
    why = (
        f"{site.device_tokens / 1e6:.2f} M tokens fit beside the weights and hit "
        f"{device.share:.0%} of what could be hit{as_one}"
    )
    return Decision("hbm", Verdict.HAVE, why, numbers, "estimate")


def _alone_router() -> Decision:
    return Decision("router", Verdict.NO, "one host needs no router", {}, "trace")


def _alone_shared() -> Decision:
    why = "one host shares with nobody; a shared tier would only outlive it"
    return Decision("shared", Verdict.NO, why, {}, "trace")


def _router(site: Site, demand: Demand, pooled: Saving, routed: Mapping[str, Routed]) -> Decision:
    """Whether it matters which host a request is sent to, when each has a cache of its own."""
    ratios = {name: routed[name].hit_ratio * demand.again for name in (*ROUTES, OWN)}
    best = ratios["kv_aware"]
    saved_s = demand.saved_by(best) - demand.saved_by(ratios["round_robin"])
    gain = saved_s / demand.compute_s
    money = site.worth(saved_s, demand)
    numbers = {
        **{f"hit_ratio_{name}": ratio for name, ratio in ratios.items()},
        "hit_ratio_one_cache": pooled.hit_ratio,
        "of_computing": gain,
        "busiest_host": routed["kv_aware"].imbalance,
        "costs_usd_per_month": 0.0,
        **money,
    }
    if gain < GAIN_MIN:
        why = f"sending requests in turn hits {ratios['round_robin']:.1%}, by cache {best:.1%}"
        return Decision("router", Verdict.NO, why, numbers, "trace")
    why = (
        f"sending requests where their prefix is hits {best:.0%} of all blocks, in turn only "
        f"{ratios['round_robin']:.0%}: {gain:.0%} of computing, "
        f"{usd(money['saves_usd_per_month'])} a month, for no hardware"
    )
    return Decision("router", Verdict.YES, why, numbers, "trace")


def _shared(site: Site, demand: Demand, pooled: Saving, routed: Mapping[str, Routed]) -> Decision:
    """Whether a tier that all hosts reach would hit more than a router does."""
    saved_s = pooled.saved_s - demand.saved_by(routed["kv_aware"].hit_ratio * demand.again)
    gain = saved_s / demand.compute_s
    read = demand.hit_tokens_per_s(pooled) * site.token_bytes
    written = demand.new_tokens_per_day / 86_400 * site.token_bytes
    held = demand.capacity_for(below.ENOUGH) * site.token_bytes
    money = site.worth(max(0.0, saved_s), demand)
    money["costs_usd_per_month"] = site.prices.adapters(site.hosts)
    numbers = {
        "of_computing_beyond_router": gain,
        "all_hits_gb_per_s": read / 1e9,
        "per_host_gb_per_s": read / 1e9 / site.hosts,
        "object_store_usd_per_month": site.prices.objects(held, written, read),
        **money,
    }
    rate = f"{read / 1e9 / site.hosts:.2g} GB/s"
    if gain < GAIN_MIN:
        why = (
            f"a router that knows what is cached leaves {max(0.0, gain):.1%} of computing to gain; "
            f"share for hosts that come and go, with {rate} for each"
        )
        return Decision("shared", Verdict.NO, why, numbers, "trace")
    paid = f"{usd(money['saves_usd_per_month'])} a month, if each host has {rate} to it"
    if money["saves_usd_per_month"] < money["costs_usd_per_month"]:
        why = f"{gain:.0%} of computing beyond a router, {paid}: less than its adapters cost"
        return Decision("shared", Verdict.NO, why, numbers, "trace")
    why = f"{gain:.0%} of computing beyond what a router brings, {paid}"
    return Decision("shared", Verdict.MAYBE, why, numbers, "trace")
