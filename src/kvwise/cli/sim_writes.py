"""`kvwise sim --trace --writes`: what a disk hits for what it is written. This shows the curves."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TypedDict

import click
import msgspec
from rich.console import Console
from rich.table import Table

from kvwise.bench.progress import Terminal
from kvwise.cli.options import Finite, giving
from kvwise.cli.processes import spread
from kvwise.cli.reading import Reading, options_of
from kvwise.cli.sim_tables import heading
from kvwise.errors import ConfigError
from kvwise.sim.replay.curves import ABLATION, EVERYTHING, RULES, WriteResult, results_of
from kvwise.sim.replay.profile import Profile
from kvwise.sim.replay.tape import Tape, tape_of
from kvwise.sim.replay.writes import (
    Machine,
    WriteJob,
    WriteRun,
    machine_of,
    per_day_bytes,
    run_writes,
)
from kvwise.sim.trace.assembly import Report
from kvwise.sim.trace.read import read
from kvwise.units import parse_size

BUDGETS = "0.5,0.25,0.1,0.05,0.02"
BUDGETS_MAX = 100
TERABYTE = 1e12
COLUMNS_MIN = 100
"""A table is not cut to less, for whoever reads it from a file."""

FIGURES = (
    "blocks", "TB", "TB/day", "disk hits", "others", "ratio", "all", "hits", "saved", "in all",
)  # fmt: skip
LEGEND = (
    "budget: bytes a day, of what writing all takes. blocks, TB and TB/day: written to disk, at\n"
    "the KV size of the profile. disk hits: blocks on disk and not in memory. others: the most\n"
    "that writing all or what was seen before has for as many bytes or fewer, and ratio: disk\n"
    "hits over that; all: the same of all hits. hits: of all input blocks. saved: seconds of\n"
    "computing less those of loading, of what came from disk; in all: from memory too."
)


class Writing(TypedDict):
    """The tiers and budgets to run, as options say it."""

    writes: bool
    dram_share: float
    disk_share: float
    disk_rate: str
    budgets: str


writing = giving(
    [
        click.option(
            "--writes",
            is_flag=True,
            help="Disk hits against bytes written, for all, what came before and what is worth it.",
        ),
        click.option(
            "--dram-share",
            type=Finite(0, 1),
            default=0.03,
            show_default=True,
            help="Share of the trace's different blocks that memory holds.",
        ),
        click.option(
            "--disk-share",
            type=Finite(0, 1),
            default=0.3,
            show_default=True,
            help="Share that the disk holds.",
        ),
        click.option(
            "--disk-rate",
            default="56GB",
            show_default=True,
            metavar="SIZE",
            help="Bytes a second that the disk reads.",
        ),
        click.option(
            "--budgets",
            default=BUDGETS,
            show_default=True,
            metavar="SHARE[,SHARE...]",
            help="What may be written in a day, as shares of what writing all takes.",
        ),
    ]
)
"""Give a command the options of `Writing`."""


def run_curves(
    paths: Sequence[Path],
    reading: Reading,
    said: Writing,
    how: tuple[Profile, int],
    *,
    as_json: bool,
) -> int:
    """Run a trace under every rule and budget, and show what each has for its writes.

    Args:
        paths: of the trace.
        reading: how it is to be read.
        said: tiers and budgets.
        how: the profile, and the number of processes.
        as_json: whether it is shown as JSON.
    """
    profile, jobs = how
    budgets, disk_rate = _budgets(said["budgets"]), _rate(said["disk_rate"])
    with Terminal(Console(stderr=True)) as progress:
        trace = read(paths, options_of(reading), progress.now)
        tape = tape_of(trace)
        machine = machine_of(tape, (said["dram_share"], said["disk_share"]), disk_rate)
        results = _results(tape, profile, machine, budgets, (jobs, progress.now))
    if as_json:
        told = {"format": trace.format, "profile": msgspec.to_builtins(profile)}
        tiers = {"distinct_blocks": tape.distinct_blocks, **msgspec.to_builtins(machine)}
        runs = [result.to_builtins() for result in results]
        click.echo(json.dumps({**told, **tiers, "runs": runs}, indent=2))
        return 0
    console = Console(highlight=False)
    console.width = max(console.width, COLUMNS_MIN)
    heading(trace, profile, console)
    _show(results, tape, console)
    return 0


def _results(
    tape: Tape,
    profile: Profile,
    machine: Machine,
    budgets: Sequence[float],
    how: tuple[int, Report],
) -> list[WriteResult]:
    """Every rule without a limit, and then under every budget, which the first runs tell."""
    rules = (*RULES, ABLATION)
    free = [WriteJob(rule, machine) for rule in rules]
    first = list(_runs(tape, profile, free, *how))
    written_bytes = first[rules.index(EVERYTHING)].disk_bytes_written
    limited = [
        WriteJob(rule, machine, share, per_day_bytes(tape, written_bytes, share))
        for rule in rules
        for share in budgets
    ]
    runs = first + list(_runs(tape, profile, limited, *how))
    found = results_of(free + limited, runs)
    return sorted(found, key=lambda one: (rules.index(one.job.rule), -(one.job.share or 1e9)))


def _runs(
    tape: Tape, profile: Profile, wanted: Sequence[WriteJob], processes: int, report: Report
) -> Iterator[WriteRun]:
    """What comes of every job, in order."""
    if processes == 1:
        yield from (run_writes(tape, profile, job, report) for job in wanted)
        return
    for done, run in enumerate(spread(partial(_alone, tape, profile), wanted, processes), 1):
        report(f"{done} of {len(wanted)} runs")
        yield run


def _alone(tape: Tape, profile: Profile, job: WriteJob) -> WriteRun:
    """One job in a process of its own, which has nothing to show."""
    return run_writes(tape, profile, job, _silent)


def _silent(_text: str) -> None:
    """Show nothing."""


def _rate(text: str) -> int:
    """Bytes that a disk gives in a second."""
    try:
        rate = parse_size(text)
    except (ValueError, OverflowError) as error:
        hint = "the bytes of one second, as in 14GB"
        raise ConfigError(f"--disk-rate: {text!r} is no size; hint: {hint}") from error
    if rate <= 0:
        raise ConfigError("--disk-rate: nothing can be read at no rate; hint: 56GB")
    return rate


def _budgets(text: str) -> list[float]:
    """Shares, each once, the largest first."""
    found = []
    for part in text.split(","):
        try:
            share = float(part)
        except ValueError as error:
            hint = f"shares of what is written without a limit, as in {BUDGETS}"
            raise ConfigError(f"--budgets: {part!r} is no number; hint: {hint}") from error
        if not 1e-6 <= share <= 1e3:
            raise ConfigError(f"--budgets: {part!r} is not from 0.000001 to 1000; hint: {BUDGETS}")
        found.append(share)
    if len(found) > BUDGETS_MAX:
        raise ConfigError(f"--budgets: {len(found)} are more than {BUDGETS_MAX}; hint: {BUDGETS}")
    return sorted(set(found), reverse=True)


def _show(results: Sequence[WriteResult], tape: Tape, console: Console) -> None:
    """Every run, a line each."""
    machine = results[0].job.machine
    console.print(
        f"memory holds {machine.dram_blocks:,} blocks and the disk {machine.disk_blocks:,}, of "
        f"{tape.distinct_blocks:,} different ones\n"
    )
    table = Table(box=None, pad_edge=False, collapse_padding=True)
    for name in ("written is", "budget"):
        table.add_column(name, no_wrap=True)
    for name in FIGURES:
        table.add_column(name, justify="right", no_wrap=True)
    for result in results:
        run, beside, share = result.run, result.beside, result.job.share
        table.add_row(
            result.job.rule.name,
            "no limit" if share is None else f"{share:.4g}",
            f"{run.disk_blocks_written:,}",
            f"{run.disk_bytes_written / TERABYTE:.3g}",
            f"{run.disk_bytes_per_day / TERABYTE:.3g}",
            f"{run.disk_hits:,}",
            "" if beside is None else f"{beside.others_disk_hits:,.0f}",
            "" if beside is None else _ratio(beside.ratio),
            "" if beside is None else _ratio(beside.total_ratio),
            f"{run.hit_ratio:.4f}",
            f"{run.seconds_saved - run.seconds_lost:,.0f}",
            f"{run.total_seconds_saved:,.0f}",
        )
    console.print(table)
    console.print(f"\n{LEGEND}", soft_wrap=True)


def _ratio(ratio: float | None) -> str:
    """A ratio, or that there is nothing to compare with."""
    return "-" if ratio is None else f"{ratio:.2f}"
