"""`kvwise plan --search`: which sizes are best, in processes of their own. The planner searches."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import click
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kvwise.bench.progress import Progress
from kvwise.cli.options import Finite, giving
from kvwise.cli.processes import spread
from kvwise.planner.demand import Demand
from kvwise.planner.hardware import Hardware
from kvwise.planner.oracle import Oracle
from kvwise.planner.prefill import Prefill
from kvwise.planner.site import Site
from kvwise.planner.sweep import (
    REQUESTS_MAX,
    TRIED,
    Candidate,
    Guess,
    Limits,
    Trial,
    best_guesses,
    candidates,
    choose,
    guess,
    host_share,
    least_tokens,
    ranks_of,
    stack_for,
    trial_of,
    variations,
)
from kvwise.sim.replay.full import NO_CACHE, STACK, Account, run_full
from kvwise.sim.replay.stack import Stack
from kvwise.sim.replay.tape import Tape, tape_of
from kvwise.sim.trace.records import Trace
from kvwise.units import format_seconds, format_size

OBJECTIVES = ("cost", "gpu-seconds")


class Searching(TypedDict):
    """What the options say of a search."""

    search: bool
    objective: str
    ttft_max: float | None
    budget: float | None
    jobs: int


searching = giving(
    [
        click.option(
            "--search",
            is_flag=True,
            help="Look for the best sizes instead of judging these, and run those that matter in "
            "virtual time.",
        ),
        click.option(
            "--objective",
            type=click.Choice(OBJECTIVES),
            default=OBJECTIVES[0],
            show_default=True,
            help="What is to be least: USD for a million tokens of prompts, or seconds of GPUs.",
        ),
        click.option(
            "--ttft-max",
            type=Finite(0.001, 3_600),
            metavar="SECONDS",
            help="To first token at most, for 95 of 100 requests.",
        ),
        click.option(
            "--budget",
            type=Finite(0, 1e12),
            metavar="USD",
            help="A month at most, for memory and drives of all hosts.",
        ),
        click.option(
            "--jobs",
            metavar="N",
            type=click.IntRange(1, 256),
            default=lambda: len(os.sched_getaffinity(0)),
            help="Processes at a time.  [default: one for each core]",
        ),
    ]
)


@dataclass(frozen=True, slots=True)
class Asked:
    """What is searched for."""

    trace: Trace
    demand: Demand
    oracle: Oracle
    known: Hardware


@dataclass(frozen=True, slots=True)
class _Job:
    """One run of the simulator."""

    tape: Tape
    stack: Stack
    variant: str


def search(asked: Asked, site: Site, said: Searching, progress: Progress) -> dict[str, Any]:
    """Look for the best sizes; everything that was found, as plain values."""
    limits = Limits(said["ttft_max"], said["budget"])
    is_cost = said["objective"] == OBJECTIVES[0]
    is_estimated = isinstance(asked.oracle, Prefill)
    ranks = ranks_of(site.gpus, is_estimated=is_estimated)
    oracles = {site.gpus: asked.oracle}
    if is_estimated:
        oracles = {one: Prefill(site.model, asked.oracle.gpu, one) for one in ranks}
    demands = {one: asked.demand.on(oracle) for one, oracle in oracles.items()}
    least = least_tokens(asked.trace)
    every = list(candidates(site, asked.known, asked.oracle.gpu.name, ranks, least))
    progress.now(f"pricing {len(every)} combinations on the exact curve")
    guesses = [guess(one, demands) for one in every]
    first = best_guesses(guesses, limits, _by(is_cost=is_cost), TRIED)
    todo = [one.candidate for one in first]
    trials = list(_trials(todo, asked.trace, oracles, said["jobs"], progress))
    best = choose(trials, limits, _by(is_cost=is_cost))
    if best is not None:
        more = variations(best.candidate)
        trials += _trials(more, asked.trace, oracles, said["jobs"], progress)
        best = choose(trials, limits, _by(is_cost=is_cost))
    return {
        "objective": said["objective"],
        "ttft_p95_s_max": limits.ttft_s,
        "budget_usd_per_month": limits.usd_per_month,
        "combinations": len(every),
        "requests_max": REQUESTS_MAX,
        "guesses": [_guessed(one) for one in first],
        "trials": [one.told() for one in trials],
        "best": best.told() if best is not None else None,
    }


def _by(*, is_cost: bool) -> Callable[[Guess | Trial], float]:
    """What is to be least."""
    return (lambda one: one.usd_per_million_tokens) if is_cost else (lambda one: one.gpu_s)


def _guessed(one: Guess) -> dict[str, Any]:
    """A combination as the curve has it."""
    figures = {"gpu_s": one.gpu_s, "usd_per_million_tokens": one.usd_per_million_tokens}
    return {**one.candidate.told(), **figures}


def _trials(
    todo: Sequence[Candidate],
    trace: Trace,
    oracles: dict[int, Oracle],
    processes: int,
    progress: Progress,
) -> Sequence[Trial]:
    """Each combination, and its host without a cache, played through."""
    jobs, millions = list[_Job](), list[float]()
    for one in todo:
        tape = tape_of(host_share(trace, one.site.hosts, in_turn=one.in_turn))
        stack = stack_for(one, oracles[one.site.gpus])
        jobs += [_Job(tape, stack, variant) for variant in (STACK, NO_CACHE)]
        millions.append(float(tape.input_tokens.sum()) / 1e6)
    accounts = list[Account]()
    for account in spread(_run, jobs, processes):
        accounts.append(account)
        progress.now(f"{len(accounts)} of {len(jobs)} runs in virtual time")
    pairs = zip(todo, accounts[::2], accounts[1::2], millions, strict=True)
    return [trial_of(*pair) for pair in pairs]


def _run(job: _Job) -> Account:
    """One run, in a process that has nothing to show."""
    return run_full(job.tape, job.stack, job.variant, 1.0, _silent)


def _silent(_text: str) -> None:
    """Show nothing."""


def show_search(told: dict[str, Any], console: Console) -> None:
    """The trials side by side, the best one first among them by its mark."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    table.add_column("each host")
    for name in ("hits", "saved", "p50", "p95", "$/M", "life"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in told["trials"]:
        mark = "[bold green]>[/]" if one == told["best"] else ""
        saved = one["gpu_s_saved"] / max(one["gpu_s_without"], 1e-9)
        life = f"{one['life_years']:.1f} y" if one["life_years"] else "-"
        times = [format_seconds(one["ttft_s"][name]) for name in ("p50", "p95")]
        cost = f"{one['usd_per_million_tokens']:.3f}"
        hits = f"{one['hit_ratio']:.3f}"
        table.add_row(mark, escape(_said(one)), hits, f"{saved:.0%}", *times, cost, life)
    console.print(table)
    if told["best"] is None:
        console.print("None of them keeps to the time to first token.", style="bold")
    console.print(
        f"{told['combinations']} combinations were priced on the exact curve, and the best of each "
        "kind played through: one host, with its share of the requests, at most "
        f"{told['requests_max']:,} of them. 'saved' is of GPU time, beside the same host with the "
        "engine's own cache alone. Fewer bits cost quality, which you must judge.",
        soft_wrap=True,
    )


def _said(one: dict[str, Any]) -> str:
    """A combination in words, sizes first."""
    drives = f"{one['drives_per_host']} x {one['drive']}" if one["drive"] else "no drives"
    parts = [f"{one['tp']} GPUs at {one['hbm_share']:.0%}", f"KV in {one['kv']}"]
    parts += [format_size(int(one["dram_bytes_per_host"])), drives, one["eviction"]]
    parts += [f"codec {one['codec']}" if one["codec"] != "off" else ""]
    parts += ["requests in turn" if one["routing"] == "in turn" else ""]
    parts += ["shared store" if one["shared"] else ""]
    return ", ".join(part for part in parts if part)
