"""`kvwise demo`: measure a real engine with and without the cache. `bench` does; this shows."""

from __future__ import annotations

from pathlib import Path

import click
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kvwise.bench.demo import DOCUMENTS, DemoOptions, run_demo
from kvwise.bench.measure import Phase
from kvwise.bench.page import LABELS, milliseconds
from kvwise.bench.progress import Terminal
from kvwise.bench.result import Report
from kvwise.cli.groups import take_kills_as_ctrl_c

EXIT_TOKENS_DIFFER = 1


@click.command(
    epilog="""\b
Examples:
  kvwise demo
  kvwise demo --documents 12 --out /mnt/nvme0/demo-out
  kvwise demo --json | jq .speedup
"""
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("demo-out"),
    show_default=True,
    help="Folder for the report and the logs; the disk tier lies there during the run.",
)
@click.option(
    "--documents",
    type=click.IntRange(1, 100),
    default=DOCUMENTS,
    show_default=True,
    help="How many long documents to ask about.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def command(out: Path, documents: int, as_json: bool) -> int:
    """Measure a real engine on this machine, with and without the cache.

    The first run installs vLLM for the CPU and a small real model under ~/.cache/kvwise
    (about 3 GiB); later runs use them again. It then asks questions about long documents
    and compares the time to the first token: computed, from the engine's own cache, from
    kvwise's memory, from memory after an engine restart, and from disk after a daemon restart.

    Writes report.html and report.json. Exits with 1 when a token differs between sources.
    Ctrl-C ends everything that was started.
    """
    take_kills_as_ctrl_c()
    console = Console(stderr=as_json)
    with Terminal(console) as progress:
        report = run_demo(DemoOptions(out, documents), progress)
    if as_json:
        click.echo(report.to_json())
    else:
        _show(report, out, console)
    return 0 if report.tokens_equal else EXIT_TOKENS_DIFFER


def _show(report: Report, out: Path, console: Console) -> None:
    """The report in a few lines."""
    console.print()
    console.print(_table(report))
    equal = "equal" if report.tokens_equal else "[bold red]NOT EQUAL[/bold red]"
    console.print(f"tokens from all sources: {equal}", highlight=False)
    events = sum(r.events for r in report.replays)
    verdict = "same commands" if all(r.equal for r in report.replays) else "OTHER COMMANDS"
    console.print(f"event logs replayed: {events:,} events, {verdict}", highlight=False)
    for goal in report.goals:
        mark = "[green]met[/green]" if goal.met else "[yellow]missed[/yellow]"
        measured = f"{goal.measured:g}, goal {goal.target:g}"
        console.print(f"{mark}: {goal.text}: {measured}", highlight=False)
    for warning in report.warnings:
        console.print(f"note: {escape(warning)}", highlight=False)
    for problem in report.problems:
        console.print(f"[yellow]problem[/yellow]: {escape(problem)}", highlight=False)
    files = f"{out / 'report.html'}, {out / 'report.json'}"
    console.print(f"report: {escape(files)}", highlight=False, soft_wrap=True)


def _table(report: Report) -> Table:
    """Medians by source."""
    table = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        title=f"Time to first token, {report.prefix_tokens:,} tokens of prefix",
        title_justify="left",
    )
    table.add_column("where the KV comes from")
    table.add_column("median", justify="right")
    table.add_column("least to most", justify="right")
    table.add_column("against computing", justify="right")
    computed = report.ttft_ms.get(Phase.RECOMPUTE, 0.0)
    for phase, label in LABELS.items():
        if phase in report.ttft_ms:
            median = report.ttft_ms[phase]
            least, most = map(milliseconds, report.spread_ms[phase])
            is_hit = phase not in (Phase.FIRST_VISIT, Phase.RECOMPUTE)
            faster = f"{computed / median:.1f} x faster" if is_hit else ""
            table.add_row(label, milliseconds(median), f"{least} to {most}", faster)
    return table
