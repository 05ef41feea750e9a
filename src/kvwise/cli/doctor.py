"""`kvwise doctor`: run every check and show what was found. It repairs nothing."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

import kvwise
from kvwise import config
from kvwise.bench.progress import Progress, Terminal
from kvwise.cli.checks import HOST_CHECKS, Case, Finding, Grade
from kvwise.cli.disk_checks import check_disk
from kvwise.cli.drive_checks import check_drives
from kvwise.cli.engine_checks import asking, check_engine, check_gpu
from kvwise.cli.node_checks import NODE_CHECKS
from kvwise.cli.options import as_bytes
from kvwise.cli.peer_checks import PEER_CHECKS
from kvwise.cli.size_checks import SIZE_CHECKS

COLOURS = {Grade.OK: "green", Grade.WARN: "yellow", Grade.FAIL: "bold red"}
FLAGS = {"dram.size": "--dram", "disk.paths": "--disk", "disk.size": "--disk-size"}
ARROW = "      -> "
INDENT = " " * len(ARROW)
EPILOG = """\b
Examples:
  kvwise doctor
  kvwise doctor --config kvwise.toml
  kvwise doctor --dram 16GiB --disk /mnt/nvme/kvwise --disk-size 500GiB
  kvwise doctor --engine-python /opt/vllm/bin/python
  kvwise doctor --dram 256GiB --ranks 8 --device-cache 40GiB
  kvwise doctor --json

Exit code: 0 when nothing failed (warnings included), 1 when a check failed, 2 when the
configuration itself is wrong.
"""


@click.command(epilog=EPILOG)
@click.option(
    "--config",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="TOML file with settings, to hold against this host.",
)
@click.option("--dram", help="Memory for the whole node, such as 8GiB.")
@click.option("--disk", multiple=True, help="Directory for the disk tier; once for each drive.")
@click.option("--disk-size", help="Cap on all disk directories together, such as 500GiB.")
@click.option(
    "--engine-python",
    type=click.Path(path_type=Path),
    help="Interpreter of the environment that the engine runs in.",
)
@click.option(
    "--engines", type=click.IntRange(1, 4096), default=1, show_default=True, help="On this host."
)
@click.option(
    "--ranks",
    type=click.IntRange(1, 4096),
    default=1,
    show_default=True,
    help="Workers of each engine.",
)
@click.option(
    "--device-cache",
    metavar="SIZE",
    default="0",
    callback=as_bytes,
    help="KV that each rank keeps itself, such as 40GiB.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead.")
def command(  # noqa: PLR0913  one parameter for each option
    file: Path | None,
    dram: str | None,
    disk: tuple[str, ...],
    disk_size: str | None,
    engine_python: Path | None,
    *,
    as_json: bool,
    **scale: int,
) -> int:
    """Check that this host can run kvwise well, and say what to change.

    Looks at the Python version, kernel, processor, memory and its limits, huge and locked pages,
    NUMA nodes, the clock, what sizes come to over engines and ranks, the daemon's socket and
    metrics address, the directories of the disk tier (by really writing, reading and punching
    blocks there), the wear of the drives below them (`smartctl` is asked, where there is one),
    the hashes of engines that run here, and the engine's version. Nothing is changed.
    """
    given = {"dram.size": dram, "disk.paths": disk or None, "disk.size": disk_size}
    overrides = {name: value for name, value in given.items() if value is not None}
    case = Case(
        config.load(file, overrides, flags=FLAGS),
        engine_python=engine_python,
        engines=scale["engines"],
        ranks=scale["ranks"],
        device_cache_bytes=scale["device_cache"],
    )
    with Terminal(Console(stderr=True)) as progress:
        findings = list(examine(case, progress))
    if as_json:
        click.echo(msgspec.json.encode(report(findings)))
    else:
        show(findings, Console(highlight=False))
    return int(any(found.grade is Grade.FAIL for found in findings))


def examine(case: Case, progress: Progress) -> Iterator[Finding]:
    """The findings of every check, in the order in which they are shown.

    `progress` hears what is being looked at, and in a line that stays whom an answer is awaited of.
    """
    progress.now("looking at the host")
    for check in (*HOST_CHECKS, *NODE_CHECKS, *SIZE_CHECKS):
        yield check(case)
    progress.now("trying the directories of the disk tier")
    yield from check_disk(case)
    progress.now("asking for the wear of the drives")
    yield from check_drives(case)
    progress.now("looking at engines that run here")
    for check in PEER_CHECKS:
        yield check(case)
    (progress.now if case.engine_python is None else progress.note)(asking(case))
    yield check_engine(case)
    yield check_gpu(case)


def report(findings: list[Finding]) -> dict[str, object]:
    """The findings for a program to read."""
    counts = Counter(found.grade for found in findings)
    return {
        "version": kvwise.__version__,
        "findings": findings,
        "counts": {grade.value: counts[grade] for grade in Grade},
    }


def show(findings: list[Finding], console: Console) -> None:
    """The findings for a person to read; words, not colours, carry the meaning."""
    names = max(len(found.name) for found in findings)
    for found in findings:
        row = Table.grid(padding=(0, 2))
        row.add_column(width=max(len(grade.value) for grade in Grade))
        row.add_column(width=names)
        row.add_column(overflow="fold")  # a path is broken, never cut off
        row.add_row(Text(found.grade.value, COLOURS[found.grade]), found.name, Text(found.seen))
        console.print(row)
        for line in hint_lines(found.advice, console.width):
            console.print(line, markup=False, soft_wrap=True)
    counts = Counter(found.grade for found in findings)
    console.print()
    console.print(", ".join(f"{counts[grade]} {grade.value}" for grade in Grade))


def hint_lines(advice: str, width: int) -> list[str]:
    """Advice in lines of a width; a command is never broken, so that it can be copied."""
    lines: list[str] = []
    for word in re.findall(r"(?:`[^`]*`|[^\s`])+", advice):
        if lines and len(lines[-1]) + 1 + len(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(f"{INDENT if lines else ARROW}{word}")
    return lines
