"""The charts of a plan's page: sizes, rates, kappa, wear, money, and what inputs would change.

It draws what `kvwise plan --json` prints and computes nothing of the plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from kvwise.bench.chart import Bar, bar_chart
from kvwise.bench.curves import Axis, Line, Mark, Range, line_chart, range_chart
from kvwise.bench.page import table
from kvwise.cli.plan_money import HEADS, bill_notes, bill_rows
from kvwise.cli.plan_text import becomes_text, number_text
from kvwise.planner.site import LIFE_YEARS, size_text, usd

DECADES = tuple(10.0**power for power in range(6, 19))
RATES = (0.01, 0.1, 1.0, 10.0, 100.0, 1_000.0, 10_000.0)
DASHES = ("", "9 5", "3 4", "14 4 3 4", "1 5")


def size_chart(told: Mapping[str, Any]) -> str:
    """Hits by size with the knee, then the sizes of this plan."""
    curve = told["curve"]
    points = [(one["bytes"], one["hit_ratio"]) for one in curve["points"]]
    knee, (least, _), (most, top) = curve["knee"], points[0], points[-1]
    ticks = [(size, size_text(size)) for size in DECADES if least <= size <= most]
    ceiling = max(0.05, top * 1.15)
    step = 0.05 if ceiling < 0.3 else 0.1 if ceiling < 0.6 else 0.25
    levels = [step * number for number in range(1, int(ceiling / step) + 1)]
    text = f"knee: {size_text(knee['bytes'])} hit {knee['hit_ratio']:.0%}"
    chart = line_chart(
        "Hit ratio by size of the cache",
        f"The share of prompts' blocks that an exact LRU hits rises from {points[0][1]:.0%} with "
        f"{size_text(least)} to {top:.0%} with {size_text(most)}; {text}.",
        (
            Axis(least, most, ticks, is_log=True),
            Axis(0.0, ceiling, [(level, f"{level:.0%}") for level in levels]),
        ),
        [Line("", points, kind="brand")],
        [Mark(knee["bytes"], knee["hit_ratio"], text)],
    )
    bars = [
        Bar(
            f"{one['label']}: {size_text(one['bytes'])}",
            one["hit_ratio"],
            f"{one['hit_ratio']:.1%}",
            (),
            "strong" if one["is_here"] else "hatched",
        )
        for one in told["sizes"]
    ]
    return (
        "<section><h2>What a size hits</h2><p>Share of all blocks of prompts, by an exact LRU over "
        "all hosts. At the knee the curve is furthest above a straight line to its end: from there "
        f"on more bytes bring less than the mean.</p>{chart}<h3>Sizes of this plan (solid) and "
        "others (hatched)</h3>"
        + bar_chart("Hit ratio by size", bars, "Levels of this plan beside other sizes.")
        + "</section>"
    )


def rate_chart(told: Mapping[str, Any]) -> str:
    """The rate at which loading and computing take as long, and the rates of tiers."""
    found = told["break_even"]
    points = [(one["tokens"], one["needed_gb_per_s"]) for one in found["points"]]
    low, high = points[0][0], points[-1][0]
    rates = [rate for _, rate in points] + list(found["tiers"].values())
    least, most = min(rates) / 3, max(rates) * 3
    lines = [Line("needed to beat computing", points, at=len(points) // 2, kind="brand")]
    for number, (name, rate) in enumerate(sorted(found["tiers"].items(), key=lambda one: -one[1])):
        ends = [(low, rate), (high, rate)]
        dash = DASHES[1 + number % (len(DASHES) - 1)]
        label, at = f"{name}: {rate:,.3g}", -(number % 2)
        lines.append(Line(label, ends, dash, at, is_below=2 * number >= len(found["tiers"])))
    ticks = [(count, f"{count // 1024}k") for count, _ in points[::2]]
    marks = [(rate, f"{rate:,g} GB/s") for rate in RATES if least < rate < most]
    chart = line_chart(
        "Rate at which loading takes as long as computing, by length of the prompt",
        f"Between {low:,} and {high:,} tokens a host must load at {min(r for _, r in points):.2g} "
        f"to {max(r for _, r in points):.2g} GB/s. "
        + " ".join(f"{name} gives {rate:.3g}." for name, rate in found["tiers"].items()),
        (
            Axis(low, high, ticks, is_log=True),
            Axis(least, most, marks, is_log=True),
        ),
        lines,
    )
    return (
        "<section><h2>Loading or computing</h2><p>GB/s of a whole host, by tokens of the prompt, "
        "one prompt at a time. A tier whose line is above the thick one is quicker than computing."
        f"</p>{chart}{_loading(told)}</section>"
    )


def _loading(told: Mapping[str, Any]) -> str:
    """How much sooner a prompt is loaded than computed."""
    lengths = told["loading"]
    tiers = list(lengths[0]["speedup"])
    rows = [
        ("computing", *(f"{one['compute_s']:.2f} s" for one in lengths)),
        ("loading must reach", *(f"{one['break_even_gb_per_s']:.3g} GB/s" for one in lengths)),
        *((name, *(f"{one['speedup'][name]:.1f}x" for one in lengths)) for name in tiers),
    ]
    heads = ("", *(f"{one['tokens']:,} tokens" for one in lengths))
    return (
        "<details><summary>How many times as fast as it is computed a prompt is loaded from one "
        f"unit of a tier; below 1x computing is faster</summary>{table(heads, rows)}</details>"
    )


def kappa_chart(told: Mapping[str, Any]) -> str:
    """Cached over new tokens by class of requests, and the share that waits for transfers."""
    bars = [
        Bar(
            f"{one['class']} ({one['requests']:,} requests)",
            one["kappa"],
            f"{one['kappa']:.2g}",
            (),
            "hatched",
        )
        for one in told["kappa"]
    ]
    heads = ["prompts", "cached / new"]
    heads += [f"{tier} slower above" for tier in told["kappa"][0]["kappa_critical"]]
    heads += [f"bound by {tier}" for tier in told["kappa"][0]["transfer_bound"]]
    rows = [
        (
            one["class"],
            f"{one['kappa']:.2g}",
            *(f"{limit:,.2g}" for limit in one["kappa_critical"].values()),
            *(f"{share:.0%}" for share in one["transfer_bound"].values()),
        )
        for one in told["kappa"]
    ]
    return (
        "<section><h2>Who waits for transfers</h2><p>Cached over new tokens (kappa), by "
        "length of the prompt. Where a tier's limit is lower, loading what is cached takes longer "
        "than computing what is new: those requests are bound by the transfer.</p>"
        + bar_chart("Cached over new tokens by class", bars, "Kappa of each class of requests.")
        + table(heads, rows)
        + "</section>"
    )


def wear_chart(told: Mapping[str, Any]) -> str:
    """What is written in a day beside what drives are rated for."""
    numbers = _numbers(told, "nvme")
    if "rated_tb_per_day" not in numbers:
        return ""
    rated = numbers["rated_tb_per_day"]
    each = {
        "everything new": (numbers["written_tb_per_day"], "plain"),
        "what is seen twice": (numbers["written_twice_seen_tb_per_day"], "plain"),
        "what the rating pays for": (rated, "strong"),
    }
    bars = []
    for label, (written, kind) in each.items():
        years = LIFE_YEARS * rated / max(written, 1e-9)
        lives = f", {years:.1f} years" if years < 100 else ""
        bars.append(Bar(label, written, f"{written:,.1f} TB/day{lives}", (), kind))
    shares = (
        ("everything, wearing them out", "of_computing", "plain"),
        ("an equal share of all that is new", "of_computing_by_lot", "hatched"),
        ("what is seen twice", "of_computing_seen_twice", "hatched"),
        ("the best choice there is", "of_computing_best_choice", "hatched"),
    )
    gains = [
        Bar(label, numbers[name], f"{numbers[name]:.1%}", (), kind) for label, name, kind in shares
    ]
    return (
        "<section><h2>How long drives live</h2><p>Terabytes a day over all hosts, and the years in "
        "which they use up what drives are rated for.</p>"
        + bar_chart("Terabytes written a day", bars, "Beside what the drives' rating pays for.")
        + "<h3>Computing that drives save within their rating</h3>"
        + bar_chart("Gain by choice of writes", gains, "By how the writes to make are chosen.")
        + "</section>"
    )


def cost_chart(told: Mapping[str, Any]) -> str:
    """Prompts in a month, and each level's cost beside what it saves."""
    bill, lines = told["bill"], bill_rows(told)
    bars = [
        Bar(row[0], bill[f"{name}_usd_per_month"], f"{row[-2]}, {row[-1]} a million", (), kind)
        for row, name, kind in zip(
            lines,
            ("without_cache", "own_cache", "with_levels"),
            ("plain", "plain", "strong"),
            strict=False,
        )
    ]
    notes = "".join(f"<p>{escape(note)}</p>" for note in bill_notes(told))
    rows = [
        (
            one["boundary"],
            one["verdict"],
            usd(one["numbers"]["saves_usd_per_month"]),
            usd(one["numbers"]["costs_usd_per_month"]),
            f"{one['numbers']['gpu_hours_saved_per_month']:,.0f}",
        )
        for one in told["decisions"]
        if "costs_usd_per_month" in one["numbers"]
    ]
    heads = ("level", "verdict", "saves a month", "costs a month", "GPU hours a month")
    return (
        "<section><h2>What it costs</h2><p>GPU time of prompts in a month, hardware of the levels "
        "included, and for a million tokens of prompts.</p>"
        + bar_chart("USD a month for prompts", bars, "Without a cache, with one, with all.")
        + f"{table(HEADS, lines)}{notes}<h3>Each level: they do not add up</h3>"
        + table(heads, rows)
        + "</section>"
    )


def change_chart(told: Mapping[str, Any]) -> str:
    """What bought levels save when an input is off, and other hardware."""
    found = told["sensitivity"]
    middle, inputs = found["net_usd_per_month"], found["inputs"]
    parts = []
    if inputs:
        parts.append(
            range_chart(
                "What the levels save beyond their cost, by input",
                f"{usd(middle)} a month as planned. "
                + " ".join(f"{one['input']}: {_swing(one)}." for one in inputs),
                middle,
                [
                    Range(
                        f"{one['input']} {number_text(one['low'])} to {number_text(one['high'])}",
                        one["net_usd_per_month_at_low"],
                        one["net_usd_per_month_at_high"],
                        _swing(one),
                    )
                    for one in inputs
                ],
            )
        )
    rows: Sequence[tuple[str, ...]] = [
        (
            one["instead"],
            becomes_text(one["becomes"]) or "all as it is",
            usd(one["net_usd_per_month"]),
        )
        for one in found["others"]
    ]
    if rows:
        parts.append("<h3>Other hardware</h3>")
        parts.append(table(("instead", "verdicts", "saves a month, net"), rows))
    if not parts:
        return ""
    return (
        "<section><h2>What would change this</h2><p>What memory and drives save in a month beyond "
        f"their cost: {usd(middle)} as planned (the upright line), and with one input at a time as "
        f"far off as it may be.</p>{''.join(parts)}</section>"
    )


def _swing(one: Mapping[str, Any]) -> str:
    """Both ends of an input's effect."""
    return f"{usd(one['net_usd_per_month_at_low'])} to {usd(one['net_usd_per_month_at_high'])}"


def _numbers(told: Mapping[str, Any], boundary: str) -> Mapping[str, float]:
    """The numbers of a level; none where it was not looked at."""
    for one in told["decisions"]:
        if one["boundary"] == boundary:
            numbers: Mapping[str, float] = one["numbers"]
            return numbers
    return {}
