"""`kvwise bench quality`: what lossy codecs cost. `bench/quality.py` measures; this shows."""

from __future__ import annotations

import click
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kvwise.bench.progress import Terminal
from kvwise.bench.quality import QualityOptions, measure_quality
from kvwise.bench.rows import Rows


@click.command(
    epilog="""\b
Columns:
  smaller      bytes of KV by bytes on disk
  perplexity   how surprised the model is by the rest of each text; beside it, that of BF16
  next         share of places where it would say the same next token
  generated    share of tokens that are the same when it goes on by itself
  first        tokens before the first that differs, median of all texts

\b
Examples:
  kvwise bench quality
  kvwise bench quality --quick
  kvwise bench quality --json | jq '.rows[] | {codec, scale, perplexity_ratio}'
"""
)
@click.option("--quick", is_flag=True, help="Less of everything: shows that it works, no more.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(quick: bool, as_json: bool) -> None:
    """Measure what a model makes of KV that came back from FP8 and NVFP4.

    The KV of prefixes goes through a disk tier with each codec. SmolLM2-135M goes on from there,
    beside itself with the KV that it computed. It installs a vLLM of its own and fetches the model,
    once.
    """
    with Terminal(Console(stderr=True)) as progress:
        rows = measure_quality(QualityOptions(quick), progress)
    if as_json:
        click.echo(rows.to_json())
    else:
        _show(rows, Console())


def _show(rows: Rows, console: Console) -> None:
    """The rows as a table, and what is to be known beside them."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for name in ("codec", "scale"):
        table.add_column(name, no_wrap=True)
    for name in ("smaller", "perplexity", "by BF16's", "next", "generated", "first"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows.rows:
        table.add_row(
            row["codec"],
            row["scale"],
            f"{row['ratio']:.2f}" if row["ratio"] else "",
            f"{row['perplexity']:.3f}",
            f"{row['perplexity_ratio']:.4f}",
            f"{row['next_agreement']:.3f}",
            f"{row['agreement']:.3f}",
            f"{row['first_difference']:g}",
        )
    console.print(table)
    for text in rows.notes:
        console.print(f"note: {escape(text)}", highlight=False)
    machine = ", ".join(f"{name} {value}" for name, value in rows.machine.items())
    console.print(f"machine: {escape(machine)}", highlight=False)
