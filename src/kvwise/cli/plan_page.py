"""The page of a plan: one file without outside requests. It computes nothing of the plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import kvwise
from kvwise.bench.chart import Bar, bar_chart
from kvwise.bench.page import document, table

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


def render(told: Mapping[str, Any]) -> str:
    """The whole page, from what `kvwise plan --json` prints."""
    sections = [_subject(told), _tiles(told), _decisions(told)]
    if told["sizes"]:
        sections += [_sizes(told), _loading(told)]
    sections += [_numbers(told), _basis(told)]
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
        "model": f"{told['model']}, KV in {told['kv']}",
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
    reuse = told["decisions"][0]["numbers"]
    tiles = [
        (f"{reuse['of_computing']:.0%}", "of all computing could be saved by not forgetting"),
        (f"{told['engines_busy_with_prefill']:.1f}", "hosts busy with prefill without a cache"),
        (f"{told['token_bytes'] / 1024:,.0f} KiB", "of KV a token"),
    ]
    body = "".join(f"<div><b>{escape(big)}</b><span>{small}</span></div>" for big, small in tiles)
    return f'<section class="tiles">{body}</section>'


def _decisions(told: Mapping[str, Any]) -> str:
    """The sequence."""
    cards = [
        f"<article><h3>{escape(NAMES[one['boundary']])}<b>{escape(one['verdict'])}</b></h3>"
        f"<p>{escape(one['why'])}</p><small>{RESTS[one['confidence']]}</small></article>"
        for one in told["decisions"]
    ]
    serve = told["serve"]
    start = f"<h3>On each host</h3><p><code>{escape(serve)}</code></p>" if serve else ""
    return (
        '<section class="sources"><h2>Level by level</h2><p>Each is looked at only as far as those '
        f"before it leave something to gain.</p>{''.join(cards)}{start}</section>"
    )


def _sizes(told: Mapping[str, Any]) -> str:
    """What caches of some sizes hit."""
    bars = [
        Bar(
            f"{one['label']}: {_size(one['bytes'])}",
            one["hit_ratio"],
            f"{one['hit_ratio']:.1%}",
            (),
            "strong" if one["is_here"] else "hatched",
        )
        for one in told["sizes"]
    ]
    return (
        "<section><h2>What a size hits</h2><p>Share of all blocks of prompts, by an exact LRU over "
        "all hosts; solid bars are the levels of this plan, hatched ones other sizes.</p>"
        + bar_chart("Hit ratio by size", bars)
        + "</section>"
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
        "<section><h2>Loading or computing</h2><p>How many times as soon a prompt is there from "
        "one unit of a tier; below 1x computing is quicker. One prompt at a time.</p>"
        + table(heads, rows)
        + "</section>"
    )


def _numbers(told: Mapping[str, Any]) -> str:
    """Everything behind the verdicts."""
    parts = []
    for one in told["decisions"]:
        rows = [(name.replace("_", " "), f"{value:,.4g}") for name, value in one["numbers"].items()]
        if rows:
            parts.append(f"<h3>{escape(NAMES[one['boundary']])}</h3>{table(('', ''), rows)}")
    return (
        "<section><h2>Numbers</h2><details><summary>Behind each verdict</summary>"
        + "".join(parts)
        + "</details></section>"
    )


def _basis(told: Mapping[str, Any]) -> str:
    """What it rests on."""
    hardware: Sequence[tuple[str, ...]] = [
        (name, MARKS[one["mark"]], one["as_of"], one["from"])
        for name, one in told["hardware"].items()
    ]
    said = escape(told["estimate"]["said"])
    return (
        "<section><h2>What it rests on</h2>"
        + table(("hardware", "how known", "looked up", "from"), hardware)
        + f"<p>{said} Nobody waits for anybody here: "
        "<code>kvwise sim --stack</code> plays queues through.</p></section>"
    )


def _size(size_bytes: float) -> str:
    """Bytes in decimal units."""
    return f"{size_bytes / 1e12:,.2f} TB" if size_bytes >= 1e12 else f"{size_bytes / 1e9:,.0f} GB"
