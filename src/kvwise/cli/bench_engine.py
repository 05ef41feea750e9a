"""`kvwise bench engine`: what kvwise costs and brings, on a real engine. `bench` measures it."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import click
from rich import box
from rich.console import Console
from rich.table import Table

from kvwise.bench.engine_bench import EngineBenchOptions, run_engine_bench
from kvwise.bench.progress import Terminal
from kvwise.bench.rows import Row, Rows
from kvwise.cli.bench_options import end_in_order, engine_options, show_notes

PROMPT_TOKENS = 2048
USUAL, QUICK_USUAL = 200, 6
USUAL_BURSTS, QUICK_USUAL_BURSTS = 60, 2
REQUESTS, QUICK_REQUESTS = 24, 6
BURSTS, QUICK_BURSTS = 12, 2
HITS, QUICK_HITS = 6, 1
REPEATS, QUICK_REPEATS = 3, 1
RESTARTS, QUICK_RESTARTS = 2, 1
ONE_SHOT, QUICK_ONE_SHOT = 400, 20
LEARN, QUICK_LEARN = 150, 10


@click.command(
    epilog="""\b
Examples:
  kvwise bench engine
  kvwise bench engine --quick --prompt-tokens 1024
  kvwise bench engine --cold-requests 1000 --cold-bursts 300 --prompt-tokens 512
  kvwise bench engine --starts 5 --requests 24 --prompt-tokens 1024
  kvwise bench engine --json | jq '.rows[] | {path, ttft_ratio, throughput_ratio}'
"""
)
@click.option(
    "--cold-requests",
    type=click.IntRange(3, 100_000),
    help=f"Of each side in cold_tax.  [default: {USUAL}; with --quick {QUICK_USUAL}]",
)
@click.option(
    "--cold-bursts",
    type=click.IntRange(2, 100_000),
    help=f"Of each side in cold_tax.  [default: {USUAL_BURSTS}; with --quick {QUICK_USUAL_BURSTS}]",
)
@click.option(
    "--requests",
    type=click.IntRange(3, 1000),
    help=(
        "Of each side in the other comparisons of cold requests.  "
        f"[default: {REQUESTS}; with --quick {QUICK_REQUESTS}]"
    ),
)
@click.option(
    "--starts",
    type=click.IntRange(1, 50),
    default=1,
    show_default=True,
    help="Start both engines so often for cold requests.",
)
@engine_options(out="bench-engine-out", prompt_tokens=PROMPT_TOKENS)
def command(  # noqa: PLR0913  one parameter for each option
    *,
    cold_requests: int | None,
    cold_bursts: int | None,
    requests: int | None,
    starts: int,
    prompt_tokens: int,
    quick: bool,
    spare_cores: int,
    seed: int,
    out: Path,
    as_json: bool,
) -> int:
    """Measure what kvwise costs cold requests on a real engine, and what its hits bring.

    An engine with kvwise is asked prompts that nobody has sent before, and kvwise is taken away
    from it before every other one, so that nothing else differs: cold_tax with default settings,
    by which such prompts are soon no longer stored, and cold_tax.all where all are. Then come
    prompts that are sent again, from kvwise's memory and disk against the engine's own cache
    (hit.dram, hit.disk). The row one_shot says how much of short prompts that nobody sends again
    is written to disk.

    A second engine is started without kvwise, and both are asked in turns, while the other one is
    frozen (cold_tax.engines). Two processes of the same program differ from one start to the next;
    with --starts this row is of several starts, and its interval knows of that. The row control
    compares the one without kvwise with itself: so much the machine makes of no difference at all.

    Where others share the machine it takes some hundreds of requests and bursts to tell one in a
    hundred.

    The first run installs vLLM for the CPU and a small real model under ~/.cache/kvwise
    (about 3 GiB). Ctrl-C ends everything that was started.
    """
    end_in_order()
    options = EngineBenchOptions(
        out=out,
        usual=cold_requests or (QUICK_USUAL if quick else USUAL),
        usual_bursts=cold_bursts or (QUICK_USUAL_BURSTS if quick else USUAL_BURSTS),
        requests=requests or (QUICK_REQUESTS if quick else REQUESTS),
        starts=starts,
        prompt_tokens=prompt_tokens,
        bursts=QUICK_BURSTS if quick else BURSTS,
        hits=QUICK_HITS if quick else HITS,
        repeats=QUICK_REPEATS if quick else REPEATS,
        restarts=QUICK_RESTARTS if quick else RESTARTS,
        one_shot=QUICK_ONE_SHOT if quick else ONE_SHOT,
        learn=QUICK_LEARN if quick else LEARN,
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


def _show(rows: Rows, console: Console) -> None:
    """The rows in a few lines."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("path", no_wrap=True)
    for name in ("ms", "against", "ttft", "95 %", "tokens/s", "95 %"):
        table.add_column(name, justify="right")
    *timed, one_shot = rows.rows
    for row in timed:
        table.add_row(*_cells(row))
    console.print()
    console.print(table)
    shares = " and ".join(f"{share:.1%}" for share in one_shot["written_share"])
    console.print(
        f"of {one_shot['requests']} prompts that nobody sends again, {shares} of the two halves "
        "were written to disk",
        highlight=False,
    )
    show_notes(rows, console)


def _cells(row: Row) -> list[str]:
    """One line of the table."""
    cells = [row["path"], f"{row['ttft_ms']['median']:,.0f}"]
    cells.append(f"{row['base_ttft_ms']['median']:,.0f}")
    for name in ("ttft_ratio", "throughput_ratio"):
        low, high = row[f"{name}_interval"]
        cells += [f"{row[name]:.3f}", f"{low:.3f}-{high:.3f}"]
    return cells
