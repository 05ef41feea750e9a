"""`kvwise bench codec`: ratio and speed of codecs. `bench/codec.py` measures; this shows."""

from __future__ import annotations

import click
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kvwise.bench.codec import CodecOptions, measure_codecs
from kvwise.bench.codec_data import DATA
from kvwise.bench.progress import Terminal
from kvwise.bench.rows import Rows


@click.command(
    epilog="""\b
Data:
  kv        K and V of SmolLM2-135M in BF16: of prose, of code, and of a long text;
            installs a vLLM of its own and fetches the model, once
  kinds     the same of prose in FP16, FP32, E4M3 and E5M2
  synthetic numbers in BF16 drawn as KV has them, which needs no model
  noise     bytes that no codec can shrink
  constant  one number again and again

\b
Examples:
  kvwise bench codec
  kvwise bench codec --data noise --data constant --quick
  kvwise bench codec --json | jq '.rows[] | {codec, data, ratio, decode_of_memcpy}'
"""
)
@click.option(
    "--data",
    type=click.Choice(list(DATA)),
    multiple=True,
    help="What to encode; may be given several times; everything when left out.",
)
@click.option(
    "--passes",
    type=click.IntRange(0, 1000),
    default=0,
    help="Figures of each rate; 0 stands for 5, or 2 with --quick.",
)
@click.option("--quick", is_flag=True, help="Less of everything: shows that it works, no more.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(data: tuple[str, ...], passes: int, quick: bool, as_json: bool) -> None:
    """Measure ratio and speed of every codec, one thread, in turns with memcpy.

    Objects are 720 KiB, as those of SmolLM2. What was encoded is decoded and compared. zstd, lz4
    and zipnn are measured too where their Python packages are installed.
    """
    options = CodecOptions(data or tuple(DATA), passes=passes, quick=quick)
    with Terminal(Console(stderr=True)) as progress:
        rows = measure_codecs(options, progress)
    if as_json:
        click.echo(rows.to_json())
    else:
        _show(rows, Console())


def _show(rows: Rows, console: Console) -> None:
    """The rows as a table, and what is to be known beside them."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for name in ("data", "codec"):
        table.add_column(name, no_wrap=True)
    for name in ("ratio", "encode\nGB/s", "of\nmemcpy", "decode\nGB/s", "of\nmemcpy"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows.rows:
        table.add_row(
            row["data"],
            row["codec"],
            f"{row['ratio']:.3f}",
            f"{row['encode_gbps']:.2f}",
            f"{row['encode_of_memcpy']:.2f}",
            f"{row['decode_gbps']:.2f}",
            f"{row['decode_of_memcpy']:.2f}",
        )
    console.print(table)
    for text in rows.skipped:
        console.print(f"[yellow]skipped[/yellow]: {escape(text)}", highlight=False)
    for text in rows.notes:
        console.print(f"note: {escape(text)}", highlight=False)
    machine = ", ".join(f"{name} {value}" for name, value in rows.machine.items())
    console.print(f"machine: {escape(machine)}", highlight=False)
