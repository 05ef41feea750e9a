"""The levels below the GPUs: memory, drives, and codecs on drives. Each verdict weighs its price.

It decides each for itself; their order is that of `planner.advise`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import ceil

from kvwise.planner.demand import Demand, Saving
from kvwise.planner.routing import Routed
from kvwise.planner.shapes import Precision
from kvwise.planner.site import LIFE_YEARS, WORN, Decision, Site, Verdict, size_text, usd

GAIN_MIN = 0.02
"""Less than this share of all computing is not worth a level of its own."""

ENOUGH = 0.9
"""Of the hits of a cache that never forgets: whoever has these needs no larger one."""

MARGIN = 1.1
"""By how much loading must be quicker than computing."""

CODEC_RATIO = 1.33
CODEC_GB_PER_S = 6.0
"""What a thread decodes, and what KV in BF16 shrinks by, as measured with `kvwise bench codec`."""

STAGING_BYTES = 5e9
"""Memory that a daemon takes to reach its drives at all, on each host."""


def enough_bytes(site: Site, demand: Demand) -> float:
    """Memory of each host with which all have 90 % of all hits, in whole GB."""
    held_bytes = demand.capacity_for(ENOUGH) * site.token_bytes
    return ceil(held_bytes / site.hosts / 1e9) * 1e9


def priced(site: Site, demand: Demand) -> Site:
    """The same with no more memory than has 90 % of all hits."""
    return replace(site, dram_bytes=min(site.dram_bytes, enough_bytes(site, demand)))


def decided(site: Site, demand: Demand, verdicts: Mapping[str, Verdict]) -> Site:
    """The same with the memory and the drives that are to be, and no others."""
    drives = site.drives if verdicts.get("nvme") is Verdict.YES else 0
    if verdicts.get("dram") is Verdict.YES:
        return replace(priced(site, demand), drives=drives)
    return replace(site, dram_bytes=STAGING_BYTES if drives else 0.0, drives=drives)


def behind(site: Site, demand: Demand, memory: Decision) -> tuple[Site, Decision]:
    """The site with the memory that is to be and its drives, and what comes of those."""
    taken = decided(site, demand, {"dram": memory.verdict})
    driven = replace(taken, drives=site.drives)
    return driven, nvme(driven, demand, demand.saving(taken.memory_tokens))


def dram(site: Site, demand: Demand, device: Saving) -> Decision:
    """Whether the host's memory adds enough. Size, gain and price are those of what is priced."""
    given, site = site, priced(site, demand)
    memory = demand.saving(site.memory_tokens)
    gain = (memory.saved_s - device.saved_s) / demand.compute_s
    speedup = site.speedup(demand, memory, site.dram, 1)
    money = site.worth(memory.saved_s - device.saved_s, demand)
    money["costs_usd_per_month"] = site.prices.memory(site.memory_bytes)
    numbers = {
        "bytes": site.memory_bytes,
        "bytes_given": given.memory_bytes,
        "hit_ratio": memory.hit_ratio,
        "share_of_hits": memory.share,
        "of_computing": gain,
        "speedup": speedup,
        "tokens_for_90_percent_of_hits": float(demand.capacity_for(ENOUGH)),
        "bytes_for_90_percent_of_hits": demand.capacity_for(ENOUGH) * site.token_bytes,
        **money,
    }
    size = _in_hosts(site, ", as one cache")
    if why := _needless(given, device):
        return Decision("dram", Verdict.NO, why, numbers, "estimate")
    if gain < GAIN_MIN or speedup < MARGIN:
        slow = gain >= GAIN_MIN
        what = "loading is no quicker than computing" if slow else f"{size} save {gain:.1%} more"
        why = what if slow else f"{what} of computing"
        return Decision("dram", Verdict.NO, why, numbers, "estimate")
    paid = _paid(money)
    if money["saves_usd_per_month"] < money["costs_usd_per_month"]:
        why = f"{size} save {gain:.0%} of computing, which is less than they cost: {paid}"
        return Decision("dram", Verdict.NO, why, numbers, "estimate")
    most = f"90 % of all hits take {size_text(numbers['bytes_for_90_percent_of_hits'])}"
    if memory.share >= ENOUGH:
        most = f"that has {memory.share:.0%} of all hits"
        most += ", however many hosts share it" if site.hosts > 1 else ""
    why = (
        f"{size} save {gain:.0%} of computing; a usual hit is loaded {speedup:.0f} times "
        f"as fast as computed; {most}; {paid}"
    )
    return Decision("dram", Verdict.YES, why, numbers, "estimate")


def _in_hosts(site: Site, how: str = "") -> str:
    """Memory of each host, and of all where there are several; `how` they hold it."""
    each = size_text(site.dram_bytes)
    if site.hosts == 1:
        return each
    return f"{each} in each host ({size_text(site.memory_bytes)} in all{how})"


def _needless(site: Site, device: Saving) -> str:
    """Why memory of any price adds nothing; empty where it may."""
    if not site.dram_bytes:
        return "no memory is given"
    if site.memory_tokens <= site.device_tokens:
        held = size_text(site.device_tokens * site.token_bytes)
        return f"{_in_hosts(site)} are no more than the GPUs hold, {held}: give more, or none"
    if device.share >= ENOUGH:
        return f"the GPUs have {device.share:.0%} of all hits already"
    return ""


def apart(
    site: Site, demand: Demand, pooled: Decision, without: Routed, with_memory: Routed
) -> Decision:
    """Memory as hosts that each hold their own need it, beside what it is as one cache of all.

    Where only one of the two ways to count says that it pays, it is a maybe, with the numbers of
    hosts apart.
    """
    is_yes = pooled.verdict is Verdict.YES
    gained_ratio = (with_memory.hit_ratio - without.hit_ratio) * demand.again
    each_bytes = with_memory.tokens_per_host * site.token_bytes
    saved_s = demand.saved_by(gained_ratio)
    money = site.worth(saved_s, demand)
    money["costs_usd_per_month"] = site.prices.memory(site.hosts * each_bytes)
    saving = demand.saving(site.hosts * with_memory.tokens_per_host)
    speedup = site.speedup(demand, saving, site.dram, 1)
    gain = saved_s / demand.compute_s
    is_cheap = money["saves_usd_per_month"] >= money["costs_usd_per_month"]
    pays = gain >= GAIN_MIN and speedup >= MARGIN and is_cheap
    if not pays and not is_yes:
        return pooled
    ratios = {
        "hit_ratio_routed_to_gpus": without.hit_ratio * demand.again,
        "hit_ratio_routed_to_memory": with_memory.hit_ratio * demand.again,
    }
    before, after = ratios.values()
    if pays and is_yes:
        numbers = {
            **pooled.numbers,
            "of_computing_apart": gain,
            "saves_apart_usd_per_month": money["saves_usd_per_month"],
            **ratios,
        }
        why = (
            f"{pooled.why}; in hosts that each hold their own, with a router, they save {gain:.0%}"
        )
        return replace(pooled, why=why, numbers=numbers)
    numbers = {
        **pooled.numbers,
        "bytes": site.hosts * each_bytes,
        "of_computing": gain,
        "speedup": speedup,
        **ratios,
        **money,
    }
    why = (
        f"{pooled.verdict.value} as one cache of all hosts: {pooled.why}; but of caches of their "
        f"own a router gets {before:.0%} of all blocks, and with {size_text(each_bytes)} in each "
        f"{after:.0%}: {gain:.0%} of computing, {_paid(money)}"
    )
    return Decision("dram", Verdict.MAYBE, why, numbers, "estimate")


def nvme(site: Site, demand: Demand, memory: Saving) -> Decision:
    """Whether drives pay: memory is full, loading is quicker, and what their rating leaves pays.

    The site has the memory that is to be; `memory` is what that and the GPUs hit.
    """
    if not site.disk_bytes:
        return Decision("nvme", Verdict.NO, "no drives are given", {}, "trace")
    disk = demand.saving(memory.capacity_tokens + site.disk_bytes / site.token_bytes)
    saved_s = disk.saved_s - memory.saved_s
    gain = saved_s / demand.compute_s
    one = site.speedup(demand, disk, site.drive, 1)
    speedup = site.speedup(demand, disk, site.drive, site.drives)
    left = _left(site, demand, memory, disk)
    money = site.worth(saved_s * left["within_rating"], demand)
    money["costs_usd_per_month"] = site.prices.drives(site.disk_bytes)
    if not site.dram_bytes:
        money["costs_usd_per_month"] += site.prices.memory(site.hosts * STAGING_BYTES)
    numbers = {
        "drives_per_host": float(site.drives),
        "bytes": site.disk_bytes,
        "hit_ratio": disk.hit_ratio,
        "of_computing": gain,
        **{f"of_computing_{name}": gain * share for name, share in left.items()},
        "speedup": speedup,
        "drives_per_host_to_be_quicker": float(ceil(MARGIN / one)) if one else 0.0,
        **_wear(site, demand),
        **money,
    }
    mark = site.drive.origin.mark
    if memory.share >= ENOUGH or gain < GAIN_MIN:
        why = (
            f"{_above(site)} {memory.share:.0%} of all hits; drives would save {gain:.1%} of "
            f"computing more, if {numbers['written_tb_per_day']:,.3g} TB a day were written"
        )
        return Decision("nvme", Verdict.NO, why, numbers, "estimate")
    if speedup < MARGIN:
        many = numbers["drives_per_host_to_be_quicker"]
        why = (
            f"{site.drives} x {site.drive.name} load a usual hit in {1 / speedup:.1f} times the "
            f"time it takes to compute; it takes {many:.0f} in each host"
        )
        return Decision("nvme", Verdict.NO, why, numbers, mark)
    verdict = _paying(saved_s, left, site, demand, money["costs_usd_per_month"])
    why = (
        f"{gain:.0%} of computing more if everything were written, a usual hit loaded "
        f"{speedup:.1f} times as fast as computed; {_limited(numbers)}{_paid(money)}"
    )
    return Decision("nvme", verdict, why, numbers, mark)


def _above(site: Site) -> str:
    """Who has hits before drives do."""
    return "memory has" if site.dram_bytes else "the GPUs have"


def _left(site: Site, demand: Demand, memory: Saving, disk: Saving) -> dict[str, float]:
    """Shares of the drives' gain that are left within their rating, by how writes are chosen.

    By lot, an equal share of all that is new; seen twice, what comes a second time; the best
    choice knows what will come, and nobody can do better. Whoever weighs writes is between them.
    """
    day = site.budget_bytes / site.token_bytes
    by_lot = min(1.0, day / max(1.0, demand.new_tokens_per_day))
    spilled = demand.spill(memory.capacity_tokens, disk.capacity_tokens)
    twice = spilled.later_share * min(1.0, day / max(1.0, demand.twice_tokens_per_day))
    best = spilled.best_share(demand.blocks_in_trace(day))
    return {
        "by_lot": by_lot,
        "seen_twice": twice,
        "best_choice": max(best, by_lot, twice),
        "within_rating": max(by_lot, twice),
    }


def _wear(site: Site, demand: Demand) -> dict[str, float]:
    """What is written in a day, and what drives are rated for."""
    written = demand.new_tokens_per_day * site.token_bytes
    numbers = {
        "written_tb_per_day": written / 1e12,
        "written_twice_seen_tb_per_day": demand.twice_tokens_per_day * site.token_bytes / 1e12,
        "dwpd_needed": written * WORN / site.disk_bytes,
        "dwpd_rated": site.drive.dwpd,
    }
    if site.drive.dwpd:
        numbers["rated_tb_per_day"] = site.budget_bytes / 1e12
        numbers["years_writing_everything"] = LIFE_YEARS * site.budget_bytes / max(1.0, written)
    return numbers


def _paying(
    saved_s: float, left: dict[str, float], site: Site, demand: Demand, cost: float
) -> Verdict:
    """Whether drives save what they cost: by a plain choice of writes, or only by the best."""
    plain, best = (
        site.worth(saved_s * left[name], demand)["saves_usd_per_month"]
        for name in ("within_rating", "best_choice")
    )
    if plain >= cost:
        return Verdict.YES
    return Verdict.MAYBE if best >= cost else Verdict.NO


def _limited(numbers: dict[str, float]) -> str:
    """What drives' rating leaves of the gain, if it leaves less than all."""
    least, most = numbers["of_computing_within_rating"], numbers["of_computing_best_choice"]
    if least >= 0.99 * numbers["of_computing"] or "rated_tb_per_day" not in numbers:
        return ""
    return (
        f"their rating pays for {numbers['rated_tb_per_day']:.0f} of "
        f"{numbers['written_tb_per_day']:.0f} TB a day, which leaves {least:.1%} to {most:.1%}, by "
        "how well writes are chosen; "
    )


def _paid(money: dict[str, float]) -> str:
    """What a level saves and costs."""
    saves, costs = money["saves_usd_per_month"], money["costs_usd_per_month"]
    return f"saves {usd(saves)} a month of GPU time and costs {usd(costs)}"


def compression(site: Site, demand: Demand, disk: Decision) -> Decision:
    """Whether a lossless codec on the drives would tell."""
    if disk.verdict in {Verdict.NO, Verdict.HAVE}:
        return Decision(
            "compression", Verdict.NO, "no drives are used, so none are to be spared", {}, "trace"
        )
    if site.kept.kv is not Precision.BF16:
        why = f"KV in {site.kept.kv.name} hardly shrinks any more"
        return Decision("compression", Verdict.NO, why, {}, "trace")
    before_tokens = site.memory_tokens + site.disk_bytes / site.token_bytes
    more_tokens = site.disk_bytes * (CODEC_RATIO - 1) / site.token_bytes
    more_s = (
        demand.saving(before_tokens + more_tokens).saved_s - demand.saving(before_tokens).saved_s
    )
    link = site.drives * site.drive.read_gb_per_s
    threads = ceil(link / CODEC_GB_PER_S)
    numbers = {
        "ratio": CODEC_RATIO,
        "of_computing_by_room": more_s / demand.compute_s,
        "link_gb_per_s": link,
        "decoding_threads_to_keep_up": float(threads),
        "written_tb_per_day": disk.numbers["written_tb_per_day"] / CODEC_RATIO,
        "costs_usd_per_month": 0.0,
        **site.worth(more_s, demand),
    }
    why = (
        f"a quarter fewer bytes to write and read, as long as {threads} threads of a host may "
        f"decode to keep up with {link:.0f} GB/s; disk.codec = auto finds out"
    )
    return Decision("compression", Verdict.MAYBE, why, numbers, "assumed")
