"""What is planned for, and what is answered: a site, a verdict, a decision. It decides nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

from kvwise.planner.demand import Demand, Saving
from kvwise.planner.hardware import TierPart
from kvwise.planner.prices import MONTH_H, MONTH_S, Prices
from kvwise.planner.shapes import Model, Precision, Precisions

HBM_SHARE = 0.9
"""Of the memory of a GPU, what engines take by default; weights and KV share it."""

LIFE_YEARS = 5.0
"""What drives are rated for."""

WORN = 1.1
"""Bytes that a drive writes for each that it is given, where they come in long runs."""

WEIGHT_BYTES: Mapping[str, float] = {"bf16": 2.0, "fp8": 1.0, "fp4": 0.5625}
"""Bytes of a weight, scales included, by how weights are kept."""

WEIGHTS: Mapping[Precision | None, str] = {Precision.FP8: "fp8", Precision.NVFP4: "fp4"}
"""How they are kept, where a model's configuration says so; else in BF16."""

REMEMBERED = 256
"""Sizes of models that are not added up anew each time an input is turned."""


class Verdict(Enum):
    """What to do about a level."""

    YES = "yes"
    NO = "no"
    MAYBE = "maybe"
    HAVE = "you have it"


@dataclass(frozen=True, slots=True)
class Change:
    """What would change a verdict: an input at so many times what was taken for it.

    Attributes:
        knob: the input.
        factor: how many times.
        becomes: the verdict from there on.
    """

    knob: str
    factor: float
    becomes: Verdict


@dataclass(frozen=True, slots=True)
class Decision:
    """One level.

    Attributes:
        boundary: which.
        why: in a sentence.
        numbers: behind it, with units in their names.
        confidence: `trace` where it follows from the trace and the model alone, `estimate` where
            computing is estimated, otherwise the mark of the drive.
        changes: which inputs would change it, nearest first.
    """

    boundary: str
    verdict: Verdict
    why: str
    numbers: dict[str, float]
    confidence: str
    changes: tuple[Change, ...] = ()


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
        dram_most_bytes: of a host, up to how much memory it may be given where more is better; 0
            for no more than `dram_bytes`.
        drives, drive_bytes: of a host, how many, and how large.
        prices: of all of it.
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
    prices: Prices
    snapshot_tokens: float = 0.0
    dram_most_bytes: float = 0.0

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
        return _token_bytes(self.model, self.kept, self.snapshot_tokens)

    @property
    def rank_token_bytes(self) -> float:
        """Bytes of a token on one GPU: what ranks cannot share, each of them holds."""
        return _token_bytes(_rank(self.model, self.gpus), self.kept, self.snapshot_tokens)

    @property
    def device_tokens(self) -> float:
        """Tokens whose KV fits beside the weights, on all hosts."""
        left = HBM_SHARE * self.hbm_bytes - self.model.weights * self.weight_bytes / self.gpus
        return self.hosts * max(0.0, left) / self.rank_token_bytes

    @property
    def memory_tokens(self) -> float:
        """Tokens that memory holds, or the GPUs if they hold more."""
        return max(self.device_tokens, self.memory_bytes / self.token_bytes)

    @property
    def budget_bytes(self) -> float:
        """Bytes a day that may be given to all drives within their rating; endless without one."""
        return self.disk_bytes * self.drive.dwpd / WORN if self.drive.dwpd else float("inf")

    def worth(self, saved_s: float, demand: Demand) -> dict[str, float]:
        """What seconds of computing saved over a trace are in a month: hours of GPUs, and USD."""
        engines = saved_s / demand.span_s
        saved = self.prices.engines(engines, self.gpus)
        return {
            "gpu_hours_saved_per_month": engines * self.gpus * MONTH_H,
            "saves_usd_per_month": saved,
            "saves_usd_per_million_tokens": saved / max(1e-9, demand.millions_per_s * MONTH_S),
        }

    def speedup(self, demand: Demand, saving: Saving, tier: TierPart, units: int) -> float:
        """How many times as fast as computed a usual hit is loaded from so many units of a tier."""
        tokens = int(saving.hit_tokens)
        if not tokens or not units:
            return 0.0
        whole = _sequence_bytes(self.model, tokens, self.kept)
        held = _sequence_bytes(_rank(self.model, self.gpus), tokens, self.kept)
        computed_s = demand.computing_one(tokens)
        return computed_s / tier.load_s(held if tier.per_gpu else whole / units)


@lru_cache(maxsize=REMEMBERED)
def _rank(model: Model, ranks: int) -> Model:
    """What a rank holds."""
    return model.of_rank(ranks)


@lru_cache(maxsize=REMEMBERED)
def _token_bytes(model: Model, kept: Precisions, snapshot_tokens: float) -> float:
    """Bytes of a token, with its share of a snapshot."""
    shared = float(model.state_bytes(kept)) / snapshot_tokens if snapshot_tokens else 0.0
    return float(model.token_bytes(kept)) + shared


@lru_cache(maxsize=REMEMBERED)
def _sequence_bytes(model: Model, tokens: int, kept: Precisions) -> float:
    """Bytes of a sequence."""
    return float(model.sequence_bytes(tokens, kept))


def size_text(size_bytes: float) -> str:
    """Bytes in decimal units, as drives and memory are sold."""
    return f"{size_bytes / 1e12:,.2f} TB" if size_bytes >= 1e12 else f"{size_bytes / 1e9:,.0f} GB"


def usd(amount: float) -> str:
    """Dollars, with cents only where there are few."""
    return f"${amount:,.0f}" if abs(amount) >= 10 else f"${amount:,.2f}"


def weights_of(model: Model) -> str:
    """How the weights of a model are kept, as its configuration says."""
    return WEIGHTS.get(model.weights_kept, "bf16")
