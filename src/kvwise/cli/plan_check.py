"""`kvwise plan --validate` and `--recompute`: their options, and how a test of a plan is shown.

The bench measures and the planner predicts; nothing is judged here.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

import click
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kvwise.bench.engine_one_shot import CHUNK_TOKENS
from kvwise.bench.progress import Terminal
from kvwise.bench.reality import BLOCKS_MAX, Outcome, RealityOptions, run_reality
from kvwise.bench.targets import require_targets, write_whole
from kvwise.cli.bench_options import end_in_order, show_notes, spare_cores
from kvwise.cli.options import giving
from kvwise.planner.oracle import ROOFLINE, times_text
from kvwise.planner.validate import Check, Shape, invented, scaled
from kvwise.sim.trace.assembly import Options
from kvwise.sim.trace.read import read

ROUNDS, QUICK_ROUNDS = 5, 1
REQUESTS, QUICK_REQUESTS = 120, 40
MADE_UP = 400
SEED = 1


class Checking(TypedDict):
    """What the options say of computing, and of a test of the plan."""

    recompute: str
    validate: bool
    quick: bool
    times: Path | None
    logs: Path


NEEDED = "required, but for --validate and --list-hardware"


class ToPlan(click.Option):
    """An option that a plan must have; a test of plans and a list of hardware need it not."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Its line of help, which says so."""
        record = super().get_help_record(ctx)
        return record and (record[0], record[1].replace("[required]", f"[{NEEDED}]"))

    def process_value(self, ctx: click.Context, value: object) -> object:
        """The value, which may be missing where no plan is asked for."""
        try:
            return super().process_value(ctx, value)
        except click.MissingParameter:
            if not (ctx.params.get("validate") or ctx.params.get("list_hardware")):
                raise
            return () if self.multiple else None


checking = giving(
    [
        click.option(
            "--recompute",
            metavar="FILE",
            default=ROOFLINE,
            show_default=True,
            help="'roofline' estimates it; 'aiconfigurator' asks the package aiconfigurator-core; "
            "a CSV file with the columns tokens and seconds (and cached_tokens) says it.",
        ),
        click.option(
            "--validate",
            is_flag=True,
            is_eager=True,
            help="Test the planner instead of planning: its predictions beside a small model on "
            "this machine's CPU, asked with the shape of --trace, or of made-up conversations. "
            "It needs no --model and no --gpu.",
        ),
        click.option("--quick", is_flag=True, help="Fewer of everything."),
        click.option(
            "--times",
            type=click.Path(dir_okay=False, writable=True, path_type=Path),
            help="Write the measured times there, for --recompute.",
        ),
        click.option(
            "--logs",
            type=click.Path(file_okay=False, path_type=Path),
            default=Path("plan-validate-out"),
            show_default=True,
            help="Folder for logs; the disk tier lies there meanwhile.",
        ),
    ]
)


def validate(
    files: Sequence[Path], reading: Options, said: Checking, *, as_json: bool, may_replace: bool
) -> int:
    """Hold predictions against a live engine; 1 where one of them does not hold."""
    if said["times"] is not None:
        require_targets([("--times", said["times"])], files, may_replace=may_replace)
    end_in_order()
    options = RealityOptions(
        out=said["logs"],
        rounds=QUICK_ROUNDS if said["quick"] else ROUNDS,
        spare_cores=spare_cores(),
        seed=SEED,
    )
    console = Console(stderr=as_json, highlight=False)
    command = shlex.join(["kvwise", *sys.argv[1:]])
    with Terminal(console) as progress:
        trace = read(files, reading, progress.now) if files else invented(MADE_UP, SEED)
        requests = QUICK_REQUESTS if said["quick"] else REQUESTS
        small = scaled(trace, requests, CHUNK_TOKENS, BLOCKS_MAX, SEED)
        outcome = run_reality(options, Shape.of(small, progress.now), command, progress)
    rows = outcome.rows
    if said["times"] is not None:
        keep_times(said["times"], outcome, command)
    if as_json:
        click.echo(rows.to_json())
    else:
        show(outcome, console)
        show_notes(rows, console)
    return verdict_of(outcome.checks)


def keep_times(path: Path, outcome: Outcome, command: str) -> None:
    """Write the times that were measured, whole or not at all, with where they are from."""
    machine = outcome.rows.machine
    facts = ", ".join(str(machine[name]) for name in ("engine", "model", "cpu"))
    notes = (f"measured {outcome.rows.started} by {command}", facts)
    write_whole({path: times_text(outcome.times, notes)})


def verdict_of(checks: Sequence[Check]) -> int:
    """The exit code: 0 where all predictions hold."""
    return 0 if all(check.holds for check in checks) else 1


def show(outcome: Outcome, console: Console) -> None:
    """Predictions beside measurements, and what they were made from."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("what")
    for name in ("predicted", "measured", "off", "may be off", "holds"):
        table.add_column(name, justify="right", no_wrap=True)
    for check in outcome.checks:
        row = check.row()
        digits = 4 if not check.is_ratio else 0
        figures = [_figure(row[name], digits) for name in ("predicted", "measured")]
        if check.between:
            figures[1] += " ({:,.0f} to {:,.0f})".format(*check.between)
        offs = [_off(row[name], is_ratio=check.is_ratio) for name in ("off", "off_max")]
        verdict = "yes" if check.holds else "[bold red]NO[/]"
        table.add_row(escape(f"{check.name} ({check.unit})"), *figures, *offs, verdict)
    console.print()
    console.print(table)
    for row in outcome.rows.rows:
        if row["path"] in {"memory", "disk"}:
            console.print(_line(row), soft_wrap=True)
    knots = ", ".join(f"{n:,}: {s * 1e3:,.0f} ms" for n, s in outcome.times.knots)
    console.print(f"computing, tokens: {knots}", soft_wrap=True)


def _figure(value: float | None, digits: int) -> str:
    """A number, or that there is none."""
    return "none found" if value is None else f"{value:,.{digits}f}"


def _off(value: float | None, *, is_ratio: bool) -> str:
    """A difference, as a share or as it is."""
    if value is None:
        return "-"
    return f"{value:.1%}" if is_ratio else f"{value:.4f}"


def _line(row: Mapping[str, Any]) -> str:
    """How fast something loads."""
    rate = row["gb_per_s"]
    per = f", then {rate:.2f} GB/s" if rate else ""
    return f"loading from {row['path']}: {row['fixed_ms']:.1f} ms{per}"
