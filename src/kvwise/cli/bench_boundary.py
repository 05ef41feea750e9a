"""`kvwise bench boundary`: where a codec pays. `bench/boundary.py` measures; this shows."""

from __future__ import annotations

from pathlib import Path

import click
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kvwise.bench.boundary import OBJECTS, BoundaryOptions, measure_boundary
from kvwise.bench.progress import Terminal
from kvwise.bench.rows import Rows
from kvwise.cli.options import Finite

COLUMNS = {
    "rate_mb_per_s": "MB/s",
    "off_ms": "off",
    "fixed_ms": "fixed",
    "dense_ms": "dense",
    "auto_ms": "auto",
    "auto_of_best": "of best",
    "auto_chose": "auto is",
    "break_even_mb_per_s": "even at",
}
"""What the table shows of a row, and its headings."""


@click.command(
    epilog="""\b
Examples:
  kvwise bench boundary --disk /mnt/nvme0
  kvwise bench boundary --rate 500 --rate 4000 --rounds 5
  kvwise bench boundary --json | jq '.rows[] | {rate_mb_per_s, off_ms, codec_ms, auto_ms}'
"""
)
@click.option(
    "--disk",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=".",
    show_default=True,
    help="Folder on the disk to measure; needs 1 GiB.",
)
@click.option(
    "--rate",
    "rates",
    type=Finite(0.1, 1e6),
    multiple=True,
    help="MB/s to slow the drive down to; several times. Without any: around the break-even.",
)
@click.option("--rounds", type=click.IntRange(0, 10_000), default=0, help="Loads of each policy.")
@click.option(
    "--objects",
    type=click.IntRange(1, 500),
    default=OBJECTS,
    show_default=True,
    help="Objects of 720 KiB in a prompt.",
)
@click.option(
    "--io",
    type=click.Choice(["buffered", "direct", "auto"]),
    default="buffered",
    show_default=True,
    help="As disk.io; buffered reads reach rates that few drives do.",
)
@click.option("--quick", is_flag=True, help="Less of everything: shows that it works, no more.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(  # noqa: PLR0913  one parameter for each option
    *,
    disk: Path,
    rates: tuple[float, ...],
    rounds: int,
    objects: int,
    io: str,
    quick: bool,
    as_json: bool,
) -> None:
    """Load prompts from a drive of one rate after another, with and without codecs, in turns.

    Shown are milliseconds of a load under each value of disk.codec, what auto chose, and the rate
    from which on no codec should pay. Needs Numba.
    """
    options = BoundaryOptions(disk, rates, rounds, objects, io, quick=quick)
    with Terminal(Console(stderr=True)) as progress:
        rows = measure_boundary(options, progress)
    if as_json:
        click.echo(rows.to_json())
    else:
        _show(rows, Console())


def _show(rows: Rows, console: Console) -> None:
    """The rows as a table, and what is to be known beside them."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for heading in COLUMNS.values():
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows.rows:
        table.add_row(*(str(row[name]) for name in COLUMNS))
    console.print(table)
    for text in rows.skipped:
        console.print(f"[yellow]skipped[/yellow]: {escape(text)}", highlight=False)
    for text in rows.notes:
        console.print(f"note: {escape(text)}", highlight=False)
    machine = ", ".join(f"{name} {value}" for name, value in rows.machine.items())
    console.print(f"machine: {escape(machine)}", highlight=False)
