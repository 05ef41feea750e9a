"""`kvwise plan`: which tiers pay, for a model, a host and a trace. The planner decides."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import ClassVar, Unpack

import click
from rich.console import Console

from kvwise.bench.progress import Terminal
from kvwise.cli.groups import take_kills_as_ctrl_c
from kvwise.cli.options import Sectioned
from kvwise.cli.plan_check import checking, validate
from kvwise.cli.plan_files import require_files, write_files
from kvwise.cli.plan_options import Said, places_of, planning, refuse_idle, site_of, today
from kvwise.cli.plan_pictured import pictured
from kvwise.cli.plan_search import Asked, Searching, search, searching, show_search
from kvwise.cli.plan_text import show, show_hardware
from kvwise.cli.plan_told import Plan, told_of
from kvwise.cli.reading import Reading, options_of, reading
from kvwise.errors import ConfigError
from kvwise.planner.advise import decide, routes
from kvwise.planner.catalogue import engine_name, find_model
from kvwise.planner.demand import Demand
from kvwise.planner.hardware import read_hardware
from kvwise.planner.recompute import oracle_of
from kvwise.planner.sensitivity import with_changes
from kvwise.planner.shapes import Precision, Precisions
from kvwise.planner.site import Site
from kvwise.sim.trace.distance import measure_reuse
from kvwise.sim.trace.read import FORMATS, read
from kvwise.sim.trace.records import Trace

TABLES = ("azure", "burstgpt")
"""Formats that tell of lengths alone."""


class Headed(Sectioned):
    """A command whose options are listed by what they are about, the first need first."""

    sections: ClassVar = {
        "What to plan for": (
            "model_name", "gpu", "tp", "files", "kv", "weights", "list_hardware",
        ),
        "The hosts, and what they cost": (
            "hosts", "dram", "drives", "drive", "drive_size", "hardware",
        ),
        "What is shown and written": (
            "as_json", "html", "out", "stack", "force", "socket", "disk",
        ),
        "How long computing takes": ("recompute",),
        "Search for the best sizes": tuple(Searching.__annotations__),
        "Hold the planner against a live engine": ("validate", "quick", "times", "logs"),
        "How the trace is read": tuple(Reading.__annotations__),
    }  # fmt: skip
    rest: ClassVar = "Help"


@click.command(
    cls=Headed,
    epilog="""\b
Examples:
  kvwise plan --list-hardware
  kvwise plan --model llama-3.1-70b --gpu h100-sxm --tp 8 --trace chat.jsonl
  kvwise plan --model qwen3-8b --gpu l40s --trace mine.jsonl --dram 512GB --drives 2 --out plan/
  kvwise plan --model ./config.json --gpu b200-sxm --trace mine.jsonl --json | jq .decisions
  kvwise plan --model llama-3.1-70b --gpu h100-sxm --tp 8 --trace chat.jsonl --search
  kvwise plan --validate --trace mine.jsonl --times here.csv      # no --model, no --gpu
""",
)
@planning
@checking
@searching
@reading
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    model_name: str, files: tuple[Path, ...], *, as_json: bool, **said: Unpack[Said]
) -> int:
    """Say which tiers pay for a model, a host and a trace, one level after the other.

    From reuse (prompts that never come back need no cache) over FP8 KV, the engine's own cache,
    memory and drives to a shared tier, a codec and a router: what each saves and costs in a month,
    and what would change the verdict. Nothing waits for anything here: for queues see 'kvwise sim'.
    """
    if said["list_hardware"]:
        return _list(said["hardware"], as_json=as_json)
    refuse_idle(click.get_current_context())
    if said["validate"]:
        return validate(files, options_of(said), said, as_json=as_json, may_replace=said["force"])
    take_kills_as_ctrl_c()
    if said["search"]:
        return _search(model_name, files, said, as_json=as_json)
    require_files(model_name, files, said)
    with Terminal(Console(stderr=True)) as progress:
        plan = _planned(model_name, files, said, progress.now)
        progress.now("turning inputs to see what would change a verdict")
        told = told_of(plan) | pictured(plan)
    lacking = write_files(told, said)
    if as_json:
        click.echo(json.dumps(told, indent=2))
    else:
        show(told, Console(highlight=False))
    if lacking:
        click.echo(lacking, err=True)
    return 1 if lacking or told["bill"] is None else 0


def _list(file: Path | None, *, as_json: bool) -> int:
    """Show which GPUs and drives there are."""
    known = read_hardware(file, today())
    if as_json:
        click.echo(json.dumps(asdict(known), indent=2, default=str))
    else:
        show_hardware(known, Console(highlight=False))
    return 0


def _search(model_name: str, files: tuple[Path, ...], said: Said, *, as_json: bool) -> int:
    """Look for the sizes that are best, and show what was found."""
    with Terminal(Console(stderr=True)) as progress:
        asked, site = _asked(model_name, files, said, progress.now)
        told = search(asked, site, said, progress)
    if as_json:
        click.echo(json.dumps(told, indent=2))
    else:
        show_search(told, Console(highlight=False))
    return 0 if told["best"] is not None else 1


def _planned(
    model_name: str, files: tuple[Path, ...], said: Said, report: Callable[[str], None]
) -> Plan:
    """Read everything and decide."""
    asked, site = _asked(model_name, files, said, report)
    demand = asked.demand
    routed = routes(site, demand, report)
    decisions = with_changes(site, demand, decide(site, demand, routed), routed)
    places, name = places_of(said), engine_name(model_name)
    return Plan(site, demand, asked.oracle, asked.known, decisions, places, name)


def _asked(
    model_name: str, files: tuple[Path, ...], said: Said, report: Callable[[str], None]
) -> tuple[Asked, Site]:
    """Read everything."""
    known = read_hardware(said["hardware"], today())
    model = find_model(model_name)
    if uneven := model.uneven(said["tp"]):
        raise ConfigError(uneven)
    chosen = Precision[said["kv"].upper()] if said["kv"] else model.declared or Precision.BF16
    oracle = oracle_of(said["recompute"], model, known.gpu(said["gpu"]), said["tp"])
    trace = read(files, options_of(said), report)
    _require_blocks(trace)
    reuse = measure_reuse(trace, report)
    demand = Demand(trace, reuse, oracle)
    return Asked(trace, demand, oracle, known), site_of(
        model, Precisions(chosen), known, said, demand
    )


def _require_blocks(trace: Trace) -> None:
    """Refuse requests of which nobody knows what they have in common."""
    if not len(trace.parents) and any(one.input_tokens for one in trace.requests):
        known = ", ".join(name for name in FORMATS if name not in TABLES)
        raise ConfigError(
            f"this trace ({trace.format}) tells nothing of blocks, and so nothing of reuse; "
            f"hint: traces with blocks have the format {known}"
        )
