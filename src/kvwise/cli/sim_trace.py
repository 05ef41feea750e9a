"""`kvwise sim --trace`: what a cache would do for a trace. `sim.replay` runs it, this shows it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, TypedDict

import click
import msgspec
from rich.console import Console

from kvwise.bench.progress import Terminal
from kvwise.cli.options import Finite, giving
from kvwise.cli.processes import spread
from kvwise.cli.reading import Reading, options_of
from kvwise.cli.sim_stack import run_stack
from kvwise.cli.sim_tables import show_results
from kvwise.core.policies import POLICIES
from kvwise.errors import ConfigError
from kvwise.sim.replay.brains import LEARNS
from kvwise.sim.replay.profile import DEFAULT, PROFILES, Profile, read_profile
from kvwise.sim.replay.single import Job, Run, run_single
from kvwise.sim.replay.sweep import Result, result_of
from kvwise.sim.replay.tape import Tape, tape_of
from kvwise.sim.trace.assembly import Report
from kvwise.sim.trace.distance import measure_reuse
from kvwise.sim.trace.read import read

PLANS = ("auto", "load", "recompute")
TOKENS_MAX = 1 << 40
RUNS_MAX = 1_000
SCALE = {"k": 1_000, "M": 1_000_000, "G": 1_000_000_000}
EVERY = "all"


class Replaying(TypedDict):
    """What to run over a trace, as options say it."""

    policy: str
    plan: str
    capacity_tokens: str | None
    profile: Path | None
    stack: Path | None
    speed: float


replaying = giving(
    [
        click.option(
            "--policy",
            default=LEARNS,
            show_default=True,
            metavar="NAME[,NAME...]",
            help=f"Eviction policies to run ({', '.join(POLICIES)}), or {EVERY}.",
        ),
        click.option(
            "--plan",
            default="auto",
            show_default=True,
            type=click.Choice(PLANS),
            help="Load what is faster, always, or never.",
        ),
        click.option(
            "--capacity-tokens",
            metavar="N[,N...]",
            help="Tokens that the cache holds; 300k, 1M and 2.5G are numbers too.",
        ),
        click.option(
            "--profile",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help=f"How fast the model is, as TOML, instead of {DEFAULT}; not with --stack.",
        ),
        click.option(
            "--stack",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="Run the machines that this TOML file describes, with all their queues.",
        ),
        click.option(
            "--speed",
            type=Finite(1e-6, 1e6),
            default=1.0,
            show_default=True,
            help="Let requests arrive so many times as fast.",
        ),
    ]
)
"""Give a command the options of `Replaying`."""


def run_trace(
    paths: Sequence[Path], reading: Reading, said: Replaying, *, jobs: int, as_json: bool
) -> int:
    """Run a trace against one tier, once for each policy and capacity, or on a stack."""
    if said["stack"] is not None:
        where = (said["stack"], said["speed"])
        return run_stack(paths, reading, where, jobs=jobs, as_json=as_json)
    if said["capacity_tokens"] is None:
        raise click.UsageError("--trace needs --capacity-tokens or --stack")
    wanted = [
        Job(policy, said["plan"], tokens)
        for policy, tokens in product(_policies(said["policy"]), _tokens(said["capacity_tokens"]))
    ]
    if len(wanted) > RUNS_MAX:
        raise click.UsageError(f"{len(wanted)} runs are more than {RUNS_MAX}")
    profile = profile_in(said["profile"])
    with Terminal(Console(stderr=True)) as progress:
        trace = read(paths, options_of(reading), progress.now)
        tape = tape_of(trace)
        for job in wanted:
            job.capacity_blocks(tape)
        reuse = measure_reuse(trace, progress.now)
        outcomes = _outcomes(tape, profile, wanted, jobs, progress.now)
        results = [
            result_of(tape, reuse, job, outcome)
            for job, outcome in zip(wanted, outcomes, strict=True)
        ]
    if as_json:
        click.echo(json.dumps(_told(trace.format, profile, results), indent=2))
    else:
        show_results(trace, profile, results, Console(highlight=False))
    return 0


def profile_in(path: Path | None) -> Profile:
    """The profile in a file, or the default one."""
    return PROFILES[DEFAULT] if path is None else read_profile(path)


def _outcomes(
    tape: Tape, profile: Profile, wanted: Sequence[Job], processes: int, report: Report
) -> Iterator[tuple[Run, float]]:
    """What comes of every job, in order, and the seconds it took."""
    if processes == 1 or len(wanted) == 1:
        yield from (_timed(tape, profile, job, report) for job in wanted)
        return
    for done, outcome in enumerate(spread(partial(_alone, tape, profile), wanted, processes), 1):
        report(f"{done} of {len(wanted)} runs")
        yield outcome


def _alone(tape: Tape, profile: Profile, job: Job) -> tuple[Run, float]:
    """One job in a process of its own, which has nothing to show."""
    return _timed(tape, profile, job, _silent)


def _silent(_text: str) -> None:
    """Show nothing."""


def _timed(tape: Tape, profile: Profile, job: Job, report: Report) -> tuple[Run, float]:
    """One job, with the seconds it took."""
    begin_s = time.perf_counter()
    run = run_single(tape, profile, job, report)
    return run, time.perf_counter() - begin_s


def _told(name: str, profile: Profile, results: Sequence[Result]) -> dict[str, Any]:
    """Everything as JSON: the runs, and if there is one only, its figures beside them."""
    runs = [result.to_builtins() for result in results]
    alone = runs[0] if len(runs) == 1 else {}
    return {"format": name, "profile": msgspec.to_builtins(profile), **alone, "runs": runs}


def _policies(text: str) -> list[str]:
    """Names of eviction policies, each once."""
    names = list(POLICIES) if text == EVERY else list(dict.fromkeys(text.split(",")))
    for name in names:
        if name not in POLICIES:
            raise ConfigError(
                f"--policy: there is no {name!r}; hint: {', '.join(POLICIES)} or {EVERY}"
            )
    return names


def _tokens(text: str) -> list[int]:
    """Numbers of tokens, each once."""
    found = []
    for part in text.split(","):
        number, scale = (part[:-1], SCALE[part[-1]]) if part[-1:] in SCALE else (part, 1)
        try:
            tokens = float(number) * scale
        except ValueError as error:
            raise ConfigError(
                f"--capacity-tokens: {part!r} is no number of tokens; hint: a number alone or with "
                f"{', '.join(SCALE)} at its end, as in 1000000, 300k, 1M and 2.5G"
            ) from error
        if not 1 <= tokens <= TOKENS_MAX:
            raise ConfigError(
                f"--capacity-tokens: {part!r} is not from 1 to {TOKENS_MAX}; hint: 1M"
            )
        found.append(int(tokens))
    return list(dict.fromkeys(found))
