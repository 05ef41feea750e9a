"""What `kvwise plan` may be asked for: its options, and the hosts that they describe.

It reads no trace and decides nothing.
"""

from __future__ import annotations

from math import ceil
from pathlib import Path

import click

from kvwise.cli.options import giving
from kvwise.cli.plan_check import Checking, ToPlan
from kvwise.cli.reading import Reading
from kvwise.errors import ConfigError
from kvwise.planner.advise import Site
from kvwise.planner.demand import Demand
from kvwise.planner.hardware import Hardware
from kvwise.planner.shapes import Model, Precisions
from kvwise.units import parse_size

WEIGHT_BYTES = {"bf16": 2.0, "fp8": 1.0, "fp4": 0.5625}
DRAM_TIER = "dram-pcie5"
BUSY = 0.7
"""Of the time, what prefill may keep a host busy without a cache, where nobody says how many."""


class Said(Reading, Checking):
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


planning = giving(
    [
        click.option(
            "--model",
            "model_name",
            cls=ToPlan,
            metavar="MODEL",
            required=True,
            help="See 'kvwise model'.",
        ),
        click.option("--gpu", cls=ToPlan, metavar="NAME", required=True, help="What computes."),
        click.option(
            "--tp", type=click.IntRange(1, 4096), default=1, help="GPUs of a host, one engine."
        ),
        click.option(
            "--trace",
            "files",
            cls=ToPlan,
            multiple=True,
            required=True,
            type=click.Path(exists=True, path_type=Path),
            metavar="FILE",
            help="Requests to plan for; several files, or the files of a folder, are one trace.",
        ),
        click.option(
            "--kv",
            type=click.Choice(["bf16", "fp8", "nvfp4"]),
            help="How KV is kept.  [default: as the model's configuration says, else bf16]",
        ),
        click.option(
            "--weights",
            type=click.Choice(list(WEIGHT_BYTES)),
            default="bf16",
            show_default=True,
            help="How weights are kept.",
        ),
        click.option(
            "--hosts",
            type=click.IntRange(1, 10_000),
            help="Hosts that are alike.  [default: so many that prefill alone keeps them 70 % "
            "busy]",
        ),
        click.option(
            "--dram",
            metavar="SIZE",
            default="1TB",
            show_default=True,
            help="Memory for KV, each host.",
        ),
        click.option(
            "--drives",
            type=click.IntRange(0, 64),
            default=4,
            show_default=True,
            help="In each host.",
        ),
        click.option(
            "--drive", metavar="NAME", default="nvme-gen5", show_default=True, help="Kind of drive."
        ),
        click.option(
            "--drive-size", metavar="SIZE", default="7.68TB", show_default=True, help="Of one."
        ),
        click.option(
            "--hardware",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="TOML file with GPUs and tiers of your own.",
        ),
        click.option(
            "--html",
            type=click.Path(dir_okay=False, writable=True, path_type=Path),
            help="Write a page with pictures there too.",
        ),
    ]
)
"""Give a command the options of `Said`, but for those that say how to read a trace."""


def site_of(model: Model, kept: Precisions, known: Hardware, said: Said, demand: Demand) -> Site:
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
