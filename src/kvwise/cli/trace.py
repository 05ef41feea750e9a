"""`kvwise trace`: what is in a trace, and traces made up. `sim.trace` measures and this shows.

A number that a person asked for and that cannot be is refused before anything is read or written.
"""

from __future__ import annotations

import gzip
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import TypedDict, Unpack

import click
import msgspec
from rich.console import Console

from kvwise.bench.progress import Terminal
from kvwise.bench.targets import require_target, whole
from kvwise.cli.groups import take_kills_as_ctrl_c
from kvwise.cli.reading import Reading, options_of, reading
from kvwise.cli.trace_tables import show_summary
from kvwise.errors import ConfigError
from kvwise.planner.catalogue import find_model
from kvwise.planner.shapes import Precisions
from kvwise.sim.trace.make import KINDS, PARAMETERS, Parameter, Row, make_rows
from kvwise.sim.trace.read import FORMATS, read
from kvwise.sim.trace.summary import summarise
from kvwise.units import parse_size

REQUESTS_MAX = 10_000_000
REPORT_EVERY = 1_000
SHARE_MAX = 1_000.0
CUT = 1.05
"""Sessions that are so many times shorter than they were to be are told: that is no chance."""

STDOUT = "-"


class Size(TypedDict):
    """How much to make up, and whether a file may be lost by it."""

    requests: int
    seed: int
    force: bool


@click.group(
    epilog="""\b
Examples:
  kvwise trace info conversation_trace.jsonl.gz
  kvwise trace info trace.jsonl --json | jq .blocks.reuse
  kvwise trace make chat agent:0.5 --requests 5000 --seed 7 -o mixed.jsonl
  kvwise trace info --help
"""
)
def command() -> None:
    """Measure traces of requests, or make some up.

    A trace says when requests arrived, how long they were and, in most formats, which parts of
    their prompts were the same. That decides what a cache of a size is worth.
    """
    take_kills_as_ctrl_c()


def _formats() -> str:
    """The formats, a line each."""
    return "".join(f"  {name:<15} {one.about}\n" for name, one in FORMATS.items())


@command.command(
    epilog=f"""\b
Formats:
{_formats()}
\b
Examples:
  kvwise trace info conversation_trace.jsonl.gz --model llama-3.1-70b
  kvwise trace info conversation_trace.jsonl.gz --bytes-per-token 320KiB
  kvwise trace info sessions/ --start-every 200
  kvwise trace info trace.jsonl --json | jq .blocks.needed
"""
)
@click.argument(
    "files",
    nargs=-1,
    required=True,
    type=click.Path(exists=True, path_type=Path),
    metavar="FILE...",
)
@click.option(
    "--bytes-per-token", metavar="SIZE", help="Of KV in the model, to show capacities as memory."
)
@click.option(
    "--model", metavar="MODEL", help="Take the bytes from this model; see 'kvwise model'."
)
@reading
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def info(
    files: tuple[Path, ...],
    bytes_per_token: str | None,
    model: str | None,
    as_json: bool,
    **said: Unpack[Reading],
) -> int:
    """Show what is in a trace: lengths, sessions, reuse, and hit ratio by capacity.

    Several files, or the files of a folder, are one trace. gzip is read as it is. A block counts as
    reused only if all before it in the prompt are too. Hit ratios are those of an exact LRU, the
    cold start included.
    """
    if model is not None and bytes_per_token is not None:
        raise click.UsageError("--model and --bytes-per-token say the same thing; give one of them")
    kv_bytes = _bytes(bytes_per_token) if bytes_per_token is not None else 0
    if model is not None:
        kv_bytes = round(find_model(model).token_bytes(Precisions()))
    with Terminal(Console(stderr=True)) as progress:
        summary = summarise(read(files, options_of(said), progress.now), progress.now)
    if as_json:
        told = msgspec.to_builtins(summary)
        click.echo(json.dumps({**told, "bytes_per_token": kv_bytes or None}, indent=2))
    else:
        show_summary(summary, kv_bytes, Console(highlight=False))
    return 0


def _bytes(text: str) -> int:
    """A size of at least one byte."""
    try:
        size_bytes = parse_size(text)
    except (ValueError, OverflowError) as error:
        raise click.BadParameter(str(error), param_hint="--bytes-per-token") from error
    if not 0 < size_bytes <= 1 << 40:
        raise click.BadParameter(f"{text!r} is no size of a token", param_hint="--bytes-per-token")
    return size_bytes


def _parameters() -> str:
    """The parameters of every kind, a line each."""
    lines = []
    for kind, parameters in PARAMETERS.items():
        lines.append(f"  {kind}")
        lines += [
            f"    {name:<15} {one.default:>8g}  {one.about}" for name, one in parameters.items()
        ]
    return "\n".join(lines)


@command.command(
    epilog=f"""\b
Parameters, with their defaults:
{_parameters()}

\b
Examples:
  kvwise trace make chat --requests 10000 -o chat.jsonl
  kvwise trace make rag --requests 5000 --set documents=500 --set zipf=1.2 -o rag.jsonl.gz
  kvwise trace make chat agent:0.5 --requests 5000 --set agent.turns=20 -o mixed.jsonl
"""
)
@click.argument("kinds", nargs=-1, required=True, metavar="KIND[:SHARE]...")
@click.option(
    "--requests", type=click.IntRange(1, REQUESTS_MAX), required=True, help="How many requests."
)
@click.option(
    "--seed", type=click.IntRange(0), default=1, show_default=True, help="Draws the trace."
)
@click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="NAME=VALUE",
    help="Change a parameter, of one kind where it is written KIND.NAME.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, allow_dash=True, path_type=Path),
    required=True,
    help="The file to write, compressed where it ends in .gz; - is the standard output.",
)
@click.option("--force", is_flag=True, help="Write over a file that exists.")
def make(
    kinds: tuple[str, ...], changes: tuple[str, ...], output: Path, **size: Unpack[Size]
) -> int:
    """Make up a trace of chat, rag, agent or oneshot work, or of several in one.

    The file has the mooncake format, with the session of each request in `session_id`. One seed
    gives the same file again. The trace ends in the middle of sessions, so those it cuts off have
    fewer requests than `turns` says; how many there are on average is told. At SHARE 1 a kind's
    sessions start as often as its parameter `starts` says; 0.5 makes them half as many.
    """
    shares = _shares(kinds)
    settings = _settings(shares, changes)
    if str(output) != STDOUT:
        require_target(output, may_replace=size["force"], option="-o")
    requests = size["requests"]
    rows = islice(make_rows(shares, settings, size["seed"]), requests)
    tally = Tally()
    with Terminal(Console(stderr=True)) as progress:
        told = _told(rows, requests, tally, progress)
        if str(output) == STDOUT:
            _print(told)
            return 0
        _write(told, output)
        progress.done(f"{requests} requests in {output}, of {tally.total} sessions")
        for kind, mean in tally.means():
            if (turns := settings[kind].get("turns", 0)) > CUT * mean:
                progress.note(
                    f"{kind}: {mean:.1f} requests a session and not {turns:g}, since the end of "
                    "the trace or context_tokens cuts some off; more --requests cut off fewer"
                )
    return 0


def _shares(kinds: Sequence[str]) -> dict[str, float]:
    """Every kind that is wanted, and how much of it."""
    shares: dict[str, float] = {}
    for kind, share in map(_share, kinds):
        if kind in shares:
            raise ConfigError(f"{kind} is named twice; hint: {kind}:2 is twice as much of it")
        shares[kind] = share
    return shares


def _share(text: str) -> tuple[str, float]:
    """A kind, and how much of it."""
    kind, colon, number = text.partition(":")
    if kind not in KINDS:
        raise ConfigError(f"there is no kind {kind!r}; hint: {_nearest(kind, KINDS)}")
    try:
        share = float(number) if colon else 1.0
    except ValueError:
        share = 0.0
    if not 0 < share <= SHARE_MAX:
        raise ConfigError(f"{text!r}: a share is a number above 0; hint: {kind}:0.5 is half")
    return kind, share


def _settings(shares: Mapping[str, float], changes: Sequence[str]) -> dict[str, dict[str, float]]:
    """The parameters of every kind that is wanted."""
    settings = {
        kind: {name: one.default for name, one in PARAMETERS[kind].items()} for kind in shares
    }
    for change in changes:
        target, equals, text = change.partition("=")
        if not equals:
            raise ConfigError(f"{change!r} sets nothing; hint: --set {target}=VALUE")
        wanted, dot, name = target.rpartition(".")
        places = [
            kind for kind in settings if (not dot or kind == wanted) and name in settings[kind]
        ]
        if not places:
            known = sorted({name for names in settings.values() for name in names})
            known += [f"{kind}.{name}" for kind, names in settings.items() for name in names]
            raise ConfigError(f"there is no parameter {target!r}; hint: {_nearest(target, known)}")
        for place in places:
            settings[place][name] = _value(PARAMETERS[place][name], name, text)
    return settings


def _nearest(name: str, known: Sequence[str]) -> str:
    """Which name was probably meant."""
    near = get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"


def _value(parameter: Parameter, name: str, text: str) -> float:
    """A parameter's value, in its range."""
    low, high = parameter.low, parameter.high
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not low <= value <= high:
        raise ConfigError(f"{name}={text}: not a number from {low:g} to {high:g}")
    return value


class Tally:
    """Requests and sessions of each kind. Sessions are numbered in the order of their first."""

    def __init__(self) -> None:
        """None was made yet."""
        self._requests: Counter[str] = Counter()
        self._last: dict[str, int] = {}

    def add(self, session: str) -> None:
        """One more request of a session."""
        kind, _, number = session.rpartition("-")
        self._requests[kind] += 1
        self._last[kind] = max(self._last.get(kind, 0), int(number))

    @property
    def total(self) -> int:
        """Sessions of all kinds."""
        return sum(self._last.values()) + len(self._last)

    def means(self) -> Iterator[tuple[str, float]]:
        """Requests of a session of each kind, on average."""
        for kind, last in self._last.items():
            yield kind, self._requests[kind] / (last + 1)


def _told(rows: Iterator[Row], total: int, tally: Tally, progress: Terminal) -> Iterator[Row]:
    """The same rows, counted, with word of how far they are."""
    for number, row in enumerate(rows):
        if number % REPORT_EVERY == 0:
            progress.now(f"{number} of {total} requests")
        tally.add(row.session_id)
        yield row


def _print(rows: Iterator[Row]) -> None:
    """Write to the standard output."""
    with os.fdopen(1, "wb", closefd=False) as stream:
        stream.writelines(msgspec.json.encode(row) + b"\n" for row in rows)


def _write(rows: Iterator[Row], output: Path) -> None:
    """Write a file, whole or not at all."""
    with whole(output) as raw:
        if output.suffix == ".gz":
            with gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as stream:
                stream.writelines(msgspec.json.encode(row) + b"\n" for row in rows)
        else:
            raw.writelines(msgspec.json.encode(row) + b"\n" for row in rows)
