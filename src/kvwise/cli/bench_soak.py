"""`kvwise bench soak`: hours of abuse in minutes. `bench.soak` does it; this shows the verdict."""

from __future__ import annotations

import tempfile
from math import isfinite
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from kvwise.bench.progress import Terminal
from kvwise.bench.rows import Row
from kvwise.bench.soak import SoakOptions, run_soak
from kvwise.cli.bench_options import end_in_order

EXIT_LEAKS = 1

ALLOWED = {
    "rss_slope_mb_per_min": "rss_slope_allowed_mb_per_min",
    "descriptors_end": "descriptors_allowed",
    "threads_end": "threads_allowed",
}
"""Figures that are judged, and what the most is that they may be."""


@click.command(
    epilog="""\b
Examples:
  kvwise bench soak --minutes 10
  kvwise bench soak --minutes 60 --clients 8 --folder /mnt/nvme0/soak
  kvwise bench soak --minutes 1 --seed 7 --json | jq '.rows[0].rss_slope_mb_per_min'

Exit code: 0 when all is well, 1 when a byte was wrong or something leaked.
"""
)
@click.option(
    "--minutes",
    type=click.FloatRange(0.1, 60 * 24 * 30),
    default=10.0,
    show_default=True,
    help="How long clients are at work.",
)
@click.option(
    "--clients",
    type=click.IntRange(1, 64),
    default=4,
    show_default=True,
    help="Client processes.",
)
@click.option(
    "--seed", type=click.IntRange(0), default=1, show_default=True, help="Draws what happens."
)
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(tempfile.gettempdir()),
    show_default=True,
    help="Where the disk tier and the logs lie during the run; its parent must exist.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(minutes: float, clients: int, seed: int, folder: Path, as_json: bool) -> int:
    """Run a daemon under clients that die, freeze and give up, and look for leaks.

    Clients put objects and get them back, and hold every byte against its key. Memory and disk
    are so small that both evict all the time. Meanwhile clients are killed and frozen, leases
    are left to expire, and bits of records on disk are flipped: a flipped bit must be a miss.

    At the end everything must be back at its level: memory, descriptors, threads, pins, leases,
    jobs, pages, and bytes on disk. Ctrl-C ends everything that was started.
    """
    if not isfinite(minutes):
        raise click.BadParameter(f"{minutes} is not a time", param_hint="--minutes")
    end_in_order()
    text = f"kvwise bench soak --minutes {minutes:g} --clients {clients} --seed {seed}"
    options = SoakOptions(minutes, clients, seed, folder.absolute(), text)
    with Terminal(Console(stderr=True)) as progress:
        result = run_soak(options, progress)
    (row,) = result.rows
    if as_json:
        click.echo(result.to_json())
    else:
        _show(row, Console(highlight=False))
    return EXIT_LEAKS if row["problems"] else 0


def _show(row: Row, console: Console) -> None:
    """The row as two columns, and the verdict."""
    table = Table.grid(padding=(0, 2))
    for name, value in row.items():
        if name not in {"problems", "verdict", *ALLOWED.values()}:
            shown = str(value)
            if isinstance(value, dict):
                shown = ", ".join(f"{key} {number}" for key, number in value.items())
            if name in ALLOWED:
                most = row[ALLOWED[name]]
                shown += " (too short to judge)" if most is None else f" (at most {most})"
            table.add_row(name.replace("_", " "), shown)
    console.print(table)
    for problem in row["problems"]:
        console.print(f"problem: {problem}", markup=False, soft_wrap=True)
    console.print(f"verdict: {row['verdict']}")
