"""`kvwise bench engine`: what kvwise costs and brings, on a real engine. `bench` measures it."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from pathlib import Path
from types import FrameType

import click
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kvwise.bench.engine_bench import EngineBenchOptions, run_engine_bench
from kvwise.bench.engine_prompts import LEAST_TOKENS
from kvwise.bench.progress import Terminal
from kvwise.bench.rows import Row, Rows

PROMPT_TOKENS = 2048
PROMPT_TOKENS_MAX = 3900
"""The engine's context, less an answer."""
REQUESTS, QUICK_REQUESTS = 36, 6
BURSTS, QUICK_BURSTS = 12, 2
HITS, QUICK_HITS = 6, 1
REPEATS, QUICK_REPEATS = 3, 1
RESTARTS, QUICK_RESTARTS = 2, 1


@click.command(
    epilog="""\b
Examples:
  kvwise bench engine
  kvwise bench engine --quick --prompt-tokens 1024
  kvwise bench engine --json | jq '.rows[] | {path, ttft_ratio, throughput_ratio}'
"""
)
@click.option(
    "--requests",
    type=click.IntRange(3, 1000),
    help=f"Cold requests of each side.  [default: {REQUESTS}; with --quick {QUICK_REQUESTS}]",
)
@click.option(
    "--prompt-tokens",
    type=click.IntRange(LEAST_TOKENS, PROMPT_TOKENS_MAX),
    default=PROMPT_TOKENS,
    show_default=True,
    help="Tokens of each prompt.",
)
@click.option("--quick", is_flag=True, help="Fewer of everything: shows that it works.")
@click.option(
    "--spare-cores",
    type=click.IntRange(0),
    help="Cores that the engines leave to everything else.  [default: 1 where there are two]",
)
@click.option("--seed", type=int, default=1, show_default=True, help="Draws prompts.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("bench-engine-out"),
    show_default=True,
    help="Folder for the logs; the disk tier lies there during the run.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the rows as JSON.")
def command(  # noqa: PLR0913  one parameter for each option
    *,
    requests: int | None,
    prompt_tokens: int,
    quick: bool,
    spare_cores: int | None,
    seed: int,
    out: Path,
    as_json: bool,
) -> int:
    """Measure what kvwise costs cold requests on a real engine, and what its hits bring.

    Two vLLM servers with the same settings live side by side, one with kvwise and one without,
    and are asked in turns, while the other one is frozen: prompts that nobody has sent before
    (cold_tax), and prompts that come again, from kvwise's memory and disk against the engine's own
    cache (hit.dram, hit.disk). The row store_tax compares the engine with kvwise with itself when
    told to leave a request alone, and control the one without kvwise with itself: so much the
    machine makes of no difference at all.

    The first run installs vLLM for the CPU and a small real model under ~/.cache/kvwise
    (about 3 GiB). Ctrl-C ends everything that was started.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    if spare_cores is None:
        spare_cores = min(1, len(os.sched_getaffinity(0)) - 1)
    options = EngineBenchOptions(
        out=out,
        requests=requests or (QUICK_REQUESTS if quick else REQUESTS),
        prompt_tokens=prompt_tokens,
        bursts=QUICK_BURSTS if quick else BURSTS,
        hits=QUICK_HITS if quick else HITS,
        repeats=QUICK_REPEATS if quick else REPEATS,
        restarts=QUICK_RESTARTS if quick else RESTARTS,
        spare_cores=spare_cores,
        seed=seed,
    )
    console = Console(stderr=as_json)
    with Terminal(console) as progress:
        rows = run_engine_bench(options, shlex.join(["kvwise", *sys.argv[1:]]), progress)
    if as_json:
        click.echo(rows.to_json())
    else:
        _show(rows, console)
    return 0


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Let a polite kill or a closed terminal end a run in order, as Ctrl-C does."""
    del number, frame
    raise KeyboardInterrupt


def _show(rows: Rows, console: Console) -> None:
    """The rows in a few lines."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("path")
    for name in ("ms", "against", "ttft", "95 %", "tokens/s", "95 %"):
        table.add_column(name, justify="right")
    for row in rows.rows:
        table.add_row(*_cells(row))
    console.print()
    console.print(table)
    for note in rows.notes:
        console.print(f"[yellow]note[/yellow]: {escape(note)}", highlight=False)


def _cells(row: Row) -> list[str]:
    """One line of the table."""
    cells = [row["path"], f"{row['ttft_ms']['median']:,.0f}"]
    cells.append(f"{row['base_ttft_ms']['median']:,.0f}")
    for name in ("ttft_ratio", "throughput_ratio"):
        low, high = row.get(f"{name}_interval", (0, 0))
        cells += [f"{row[name]:.3f}", f"{low:.3f}-{high:.3f}"] if name in row else ["", ""]
    return cells
