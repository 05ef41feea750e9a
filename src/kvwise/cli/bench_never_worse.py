"""`kvwise bench never-worse`: whether choosing ever loses, on a real engine. `bench` measures."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import click
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kvwise.bench.engine_prompts import LEAST_TOKENS
from kvwise.bench.never_worse import NeverWorseOptions, run_never_worse
from kvwise.bench.progress import Terminal
from kvwise.bench.rows import Rows

PROMPT_TOKENS, PROMPT_TOKENS_MAX = 1024, 3900
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
@click.option(
    "--prompt-tokens",
    type=click.IntRange(LEAST_TOKENS, PROMPT_TOKENS_MAX),
    default=PROMPT_TOKENS,
    show_default=True,
    help="Tokens of each prompt.",
)
@click.option("--quick", is_flag=True, help="Fewer rounds: shows that it works.")
@click.option(
    "--spare-cores",
    type=click.IntRange(0),
    help="Cores that the engine leaves to everything else.  [default: 1 where there are two]",
)
@click.option("--seed", type=int, default=1, show_default=True, help="Draws prompts.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("bench-never-worse-out"),
    show_default=True,
    help="Folder for the logs; the disk tier lies there during the run.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the rows as JSON.")
def command(  # noqa: PLR0913  one parameter for each option
    *,
    rounds: int | None,
    prompt_tokens: int,
    quick: bool,
    spare_cores: int | None,
    seed: int,
    out: Path,
    as_json: bool,
) -> int:
    """Hold choosing against always loading and never, on a disk of one speed after another.

    A real engine asks for prompts that are on disk, under the policies load, recompute and auto in
    turns. The disk tier is slowed down to 100, 40, 20 and 10 MB/s, made jittery, and brought near
    the rate at which loading and computing were predicted to take equally long.

    The first run installs vLLM for the CPU and a small real model under ~/.cache/kvwise
    (about 3 GiB). Ctrl-C ends everything that was started.
    """
    if spare_cores is None:
        spare_cores = min(1, len(os.sched_getaffinity(0)) - 1)
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
    *cells, flip = rows.rows
    for row in cells:
        rate = f"{row['rate_mb_per_s']:.0f}" if row["rate_mb_per_s"] else "full"
        times = [f"{row['ttft_ms'][name]:,.0f}" for name in ("load", "recompute", "auto")]
        loads = f"{row['auto_loads']} of {row['rounds']}"
        table.add_row(rate, f"{row['jitter_ms']:.0f}", *times, f"{row['ttft_ratio']:.2f}", loads)
    console.print()
    console.print(table)
    console.print(
        f"predicted break-even {flip['predicted_mb_per_s']} MB/s; computes up to "
        f"{flip['computes_up_to_mb_per_s']}, loads from {flip['loads_from_mb_per_s']}"
    )
    for note in rows.notes:
        console.print(f"[yellow]note[/yellow]: {escape(note)}", highlight=False)
