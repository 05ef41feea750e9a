"""The page of a plan: one file without outside requests. It computes nothing of the plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import kvwise
from kvwise.bench.page import document, table
from kvwise.cli.plan_charts import (
    change_chart,
    cost_chart,
    kappa_chart,
    rate_chart,
    size_chart,
    wear_chart,
)
from kvwise.cli.plan_text import CHANGES_MOST, bytes_text, change_text, overlap_text

NAMES = {
    "reuse": "Reuse",
    "quantise": "Quantise",
    "hbm": "GPU memory",
    "dram": "Memory",
    "nvme": "Drives",
    "shared": "Shared tier",
    "compression": "Compression",
    "router": "Router",
}
RESTS = {
    "trace": "follows from the trace and the model",
    "estimate": "rests on estimated computing",
    "measured": "rests on hardware as measured",
    "spec": "rests on what the drive's maker says",
    "assumed": "rests on an assumption about hardware",
}
MARKS = {"measured": "measured", "spec": "its maker says so", "assumed": "an estimate"}
ASKED = {"measured": "measured", "spec": "sellers ask it", "assumed": "an estimate"}


def render(told: Mapping[str, Any]) -> str:
    """The whole page, from what `kvwise plan --json` prints."""
    sections = [_subject(told), _tiles(told), _decisions(told)]
    if told["sizes"]:
        sections += [size_chart(told), rate_chart(told), kappa_chart(told), wear_chart(told)]
        sections += [cost_chart(told)] if told["bill"] is not None else []
        sections.append(change_chart(told))
    sections += [_start(told), _numbers(told), _basis(told)]
    return document(f"kvwise {kvwise.__version__} plan", _headline(told), sections)


def _headline(told: Mapping[str, Any]) -> str:
    """The answer in a sentence."""
    verdicts = {one["boundary"]: one["verdict"] for one in told["decisions"]}
    if verdicts["reuse"] == "no":
        return "Do not offload: there is nothing to load again"
    if verdicts["hbm"] == "no":
        return "The model does not fit"
    paying = [NAMES[name].lower() for name in ("dram", "nvme", "router") if verdicts[name] == "yes"]
    if not paying:
        return "The engine's own cache is enough"
    *others, last = paying
    named = f"{', '.join(others)} and {last}" if others else last
    return f"What pays: {named}"


def _subject(told: Mapping[str, Any]) -> str:
    """What was planned, for whom this page is sent to."""
    gpus = f"{told['hosts']} x {told['gpus_per_host']} {told['gpu']}"
    facts = {
        "model": f"{told['model']}, weights in {told['weights']}, KV in {told['kv']} "
        f"({bytes_text(told)})",
        "hosts": gpus,
        "made": told["made"],
        "by": told["command"],
    }
    items = "".join(f"<dt>{name}</dt><dd>{escape(text)}</dd>" for name, text in facts.items())
    notes = "".join(f"<li>{escape(note)}</li>" for note in told["notes"])
    cautions = f'<section class="cautions"><ul>{notes}</ul></section>' if notes else ""
    return f"<section><dl>{items}</dl></section>{cautions}"


def _tiles(told: Mapping[str, Any]) -> str:
    """Three numbers to remember."""
    reuse, bill = told["decisions"][0]["numbers"], told["bill"]
    tiles = [
        (f"{reuse['of_computing']:.0%}", "of all computing could be saved by not forgetting"),
        (f"{told['engines_busy_with_prefill']:.1f}", "hosts busy with prefill without a cache"),
    ]
    if bill is not None:
        saved = bill["own_cache_usd_per_month"] - bill["with_levels_usd_per_month"]
        said = "saved a month by all that is to be, beyond its cost and the engine's own cache"
        tiles.append((f"${saved:,.0f}", said))
    body = "".join(f"<div><b>{escape(big)}</b><span>{small}</span></div>" for big, small in tiles)
    return f'<section class="tiles">{body}</section>'


def _decisions(told: Mapping[str, Any]) -> str:
    """The sequence."""
    cards = []
    for one in told["decisions"]:
        changes = "".join(
            f"<br>would be {escape(change_text(change))}"
            for change in one["sensitivity"][:CHANGES_MOST]
        )
        cards.append(
            f"<article><h3>{escape(NAMES[one['boundary']])}<b>{escape(one['verdict'])}</b></h3>"
            f"<p>{escape(one['why'])}</p><small>{RESTS[one['confidence']]}{changes}</small>"
            "</article>"
        )
    return (
        '<section class="sources"><h2>Level by level</h2><p>Each is looked at only as far as those '
        f"before it leave something to gain. {overlap_text(told)}</p>{''.join(cards)}</section>"
    )


def _start(told: Mapping[str, Any]) -> str:
    """What to start on each host."""
    parts = []
    if told["stack_toml"]:
        parts.append(
            "<p>The daemon, with <code>kvwise serve --config stack.toml</code>:</p>"
            f"<pre>{escape(told['stack_toml'])}</pre>"
        )
    parts += [
        f"<p>{escape(flags['engine'])} ({escape(flags['tried'])}):</p>"
        f"<pre>{escape(flags['shell'])}</pre>"
        for flags in told["engine_flags"].values()
    ]
    return f"<section><h2>On each host</h2>{''.join(parts)}</section>" if parts else ""


def _numbers(told: Mapping[str, Any]) -> str:
    """Everything behind the verdicts."""
    parts = []
    for one in told["decisions"]:
        rows = [(name.replace("_", " "), _number(v)) for name, v in one["numbers"].items()]
        if rows:
            parts.append(f"<h3>{escape(NAMES[one['boundary']])}</h3>{table(('', ''), rows)}")
    return (
        "<section><h2>Numbers</h2><details><summary>Behind each verdict</summary>"
        + "".join(parts)
        + "</details></section>"
    )


def _number(value: float) -> str:
    """All digits before the point, and four behind it where there are few before."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4f}".rstrip("0").rstrip(".")


def _basis(told: Mapping[str, Any]) -> str:
    """What it rests on."""
    hardware: Sequence[tuple[str, ...]] = [
        (name, MARKS[one["mark"]], one["as_of"], one["from"])
        for name, one in told["hardware"].items()
    ]
    prices: Sequence[tuple[str, ...]] = [
        (name, f"{one['amount']:g} {one['unit']}", ASKED[one["mark"]], one["as_of"], one["from"])
        for name, one in told["prices"].items()
    ]
    said = escape(told["estimate"]["said"])
    return (
        "<section><h2>What it rests on</h2>"
        + table(("hardware", "how known", "looked up", "from"), hardware)
        + table(("price", "amount", "how known", "of", "from"), prices)
        + f"<p>{said} Nobody waits for anybody here: "
        "<code>kvwise sim --stack</code> plays queues through.</p></section>"
    )
