"""`kvwise sim`: the brain in virtual time, under faults or over a trace. It shows what came of it.

One verb has several modes; an option that belongs to another mode than the one that was asked for
is refused, not ignored.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from pathlib import Path
from typing import ClassVar, Unpack

import click
from click.core import ParameterSource
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

import kvwise
from kvwise.cli.explain import print_verdict
from kvwise.cli.groups import take_kills_as_ctrl_c
from kvwise.cli.options import Sectioned
from kvwise.cli.processes import spread
from kvwise.cli.reading import Reading, reading
from kvwise.cli.sim_grid import run_grid
from kvwise.cli.sim_trace import Replaying, profile_in, replaying, run_trace
from kvwise.cli.sim_writes import Writing, run_curves, writing
from kvwise.live.events import replay
from kvwise.sim.report import Summary, failed_seed, tell
from kvwise.sim.scenario import REQUESTS, draw
from kvwise.sim.shrink import shrink
from kvwise.sim.world import AUDIT_EVERY, Outcome, run_seed

EXIT_BROKEN = 1
SEEDS = 200
SEEDS_MAX = 1_000_000
"""Hours of work; whoever wants more goes on with --first."""

SEED_MAX = (1 << 64) - 1
SEEDS_AT_ONCE = 8
EVENTS_SHOWN = 12


class Mode(Enum):
    """What a run is about, in the words of messages."""

    FAULTS = "runs with faults"
    LOG = "--replay"
    TRACE = "--trace"
    STACK = "--stack"
    WRITES = "--writes"
    GRID = "--grid"


_MODES_OF = {
    **dict.fromkeys(("seeds", "first", "seed", "requests", "audit_every"), (Mode.FAULTS,)),
    "jobs": tuple(mode for mode in Mode if mode is not Mode.LOG),
    **dict.fromkeys(("files", *Reading.__annotations__), (Mode.TRACE, Mode.STACK, Mode.WRITES)),
    **dict.fromkeys(("policy", "plan", "capacity_tokens"), (Mode.TRACE,)),
    **dict.fromkeys(("stack", "speed"), (Mode.STACK,)),
    **dict.fromkeys(Writing.__annotations__, (Mode.WRITES,)),
    "profile": (Mode.TRACE, Mode.WRITES, Mode.GRID),
    "named": (Mode.GRID,),
}
"""Parameters that do not mean something in every mode."""

GIT_S = 5.0
"""How long git may take to name the commit."""


@dataclass(frozen=True, slots=True)
class Campaign:
    """What to run: so many seeds from the first one on, each of one size."""

    seeds: int
    first: int
    requests: int
    audit_every: int
    jobs: int


class Said(Reading, Replaying, Writing):
    """All options of all modes that are not named one by one."""

    grid: bool
    named: tuple[str, ...]
    seeds: int
    first: int
    requests: int
    audit_every: int
    jobs: int


class Modes(Sectioned):
    """A command whose options belong to modes."""

    sections: ClassVar = {
        "Under faults, unless one of the others is asked for": (
            "seeds", "first", "seed", "requests", "audit_every",
        ),
        "A daemon's event log": ("log",),
        "A trace, and a cache of a size": ("traces", "policy", "plan", "capacity_tokens"),
        "A trace, and whole machines (with --trace)": ("stack", "speed"),
        "A trace, memory and a disk (with --trace)": tuple(Writing.__annotations__),
        "How a trace is read (with --trace)": tuple(Reading.__annotations__),
        "Choosing, for many prompts and tiers": ("grid", "named"),
    }  # fmt: skip
    rest: ClassVar = "In several of these"


@click.command(
    cls=Modes,
    epilog="""\b
Examples:
  kvwise sim
  kvwise sim --seeds 5000 --jobs 2
  kvwise sim --seed 0x2a --requests 200 --audit-every 1
  kvwise sim --seeds 1000 --json | jq .faults
  kvwise sim --replay events.kvlog
  kvwise sim --trace trace.jsonl.gz --policy lru --capacity-tokens 1M,3M,10M
  kvwise sim --trace folder/ --start-every 200 --capacity-tokens 1M --json
  kvwise sim --trace trace.jsonl.gz --stack stack.toml --speed 2 --jobs 4
  kvwise sim --trace trace.jsonl.gz --writes --budgets 0.25,0.1 --jobs 4
  kvwise sim --grid --jobs 4
""",
)
@click.argument(
    "files", nargs=-1, type=click.Path(exists=True, path_type=Path), metavar="[FILE...]"
)
@click.option(
    "--seeds",
    type=click.IntRange(1, SEEDS_MAX),
    default=SEEDS,
    show_default=True,
    help="How many seeds.",
)
@click.option(
    "--first",
    type=click.IntRange(0, SEED_MAX),
    default=0,
    show_default=True,
    help="The first of them.",
)
@click.option("--seed", help="Run this one seed only, and tell its failure in full.")
@click.option(
    "--requests",
    type=click.IntRange(1, 100_000),
    default=REQUESTS,
    show_default=True,
    help="Requests in each scenario; a seed means another scenario when this changes.",
)
@click.option(
    "--audit-every",
    type=click.IntRange(1),
    default=AUDIT_EVERY,
    show_default=True,
    help="Compare all state after every so many events; each event is checked anyway.",
)
@click.option(
    "--jobs", type=click.IntRange(1, 256), default=1, show_default=True, help="Processes."
)
@click.option(
    "--replay",
    "log",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Verify this log: same commands again?",
)
@click.option(
    "--trace",
    "traces",
    multiple=True,
    type=click.Path(exists=True, path_type=Path),
    metavar="FILE...",
    help="What a cache would do for this trace; more files and folders may follow.",
)
@click.option(
    "--grid",
    is_flag=True,
    help="Whether choosing is ever worse than always loading or never.",
)
@click.option(
    "--cell",
    "named",
    multiple=True,
    metavar="TOKENS,CLIENTS,GB/S",
    help="This cell alone; may be given several times.",
)
@replaying
@writing
@reading
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    files: tuple[Path, ...],
    traces: tuple[Path, ...],
    seed: str | None,
    log: Path | None,
    as_json: bool,
    **said: Unpack[Said],
) -> int:
    """Run the brain in virtual time: under faults, or over a trace of requests.

    Without --trace, the machines have faults and every command is checked.

    Each seed draws machines, settings, requests and the faults that exist at all, then checks every
    command the brain gives against an account of its own: right bytes, balanced pins and leases,
    caps, bounded waits, no suffix without its prefix, equal counters, nothing left at the end.

    The first seed that fails is shrunk to the least that still fails. Exits with 1 on a failure.

    With --trace, a trace of requests is run against a cache of so many tokens, each policy beside
    an exact LRU and one that knows the future. docs/simulator.md says what the figures mean.

    With --writes as well, memory and a disk hold shares of it, and what the disk hits is shown
    beside what it is written, for several budgets.

    With --stack instead of a size, whole machines are simulated, with engines, links and drives
    that queue.

    With --grid, prefixes of several lengths are asked for by several clients, from tiers of several
    rates: always loaded, always computed, and whichever the brain chooses.
    """
    mode = _mode(said, log is not None, bool(traces))
    take_kills_as_ctrl_c()
    if mode is Mode.GRID:
        profile = profile_in(said["profile"])
        return run_grid(profile, said["named"], jobs=said["jobs"], as_json=as_json)
    if mode is Mode.WRITES:
        profile, files = profile_in(said["profile"]), (*traces, *files)
        return run_curves(files, said, said, (profile, said["jobs"]), as_json=as_json)
    if mode in {Mode.TRACE, Mode.STACK}:
        return run_trace((*traces, *files), said, said, jobs=said["jobs"], as_json=as_json)
    if log is not None:
        verdict, _ = replay(log)
        print_verdict(verdict, as_json=as_json)
        return 0 if verdict.equal else EXIT_BROKEN
    campaign = Campaign(
        seeds=said["seeds"],
        first=said["first"],
        requests=said["requests"],
        audit_every=said["audit_every"],
        jobs=said["jobs"],
    )
    if seed is not None:
        _refuse_beside_seed()
        campaign = replace(campaign, first=_number(seed), seeds=1)
    begin_s = time.perf_counter()
    summary = Summary()
    for outcome in _shown(_outcomes(campaign), campaign.seeds):
        summary.add(outcome)
    _print(campaign, summary, time.perf_counter() - begin_s, as_json=as_json)
    return EXIT_BROKEN if summary.failed else 0


def _mode(said: Said, logged: bool, traced: bool) -> Mode:
    """The mode that was asked for.

    Raises:
        click.UsageError: an option says something about another one.
    """
    grid, stacked, writes = said["grid"], said["stack"] is not None, said["writes"]
    for name, asked in (("--stack", stacked), ("--writes", writes)):
        if asked and not traced:
            raise click.UsageError(f"{name} needs --trace")
    if stacked and writes:
        raise click.UsageError("--stack and --writes are two different things to run")
    asked_for = [
        mode
        for mode, asked in ((Mode.GRID, grid), (Mode.LOG, logged), (Mode.TRACE, traced))
        if asked
    ]
    if len(asked_for) > 1:
        first, second, *_ = (one.value for one in asked_for)
        raise click.UsageError(f"{first} and {second} are two different things to run")
    mode = asked_for[0] if asked_for else Mode.FAULTS
    if mode is Mode.TRACE:
        mode = Mode.STACK if stacked else Mode.WRITES if writes else Mode.TRACE
    context = click.get_current_context()
    for parameter in context.command.params:
        name = parameter.name or ""
        modes = _MODES_OF.get(name, tuple(Mode))
        given = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if given and mode not in modes:
            called = "a file" if name == "files" else parameter.opts[0]
            wanted = " or ".join(one.value for one in modes)
            raise click.UsageError(f"{called} is for {wanted}, not for {mode.value}")
    return mode


def _refuse_beside_seed() -> None:
    """One seed is one; who wants several says where they begin.

    Raises:
        click.UsageError: it was said how many, or which is the first.
    """
    context = click.get_current_context()
    for name in ("seeds", "first"):
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(
                f"--seed is one seed, and --{name} is about several; hint: --first 7 --seeds 5"
            )


def _number(text: str) -> int:
    """A seed, decimal or 0x hexadecimal."""
    try:
        seed = int(text, 0)
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is not a number", param_hint="--seed") from error
    if seed < 0:
        raise click.BadParameter(f"{text!r} is below 0", param_hint="--seed")
    if seed > SEED_MAX:
        raise click.BadParameter(f"{text!r} is above {SEED_MAX}", param_hint="--seed")
    return seed


def _outcomes(campaign: Campaign) -> Iterator[Outcome]:
    """The outcome of every seed, in order."""
    one = partial(run_seed, requests=campaign.requests, audit_every=campaign.audit_every)
    todo = range(campaign.first, campaign.first + campaign.seeds)
    if campaign.jobs == 1 or len(todo) == 1:
        yield from map(one, todo)
        return
    yield from spread(one, todo, campaign.jobs, SEEDS_AT_ONCE)


def _shown(outcomes: Iterator[Outcome], total: int) -> Iterator[Outcome]:
    """The same outcomes, with a bar on stderr while they come."""
    columns = (
        TextColumn("seeds"), BarColumn(), MofNCompleteColumn(),
        TimeRemainingColumn(), TextColumn("{task.fields[failed]}"),
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task, failed = progress.add_task("seeds", total=total, failed=""), 0
        for outcome in outcomes:
            failed += outcome.failure is not None
            progress.update(task, advance=1, failed=f"{failed} failed" if failed else "")
            yield outcome


def _commit() -> str:
    """The commit this runs at, or nothing where there is no repository."""
    try:
        done = subprocess.run(
            ["git", "rev-parse", "--short=12", "HEAD"],
            cwd=Path(__file__).parent, capture_output=True, text=True, timeout=GIT_S, check=True,
        )  # fmt: skip
        return done.stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def _print(campaign: Campaign, summary: Summary, took_s: float, *, as_json: bool) -> None:
    """Totals, and the first failure as small as it can be made."""
    commit, rate = _commit(), summary.seeds / took_s
    version = f"version {kvwise.__version__}"
    place = f"commit {commit}" if commit else version
    if as_json:
        timing = {"seconds": round(took_s, 3), "seeds_per_s": round(rate, 2)}
        click.echo(
            json.dumps({"commit": commit or version, **summary.to_builtins(), **timing}, indent=2)
        )
        return
    click.echo(
        f"{summary.seeds} seeds in {took_s:.1f} s ({rate:.1f}/s): {summary.events} events, "
        f"{summary.simulated_s:.0f} s simulated, {summary.done} requests served, "
        f"{summary.aborted} aborted, {summary.loaded_chunks} chunks loaded and verified"
    )
    click.echo(f"faults: {_listed(summary.faults)}")
    click.echo(f"decisions: {_listed(summary.reasons)}")
    for outcome in summary.failed:
        failed = failed_seed(outcome)
        click.echo(f"FAILED seed {outcome.seed} at {place}: {failed['rule']}")
    if not summary.failed:
        click.echo(f"no rule was broken at {place}")
        return
    seed = summary.failed[0].seed
    click.echo(f"again: kvwise sim --seed {seed} --requests {campaign.requests}")
    shrunk = shrink(draw(seed, campaign.requests), audit_every=campaign.audit_every)
    click.echo("\n".join(tell(shrunk, events=EVENTS_SHOWN)))


def _listed(counts: Counter[str]) -> str:
    """Names and counts, the most frequent first."""
    return ", ".join(f"{name} {count}" for name, count in counts.most_common()) or "none"
