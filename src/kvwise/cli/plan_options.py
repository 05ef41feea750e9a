"""What `kvwise plan` may be asked for: its options, and the hosts that they describe.

It reads no trace and decides nothing.
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from math import ceil
from pathlib import Path

import click
from click.core import ParameterSource

from kvwise.cli.options import Named, giving
from kvwise.cli.plan_check import Checking, ToPlan
from kvwise.cli.plan_search import Searching
from kvwise.cli.reading import Reading
from kvwise.errors import ConfigError
from kvwise.planner.demand import Demand
from kvwise.planner.hardware import Hardware
from kvwise.planner.prices import Prices
from kvwise.planner.shapes import Model, Precisions
from kvwise.planner.site import WEIGHT_BYTES, Site, weights_of
from kvwise.planner.sizes import MEMORY_MOST_BYTES
from kvwise.planner.stack import Places
from kvwise.units import parse_size

BUSY = 0.7
"""Of the time, what prefill may keep a host busy without a cache, where nobody says how many."""

HOSTS_MAX = 10_000
DRAM = "1TB"
"""Memory for KV of a host of which nobody says how much it has."""

LEAST_BYTES = 10**8
"""Less memory or drive than that is a size whose unit was forgotten."""


class Said(Reading, Checking, Searching):
    """What the options say of host and trace."""

    gpu: str
    tp: int
    kv: str | None
    weights: str | None
    hosts: int | None
    dram: str | None
    drive: str
    drives: int
    drive_size: str
    hardware: Path | None
    html: Path | None
    stack: Path | None
    out: Path | None
    force: bool
    list_hardware: bool
    socket: str
    disk: tuple[str, ...]


planning = giving(
    [
        click.option(
            "--model",
            "model_name",
            cls=ToPlan,
            metavar="MODEL",
            required=True,
            help="A name that 'kvwise model' lists, or the path of a config.json.",
        ),
        click.option(
            "--gpu",
            cls=ToPlan,
            metavar="NAME",
            required=True,
            help="What computes; --list-hardware has the names.",
        ),
        click.option(
            "--tp",
            metavar="N",
            type=click.IntRange(1, 4096),
            default=1,
            show_default=True,
            help="GPUs of a host, all for one engine.",
        ),
        click.option(
            "--trace",
            "files",
            cls=ToPlan,
            multiple=True,
            required=True,
            type=click.Path(exists=True, path_type=Path),
            metavar="FILE",
            help="Requests to plan for; several files or a folder are one trace.",
        ),
        click.option(
            "--kv",
            type=click.Choice(["bf16", "fp8", "nvfp4"]),
            help="How KV is kept.  [default: as the model says, else bf16]",
        ),
        click.option(
            "--weights",
            type=click.Choice(list(WEIGHT_BYTES)),
            help="How weights are kept.  [default: as the model says, else bf16]",
        ),
        click.option(
            "--hosts",
            metavar="N",
            type=click.IntRange(1, HOSTS_MAX),
            help="Hosts that are alike.  [default: so many that prefill keeps them 70 % busy]",
        ),
        click.option(
            "--dram",
            metavar="SIZE",
            help="Memory for KV that each host has at most.  [default: "
            f"{DRAM}, or up to 2TB where that saves more; above 2TB only what is given is weighed]",
        ),
        click.option(
            "--drives",
            metavar="N",
            type=click.IntRange(0, 64),
            default=4,
            show_default=True,
            help="Drives in each host.",
        ),
        click.option(
            "--drive", metavar="NAME", default="nvme-gen5", show_default=True, help="Kind of drive."
        ),
        click.option(
            "--drive-size",
            metavar="SIZE",
            default="7.68TB",
            show_default=True,
            help="Of one drive.",
        ),
        click.option(
            "--hardware",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="TOML file with prices, GPUs and tiers of your own.",
        ),
        click.option(
            "--html",
            cls=Named,
            type=click.Path(dir_okay=False, writable=True, path_type=Path),
            help="A page with pictures.",
        ),
        click.option(
            "--stack",
            cls=Named,
            type=click.Path(dir_okay=False, writable=True, path_type=Path),
            help="The daemon's configuration, for 'kvwise serve --config'.",
        ),
        click.option(
            "--out",
            cls=Named,
            type=click.Path(file_okay=False, path_type=Path),
            help="All of it: plan.json, plan.html, stack.toml, vllm.sh, sglang.sh.",
        ),
        click.option(
            "--force",
            is_flag=True,
            help="Write over files that are there; take away those of an older plan in --out.",
        ),
        click.option(
            "--socket",
            metavar="PATH",
            default="",
            help="Where daemon and engines meet.  [default: as 'kvwise serve' does for this user]",
        ),
        click.option(
            "--disk",
            cls=Named,
            metavar="PATH",
            multiple=True,
            help="Folder on a drive, once for each.  [default: /mnt/nvme0/kvwise and so on]",
        ),
        click.option(
            "--list-hardware",
            is_flag=True,
            is_eager=True,
            help="Print the names of GPUs and drives instead.",
        ),
    ]
)
"""Give a command the options of `Said`, but for those that say how to read a trace."""


def today() -> date:
    """The day it is, before which hardware and prices were looked up."""
    return datetime.now(UTC).date()


ONLY_WITH = {
    "search": ("objective", "ttft_max", "budget", "jobs"),
    "validate": ("quick", "times", "logs"),
}
"""Options that say nothing without another."""
ONLY_PLAN = ("html", "stack", "out", "socket", "disk")


def refuse_idle(ctx: click.Context) -> None:
    """Refuse options that would do nothing.

    Raises:
        UsageError: there is one.
    """
    typed = ParameterSource.COMMANDLINE
    names = {one.name or "": one.opts[0] for one in ctx.command.params}
    given = {name for name in names if ctx.get_parameter_source(name) is typed}
    for mode, those in ONLY_WITH.items():
        if not ctx.params[mode] and (idle := [name for name in those if name in given]):
            raise click.UsageError(f"{names[idle[0]]} needs --{mode}", ctx)
        if ctx.params[mode] and (idle := [name for name in ONLY_PLAN if name in given]):
            raise click.UsageError(f"{names[idle[0]]} is for a plan, not for --{mode}", ctx)
    if ctx.params["search"] and ctx.params["validate"]:
        raise click.UsageError("--search and --validate are two different things", ctx)


def site_of(model: Model, kept: Precisions, known: Hardware, said: Said, demand: Demand) -> Site:
    """What the options describe."""
    drive = known.tiers.get(said["drive"].lower())
    if drive is None or drive.per_gpu:
        kinds = ", ".join(name for name, tier in known.tiers.items() if not tier.per_gpu)
        raise ConfigError(f"there is no drive {said['drive']!r}; hint: there is {kinds}")
    if said["disk"] and len(said["disk"]) != said["drives"]:
        raise ConfigError(
            f"{len(said['disk'])} x --disk for {said['drives']} drives; "
            f"hint: --drives {len(said['disk'])}"
        )
    drive_bytes = _bytes("--drive-size", said["drive_size"])
    is_said = said["dram"] is not None
    dram_bytes = _bytes("--dram", said["dram"] if said["dram"] is not None else DRAM)
    return Site(
        model=model,
        kept=kept,
        gpus=said["tp"],
        hbm_bytes=known.gpu(said["gpu"]).hbm_gb * 1e9,
        weight_bytes=WEIGHT_BYTES[said["weights"] or weights_of(model)],
        hosts=said["hosts"] or _hosts(demand),
        dram=known.memory(said["gpu"]),
        dram_bytes=dram_bytes,
        drive=drive,
        drives=said["drives"] if drive_bytes else 0,
        drive_bytes=drive_bytes,
        prices=Prices.of(known, said["gpu"].lower(), drive.name),
        snapshot_tokens=demand.new_tokens_per_request if model.state_bytes(kept) else 0.0,
        dram_most_bytes=dram_bytes if is_said else MEMORY_MOST_BYTES,
    )


def _hosts(demand: Demand) -> int:
    """So many that prefill alone keeps them as busy as it may."""
    hosts = max(1, ceil(demand.engines / BUSY))
    if hosts > HOSTS_MAX:
        raise ConfigError(
            f"these requests would keep {hosts:,} hosts busy: they come within {demand.span_s:.3g} "
            "s; hint: a trace with the times at which they came, or --hosts"
        )
    return hosts


def _bytes(option: str, text: str) -> int:
    """A size that an option gives: nothing, or what memory and drives are sold in."""
    try:
        size_bytes = parse_size(text)
    except (ValueError, OverflowError) as error:
        raise click.BadParameter(str(error), param_hint=option) from error
    if 0 < size_bytes < LEAST_BYTES:
        hint = f"{text} is {size_bytes:,} bytes; hint: write a unit, as in 512GB or 7.68TB"
        raise click.BadParameter(hint, param_hint=option)
    return size_bytes


def places_of(said: Said) -> Places:
    """Where things are on a host."""
    socket = _absolute(said["socket"]) if said["socket"] else ""
    drives = tuple(map(_absolute, said["disk"]))
    return Places(socket, drives) if drives else Places(socket)


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().absolute())
