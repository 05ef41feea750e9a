"""`kvwise bench never-worse`: whether choosing ever loses, on a real engine. `bench` measures."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import click
from rich import box
from rich.console import Console
from rich.table import Table

from kvwise.bench.never_worse import WAYS, NeverWorseOptions, run_never_worse
from kvwise.bench.progress import Terminal
from kvwise.bench.rows import Rows
from kvwise.cli.bench_options import end_in_order, engine_options, show_notes

PROMPT_TOKENS = 1024
ROUNDS, QUICK_ROUNDS = 5, 2


@click.command(
    epilog="""\b
Examples:
  kvwise bench never-worse
  kvwise bench never-worse --json | jq '.rows[] | {rate_mb_per_s, ttft_ratio, auto_loads}'
"""
)
@click.option(
    "--rounds",
    type=click.IntRange(2, 1000),
    help=f"Requests under each policy at each rate.  [default: {ROUNDS}; with --quick "
    f"{QUICK_ROUNDS}]",
)
@engine_options(out="bench-never-worse-out", prompt_tokens=PROMPT_TOKENS)
def command(  # noqa: PLR0913  one parameter for each option
    *,
    rounds: int | None,
    prompt_tokens: int,
    quick: bool,
    spare_cores: int,
    seed: int,
    out: Path,
    as_json: bool,
) -> int:
    """Hold choosing against always loading and never, on a disk of one speed after another.

    A real engine asks for prompts that are on disk, under the policies load, recompute and auto in
    turns. The disk tier is slowed down to 100, 40, 20 and 10 MB/s, made jittery, and brought near
    the rate at which loading and computing are expected to take equally long.

    The first run installs vLLM for the CPU and a small real model under ~/.cache/kvwise
    (about 3 GiB). Ctrl-C ends everything that was started.
    """
    end_in_order()
    options = NeverWorseOptions(
        out=out,
        rounds=rounds or (QUICK_ROUNDS if quick else ROUNDS),
        prompt_tokens=prompt_tokens,
        spare_cores=spare_cores,
        seed=seed,
    )
    console = Console(stderr=as_json)
    with Terminal(console) as progress:
        rows = run_never_worse(options, shlex.join(["kvwise", *sys.argv[1:]]), progress)
    if as_json:
        click.echo(rows.to_json())
    else:
        _show(rows, console)
    return 0


def _show(rows: Rows, console: Console) -> None:
    """The rows in a few lines."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("disk MB/s", "jitter ms", "load ms", "compute ms", "auto ms", "ratio", "loads"):
        table.add_column(name, justify="right")
    for name in ("of break-even expected", "measured"):
        table.add_column(name, justify="right")
    *cells, flip = rows.rows
    for row in cells:
        rate = f"{row['rate_mb_per_s']:.1f}" if row["rate_mb_per_s"] else "full"
        times = [f"{row['ttft_ms'][name]:,.0f}" for name in ("load", "recompute", "auto")]
        loads = f"{row['auto_loads']} of {row['rounds']}"
        parts = [_part(row["rate_mb_per_s"], row[f"break_even_{way}_mb_per_s"]) for way in WAYS]
        jitter, ratio = f"{row['jitter_ms']:.0f}", f"{row['ttft_ratio']:.2f}"
        table.add_row(rate, jitter, *times, ratio, loads, *parts)
    console.print()
    console.print(table)
    for way in WAYS:
        computes, loads = flip[f"computes_up_to_{way}"], flip[f"loads_from_{way}"]
        console.print(f"computes up to {computes}, loads from {loads} of the break-even {way}")
    show_notes(rows, console)


def _part(rate_mb_per_s: float | None, break_even_mb_per_s: float | None) -> str:
    """A rate as a part of another one."""
    if not rate_mb_per_s or not break_even_mb_per_s:
        return ""
    return f"{rate_mb_per_s / break_even_mb_per_s:.2f}"
