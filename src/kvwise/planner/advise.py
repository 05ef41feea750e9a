"""The sequence of decisions: from reuse to drives, each with a verdict and the numbers behind it.

A level is looked at only as far as those before it leave something to gain. Pure: it is told what a
trace demands and what a host has.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from math import ceil

from kvwise.planner.demand import Demand, Saving
from kvwise.planner.hardware import TierPart
from kvwise.planner.routing import ROUTES, Report
from kvwise.planner.shapes import Model, Precision, Precisions

HBM_SHARE = 0.9
"""Of the memory of a GPU, what engines take by default; weights and KV share it."""

REUSE_MIN = 0.02
GAIN_MIN = 0.02
"""Less than this share of all computing is not worth a level of its own."""

ENOUGH = 0.9
"""Of the hits of a cache that never forgets: whoever has these needs no larger one."""

MARGIN = 1.1
"""By how much loading must be quicker than computing."""

LIFE_YEARS = 5.0
"""What drives are rated for."""

WORN = 1.1
"""Bytes that a drive writes for each that it is given, where they come in long runs."""

CODEC_RATIO = 1.33
CODEC_GB_PER_S = 6.0
"""What a thread decodes, and what KV in BF16 shrinks by, as measured with `kvwise bench codec`."""


class Verdict(Enum):
    """What to do about a level."""

    YES = "yes"
    NO = "no"
    MAYBE = "maybe"
    HAVE = "you have it"


@dataclass(frozen=True, slots=True)
class Decision:
    """One level.

    Attributes:
        boundary: which.
        why: in a sentence.
        numbers: behind it, with units in their names.
        confidence: `trace` where it follows from the trace and the model alone, `estimate` where
            computing is estimated, `assumed` where hardware that nobody measured decides.
    """

    boundary: str
    verdict: Verdict
    why: str
    numbers: dict[str, float]
    confidence: str


@dataclass(frozen=True, slots=True)
class Site:
    """What there is, or might be bought: hosts that are alike, each with one engine.

    What several hosts hold counts as one cache, which is what routing by cached prefixes comes to.

    Attributes:
        gpus, hbm_bytes: of a host, how many, and the memory of one.
        weight_bytes: of one weight.
        hosts: how many.
        dram, drive: the kinds of tiers.
        dram_bytes: of a host, memory that a cache may have.
        drives, drive_bytes: of a host, how many, and how large.
        snapshot_tokens: new tokens for each snapshot of a recurrent state; 0 for a model without.
    """

    model: Model
    kept: Precisions
    gpus: int
    hbm_bytes: float
    weight_bytes: float
    hosts: int
    dram: TierPart
    dram_bytes: float
    drive: TierPart
    drives: int
    drive_bytes: float
    snapshot_tokens: float = 0.0

    @property
    def memory_bytes(self) -> float:
        """Memory of all hosts."""
        return self.hosts * self.dram_bytes

    @property
    def disk_bytes(self) -> float:
        """Drives of all hosts."""
        return self.hosts * self.drives * self.drive_bytes

    @property
    def token_bytes(self) -> float:
        """Bytes of a token over all ranks, each stored once, with its share of a snapshot."""
        shared = float(self.model.state_bytes(self.kept))
        each = shared / self.snapshot_tokens if self.snapshot_tokens else 0.0
        return float(self.model.token_bytes(self.kept)) + each

    @property
    def device_tokens(self) -> float:
        """Tokens whose KV fits beside the weights, on all hosts."""
        rank = self.model.of_rank(self.gpus)
        left = HBM_SHARE * self.hbm_bytes - self.model.weights * self.weight_bytes / self.gpus
        each = float(rank.token_bytes(self.kept))
        if self.snapshot_tokens:
            each += float(rank.state_bytes(self.kept)) / self.snapshot_tokens
        return self.hosts * max(0.0, left) / each


def advise(site: Site, demand: Demand, report: Report) -> list[Decision]:
    """Decide level after level; `report` hears what is being looked at."""
    found = [_reuse(demand)]
    if found[0].verdict is Verdict.NO:
        return found
    device = demand.saving(site.device_tokens)
    if not site.device_tokens:
        return [*found, _hbm(site, demand, device)]
    memory = demand.saving(max(site.device_tokens, site.memory_bytes / site.token_bytes))
    found += [_quantise(site, demand, device), _hbm(site, demand, device)]
    dram = _dram(site, demand, device, memory)
    disk = _nvme(site, demand, memory)
    tokens = memory.capacity_tokens
    if disk.verdict is Verdict.YES:
        tokens += site.disk_bytes / site.token_bytes
    router = _router(site, demand, tokens, report)
    found += [dram, disk, _shared(site, demand, tokens, router), _compression(site, demand, disk)]
    return [*found, router]


def _reuse(demand: Demand) -> Decision:
    """Whether anything comes back at all."""
    whole = demand.saving(float("inf"))
    part = whole.saved_s / max(demand.compute_s, 1e-9)
    numbers = {
        "reuse": demand.reuse,
        "engines_busy_with_prefill": demand.engines,
        "of_computing": part,
        "gpu_hours_saved_per_day_most": whole.saved_s / demand.span_s * 24,
    }
    if part < REUSE_MIN:
        why = f"prompts hardly come back: a cache that never forgets would save {part:.1%}"
        return Decision("reuse", Verdict.NO, why, numbers, "trace")
    why = (
        f"{demand.reuse:.0%} of the blocks come back; a cache that never forgets would save "
        f"{part:.0%} of all computing"
    )
    return Decision("reuse", Verdict.YES, why, numbers, "estimate")


def _quantise(site: Site, demand: Demand, device: Saving) -> Decision:
    """Whether half the bytes would tell, before anything is bought."""
    if site.kept.kv is not Precision.BF16:
        why = f"KV is kept in {site.kept.kv.name} already"
        return Decision("quantise", Verdict.HAVE, why, {}, "trace")
    half = demand.saving(2 * site.device_tokens)
    gain = (half.saved_s - device.saved_s) / demand.compute_s
    numbers = {
        "token_bytes_bf16": site.token_bytes,
        "device_hit_ratio_bf16": device.hit_ratio,
        "device_hit_ratio_fp8": half.hit_ratio,
        "of_computing": gain,
    }
    if gain < GAIN_MIN:
        why = f"FP8 KV would double what fits on the GPUs, which saves {gain:.1%} of computing"
        return Decision("quantise", Verdict.NO, why, numbers, "estimate")
    why = (
        f"FP8 KV doubles what fits on the GPUs and halves every load and write: "
        f"{gain:.0%} of computing saved for nothing but quality, which you must judge"
    )
    return Decision("quantise", Verdict.MAYBE, why, numbers, "estimate")


def _hbm(site: Site, demand: Demand, device: Saving) -> Decision:
    """What the engine's own cache brings already."""
    numbers = {
        "capacity_tokens": site.device_tokens,
        "hit_ratio": device.hit_ratio,
        "of_computing": device.saved_s / demand.compute_s,
    }
    if not site.device_tokens:
        least = ceil(site.model.weights * site.weight_bytes / (HBM_SHARE * site.hbm_bytes))
        why = f"the weights need {least} such GPUs, and a host has {site.gpus}: give it more"
        return Decision("hbm", Verdict.NO, why, numbers, "estimate")
    why = (
        f"{site.device_tokens / 1e6:.2f} M tokens fit beside the weights and hit "
        f"{device.share:.0%} of what could be hit"
    )
    return Decision("hbm", Verdict.HAVE, why, numbers, "estimate")


def _dram(site: Site, demand: Demand, device: Saving, memory: Saving) -> Decision:
    """Whether the host's memory adds enough."""
    enough = demand.capacity_for(ENOUGH)
    gain = (memory.saved_s - device.saved_s) / demand.compute_s
    speedup = _speedup(site, demand, memory, site.dram, 1)
    numbers = {
        "bytes": site.memory_bytes,
        "hit_ratio": memory.hit_ratio,
        "share_of_hits": memory.share,
        "of_computing": gain,
        "speedup": speedup,
        "tokens_for_90_percent_of_hits": float(enough),
        "bytes_for_90_percent_of_hits": enough * site.token_bytes,
    }
    size = f"{_size(site.memory_bytes)} over all hosts"
    if memory.capacity_tokens <= site.device_tokens:
        held = _size(site.device_tokens * site.token_bytes)
        why = f"{size} are no more than the GPUs hold, {held}: give more, or none"
        return Decision("dram", Verdict.NO, why, numbers, "estimate")
    if gain < GAIN_MIN or speedup < MARGIN:
        slow = speedup < MARGIN
        what = "loading is no quicker than computing" if slow else f"{size} save {gain:.1%} more"
        return Decision("dram", Verdict.NO, f"{what} of computing", numbers, "estimate")
    why = (
        f"{size} save {gain:.0%} of computing, with hits there {speedup:.0f} times as soon; "
        f"90 % of all hits take {_size(enough * site.token_bytes)}"
    )
    return Decision("dram", Verdict.YES, why, numbers, "estimate")


def _nvme(site: Site, demand: Demand, memory: Saving) -> Decision:
    """Whether drives pay: memory is full, loading is quicker, and they live long enough."""
    disk_bytes = site.disk_bytes
    disk = demand.saving(memory.capacity_tokens + disk_bytes / site.token_bytes)
    gain = (disk.saved_s - memory.saved_s) / demand.compute_s
    one = _speedup(site, demand, disk, site.drive, 1)
    speedup = _speedup(site, demand, disk, site.drive, site.drives)
    written = demand.new_tokens_per_day * site.token_bytes * WORN
    budget = disk_bytes * site.drive.dwpd
    numbers = {
        "drives_per_host": float(site.drives),
        "bytes": disk_bytes,
        "hit_ratio": disk.hit_ratio,
        "of_computing": gain,
        "speedup": speedup,
        "drives_per_host_to_be_quicker": float(ceil(MARGIN / one)) if one else 0.0,
        "written_tb_per_day": demand.new_tokens_per_day * site.token_bytes / 1e12,
        "written_twice_seen_tb_per_day": demand.twice_tokens_per_day * site.token_bytes / 1e12,
        "dwpd_needed": written / disk_bytes if disk_bytes else 0.0,
        "dwpd_rated": site.drive.dwpd,
        "years_writing_everything": LIFE_YEARS * budget / written if written else 0.0,
    }
    if not site.drives:
        return Decision("nvme", Verdict.NO, "no drives are given", {}, "trace")
    if memory.share >= ENOUGH or gain < GAIN_MIN:
        why = (
            f"memory has {memory.share:.0%} of all hits; drives would save {gain:.1%} of "
            "computing more"
        )
        return Decision("nvme", Verdict.NO, why, numbers, "estimate")
    if speedup < MARGIN:
        many = numbers["drives_per_host_to_be_quicker"]
        why = (
            f"{site.drives} x {site.drive.name} load a usual hit in {1 / speedup:.1f} times the "
            f"time it takes to compute; it takes {many:.0f} in each host"
        )
        return Decision("nvme", Verdict.NO, why, numbers, site.drive.origin.mark)
    years = numbers["years_writing_everything"]
    worn = (
        ""
        if years >= LIFE_YEARS
        else (
            f"; writing everything would wear them out in {years:.1f} years: the budget of their "
            f"rating pays for {budget / written:.0%} of what is new, and for less of the gain"
        )
    )
    why = f"{gain:.0%} of computing more, with hits there {speedup:.1f} times as soon{worn}"
    return Decision("nvme", Verdict.YES, why, numbers, site.drive.origin.mark)


def _router(site: Site, demand: Demand, tokens: float, report: Report) -> Decision:
    """Whether it matters which host a request is sent to, when each has a cache of its own."""
    if site.hosts == 1:
        return Decision("router", Verdict.NO, "one host needs no router", {}, "trace")
    each = tokens / site.hosts
    hits = {name: demand.routed(name, site.hosts, each, report) for name in ROUTES}
    pooled = demand.saving(tokens).hit_ratio
    ratios = {name: one.hit_ratio for name, one in hits.items()}
    best = ratios["kv_aware"]
    saved_s = demand.saved_by(best) - demand.saved_by(ratios["round_robin"])
    gain = saved_s / demand.compute_s
    numbers = {
        **{f"hit_ratio_{name}": ratio for name, ratio in ratios.items()},
        "hit_ratio_one_cache": pooled,
        "of_computing": gain,
        "busiest_host": hits["kv_aware"].imbalance,
    }
    if gain < GAIN_MIN:
        why = f"sending requests in turn hits {ratios['round_robin']:.1%}, by cache {best:.1%}"
        return Decision("router", Verdict.NO, why, numbers, "trace")
    why = (
        f"sending requests where their prefix is hits {best:.0%} of all blocks, in turn only "
        f"{ratios['round_robin']:.0%}: {gain:.0%} of computing, for no hardware"
    )
    return Decision("router", Verdict.YES, why, numbers, "trace")


def _shared(site: Site, demand: Demand, tokens: float, router: Decision) -> Decision:
    """Whether a tier that all hosts reach would hit more than a router does."""
    if site.hosts == 1:
        why = "one host shares with nobody; a shared tier would only outlive it"
        return Decision("shared", Verdict.NO, why, {}, "trace")
    pooled = demand.saving(tokens)
    gain = (pooled.saved_s - demand.saved_by(router.numbers["hit_ratio_kv_aware"])) / (
        demand.compute_s
    )
    moved = demand.hit_tokens_per_s(pooled) * site.token_bytes / 1e9
    numbers = {
        "of_computing_beyond_router": gain,
        "all_hits_gb_per_s": moved,
        "per_host_gb_per_s": moved / site.hosts,
    }
    if gain < GAIN_MIN:
        why = (
            f"a router that knows what is cached leaves {max(0.0, gain):.1%} of computing to gain; "
            f"share for hosts that come and go, with {moved / site.hosts:.2g} GB/s for each"
        )
        return Decision("shared", Verdict.NO, why, numbers, "trace")
    why = (
        f"{gain:.0%} of computing beyond what a router brings, if each host has "
        f"{moved / site.hosts:.2g} GB/s to it"
    )
    return Decision("shared", Verdict.MAYBE, why, numbers, "trace")


def _compression(site: Site, demand: Demand, disk: Decision) -> Decision:
    """Whether a lossless codec on the drives would tell."""
    if disk.verdict is not Verdict.YES:
        return Decision(
            "compression", Verdict.NO, "no drives are used, so none are to be spared", {}, "trace"
        )
    if site.kept.kv is not Precision.BF16:
        why = f"KV in {site.kept.kv.name} hardly shrinks any more"
        return Decision("compression", Verdict.NO, why, {}, "trace")
    before_tokens = (site.memory_bytes + site.disk_bytes) / site.token_bytes
    more_tokens = site.disk_bytes * (CODEC_RATIO - 1) / site.token_bytes
    after = demand.saving(before_tokens + more_tokens)
    gain = (after.saved_s - demand.saving(before_tokens).saved_s) / demand.compute_s
    link = site.drives * site.drive.read_gb_per_s
    threads = ceil(link / CODEC_GB_PER_S)
    numbers = {
        "ratio": CODEC_RATIO,
        "of_computing_by_room": gain,
        "link_gb_per_s": link,
        "decoding_threads_to_keep_up": float(threads),
        "written_tb_per_day": disk.numbers["written_tb_per_day"] / CODEC_RATIO,
    }
    why = (
        f"a quarter fewer bytes to write and read, as long as {threads} threads of a host may "
        f"decode to keep up with {link:.0f} GB/s; disk.codec = auto finds out"
    )
    return Decision("compression", Verdict.MAYBE, why, numbers, "assumed")


def _size(size_bytes: float) -> str:
    """Bytes in decimal units, as drives and memory are sold."""
    return f"{size_bytes / 1e12:,.2f} TB" if size_bytes >= 1e12 else f"{size_bytes / 1e9:,.0f} GB"


def _speedup(site: Site, demand: Demand, saving: Saving, tier: TierPart, units: int) -> float:
    """How many times as soon a usual hit is there from so many units of a tier."""
    tokens = int(saving.hit_tokens)
    if not tokens or not units:
        return 0.0
    whole = float(site.model.sequence_bytes(tokens, site.kept))
    held = float(site.model.of_rank(site.gpus).sequence_bytes(tokens, site.kept))
    computed_s = demand.computing_one(tokens)
    return computed_s / tier.load_s(held if tier.per_gpu else whole / units)
