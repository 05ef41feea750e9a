"""`kvwise plan`: which tiers pay, for a model, a host and a trace. The planner decides."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Unpack

import click
from rich.console import Console

from kvwise.bench.progress import Terminal
from kvwise.cli.groups import take_kills_as_ctrl_c
from kvwise.cli.plan_check import checking, validate
from kvwise.cli.plan_options import Said, planning, site_of
from kvwise.cli.plan_page import render
from kvwise.cli.plan_text import show
from kvwise.cli.plan_told import pictured, told_of
from kvwise.cli.reading import options_of, reading
from kvwise.errors import ConfigError
from kvwise.planner.advise import advise
from kvwise.planner.catalogue import find_model
from kvwise.planner.demand import Demand
from kvwise.planner.hardware import read_hardware
from kvwise.planner.oracle import oracle_of
from kvwise.planner.shapes import Precision, Precisions
from kvwise.sim.trace.distance import measure_reuse
from kvwise.sim.trace.read import read


@click.command(
    epilog="""\b
Examples:
  kvwise plan --model llama-3.1-70b --gpu h100-sxm --tp 8 --trace chat.jsonl
  kvwise plan --model deepseek-v3 --gpu h200-sxm --tp 8 --weights fp8 --trace sessions/
  kvwise plan --model qwen3-8b --gpu l40s --trace mine.jsonl --drives 2 --drive nvme-gen4
  kvwise plan --model llama-3.1-8b --gpu l40s --trace mine.jsonl --html plan.html
  kvwise plan --model ./config.json --gpu b200-sxm --trace mine.jsonl --json | jq .decisions
  kvwise plan --validate --trace mine.jsonl --times here.csv
"""
)
@planning
@checking
@reading
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    model_name: str, files: tuple[Path, ...], *, as_json: bool, **said: Unpack[Said]
) -> int:
    """Say which tiers pay for a model, a host and a trace, one level after the other.

    Reuse first: prompts that never come back need no cache. Then what half the bytes would bring,
    what the engine's own cache hits already, what the host's memory adds, and only then drives:
    whether loading from them is quicker than computing, and how long they live. Last what a shared
    tier, a codec and a router add.

    Hits are those of an exact LRU. Computing is estimated, and nothing waits for anything: queues
    are for 'kvwise sim --stack'.
    """
    if said["validate"]:
        return validate(files, options_of(said), said, as_json=as_json)
    take_kills_as_ctrl_c()
    known = read_hardware(said["hardware"])
    model = find_model(model_name)
    chosen = Precision[said["kv"].upper()] if said["kv"] else model.declared or Precision.BF16
    oracle = oracle_of(said["recompute"], model, known.gpu(said["gpu"]), said["tp"])
    with Terminal(Console(stderr=True)) as progress:
        trace = read(files, options_of(said), progress.now)
        reuse = measure_reuse(trace, progress.now)
        if not reuse.input_blocks:
            raise ConfigError("this trace tells nothing of blocks, and so nothing of reuse")
        demand = Demand(trace, reuse, oracle)
        site = site_of(model, Precisions(chosen), known, said, demand)
        decisions = advise(site, demand, progress.now)
    told = told_of(site, demand, oracle, decisions) | pictured(site, demand, oracle, known)
    page = said["html"]
    if page is not None:
        try:
            page.write_text(render(told), "utf-8")
        except OSError as error:
            raise ConfigError(f"cannot write {page}: {error.strerror}") from error
    if as_json:
        click.echo(json.dumps(told, indent=2))
    else:
        show(told, decisions, Console(highlight=False))
    return 0
