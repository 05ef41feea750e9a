"""`kvwise bench peers`: other caches beside kvwise. `bench/peers` measures; this shows."""

from __future__ import annotations

import signal
from pathlib import Path
from types import FrameType

import click
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kvwise.bench.peers.installs import PEERS
from kvwise.bench.peers.run import OBJECTS, PASSES, Options, Stopped, run, spoken
from kvwise.bench.progress import Terminal
from kvwise.bench.rows import Rows
from kvwise.errors import ConfigError
from kvwise.units import format_size, parse_size

BEHIND = 1.0
"""A ratio below this is marked: the peer was faster."""


@click.command(
    epilog="""\b
Examples:
  kvwise bench peers --install
  kvwise bench peers --peer lmcache --objects 2MiB --disk /mnt/nvme0
  kvwise bench peers --python nixl=/opt/nixl/bin/python --peer nixl
  kvwise bench peers --json | jq '.rows[] | select(.ratio < 1)'
"""
)
@click.option(
    "--peer",
    "peers",
    multiple=True,
    type=click.Choice(list(PEERS)),
    help="Whom to compare with; once for each. Without it, all.",
)
@click.option(
    "--python",
    "pythons",
    multiple=True,
    metavar="NAME=PATH",
    help="Python of an environment that has the peer, in place of our own.",
)
@click.option("--install", is_flag=True, help="First install peers that are missing.")
@click.option(
    "--objects",
    multiple=True,
    metavar="SIZE",
    help=f"Size of the objects; once for each; {' and '.join(map(spoken, OBJECTS))} when left out.",
)
@click.option(
    "--passes", type=click.IntRange(1, 100), default=PASSES, show_default=True, help="Rounds."
)
@click.option("--quick", is_flag=True, help="One pass with less data: only to see that it runs.")
@click.option(
    "--disk",
    type=click.Path(path_type=Path),
    default=Path(),
    help="Folder on the disk to measure; nothing stays in it.  [default: here]",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(  # noqa: PLR0913
    peers: tuple[str, ...],
    pythons: tuple[str, ...],
    install: bool,
    objects: tuple[str, ...],
    passes: int,
    quick: bool,
    disk: Path,
    as_json: bool,
) -> None:
    """Measure other caches and kvwise in turns, with the same bytes.

    Each peer runs in an environment of its own; --install makes those under ~/.cache/kvwise
    (LMCache 1.6 GiB, NIXL 1.2 GiB, Mooncake 0.3 GiB). In every pass kvwise, the peer and a
    plain memcpy move the same objects, and each side's contents are compared. A peer that is
    absent, hangs or crashes is reported as skipped, with its last words.

    One peer with one size takes about ten minutes on a small machine, everything between half
    an hour and two hours, installing not included. Ctrl-C shows the rows found until then.
    """
    options = Options(
        peers=peers or tuple(PEERS),
        pythons=dict(_named(pair) for pair in pythons),
        install=install,
        objects=tuple(map(_size, objects)) or OBJECTS,
        passes=passes,
        quick=quick,
        disk=disk,
    )
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    console = Console(stderr=as_json)
    try:
        with Terminal(console) as progress:
            result = run(options, progress)
    except Stopped as stop:
        _tell(stop.result, console, as_json=as_json)
        raise
    _tell(result, console, as_json=as_json)


def _tell(result: Rows, console: Console, *, as_json: bool) -> None:
    """The result for a program or for a person."""
    if as_json:
        click.echo(result.to_json())
    else:
        show(result, console)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Let a polite kill or a closed terminal end what was started, as Ctrl-C does."""
    del number, frame
    raise KeyboardInterrupt


def _named(pair: str) -> tuple[str, Path]:
    """A peer's name and its interpreter."""
    name, found, path = pair.partition("=")
    if not found or not path:
        raise ConfigError(f"--python {pair} is not NAME=PATH; hint: --python nixl=/opt/bin/python")
    return name, Path(path)


def _size(text: str) -> int:
    """Bytes of an object."""
    try:
        return parse_size(text)
    except ValueError as error:
        raise ConfigError(f"--objects: {error}; hint: --objects 2MiB") from error


def show(result: Rows, console: Console) -> None:
    """The rows as a table, and what was not measured."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("peer")
    table.add_column("path")
    table.add_column("object", justify="right")
    table.add_column("op")
    for title in ("peer GB/s", "kvwise GB/s", "memcpy GB/s", "kvwise / peer"):
        table.add_column(title, justify="right")
    for row in result.rows:
        held = f"{row['ratio']:.2f} ({row['ratio_low']:.2f} to {row['ratio_high']:.2f})"
        table.add_row(
            row["peer"],
            row["path"],
            format_size(row["object_bytes"]),
            row["op"],
            f"{row['gbps']:.2f}",
            f"{row['kvwise_gbps']:.2f}",
            f"{row['memcpy_gbps']:.2f}",
            held if row["ratio"] >= BEHIND else f"[yellow]{held}[/yellow]",
        )
    if result.rows:
        console.print(table)
    for reason in result.skipped:
        console.print(f"[yellow]skipped[/yellow]: {escape(reason)}", highlight=False)
    for note in result.notes:
        console.print(f"note: {escape(note)}", highlight=False, soft_wrap=True)
