"""`kvwise bench tiers`: the parts, each beside its yardstick. `bench/tiers.py` does; this shows."""

from __future__ import annotations

from pathlib import Path

import click
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kvwise.bench.progress import Terminal
from kvwise.bench.rows import Row, Rows
from kvwise.bench.tiers import PARTS, SIZES, TiersOptions, measure_tiers
from kvwise.units import format_size


@click.command(
    epilog="""\b
Parts:
  dram      between an engine's memory and the cache, against memcpy
  disk      between the cache and the disk, checksums on, against fio
  lookup    how long it takes to know that a prompt is cached
  index     a million blocks: bytes for each, and the pauses they cause
  recovery  how long a restart takes to find what the disk holds

\b
Examples:
  kvwise bench tiers --disk /mnt/nvme0
  kvwise bench tiers --part dram --objects 2MiB --passes 9
  kvwise bench tiers --quick --json | jq '.rows[] | {path, object_bytes, ratio}'
"""
)
@click.option(
    "--disk",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=Path(),
    show_default=True,
    help="Folder on the disk to measure; nothing stays in it.",
)
@click.option(
    "--objects",
    type=click.Choice(list(SIZES)),
    multiple=True,
    help="Size of the objects; may be given several times; all when left out.",
)
@click.option(
    "--part",
    "parts",
    type=click.Choice(list(PARTS)),
    multiple=True,
    help="What to measure; may be given several times; everything when left out.",
)
@click.option(
    "--passes",
    type=click.IntRange(0, 1000),
    default=0,
    help="Figures of each rate; 0 stands for 5, or 2 with --quick.",
)
@click.option(
    "--records",
    type=click.IntRange(0, 10_000_000),
    default=0,
    help="Objects that a restart has to find, 8 KiB each; 0 stands for 200,000, or 20,000 "
    "with --quick.",
)
@click.option("--quick", is_flag=True, help="Less of everything: shows that it works, no more.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    disk: Path, objects: tuple[str, ...], parts: tuple[str, ...], as_json: bool, **sizes: int
) -> int:
    """Measure memory, disk and bookkeeping, each beside a yardstick of the same minute.

    Every figure is the median of some passes, taken in turns with the yardstick. What was stored
    is read back and compared. A part that fails is told, and the exit code is 1 then. Ctrl-C ends
    everything that was started.
    """
    options = TiersOptions(
        disk,
        objects or tuple(SIZES),
        parts or tuple(PARTS),
        passes=sizes["passes"],
        records=sizes["records"],
        quick=bool(sizes["quick"]),
    )
    with Terminal(Console(stderr=True)) as progress:
        rows = measure_tiers(options, progress)
    if as_json:
        click.echo(rows.to_json())
    else:
        _show(rows, Console(), judged=not options.quick)
    for text in rows.failed:
        click.echo(f"error: {text}", err=True)
    return 1 if rows.failed else 0


def _show(rows: Rows, console: Console, *, judged: bool) -> None:
    """The rows as tables, and what is to be known beside them; a quick run judges no goal."""
    rates = [row for row in rows.rows if "gbps" in row]
    others = [row for row in rows.rows if "gbps" not in row]
    if rates:
        console.print(_rates(rates, judged=judged))
    if others:
        console.print(_others(others, judged=judged))
    for text in rows.skipped:
        console.print(f"[yellow]skipped[/yellow]: {escape(text)}", highlight=False)
    for text in rows.notes:
        console.print(f"note: {escape(text)}", highlight=False)
    machine = ", ".join(f"{name} {value}" for name, value in rows.machine.items())
    console.print(f"machine: {escape(machine)}", highlight=False)


def _rates(rows: list[Row], *, judged: bool) -> Table:
    """Rates beside their yardsticks."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for name in ("path", "object"):
        table.add_column(name, no_wrap=True)
    for name in ("GB/s", "yardstick", "ratio (range)", "CPU", "goal"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            row["path"],
            format_size(row["object_bytes"]),
            f"{row['gbps']:.2f}",
            f"{row['reference']} {row['reference_gbps']:.2f}",
            f"{row['ratio']:.2f} ({row['ratio_low']:.2f}-{row['ratio_high']:.2f})",
            f"{row['cpu_ratio']:.2f}" if "cpu_ratio" in row else "",
            _goal(row["ratio"] >= row["goal_ratio"], f"{row['goal_ratio']:.2f}", judged=judged),
        )
    return table


def _others(rows: list[Row], *, judged: bool) -> Table:
    """What is no rate: one line for each figure that somebody may wait or pay for."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in ("path", "blocks"):
        table.add_column(name)
    for name in ("figure", "value", "goal"):
        table.add_column(name, justify="right")
    for row in rows:
        for figure, goal in (
            ("p50_ms", ""),
            ("p99_ms", "goal_p99_ms"),
            ("bytes_per_block", "goal_bytes"),
            ("gc_pause_max_ms", "goal_pause_ms"),
            ("per_million_s", "goal_per_million_s"),
        ):
            if figure in row:
                most = row.get(goal)
                held = (
                    "" if most is None else _goal(row[figure] <= most, f"{most:g}", judged=judged)
                )
                count = f"{row['blocks' if 'blocks' in row else 'records']:,}"
                table.add_row(row["path"], count, figure, f"{row[figure]:.4g}", held)
    return table


def _goal(met: bool, text: str, *, judged: bool) -> str:
    """A goal and whether it was met; the words mean the same without colour."""
    if not judged:
        return "not judged"
    return f"[green]met[/green] {text}" if met else f"[yellow]missed[/yellow] {text}"
