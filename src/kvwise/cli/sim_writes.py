"""`kvwise sim --trace --writes`: what a disk hits for what it is written. This shows the curves."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import partial
from math import inf
from pathlib import Path
from typing import NamedTuple, TypedDict

import click
import msgspec
from rich.console import Console
from rich.table import Table

from kvwise.bench.progress import Terminal
from kvwise.cli.options import Finite, giving
from kvwise.cli.processes import spread
from kvwise.cli.reading import Reading, options_of
from kvwise.cli.sim_tables import OWN, heading
from kvwise.errors import ConfigError
from kvwise.sim.replay.curves import ABLATION, EVERYTHING, OURS, RULES, WriteResult, results_of
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
    "computing less those of loading, of what came from disk; in all: from memory too. *: what a\n"
    "daemon does; the others are there to compare."
)

DAY_BYTES_MAX = 1 << 60


class _Budget(NamedTuple):
    """What may be written in a day: a share of what writing all takes, or bytes; the other is 0."""

    share: float = 0.0
    day_bytes: int = 0


_Pair = tuple[WriteJob, WriteRun]
"""A run, and what came of it."""


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
            metavar="BUDGET[,BUDGET...]",
            help="What may be written in a day: shares of what writing all takes, or sizes as 1TB.",
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
    console = Console(highlight=False)
    console.width = max(console.width, COLUMNS_MIN)
    done = list[_Pair]()
    with Terminal(Console(stderr=True)) as progress:
        trace = read(paths, options_of(reading), progress.now)
        tape = tape_of(trace)
        machine = machine_of(tape, (said["dram_share"], said["disk_share"]), disk_rate)
        try:
            for pair in _pairs(tape, profile, machine, budgets, (jobs, progress.now)):
                done.append(pair)
                progress.done(_line(*pair))
        except KeyboardInterrupt:
            if done and not as_json:
                _show([WriteResult(job, run, None) for job, run in _sorted(done)], tape, console)
            raise
    pairs = _sorted(done)
    results = results_of([job for job, _ in pairs], [run for _, run in pairs])
    if as_json:
        told = {"format": trace.format, "profile": msgspec.to_builtins(profile)}
        tiers = {"distinct_blocks": tape.distinct_blocks, **msgspec.to_builtins(machine)}
        runs = [result.to_builtins() for result in results]
        click.echo(json.dumps({**told, **tiers, "runs": runs}, indent=2))
        return 0
    heading(trace, profile, console)
    _show(results, tape, console)
    return 0


def _line(job: WriteJob, run: WriteRun) -> str:
    """A run that is done, in a line."""
    written = run.disk_bytes_written / TERABYTE
    return f"{job.told()}: {run.disk_hits:,} disk hits for {written:.3g} TB written"


def _sorted(pairs: Sequence[_Pair]) -> list[_Pair]:
    """Runs by rule, those with the largest budget first."""
    rules = (*RULES, ABLATION)
    return sorted(pairs, key=lambda one: (rules.index(one[0].rule), -(one[0].share or inf)))


def _pairs(
    tape: Tape,
    profile: Profile,
    machine: Machine,
    budgets: Sequence[_Budget],
    how: tuple[int, Report],
) -> Iterator[_Pair]:
    """Every rule without a limit, and then under every budget, which the first runs tell."""
    rules, written_bytes = (*RULES, ABLATION), 0
    total = len(rules) * (1 + len(budgets))
    free = [WriteJob(rule, machine) for rule in rules]
    for job, run in zip(free, _runs(tape, profile, free, how, (0, total)), strict=True):
        if job.rule == EVERYTHING:
            written_bytes = run.disk_bytes_written
        yield job, run
    whole = per_day_bytes(tape, written_bytes, 1.0)
    limited = [
        WriteJob(
            rule,
            machine,
            budget.share or budget.day_bytes / whole,
            budget.day_bytes or per_day_bytes(tape, written_bytes, budget.share),
        )
        for rule in rules
        for budget in budgets
    ]
    yield from zip(limited, _runs(tape, profile, limited, how, (len(free), total)), strict=True)


def _runs(
    tape: Tape,
    profile: Profile,
    wanted: Sequence[WriteJob],
    how: tuple[int, Report],
    place: tuple[int, int],
) -> Iterator[WriteRun]:
    """What comes of every job, in order; `place` is how many were before, and how many in all."""
    (processes, report), (before, total) = how, place
    if processes == 1:
        for done, job in enumerate(wanted, before):
            yield run_writes(tape, profile, job, partial(_told_after, done, total, report))
        return
    for done, run in enumerate(spread(partial(_alone, tape, profile), wanted, processes), before):
        report(f"{done + 1} of {total} runs")
        yield run


def _told_after(done: int, total: int, report: Report, text: str) -> None:
    """Say how far a run is, after how far all of them are."""
    report(f"{done} of {total} runs; {text}")


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


def _budgets(text: str) -> list[_Budget]:
    """Budgets, each once, shares and bytes a day."""
    found = [_budget(part) for part in text.split(",")]
    if len(found) > BUDGETS_MAX:
        raise ConfigError(f"--budgets: {len(found)} are more than {BUDGETS_MAX}; hint: {BUDGETS}")
    return list(dict.fromkeys(found))


def _budget(text: str) -> _Budget:
    """A number is a share of what is written without a limit, a size the bytes of a day."""
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if 1e-6 <= share <= 1e3:
        return _Budget(share=share)
    try:
        day_bytes = parse_size(text) if text[-1:] in {"B", "b"} else 0
    except (ValueError, OverflowError):
        day_bytes = 0
    if not 0 < day_bytes <= DAY_BYTES_MAX:
        hint = f"shares from 0.000001 to 1000 of what is written without a limit, as in {BUDGETS}"
        raise ConfigError(f"--budgets: {text!r} is none; hint: {hint}, or bytes a day, as in 1TB")
    return _Budget(day_bytes=day_bytes)


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
            f"{result.job.rule.name} {OWN}" if result.job.rule == OURS else result.job.rule.name,
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
