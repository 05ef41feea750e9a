"""`kvwise sim --trace --stack`: a whole stack over a trace. This shows it beside other choices."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.table import Table

from kvwise.bench.progress import Terminal
from kvwise.cli.processes import spread
from kvwise.cli.reading import Reading, options_of
from kvwise.cli.sim_tables import heading
from kvwise.sim.replay.full import (
    NO_CACHE,
    STACK,
    VARIANTS,
    Account,
    capacity_blocks,
    check,
    run_full,
)
from kvwise.sim.replay.stack import Stack, read_stack
from kvwise.sim.replay.sweep import Bounds, bounds_of
from kvwise.sim.replay.tape import Tape, tape_of
from kvwise.sim.trace.assembly import Report
from kvwise.sim.trace.distance import measure_reuse
from kvwise.sim.trace.read import read
from kvwise.units import format_seconds, format_size


def run_stack(
    paths: Sequence[Path], reading: Reading, where: tuple[Path, float], *, jobs: int, as_json: bool
) -> int:
    """Run a trace on the stack in a file, at a speed, and on what it is to be held against."""
    path, speed = where
    stack = read_stack(path)
    with Terminal(Console(stderr=True)) as progress:
        trace = read(paths, options_of(reading), progress.now)
        tape = tape_of(trace)
        check(stack, tape)
        bounds = bounds_of(
            measure_reuse(trace, progress.now), capacity_blocks(stack, tape.block_tokens)
        )
        accounts = list(_accounts(tape, stack, speed, jobs, progress.now))
    if as_json:
        click.echo(json.dumps(_told(stack, speed, bounds, accounts), indent=2))
        return 0
    console = Console(highlight=False)
    heading(trace, stack.profile, console)
    _show(accounts, bounds, console)
    return 0


def _accounts(
    tape: Tape, stack: Stack, speed: float, processes: int, report: Report
) -> Iterator[Account]:
    """Every variant, in order."""
    if processes == 1:
        yield from (run_full(tape, stack, variant, speed, report) for variant in VARIANTS)
        return
    one = partial(_alone, tape, stack, speed)
    for done, account in enumerate(spread(one, VARIANTS, processes), 1):
        report(f"{done} of {len(VARIANTS)} runs")
        yield account


def _alone(tape: Tape, stack: Stack, speed: float, variant: str) -> Account:
    """One variant in a process of its own, which has nothing to show."""
    return run_full(tape, stack, variant, speed, _silent)


def _silent(_text: str) -> None:
    """Show nothing."""


def _named(accounts: Sequence[Account], name: str) -> Account:
    return next(account for account in accounts if account.name == name)


def _told(
    stack: Stack, speed: float, bounds: Bounds, accounts: Sequence[Account]
) -> dict[str, Any]:
    """Everything as JSON: the stack's own run at the top, all of them below."""
    base, runs = _named(accounts, NO_CACHE), []
    for account in accounts:
        saved_s, lost_s = account.against(base)
        runs.append({
            **account.to_builtins(),
            "seconds_saved": saved_s,
            "seconds_lost": lost_s,
            "gpu_s_saved": base.gpu_s - account.gpu_s,
        })  # fmt: skip
    return {
        "stack": msgspec.to_builtins(stack),
        "speed": speed,
        "clairvoyant_hit_ratio": bounds.clairvoyant_hit_ratio,
        "lru_hit_ratio": bounds.lru_hit_ratio,
        **next(run for run in runs if run["name"] == STACK),
        "runs": runs,
    }


def _show(accounts: Sequence[Account], bounds: Bounds, console: Console) -> None:
    """Runs side by side, a line for each figure."""
    base = _named(accounts, NO_CACHE)
    table = Table(box=None, pad_edge=False, collapse_padding=True)
    table.add_column("", no_wrap=True)
    for account in accounts:
        table.add_column(account.name, justify="right", no_wrap=True)

    def line(name: str, figures: Sequence[str]) -> None:
        table.add_row(name, *figures)

    times = [account.ttft() for account in accounts]
    for name in times[0]:
        line(f"first token, {name}", [format_seconds(one[name]) for one in times])
    against = [account.against(base) for account in accounts]
    line("sooner than without cache", [f"{saved:,.0f} s" for saved, _ in against])
    line("later than without cache", [f"{lost:,.0f} s" for _, lost in against])
    line("GPU for prompts", [f"{account.gpu_s:,.0f} s" for account in accounts])
    line("GPU busy", [f"{account.gpu_busy:.0%}" for account in accounts])
    line("hits", [f"{account.hit_ratio:.4f}" for account in accounts])
    for tier in ("device", *base.read_bytes):
        used = [account.used_blocks.get(tier, 0) for account in accounts]
        shares = [blocks / max(1, base.input_blocks) for blocks in used]
        line(f"  used from {tier}", [f"{share:.4f}" for share in shares])
    for tier in base.read_bytes:
        line(f"read from {tier}", [format_size(one.read_bytes[tier]) for one in accounts])
        line(f"written to {tier}", [format_size(one.written_bytes[tier]) for one in accounts])
    line("loads given up", [f"{account.late:,}" for account in accounts])
    line("life of the drives", [_years(account.life_years) for account in accounts])
    console.print(table)
    console.print(
        f"\nhits: of all input blocks. An exact LRU over all tiers and devices hits "
        f"{bounds.lru_hit_ratio:.4f}, and\nno cache of that size more than "
        f"{bounds.clairvoyant_hit_ratio:.4f}.",
        soft_wrap=True,
    )


def _years(years: float | None) -> str:
    """How long drives last."""
    return "-" if years is None else f"{years:,.2f} years"
