"""The search for sizes: every combination on the exact curve, a few of them as simulated machines.

Hits of any size follow from stack distances at once, so hundreds of combinations of GPUs' memory,
dtype, ranks, memory and drives are priced without running anything. Nobody waits there. What looks
best is therefore run in virtual time: one host, with the requests that a router that knows what is
cached would send it, which are families of prompts; or those that it gets when requests go to hosts
in turn. It starts no process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from kvwise.errors import ConfigError
from kvwise.planner.demand import Demand
from kvwise.planner.families import family_of_each
from kvwise.planner.hardware import Hardware
from kvwise.planner.oracle import Oracle
from kvwise.planner.prices import MONTH_S, Prices
from kvwise.planner.shapes import Precision
from kvwise.planner.site import HBM_SHARE, Site
from kvwise.sim.dice import Dice
from kvwise.sim.replay.full import Account
from kvwise.sim.replay.stack import Stack, stack_of
from kvwise.sim.trace.records import Trace
from kvwise.units import round_up

HBM_SHARES = (0.9, 0.95, 0.8)
DTYPES = (Precision.BF16, Precision.FP8)
DRAM_PARTS = (0.25, 0.5, 1.0, 2.0)
"""Of what the options say of memory."""

DRIVES = (0, 1, 2, 4, 8)
DRIVE_KINDS = ("nvme-gen4", "nvme-gen5", "nvme-qlc")
MARGIN = 1.1
"""By how much loading from drives must be quicker than computing, on the curve."""

LENGTHS = (2_048, 8_192, 32_768, 131_072)
"""At which a simulated engine is told how long computing takes."""

DECODE_SHARE = 0.8
"""Of the rate of a GPU's memory at which decoding reads weights."""

TRIED = 3
"""Combinations of sizes that are run, the best of each kind first."""

REQUESTS_MAX = 2_500
"""Requests of one run; the trace is cut there."""

SHARED_BYTES = 64 << 40
SEED = 1
Demands = Mapping[int, Demand]
"""The trace on one engine, by how many GPUs it has."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One combination.

    Attributes:
        site: what it comes to.
        hbm_share: of the GPUs' memory that engines take.
        drive: the kind of drive; empty for none.
        eviction, codec: as the configuration of these names.
        in_turn: whether requests go to hosts in turn, instead of where their prefix is.
        shared: whether there is a store below, reached over the network.
    """

    site: Site
    hbm_share: float
    drive: str
    eviction: str = "worth"
    codec: str = "off"
    in_turn: bool = False
    shared: bool = False

    @property
    def kind(self) -> tuple[object, ...]:
        """Combinations of one kind differ in sizes only."""
        return self.site.kept.kv, bool(self.drive), self.site.gpus

    @property
    def costs_usd_per_month(self) -> float:
        """Memory and drives of all hosts, and a shared store with an adapter for each."""
        site, prices = self.site, self.site.prices
        own = prices.memory(site.memory_bytes) + prices.drives(site.disk_bytes)
        shared = prices.drives(SHARED_BYTES) + prices.adapters(site.hosts)
        return own + shared * self.shared

    def told(self) -> dict[str, Any]:
        """As plain values."""
        site = self.site
        return {
            "hbm_share": self.hbm_share,
            "kv": site.kept.kv.name.lower(),
            "tp": site.gpus,
            "hosts": site.hosts,
            "dram_bytes_per_host": site.dram_bytes,
            "drives_per_host": site.drives,
            "drive": self.drive or None,
            "eviction": self.eviction,
            "codec": self.codec,
            "routing": "in turn" if self.in_turn else "where the prefix is",
            "shared": self.shared,
            "costs_usd_per_month": self.costs_usd_per_month,
        }


@dataclass(frozen=True, slots=True)
class Limits:
    """What a stack must keep to; None where nothing is asked.

    Attributes:
        ttft_s: to first token, of 95 in 100 requests.
        usd_per_month: for memory and drives of all hosts.
    """

    ttft_s: float | None = None
    usd_per_month: float | None = None


@dataclass(frozen=True, slots=True)
class Guess:
    """A combination as the curve has it: GPU-seconds that are left over the whole trace."""

    candidate: Candidate
    gpu_s: float
    usd_per_million_tokens: float


@dataclass(frozen=True, slots=True)
class Trial:
    """A combination that was run, beside the same host without a cache of kvwise's.

    Attributes:
        gpu_s, gpu_s_without: of prompts, on all GPUs of the host.
        ttft_s: mean and quantiles.
        life_years: of the drives; None without, or where nothing was written.
    """

    candidate: Candidate
    gpu_s: float
    gpu_s_without: float
    ttft_s: Mapping[str, float]
    hit_ratio: float
    usd_per_million_tokens: float
    life_years: float | None

    def within(self, limits: Limits) -> bool:
        """Whether it keeps to them."""
        return limits.ttft_s is None or self.ttft_s["p95"] <= limits.ttft_s

    def told(self) -> dict[str, Any]:
        """As plain values."""
        names = (
            "gpu_s", "gpu_s_without", "hit_ratio", "usd_per_million_tokens", "life_years",
        )  # fmt: skip
        figures = {name: getattr(self, name) for name in names}
        saved = self.gpu_s_without - self.gpu_s
        return {**self.candidate.told(), **figures, "gpu_s_saved": saved, "ttft_s": self.ttft_s}


# --- every combination, on the curve ---


def candidates(
    base: Site, known: Hardware, gpu: str, ranks: Sequence[int], least_tokens: int
) -> Iterator[Candidate]:
    """Every combination around a site, with as many GPUs.

    Weights fit, and beside them a request of `least_tokens` on each host; memory holds more than
    the GPUs do.
    """
    kinds = [("", 0)]
    sized = [count for count in DRIVES if count and base.drive_bytes]
    kinds += [(name, count) for name in DRIVE_KINDS if name in known.tiers for count in sized]
    parts = product(HBM_SHARES, DTYPES, ranks, DRAM_PARTS, kinds)
    for share, kept, tensor, part, (drive, count) in parts:
        hosts = base.hosts * base.gpus // tensor
        each = tensor / base.gpus
        site = replace(
            base,
            kept=replace(base.kept, kv=kept),
            gpus=tensor,
            hbm_bytes=base.hbm_bytes * share / HBM_SHARE,
            hosts=hosts,
            dram_bytes=base.dram_bytes * part * each,
            drives=count,
            drive=known.tiers[drive] if drive else base.drive,
            drive_bytes=base.drive_bytes * each,
            prices=Prices.of(known, gpu, drive or base.drive.name),
        )
        fits = site.device_tokens / hosts >= least_tokens
        if fits and site.memory_tokens > site.device_tokens:
            yield Candidate(site, share, drive)


def ranks_of(gpus: int, *, is_estimated: bool) -> tuple[int, ...]:
    """Tensor-parallel sizes that use all GPUs; another one than asked needs an estimate for it."""
    if not is_estimated:
        return (gpus,)
    return tuple(ranks for ranks in (1, 2, 4, 8, 16) if ranks <= gpus and not gpus % ranks)


def least_tokens(trace: Trace) -> int:
    """Room that the longest request and its answer take, in whole blocks."""
    block = trace.block_tokens
    longest = max(one.input_tokens + max(1, one.output_tokens) for one in trace.requests)
    return round_up(longest, block)


def guess(candidate: Candidate, demands: Demands) -> Guess:
    """What a combination leaves to compute, if its hits cost nothing and nobody waits.

    Hits of drives count as far as their rating lets what is new be written.
    """
    site = candidate.site
    demand = demands[site.gpus]
    memory = demand.saving(site.memory_tokens)
    saved_s = memory.saved_s
    if site.drives:
        disk = demand.saving(site.memory_tokens + site.disk_bytes / site.token_bytes)
        if site.speedup(demand, disk, site.drive, site.drives) >= MARGIN:
            saved_s += (disk.saved_s - memory.saved_s) * _written(site, demand)
    gpu_s = (demand.compute_s - saved_s) * site.gpus
    tokens = demand.millions_per_s * demand.span_s
    return Guess(candidate, gpu_s, _usd(candidate, gpu_s, demand.span_s, tokens))


def _written(site: Site, demand: Demand) -> float:
    """The part of what is new that drives may be given within their rating."""
    new_bytes = demand.new_tokens_per_day * site.token_bytes
    return min(1.0, site.budget_bytes / new_bytes) if new_bytes else 1.0


def _usd(
    candidate: Candidate, gpu_s: float, seconds: float, millions: float, parts: int = 1
) -> float:
    """USD for a million tokens of prompts: GPUs while they compute them, and tiers all the time.

    They are those of one of so many equal parts of all hosts.
    """
    gpus = gpu_s / 3_600 * candidate.site.prices.gpu_hour.amount
    tiers = candidate.costs_usd_per_month / parts * seconds / MONTH_S
    return (gpus + tiers) / max(millions, 1e-9)


def best_guesses(
    found: Sequence[Guess], limits: Limits, by: Callable[[Guess], float], count: int
) -> list[Guess]:
    """The best of each kind that keeps to the budget, the best kinds first.

    Raises:
        ConfigError: nothing does.
    """
    most = limits.usd_per_month
    kept = [one for one in found if most is None or one.candidate.costs_usd_per_month <= most]
    if not found:
        raise ConfigError(
            "no combination has room for the weights and the longest request, and more memory than "
            "its GPUs; hint: more --tp, or more --dram"
        )
    if not kept:
        raise ConfigError(
            "no combination of memory and drives keeps to the budget; hint: a larger --budget, "
            "or less memory with --dram"
        )
    kinds: dict[tuple[object, ...], Guess] = {}
    for one in sorted(kept, key=lambda one: (by(one), one.candidate.costs_usd_per_month)):
        kinds.setdefault(one.candidate.kind, one)
    return list(kinds.values())[:count]


# --- the few that matter, as machines ---


def stack_for(candidate: Candidate, oracle: Oracle) -> Stack:
    """One host of a combination, for the simulator; the budget of its drives' rating is kept to.

    Raises:
        ConfigError: the simulator cannot have such a host.
    """
    site, gpu = candidate.site, oracle.gpu
    link = site.dram.read_gb_per_s * 1e9 * (site.gpus if site.dram.per_gpu else 1)
    weights = site.model.weights * site.weight_bytes / site.gpus
    engine = {
        "name": site.model.name,
        "as_of": gpu.origin.as_of or "not said",
        "source": gpu.origin.source or "not said",
        "kv_bytes_per_token": round(site.token_bytes),
        "prefill_rows": [[tokens, oracle.seconds(tokens)] for tokens in LENGTHS],
        "decode_step_s": weights / (DECODE_SHARE * gpu.hbm_gb_per_s * 1e9),
        "link_bytes_per_s": link,
    }
    values: dict[str, object] = {
        "engine": engine,
        "device": {"kv_tokens": int(site.device_tokens / site.hosts)},
        "dram": {"size": int(site.dram_bytes)},
        "brain": {"eviction": candidate.eviction},
    }
    if site.drives:
        drive = site.drive
        values["disk"] = {
            "size": int(site.drives * site.drive_bytes),
            "drives": site.drives,
            "read_bytes_per_s": drive.read_gb_per_s * 1e9,
            "write_bytes_per_s": drive.write_gb_per_s * 1e9,
            "latency_s": drive.latency_us / 1e6,
            "drive_size": int(site.drive_bytes),
            "dwpd": drive.dwpd or 1.0,
            "codec": candidate.codec,
        }
        if drive.dwpd:
            budget = int(site.budget_bytes / site.hosts)
            values["brain"] = {"eviction": candidate.eviction, "write_bytes_per_day": budget}
    if candidate.shared:
        rate = gpu.host_link_gb_per_s * 1e9
        values["network"] = {
            "size": SHARED_BYTES, "read_bytes_per_s": rate, "write_bytes_per_s": rate,
        }  # fmt: skip
    return stack_of(values, "the search")


def host_share(trace: Trace, hosts: int, *, in_turn: bool) -> Trace:
    """The requests of one host of so many, by how they are routed, cut after so many of them."""
    usable = [request for request in trace.requests if request.blocks]
    if in_turn:
        kept = usable[::hosts]
    else:
        families = family_of_each(usable)
        order = Dice(SEED).shuffled(sorted(set(families)))
        mine = set(order[::hosts])
        kept = [one for one, family in zip(usable, families, strict=True) if family in mine]
    return replace(trace, requests=tuple(kept[:REQUESTS_MAX]))


def variations(best: Candidate) -> list[Candidate]:
    """The same sizes with one thing otherwise: what is not a size, and cannot be read off a curve.

    Whoever has one host has no router and nobody to share with.
    """
    found = [replace(best, eviction="lru")]
    if best.drive and best.site.kept.kv is Precision.BF16:
        found.append(replace(best, codec="auto"))
    if best.site.hosts > 1:
        found += [replace(best, in_turn=True), replace(best, shared=True)]
    return found


def trial_of(candidate: Candidate, account: Account, without: Account, millions: float) -> Trial:
    """A run and the same requests without a cache; `millions` are those of their tokens."""
    site = candidate.site
    gpu_s = account.gpu_s * site.gpus
    return Trial(
        candidate=candidate,
        gpu_s=gpu_s,
        gpu_s_without=without.gpu_s * site.gpus,
        ttft_s=account.ttft(),
        hit_ratio=account.hit_ratio,
        usd_per_million_tokens=_usd(candidate, gpu_s, account.seconds, millions, site.hosts),
        life_years=account.life_years,
    )


def choose(trials: Sequence[Trial], limits: Limits, by: Callable[[Trial], float]) -> Trial | None:
    """The best trial within the limits; None where none is."""
    return min((one for one in trials if one.within(limits)), key=by, default=None)
