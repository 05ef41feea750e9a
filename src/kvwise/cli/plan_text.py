"""What `kvwise plan` says in a terminal. It computes nothing of the plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kvwise.cli.plan_money import HEADS, bill_notes, bill_rows
from kvwise.planner.hardware import Hardware

STYLES = {"yes": "bold green", "you have it": "green", "no": "bold", "maybe": ""}
HELD_MORE = 1.001
"""By how much more than once a token is on the GPUs where it is said."""

CHANGES_MOST = 3
"""How many inputs that would change a verdict are shown; JSON has all."""


def show(told: Mapping[str, Any], console: Console) -> None:
    """The answer as text."""
    gpus = f"{told['gpus_per_host']} x {told['gpu']}"
    console.print(
        escape(
            f"{told['model']}, weights in {told['weights']}, KV in {told['kv']} "
            f"({bytes_text(told)}), "
            f"{told['hosts']} {'host' if told['hosts'] == 1 else 'hosts'} of {gpus}"
        ),
        soft_wrap=True,
    )
    console.print(
        f"prefill alone keeps {told['engines_busy_with_prefill']:.2f} such hosts busy; the median "
        f"prompt has {told['typical_prompt_tokens']:,} tokens, which take "
        f"{told['typical_prompt_s']:.2f} s\n",
        soft_wrap=True,
    )
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("level")
    table.add_column("verdict", no_wrap=True)
    table.add_column("why")
    for one in told["decisions"]:
        style = STYLES[one["verdict"]]
        verdict = f"[{style}]{one['verdict']}[/]" if style else one["verdict"]
        table.add_row(one["boundary"], verdict, escape(one["why"]))
    console.print(table)
    if overlap := overlap_text(told):
        console.print(overlap)
    console.print()
    if told["bill"] is not None:
        _show_bill(told, console)
    _show_changes(told, console)
    _show_start(told, console)
    for note in told["notes"]:
        console.print(escape(note), style="bold", soft_wrap=True)
    console.print(
        f"\nHits are those of an exact LRU; kvwise's policy does better on most traces. "
        f"{escape(told['estimate']['said'])} Nobody waits for anybody here: 'kvwise sim --stack' "
        "plays queues through. "
        "--json has the numbers behind each line, and where those of the hardware and the prices "
        "are from; --html draws them.",
        soft_wrap=True,
    )


def bytes_text(told: Mapping[str, Any]) -> str:
    """Bytes of a token, and of what all GPUs hold of it where some of that is there twice."""
    once, held = told["token_bytes"], told["token_bytes_on_gpus"]
    said = f"{once:,.0f} bytes a token"
    if held <= HELD_MORE * once:
        return said
    return f"{said}, {held:,.0f} on the GPUs, as ranks hold copies"


def overlap_text(told: Mapping[str, Any]) -> str:
    """Why gains of levels do not add up, where there are several."""
    if "dram" not in {one["boundary"] for one in told["decisions"]}:
        return ""
    pooled = "; all hosts are one cache until the router" if told["hosts"] > 1 else ""
    return (
        "Gains overlap and do not add up: a level is counted after those above it that are yes or "
        f"there already{pooled}. The bill counts all that is yes together."
    )


def _show_bill(told: Mapping[str, Any], console: Console) -> None:
    """What prompts cost, with and without."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column(HEADS[0])
    for head in HEADS[1:]:
        table.add_column(head, justify="right", no_wrap=True)
    console.print("what a month and a million tokens of prompts cost:", style="bold")
    *ways, saved = bill_rows(told)
    for row in ways:
        table.add_row(*row)
    table.add_row(*saved, style="bold")
    console.print(table)
    for note in bill_notes(told):
        console.print(escape(note), soft_wrap=True)
    console.print()


def _show_changes(told: Mapping[str, Any], console: Console) -> None:
    """What would change verdicts."""
    lines = [*_changes(told), *_others(told)]
    if lines:
        console.print("what would change this:", style="bold")
        for line in lines:
            console.print(f"  {escape(line)}", soft_wrap=True)
        console.print()


def _changes(told: Mapping[str, Any]) -> Iterator[str]:
    """Inputs that would change a verdict, by level."""
    for one in told["decisions"]:
        if one["sensitivity"]:
            inputs = "; ".join(map(change_text, one["sensitivity"][:CHANGES_MOST]))
            yield f"{one['boundary']}: {inputs}"


def change_text(change: Mapping[str, Any]) -> str:
    """One input that would change a verdict."""
    way = "above" if change["times"] > 1 else "below"
    return (
        f"{change['becomes']} where {change['input']} is {way} {number_text(change['at'])} "
        f"{change['unit']} (now {number_text(change['now'])})"
    )


def number_text(value: float) -> str:
    """Three digits, or all before the point."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _others(told: Mapping[str, Any]) -> Iterator[str]:
    """Other hardware that would change a verdict."""
    for one in told["sensitivity"]["others"]:
        if one["becomes"]:
            yield f"with {one['instead']}: {becomes_text(one['becomes'])}"


def becomes_text(becomes: Mapping[str, str]) -> str:
    """Verdicts that are others."""
    return ", ".join(f"{name}: {verdict}" for name, verdict in becomes.items())


def _show_start(told: Mapping[str, Any], console: Console) -> None:
    """What to start on each host."""
    if told["serve"]:
        console.print("on each host:", style="bold")
        console.print(f"  {escape(told['serve'])}", soft_wrap=True)
    for flags in told["engine_flags"].values():
        console.print(escape(f"{flags['engine']} ({flags['tried']}):"), soft_wrap=True)
        console.print(f"  {escape(flags['shell'])}", soft_wrap=True)


def show_hardware(known: Hardware, console: Console) -> None:
    """Names that --gpu and --drive take, and what stands behind them."""
    gpus = Table("gpu", "HBM GB", "BF16 TFLOPS", "link GB/s", "known", box=None, pad_edge=False)
    for name, gpu in known.gpus.items():
        numbers = (gpu.hbm_gb, gpu.bf16_tflops, gpu.host_link_gb_per_s)
        gpus.add_row(name, *(f"{number:,g}" for number in numbers), gpu.origin.mark)
    console.print(gpus)
    console.print()
    heads = ("tier", "read GB/s", "write GB/s", "writes a day", "what")
    tiers = Table(*heads, box=None, pad_edge=False)
    for name, tier in known.tiers.items():
        rates = f"{tier.read_gb_per_s:,g}", f"{tier.write_gb_per_s:,g}"
        tiers.add_row(name, *rates, f"{tier.dwpd:g}" if tier.dwpd else "", escape(tier.about))
    console.print(tiers)
    console.print("\n--hardware FILE adds to these, and to prices, or replaces them.")
