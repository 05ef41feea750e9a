"""`kvwise probe`: measure this host, and write down what `kvwise plan` can use."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import click
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kvwise import config
from kvwise.bench.probe.hardware_file import drive_names, entries
from kvwise.bench.probe.run import BYTES_MIN, ProbeOptions, measure_host
from kvwise.bench.probe.servers import require_place
from kvwise.bench.progress import Terminal
from kvwise.bench.rows import Row, Rows
from kvwise.bench.targets import require_target, write_whole
from kvwise.cli.groups import take_kills_as_ctrl_c
from kvwise.cli.options import Finite, Named, as_bytes
from kvwise.errors import ConfigError
from kvwise.units import format_size

SECONDS_MIN, SECONDS_MAX = 5.0, 3600.0


@click.command(
    epilog="""\b
Examples:
  kvwise probe                                      # the disk is that of this folder
  kvwise probe --disk /mnt/nvme0 --disk /mnt/nvme1
  kvwise probe --config kvwise.toml --seconds 120 --out hosts/a7.toml
  kvwise probe --redis redis://cache-1 --objects s3://kv-bucket
  kvwise probe --bytes 512MiB --json | jq '.rows[] | select(.part == "disk")'
  kvwise plan --hardware host.toml --drive host-disk --model llama-3.1-8b --gpu l40s \\
      --trace mine.jsonl
"""
)
@click.option(
    "--disk",
    cls=Named,
    multiple=True,
    type=click.Path(path_type=Path),
    help="Folder to measure; once for each drive.  [default: disk.paths, else this folder]",
)
@click.option(
    "--redis", multiple=True, metavar="URL", help="Redis to measure, such as redis://HOST."
)
@click.option(
    "--objects",
    multiple=True,
    metavar="URL",
    help="Object store to measure, such as s3://BUCKET; needs the package obstore.",
)
@click.option(
    "--config",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="TOML file with settings, for disk.paths, disk.min_free and disk.dwpd.",
)
@click.option(
    "--seconds",
    type=Finite(SECONDS_MIN, SECONDS_MAX),
    default=60.0,
    show_default=True,
    help="How long everything may take.",
)
@click.option(
    "--bytes",
    "size",
    metavar="SIZE",
    callback=as_bytes,
    default="4GiB",
    show_default=True,
    help="How much may be written to each folder and server; at most 1 GiB at a time.",
)
@click.option(
    "--out",
    cls=Named,
    type=click.Path(path_type=Path),
    default=Path("host.toml"),
    show_default=True,
    help="Write what was measured there.",
)
@click.option("--force", is_flag=True, help="Replace the file if it is there.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(  # noqa: PLR0913  one parameter for each option
    disk: tuple[Path, ...],
    redis: tuple[str, ...],
    objects: tuple[str, ...],
    file: Path | None,
    seconds: float,
    size: int,
    out: Path,
    force: bool,
    as_json: bool,
) -> int:
    """Measure memory, GPU, drives, servers and codecs for this host, for 'kvwise plan'.

    Memory is copied within each NUMA node. Folders are read and written past the page cache, in
    blocks of several sizes with several calls under way, alone and mixed; their file has no name
    and leaves nothing behind. What cannot be measured is named with the reason. Run it while the
    host does nothing else.
    """
    take_kills_as_ctrl_c()
    if size < BYTES_MIN:
        raise ConfigError(
            f"--bytes {format_size(size)} is too little to measure with; "
            f"hint: {format_size(BYTES_MIN)} or more"
        )
    settings = config.load(file)
    named = disk or tuple(map(Path, settings.disk.paths)) or (Path(),)
    folders = tuple(folder.absolute() for folder in named)
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise ConfigError("--disk names a folder twice; hint: name each drive once")
    places = [require_place("redis", url) for url in redis]
    places += [require_place("objects", url) for url in objects]
    options = ProbeOptions(folders, seconds, size, settings.disk.min_free, places)
    require_target(out, may_replace=force)
    with Terminal(Console(stderr=True)) as progress:
        found = measure_host(options, progress)
        write_whole({out: entries(found, datetime.now(UTC).date(), dwpd=settings.disk.dwpd)})
        progress.done(f"written: {out}")
    if as_json:
        click.echo(found.to_json())
    else:
        _show(found, out, Console(highlight=False))
    drives = drive_names(found.rows)
    for folder in folders:
        if str(folder) not in drives:
            click.echo(f"warning: {folder} is no drive in {out}: too little was measured", err=True)
    return 0 if drives else 1


def _show(found: Rows, out: Path, console: Console) -> None:
    """What was measured, what was not, and what to do with it."""
    rates = [row for row in found.rows if row["part"] != "codec"]
    codecs = [row for row in found.rows if row["part"] == "codec"]
    if rates:
        console.print(_rates(rates))
    if codecs:
        console.print(_codecs(codecs))
    for text in found.skipped:
        console.print(f"not measured: {escape(text)}", soft_wrap=True)
    for text in found.notes:
        console.print(f"note: {escape(text)}", soft_wrap=True)
    machine = ", ".join(f"{name} {value}" for name, value in found.machine.items())
    console.print(f"machine: {escape(machine)}", soft_wrap=True)
    for name in drive_names(rates).values():
        text = f"\nnext: kvwise plan --hardware {escape(str(out))} --drive {name} ..."
        console.print(text, soft_wrap=True)


def _rates(rows: Sequence[Row]) -> Table:
    """One line for each rate."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for name in ("part", "what"):
        table.add_column(name, overflow="fold")
    for name in ("GB/s", "range", "us"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*_cells(row))
    return table


def _cells(row: Row) -> tuple[str, str, str, str, str]:
    """The cells of a line."""
    part, what, late = row["part"], "", row.get("latency_us", row.get("round_trip_us", ""))
    if part == "memory":
        part = f"memory, node {row['node']}"
        what = f"copy, threads {row['threads']}"
    elif part == "disk":
        part = f"disk {row['path']}"
        what = f"{row['way']}, {format_size(row['block_bytes'])}, depth {row['depth']}"
        if row["way"] == "mixed":
            what += f", beside {row['written_gbps']:.2f} GB/s written"
    elif part == "gpu":
        what = row["way"]
    elif part == "server":
        part, what = row["path"], f"{row['way']}, 2 MiB, depth {row['depth']}"
    else:
        what = "TCP, one connection"
    span = f"{row['gbps_low']:.2f}-{row['gbps_high']:.2f}"
    return escape(part), what, f"{row['gbps']:.2f}", span, str(late)


def _codecs(rows: Sequence[Row]) -> Table:
    """One line for each codec."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("codec")
    table.add_column("data")
    for name in ("ratio", "encode GB/s", "decode GB/s"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            f"{row['codec']} ({row['mode']})",
            row["data"],
            f"{row['ratio']:.3f}",
            f"{row['encode_gbps']:.2f}",
            f"{row['decode_gbps']:.2f}",
        )
    return table
