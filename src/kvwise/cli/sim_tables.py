"""What simulated caches would do, as tables of at most 100 columns. It measures nothing."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from kvwise.sim.replay.brains import LEARNS
from kvwise.sim.replay.profile import Profile
from kvwise.sim.replay.sweep import Result
from kvwise.sim.trace.records import Trace
from kvwise.units import format_size

OWN = "*"
"""Marks what a daemon does that is told nothing else."""


def show_results(
    trace: Trace, profile: Profile, results: Sequence[Result], console: Console
) -> None:
    """Every run, beside an exact LRU and foresight."""
    heading(trace, profile, console)
    console.print(f"plan: {results[0].job.plan}\n")
    table = Table(box=None, pad_edge=False, collapse_padding=True)
    table.add_column("policy", no_wrap=True)
    for name in ("tokens", "memory", "hits", "LRU", "best", "closed", "written", "saved", "lost"):
        table.add_column(name, justify="right", no_wrap=True)
    for result in results:
        run, closed = result.run, result.bounds.gap_closed(result.hit_ratio)
        own = result.job.eviction == LEARNS
        table.add_row(
            f"{result.job.eviction} {OWN}" if own else result.job.eviction,
            _short(result.job.capacity_tokens),
            format_size(result.job.capacity_tokens * profile.kv_bytes_per_token),
            f"{result.hit_ratio:.4f}",
            f"{result.bounds.lru_hit_ratio:.4f}",
            f"{result.bounds.clairvoyant_hit_ratio:.4f}",
            "-" if closed is None else f"{closed:.0%}",
            f"{run.blocks_written / max(1, run.input_blocks):.0%}",
            f"{run.seconds_saved:,.0f} s",
            f"{run.seconds_lost:,.0f} s",
        )
    console.print(table)
    console.print(
        "\nhits: of all input blocks, the cold start included. LRU, best: an exact LRU, and the "
        "most that\nany cache could hit. closed: how far from LRU to best, - where they are the "
        "same.\nwritten: blocks taken in, of all input blocks. saved, lost: seconds of computing "
        "less those of\nloading. *: the policy of a daemon that is told no other.",
        soft_wrap=True,
    )


def _short(tokens: int) -> str:
    """A number of tokens, in thousands or millions where that is exact enough."""
    for scale, unit in ((1_000_000, "M"), (1_000, "k")):
        if tokens >= scale:
            return f"{tokens / scale:.4g} {unit}"
    return str(tokens)


def heading(trace: Trace, profile: Profile, console: Console) -> None:
    """What is run, and whose speeds these are."""
    blocks = sum(len(request.blocks) for request in trace.requests)
    console.print(
        f"{trace.format}: {len(trace.requests):,} requests, {blocks:,} blocks of "
        f"{trace.block_tokens} tokens",
        soft_wrap=True,
    )
    console.print(f"profile: {profile.name}, as of {profile.as_of}", soft_wrap=True)
    console.print(f"{profile.source}\n", soft_wrap=True)
