"""`kvwise sim --grid`: is choosing ever worse than always loading, or never? It shows the cells."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.table import Table

from kvwise.bench.progress import Terminal
from kvwise.cli.processes import spread
from kvwise.errors import ConfigError
from kvwise.sim.replay.grid import (
    BUSY,
    CHUNK_TOKENS,
    MIXED,
    WORSE_MEAN,
    WORSE_P99,
    Cell,
    Compared,
    cells,
    compare,
)
from kvwise.sim.replay.profile import Profile
from kvwise.sim.trace.assembly import Report
from kvwise.units import format_seconds

EXIT_WORSE = 1
CLIENTS_MAX = 4_096
PREFIX_MAX = 4_000_000
GB_PER_S_MIN, GB_PER_S_MAX = 1e-6, 1e6
_HINT = "hint: tokens, clients and GB/s, as in 8192,16,7"


def run_grid(profile: Profile, named: Sequence[str], *, jobs: int, as_json: bool) -> int:
    """Run the cells that are named, or all; exits with 1 where choosing is worse."""
    wanted = [_cell(text) for text in named] or cells()
    with Terminal(Console(stderr=True)) as progress:
        compared = list(_compared(profile, wanted, jobs, progress.now))
    if as_json:
        click.echo(json.dumps(_told(profile, compared), indent=2))
    else:
        _show(profile, compared, Console(highlight=False))
    return EXIT_WORSE if any(one.is_worse for one in compared) else 0


def _cell(text: str) -> Cell:
    """A cell as it is written on the command line."""
    try:
        prefix, clients, rate = text.split(",")
        cell = Cell(int(prefix), int(clients), float(rate))
    except ValueError as error:
        raise ConfigError(f"--cell: {text!r} is no cell; {_HINT}") from error
    if not CHUNK_TOKENS <= cell.prefix_tokens <= PREFIX_MAX:
        raise ConfigError(f"--cell: a prefix has {CHUNK_TOKENS} to {PREFIX_MAX} tokens; {_HINT}")
    if not 1 <= cell.clients <= CLIENTS_MAX:
        raise ConfigError(f"--cell: there are 1 to {CLIENTS_MAX} clients; {_HINT}")
    if not GB_PER_S_MIN <= cell.gb_per_s <= GB_PER_S_MAX:
        raise ConfigError(
            f"--cell: a tier has {GB_PER_S_MIN:f} to {GB_PER_S_MAX:.0f} GB/s; {_HINT}"
        )
    return cell


def _compared(
    profile: Profile, wanted: Sequence[Cell], processes: int, report: Report
) -> Iterator[Compared]:
    """Every cell, in order."""
    if processes == 1:
        for done, cell in enumerate(wanted):
            begun = partial(_told_after, f"{done} of {len(wanted)} cells; ", report)
            yield compare(profile, cell, begun)
        return
    for done, compared in enumerate(spread(partial(_alone, profile), wanted, processes), 1):
        report(f"{done} of {len(wanted)} cells")
        yield compared


def _told_after(start: str, report: Report, text: str) -> None:
    """Say how far a cell is, after how far all of them are."""
    report(start + text)


def _alone(profile: Profile, cell: Cell) -> Compared:
    """One cell in a process of its own, which has nothing to show."""
    return compare(profile, cell, _silent)


def _silent(_text: str) -> None:
    """Show nothing."""


def _told(profile: Profile, compared: Sequence[Compared]) -> dict[str, Any]:
    """Everything as JSON."""
    return {"profile": msgspec.to_builtins(profile), **_summary(compared), "cells": [
        one.to_builtins() for one in compared
    ]}  # fmt: skip


def _summary(compared: Sequence[Compared]) -> dict[str, Any]:
    """The worst there is, and where mixing was to win."""
    contended = [one for one in compared if one.is_contended]
    could = [one for one in contended if one.mixing_bound < MIXED]
    return {
        "worst_p99_ratio": max(one.p99_ratio for one in compared),
        "worst_mean_ratio": max(one.mean_ratio for one in compared),
        "worse_cells": sum(one.is_worse for one in compared),
        "contended_cells": len(contended),
        "mixable_cells": len(could),
        "mixed_cells": sum(one.is_mixed for one in could),
    }


def _show(profile: Profile, compared: Sequence[Compared], console: Console) -> None:
    """The cells as a table, and what they come to."""
    console.print(f"profile: {profile.name}, as of {profile.as_of}\n", soft_wrap=True)
    table = Table(box=None, pad_edge=False, collapse_padding=True)
    for name in (
        "prefix", "clients", "GB/s", "load", "recompute", "auto", "mean", "p99", "bound", "loaded",
    ):  # fmt: skip
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for one in compared:
        bound = f"{one.mixing_bound:.2f}" if one.is_contended else ""
        table.add_row(
            f"{one.cell.prefix_tokens:,}",
            str(one.cell.clients),
            f"{one.cell.gb_per_s:g}",
            format_seconds(one.load.mean_s),
            format_seconds(one.recompute.mean_s),
            format_seconds(one.auto.mean_s),
            f"{one.mean_ratio:.3f}",
            f"{one.p99_ratio:.3f}",
            bound,
            f"{one.auto.loaded:.0%}",
            "WORSE" if one.is_worse else "",
        )
    console.print(table)
    told = _summary(compared)
    console.print(
        "\nload, recompute, auto: mean time to first token. mean, p99: of auto over the better "
        "one.\nbound: the least ratio that doing both at once could have, in cells where both GPU "
        f"and tier\nare busy for more than {BUSY:.0%}.\n\n"
        f"worst p99 {told['worst_p99_ratio']:.3f} (at most {WORSE_P99}), worst mean "
        f"{told['worst_mean_ratio']:.3f} (at most {WORSE_MEAN}): "
        f"{told['worse_cells']} of {len(compared)} cells are worse\n"
        f"mixing wins {1 - MIXED:.0%} or more in {told['mixed_cells']} of "
        f"{told['mixable_cells']} cells where it could",
        soft_wrap=True,
    )
