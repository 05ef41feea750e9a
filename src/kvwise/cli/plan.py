"""`kvwise plan`: which tiers pay, for a model, a host and a trace. The planner decides."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from math import ceil
from pathlib import Path
from typing import Any, Unpack

import click
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kvwise.bench.progress import Terminal
from kvwise.cli.groups import take_kills_as_ctrl_c
from kvwise.cli.model import TOKENS, loading
from kvwise.cli.plan_page import render
from kvwise.cli.reading import Reading, options_of, reading
from kvwise.errors import ConfigError
from kvwise.planner.advise import Decision, Site, Verdict, advise
from kvwise.planner.catalogue import find_model
from kvwise.planner.demand import Demand
from kvwise.planner.hardware import Hardware, read_hardware
from kvwise.planner.prefill import ERROR_MEDIAN, ERROR_MOST, Prefill
from kvwise.planner.shapes import Model, Precision, Precisions
from kvwise.sim.trace.distance import measure_reuse
from kvwise.sim.trace.read import read
from kvwise.units import parse_size

WEIGHT_BYTES = {"bf16": 2.0, "fp8": 1.0, "fp4": 0.5625}
STYLES = {Verdict.YES: "bold green", Verdict.HAVE: "green", Verdict.NO: "bold", Verdict.MAYBE: ""}
DRAM_TIER = "dram-pcie5"
SHARES = (0.25, 0.5, 0.75, 0.9)
BUSY = 0.7
"""Of the time, what prefill may keep a host busy without a cache, where nobody says how many."""


class Said(Reading):
    """What the options say of host and trace."""

    gpu: str
    tp: int
    kv: str | None
    weights: str
    hosts: int | None
    dram: str
    drive: str
    drives: int
    drive_size: str
    hardware: Path | None
    html: Path | None


@click.command(
    epilog="""\b
Examples:
  kvwise plan --model llama-3.1-70b --gpu h100-sxm --tp 8 --trace chat.jsonl
  kvwise plan --model deepseek-v3 --gpu h200-sxm --tp 8 --weights fp8 --trace sessions/
  kvwise plan --model qwen3-8b --gpu l40s --trace mine.jsonl --drives 2 --drive nvme-gen4
  kvwise plan --model llama-3.1-8b --gpu l40s --trace mine.jsonl --html plan.html
  kvwise plan --model ./config.json --gpu b200-sxm --trace mine.jsonl --json | jq .decisions
"""
)
@click.option("--model", "model_name", metavar="MODEL", required=True, help="See 'kvwise model'.")
@click.option("--gpu", metavar="NAME", required=True, help="What computes.")
@click.option("--tp", type=click.IntRange(1, 4096), default=1, help="GPUs of a host, one engine.")
@click.option(
    "--trace",
    "files",
    multiple=True,
    required=True,
    type=click.Path(exists=True, path_type=Path),
    metavar="FILE",
    help="Requests to plan for; several files, or the files of a folder, are one trace.",
)
@click.option(
    "--kv",
    type=click.Choice(["bf16", "fp8", "nvfp4"]),
    help="How KV is kept.  [default: as the model's configuration says, else bf16]",
)
@click.option(
    "--weights",
    type=click.Choice(list(WEIGHT_BYTES)),
    default="bf16",
    show_default=True,
    help="How weights are kept.",
)
@click.option(
    "--hosts",
    type=click.IntRange(1, 10_000),
    help="Hosts that are alike.  [default: so many that prefill alone keeps them 70 % busy]",
)
@click.option(
    "--dram", metavar="SIZE", default="1TB", show_default=True, help="Memory for KV, each host."
)
@click.option(
    "--drives", type=click.IntRange(0, 64), default=4, show_default=True, help="In each host."
)
@click.option(
    "--drive", metavar="NAME", default="nvme-gen5", show_default=True, help="Kind of drive."
)
@click.option("--drive-size", metavar="SIZE", default="7.68TB", show_default=True, help="Of one.")
@click.option(
    "--hardware",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="TOML file with GPUs and tiers of your own.",
)
@click.option(
    "--html",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Write a page with pictures there too.",
)
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
    take_kills_as_ctrl_c()
    known = read_hardware(said["hardware"])
    model = find_model(model_name)
    chosen = Precision[said["kv"].upper()] if said["kv"] else model.declared or Precision.BF16
    prefill = Prefill(model, known.gpu(said["gpu"]), said["tp"])
    with Terminal(Console(stderr=True)) as progress:
        trace = read(files, options_of(said), progress.now)
        reuse = measure_reuse(trace, progress.now)
        if not reuse.input_blocks:
            raise ConfigError("this trace tells nothing of blocks, and so nothing of reuse")
        demand = Demand(trace, reuse, prefill)
        site = _site(model, Precisions(chosen), known, said, demand)
        decisions = advise(site, demand, progress.now)
    told = _told(site, demand, prefill, decisions) | _pictured(site, demand, prefill, known)
    page = said["html"]
    if page is not None:
        try:
            page.write_text(render(told), "utf-8")
        except OSError as error:
            raise ConfigError(f"cannot write {page}: {error.strerror}") from error
    if as_json:
        click.echo(json.dumps(told, indent=2))
    else:
        _show(told, decisions, Console(highlight=False))
    return 0


def _site(model: Model, kept: Precisions, known: Hardware, said: Said, demand: Demand) -> Site:
    """What the options describe."""
    drive = known.tiers.get(said["drive"].lower())
    if drive is None or drive.per_gpu:
        kinds = ", ".join(name for name, tier in known.tiers.items() if not tier.per_gpu)
        raise ConfigError(f"there is no drive {said['drive']!r}; hint: there is {kinds}")
    return Site(
        model=model,
        kept=kept,
        gpus=said["tp"],
        hbm_bytes=known.gpu(said["gpu"]).hbm_gb * 1e9,
        weight_bytes=WEIGHT_BYTES[said["weights"]],
        hosts=said["hosts"] or max(1, ceil(demand.engines / BUSY)),
        dram=known.tiers[DRAM_TIER],
        dram_bytes=_bytes("--dram", said["dram"]),
        drive=drive,
        drives=said["drives"],
        drive_bytes=_bytes("--drive-size", said["drive_size"]),
        snapshot_tokens=demand.new_tokens_per_request if model.state_bytes(kept) else 0.0,
    )


def _bytes(option: str, text: str) -> int:
    """A size that an option gives."""
    try:
        return parse_size(text)
    except (ValueError, OverflowError) as error:
        raise click.BadParameter(str(error), param_hint=option) from error


def _told(
    site: Site, demand: Demand, prefill: Prefill, decisions: Sequence[Decision]
) -> dict[str, Any]:
    """The whole answer."""
    return {
        "made": datetime.now(UTC).isoformat(timespec="minutes"),
        "command": shlex.join(["kvwise", *sys.argv[1:]]),
        "model": site.model.name,
        "kv": site.kept.kv.name.lower(),
        "token_bytes": site.token_bytes,
        "gpu": prefill.gpu.name,
        "gpus_per_host": site.gpus,
        "hosts": site.hosts,
        "engines_busy_with_prefill": demand.engines,
        "typical_prompt_tokens": demand.typical_tokens,
        "typical_prompt_s": demand.computing_one(demand.typical_tokens),
        "estimate": {"by": "roofline", "error_median": ERROR_MEDIAN, "error_most": ERROR_MOST},
        "hardware": {
            one.name: {
                "as_of": one.origin.as_of,
                "mark": one.origin.mark,
                "from": one.origin.source,
            }
            for one in (prefill.gpu, site.dram, site.drive)
        },
        "decisions": [
            {
                "boundary": one.boundary,
                "verdict": one.verdict.value,
                "why": one.why,
                "numbers": one.numbers,
                "confidence": one.confidence,
            }
            for one in decisions
        ],
        "serve": _serve(site, decisions),
        "notes": _notes(site, demand, decisions),
    }


def _pictured(
    site: Site, demand: Demand, prefill: Prefill, known: Hardware
) -> dict[str, list[dict[str, Any]]]:
    """What pictures show: hits of some sizes, and loading beside computing at some lengths."""
    each = site.token_bytes
    device, memory = site.device_tokens * each, site.memory_bytes
    sizes = {"GPUs alone": device, "with memory": memory, "with drives": memory + site.disk_bytes}
    enough = demand.capacity_for(1.0) * each
    others = {f"{share:.0%} of all hits": demand.capacity_for(share) * each for share in SHARES}
    every = [(label, size, True) for label, size in sizes.items() if size]
    every += [(label, size, False) for label, size in others.items()]
    every.append(("all that can be hit", enough, False))
    shown = sorted(every, key=lambda one: one[1])
    rank = site.model.of_rank(site.gpus)
    lengths = loading(prefill, rank, site.kept, known.tiers, TOKENS)["lengths"]
    return {
        "sizes": [
            {
                "label": label,
                "bytes": size,
                "hit_ratio": demand.saving(size / each).hit_ratio,
                "is_here": is_here,
            }
            for label, size, is_here in shown
            if demand.reuse
        ],
        "loading": lengths,
    }


def _serve(site: Site, decisions: Sequence[Decision]) -> str | None:
    """The daemon that the decisions come to, for one host; None for none."""
    verdicts = {one.boundary: one.verdict for one in decisions}
    if verdicts.get("dram") is not Verdict.YES:
        return None
    numbers = next(one.numbers for one in decisions if one.boundary == "dram")
    enough = numbers["bytes_for_90_percent_of_hits"] / site.hosts
    parts = ["kvwise", "serve", "--dram", f"{ceil(min(site.dram_bytes, enough) / 1e9)}GB"]
    if verdicts.get("nvme") is Verdict.YES:
        for number in range(site.drives):
            parts += ["--disk", f"/mnt/nvme{number}/kvwise"]
        parts += ["--disk-size", f"{0.95 * site.drives * site.drive_bytes / 1e12:.1f}TB"]
        if site.drive.dwpd:
            parts.insert(0, f"KVWISE_DISK_DWPD={site.drive.dwpd:g}")
    return shlex.join(parts)


def _notes(site: Site, demand: Demand, decisions: Sequence[Decision]) -> list[str]:
    """What else a reader must know."""
    verdicts = {one.boundary: one.verdict for one in decisions}
    notes = []
    if verdicts["reuse"] is Verdict.NO:
        notes.append("Do not offload: there is nothing to load again.")
    elif verdicts["hbm"] is Verdict.NO:
        notes.append("Nothing more was looked at: this engine does not start.")
    elif verdicts["dram"] is not Verdict.YES and verdicts["nvme"] is not Verdict.YES:
        notes.append("The engine's own cache is enough for these requests: you need no other.")
    if demand.engines > site.hosts:
        notes.append(
            f"Prefill alone needs {demand.engines:.1f} hosts: {site.hosts} cannot serve this trace "
            "without a cache."
        )
    if site.model.state_bytes(site.kept):
        notes.append("The vLLM connector refuses models with recurrent states so far.")
    return notes


def _show(told: dict[str, Any], decisions: Sequence[Decision], console: Console) -> None:
    """The answer as text."""
    gpus = f"{told['gpus_per_host']} x {told['gpu']}"
    console.print(
        escape(
            f"{told['model']}, KV in {told['kv']} ({told['token_bytes']:,.0f} bytes a token), "
            f"{told['hosts']} {'host' if told['hosts'] == 1 else 'hosts'} of {gpus}"
        ),
        soft_wrap=True,
    )
    console.print(
        f"prefill alone keeps {told['engines_busy_with_prefill']:.2f} such hosts busy; the middle "
        f"prompt has {told['typical_prompt_tokens']:,} tokens and takes "
        f"{told['typical_prompt_s']:.2f} s\n",
        soft_wrap=True,
    )
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("level")
    table.add_column("verdict", no_wrap=True)
    table.add_column("why")
    for one in decisions:
        style = STYLES[one.verdict]
        verdict = f"[{style}]{one.verdict.value}[/]" if style else one.verdict.value
        table.add_row(one.boundary, verdict, escape(one.why))
    console.print(table)
    if told["serve"]:
        console.print("on each host:", style="bold")
        console.print(f"  {escape(told['serve'])}", soft_wrap=True)
    for note in told["notes"]:
        console.print(escape(note), style="bold", soft_wrap=True)
    estimate = told["estimate"]
    console.print(
        f"\nHits are those of an exact LRU; kvwise's policy does better on most traces. Computing "
        f"is estimated, {estimate['error_median']:.0%} wrong in the middle where it could be "
        f"checked. Nobody waits for anybody here: 'kvwise sim --stack' plays queues through. "
        "--json has the numbers behind each line, and where those of the hardware are from.",
        soft_wrap=True,
    )
