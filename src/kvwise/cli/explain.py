"""`kvwise explain`: why recent requests were loaded or recomputed. It changes nothing."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvwise import config as configuration
from kvwise.cli.explain_codecs import codec_lines
from kvwise.core.words import Choice, Decision, Ending, Why
from kvwise.errors import CacheUnavailable, ConfigError
from kvwise.live.client import Client
from kvwise.live.clock import now_ns
from kvwise.live.decisions import is_decision_log, read_decisions
from kvwise.live.events import Verdict, replay
from kvwise.units import NS_PER_S, format_seconds

TIMEOUT_S = 5.0

_HUNG = "it runs but hangs, or was stopped: see its log, then end it and start another"
LIMIT_MAX = 1_000_000
REQUEST_CHARS_MAX = 72
SVG_COLUMNS = 92
COLUMNS = 80
EXIT_DIFFERS = 1

REASONS = {
    Why.FASTER: "faster than computing",
    Why.FORCED: "the policy says so",
    Why.NO_MATCH: "nothing found",
    Why.ON_DEVICE: "the device has it all",
    Why.SLOWER: "computing is faster",
    Why.TOO_LATE: "loading would take too long to wait for",
    Why.EXPLORE: "to see how fast that is by now",
    Why.TAIL_SLOWER: "computing the rest is faster",
    Why.NO_ROOM: "no room in memory",
    Why.TOO_SHORT: "too short a prompt",
    Why.BUSY: "too much under way",
    Why.DISABLED: "the request forbids it",
}
"""What the reasons of decisions mean."""

AHEAD_SHOWN = 0.01
"""Queues that make up less of a load than this are not worth a word."""

_FONT_FACE = re.compile(r"@font-face \{.*?\}\n", re.DOTALL)
"""What would have a picture fetch a font."""

_ENDINGS = {
    Ending.FAILED: "the load failed, or was given up when computing had been faster",
    Ending.UNUSED: "the engine made no use of it",
}


@click.command(
    epilog="""\b
Examples:
  kvwise explain -n 5
  kvwise explain --url /run/user/1000/kvwise/kvwise.sock --json
  kvwise explain --config kvwise.toml
  kvwise explain --log events.kvlog --replay
  kvwise explain -n 6 --svg explain.svg
"""
)
@click.option("--url", help="Socket of the daemon; the configured one by default.")
@click.option(
    "--config",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="TOML file with settings, which says where the daemon listens.",
)
@click.option(
    "--log",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="An event log or a decision log.",
)
@click.option(
    "-n",
    "limit",
    type=click.IntRange(1, LIMIT_MAX),
    default=20,
    show_default=True,
    help="How many decisions.",
)
@click.option("--replay", "verify", is_flag=True, help="Only verify a log: same commands again?")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--svg",
    type=click.Path(dir_okay=False, path_type=Path),
    help=f"Also draw what is shown, {SVG_COLUMNS} columns wide, into this file.",
)
def command(  # noqa: PLR0913  one parameter for each option
    *,
    url: str | None,
    file: Path | None,
    log: Path | None,
    limit: int,
    verify: bool,
    as_json: bool,
    svg: Path | None,
) -> int:
    """Show why recent requests were loaded or recomputed.

    Times are estimates at the moment of the decision, of the load considered best and of computing
    the same tokens instead; a load has to win by a margin. What a load took was measured; at the
    end stands how far the estimates of each tier were off.

    A log does not tell the time of day, so what is shown of one counts back from its last decision.
    """
    if verify and log is None:
        raise ConfigError("--replay needs an event log; hint: add --log FILE")
    if log is not None and (url or file):
        raise ConfigError("--log reads a file and asks no daemon; hint: leave out --url, --config")
    if svg and as_json:
        raise ConfigError("--svg draws what --json does not print; hint: leave out one of them")
    if verify and log is not None:
        verdict, _ = replay(log)
        print_verdict(verdict, as_json=as_json)
        return 0 if verdict.equal else EXIT_DIFFERS
    told = _read(log, limit) if log is not None else _ask(_socket(url, file), limit)
    if as_json:
        estimates = {tier: msgspec.to_builtins(one) for tier, one in told.estimates.items()}
        shown = {
            "decisions": msgspec.to_builtins(told.decisions),
            "estimates": estimates,
            "coding": told.coding,
        }
        click.echo(json.dumps(shown, indent=2))
    else:
        console = Console(record=True, width=SVG_COLUMNS) if svg else _console()
        _show(told, console, counts_back=log is not None)
        if svg and not told.decisions:
            raise ConfigError(f"no picture in {svg}: there are no decisions; hint: ask an engine")
        if svg:
            svg.write_text(_drawn(console, f"kvwise explain -n {limit}"), encoding="utf-8")
    return 0


def _show(told: _Told, console: Console, *, counts_back: bool) -> None:
    """Decisions, how good their estimates were, and how objects are written."""
    if not told.decisions:
        console.print(told.nothing, highlight=False, markup=False, soft_wrap=True)
    elif counts_back:
        console.print("times count back from the last decision in the log\n", highlight=False)
    if told.decisions:
        console.print(_table(told.decisions, told.at_ns))
        for tier, one in told.estimates.items():
            console.print(_judgement(tier, one), highlight=False)
    for line in codec_lines(told.coding):
        console.print(line, highlight=False, markup=False)


def _console() -> Console:
    """The terminal, or one of usual width where it claims to have none."""
    console = Console()
    return console if console.width > 0 else Console(width=COLUMNS)


def _drawn(console: Console, title: str) -> str:
    """What a console has shown, as a picture that asks for nothing from outside."""
    picture = _FONT_FACE.sub("", console.export_svg(title=title, unique_id="kvwise"))
    return "".join(f"{line.rstrip()}\n" for line in picture.splitlines())


@dataclass(frozen=True, slots=True)
class _Estimates:
    """How good the estimates of loads from a tier were: mean error and bias, as shares."""

    loads: int
    error: float
    bias: float


@dataclass(frozen=True, slots=True)
class _Told:
    """What there is to show.

    Attributes:
        at_ns: when it was so, on the clock of the decisions; None is at the last of them.
        coding: how objects are written to the tiers, as far as is known.
        nothing: what is said where there are no decisions.
    """

    decisions: list[Decision]
    estimates: dict[str, _Estimates]
    at_ns: int | None
    coding: Mapping[str, Any]
    nothing: str = "no decisions yet"


def _socket(url: str | None, file: Path | None) -> str:
    """The socket that is meant."""
    return url or configuration.load(file).socket_path


def _read(log: Path, limit: int) -> _Told:
    """The last decisions of an event log or a decision log."""
    if log.is_file() and not log.stat().st_size:
        return _Told([], {}, None, {}, f"{log} is empty: nothing was written to it yet")
    if is_decision_log(log):
        decisions, calibration = read_decisions(log, limit)
        coding: Mapping[str, Any] = {}
    else:
        _, brain = replay(log)
        decisions, calibration = brain.decisions(limit), brain.calibration()
        coding = brain.snapshot()["coding"]
    estimates = {
        tier: _Estimates(one.loads, one.mean_error, one.mean_bias)
        for tier, one in calibration.items()
    }
    return _Told(decisions, estimates, None, coding)


def _ask(url: str, limit: int) -> _Told:
    """The last decisions of a daemon, and what its clock says."""
    try:
        client = Client(url, f"explain-{os.getpid()}", timeout_s=TIMEOUT_S)
    except CacheUnavailable as error:
        is_hung = isinstance(error.__cause__, TimeoutError)
        error.add_note(_HUNG if is_hung else _elsewhere())
        raise
    try:
        decisions = client.explain(limit)
        status = client.status()
        estimates = msgspec.convert(status.get("estimates", {}), dict[str, _Estimates])
        failure = status.get("codecs", {}).get("failure", "")
        coding = {**status.get("coding", {}), "failure": failure}
        return _Told(decisions, estimates, now_ns(), coding)
    finally:
        client.close()


def _judgement(tier: str, one: _Estimates) -> str:
    """How good the estimates of a tier were, in words."""
    way = "too long" if one.bias > 0 else "too short"
    loads = "1 load" if one.loads == 1 else f"{one.loads} loads"
    return (
        f"{tier}: estimates of {loads} were off by {one.error:.0%} on average, "
        f"together {abs(one.bias):.0%} {way}"
    )


def _elsewhere() -> str:
    """Where else decisions may be found."""
    sockets = sorted(configuration.runtime_directory().glob("embedded-*.sock"))
    if sockets:
        return f"an engine's own daemon is explained with --url {sockets[0]}"
    return "name the daemon's socket with --url, or an event log with --log"


def print_verdict(verdict: Verdict, *, as_json: bool) -> None:
    """Say what replaying showed."""
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(verdict), indent=2))
        return
    if verdict.equal:
        click.echo(f"equal: {verdict.events} events lead to the same commands again")
    else:
        click.echo(f"different after {verdict.events} events: {verdict.divergence}")
    if not verdict.complete:
        click.echo("the log reached its size bound; what came later is not in it")


def _table(decisions: list[Decision], at_ns: int | None) -> Table:
    """Decisions, newest last: their age, and what happened in as many lines as it needs.

    Without a moment to count from, that of the last one is it.
    """
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    for decision in decisions:
        if at_ns is None:
            when = f"-{_span(decisions[-1].now_ns - decision.now_ns)}"
        else:
            when = f"{_span(at_ns - decision.now_ns)} ago"
        table.add_row(when, _told(decision))
    return table


def _told(decision: Decision) -> Text:
    """One decision, its choice in bold, and an empty line."""
    name, found, choice, *rest = _lines(decision)
    text = Text(f"{name}\n{found}\n")
    return text.append(choice, style="bold").append("".join(f"\n{line}" for line in [*rest, ""]))


def _span(passed_ns: int) -> str:
    """A time that has passed, in the unit that a person would use."""
    seconds = max(0, passed_ns) // NS_PER_S
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def _lines(decision: Decision) -> list[str]:
    """One decision in words: the request, the choice, and its price."""
    sources = " and ".join(f"{tokens} from {tier}" for tier, tokens in decision.tiers.items())
    what = {
        Choice.LOAD: f"load {sources}",
        Choice.LOAD_PART: f"load {sources} only",
        Choice.RECOMPUTE: "compute",
    }[decision.choice]
    cached = max(0, decision.match_tokens - decision.local_tokens)
    lines = [
        _printable(decision.request),
        f"{decision.total_tokens} tokens: {decision.local_tokens} on the device, {cached} cached",
        f"{what}: {REASONS.get(decision.why, decision.why.value)}",
    ]
    if decision.load_s > 0 or decision.recompute_s > 0:
        lines.append(_price(decision))
    if decision.ending is Ending.LOADED:
        lines.append(f"the load took {format_seconds(decision.actual_s)}")
    elif decision.ending in _ENDINGS:
        lines.append(_ENDINGS[decision.ending])
    if decision.pin_refused:
        lines.append("its pin_s was not followed: as much as may be is pinned already")
    return lines


def _price(decision: Decision) -> str:
    """What both ways were expected to take."""
    waits = []
    if decision.load_s - decision.own_s > AHEAD_SHOWN * decision.load_s:
        waits.append(f"{format_seconds(decision.load_s - decision.own_s)} of it behind other loads")
    if decision.backlog_s > 0:
        waits.append(f"the engine is busy for {format_seconds(decision.backlog_s)} anyway")
    least_s = decision.margin * decision.own_s + decision.doubt_s
    return (
        f"expected {format_seconds(decision.load_s)} to load"
        + "".join(f", {wait}" for wait in waits)
        + f"; {format_seconds(decision.recompute_s)} to compute the same; "
        f"a load must win by {format_seconds(least_s)}"
    )


def _printable(name: str) -> str:
    """A name that somebody else chose, without what a terminal would obey."""
    return "".join(letter if letter.isprintable() else "?" for letter in name[:REQUEST_CHARS_MAX])
