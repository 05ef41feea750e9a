"""The bill of a plan as rows and sentences, for terminal and page. It decides nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvwise.planner.site import usd

HEADS = (
    "a month", "GPUs\nat work", "GPU\ntime", "memory", "drives", "in all",
    "for 1 M\ntokens",
)  # fmt: skip
BOUGHT = ("memory", "drives")


def bill_rows(told: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """A row for each way to serve, and what the levels save beside the engines' own caches."""
    bill, (own, whole) = told["bill"], _ways(told)
    costs = [bill[f"{one}_cost_usd_per_month"] for one in BOUGHT]
    ways = (
        ("without a cache", "without_cache", [0.0, 0.0]),
        (f"own cache{own}", "own_cache", [0.0, 0.0]),
        (f"these levels{whole}", "with_levels", costs),
    )
    each_gpus = told["gpus_per_host"]
    rows = [
        _row(
            name,
            each_gpus * bill[f"{key}_hosts_busy"],
            bill[f"{key}_usd_per_month"] - sum(bought),
            bought,
            bill[f"{key}_usd_per_million_tokens"],
        )
        for name, key, bought in ways
    ]
    saved_gpus = each_gpus * (bill["own_cache_hosts_busy"] - bill["with_levels_hosts_busy"])
    saved_each = bill["saved_usd_per_month"] / bill["million_tokens_per_month"]
    gpu_usd, less = bill["saved_gpu_usd_per_month"], [-cost for cost in costs]
    return [*rows, _row("saved by levels", saved_gpus, gpu_usd, less, saved_each)]


def _row(
    name: str, gpus: float, gpu_usd: float, bought: list[float], each_usd: float
) -> tuple[str, ...]:
    """One line; nothing bought is a dash."""
    parts = (_signed(one) if one else "-" for one in bought)
    whole = _signed(gpu_usd + sum(bought))
    sign = "-" if each_usd < 0 else ""
    return name, f"{gpus:.2f}", _signed(gpu_usd), *parts, whole, f"{sign}${abs(each_usd):.4f}"


def _signed(amount: float) -> str:
    """Dollars, with the sign before them."""
    return f"-{usd(-amount)}" if amount < 0 else usd(amount)


def _ways(told: Mapping[str, Any]) -> tuple[str, str]:
    """How requests are sent: with the engines' own caches, and with the levels."""
    verdicts = {one["boundary"]: one["verdict"] for one in told["decisions"]}
    if told["hosts"] == 1 or "router" not in verdicts:
        return "", ""
    in_turn = ", in turn"
    return in_turn, ", router" if verdicts["router"] == "yes" else in_turn


def bill_notes(told: Mapping[str, Any]) -> tuple[str, str]:
    """What prices the bill is made of, and when what it saves is money."""
    bill, prices = told["bill"], told["prices"]
    months = prices["write-off"]["amount"]
    memory, drives = (_price(prices, name) for name in ("dram-gb", "drive-tb"))
    gpus, every = bill["gpus"], usd(bill["all_gpus_usd_per_month"])
    many = f"All {gpus:,} GPUs are" if gpus > 2 else "Both GPUs are" if gpus == 2 else "The GPU is"
    oldest = min(one["as_of"] for one in prices.values())
    priced = (
        f"An hour of one {told['gpu']} is {_cents(bill['gpu_hour_usd'])}, memory {memory} a GB and "
        f"drives {drives} a TB, paid over {months:g} months; the oldest price is of {oldest}, and "
        "--hardware takes yours."
    )
    meant = (
        "GPUs count only while they compute prompts, over all hosts, so that more hosts change "
        f"little. {many} {every} a month, at work or not: what is saved is money only if something "
        "else runs in it, or if it takes fewer hosts."
    )
    return priced, meant


def _price(prices: Mapping[str, Any], kind: str) -> str:
    """The price of a kind, which may be that of one maker's."""
    return _cents(next(one["amount"] for name, one in prices.items() if name.startswith(kind)))


def _cents(amount: float) -> str:
    """Dollars, with cents where there are any."""
    return f"${amount:,.2f}".removesuffix(".00")
