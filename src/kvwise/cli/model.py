"""`kvwise model`: what the KV of a model takes. `planner.shapes` computes and this shows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from fractions import Fraction
from math import ceil
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kvwise.errors import ConfigError
from kvwise.planner.catalogue import find_model, names, repository
from kvwise.planner.hardware import TierPart, read_hardware
from kvwise.planner.oracle import Oracle
from kvwise.planner.prefill import ERROR_MEDIAN, ERROR_MOST, Prefill
from kvwise.planner.shapes import Model, Precision, Precisions
from kvwise.planner.site import HBM_SHARE, WEIGHT_BYTES, weights_of
from kvwise.units import format_seconds, format_size

TOKENS = (8_192, 32_768, 131_072)
TOKENS_MAX = 1 << 30
RANKS_MAX = 4_096


@click.command(
    epilog="""\b
Examples:
  kvwise model
  kvwise model llama-3.1-70b --tp 8
  kvwise model llama-3.1-70b --tp 8 --gpu h100-sxm
  kvwise model deepseek-v3 --kv fp8 --tokens 65536
  kvwise model ./my-model/config.json --json | jq .token_bytes
"""
)
@click.argument("name", required=False, metavar="[MODEL]")
@click.option("--tp", type=click.IntRange(1, RANKS_MAX), default=1, help="Tensor-parallel ranks.")
@click.option("--pp", type=click.IntRange(1, RANKS_MAX), default=1, help="Pipeline stages.")
@click.option(
    "--kv",
    type=click.Choice(["bf16", "fp8", "nvfp4"]),
    help="How KV is kept.  [default: as the model's configuration says, else bf16]",
)
@click.option(
    "--selector",
    type=click.Choice(["fp8", "bf16"]),
    default="fp8",
    show_default=True,
    help="How selector keys of sparse attention are kept.",
)
@click.option(
    "--state",
    type=click.Choice(["bf16", "fp32"]),
    default="bf16",
    show_default=True,
    help="How states of Mamba layers are kept.",
)
@click.option("--gpu", metavar="NAME", help="Compare loading with computing on this GPU.")
@click.option(
    "--hardware",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="TOML file with GPUs and tiers of your own.",
)
@click.option(
    "--tokens",
    type=click.IntRange(1, TOKENS_MAX),
    multiple=True,
    help="Length of a sequence to size; may be given several times.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(  # noqa: PLR0913  one parameter for each option
    name: str | None,
    tp: int,
    pp: int,
    kv: str | None,
    selector: str,
    state: str,
    gpu: str | None,
    hardware: Path | None,
    tokens: tuple[int, ...],
    as_json: bool,
) -> int:
    """Show how many bytes the KV of a model takes, for a token, a sequence and a rank.

    MODEL is a name from the list that `kvwise model` prints, or the path of a config.json. Layers
    that keep a window or a state are told apart from those that grow with every token. Beside them
    stands what a prefill computes, attention included. A model of a kind that kvwise does not know
    is refused, never guessed at. Draft layers are not counted.

    With --gpu, computing a prompt is estimated for --tp such GPUs, and compared with loading its KV
    from each kind of tier: 3.0x means that it is loaded three times as fast as computed. Weights
    count as the model's configuration keeps them, else in BF16.
    """
    known = read_hardware(hardware, datetime.now(UTC).date())
    if name is None:
        _list(as_json)
        return 0
    model = find_model(name)
    if pp > len(model.layers):
        layers = f"{model.name} has {len(model.layers)} layers"
        raise ConfigError(f"{layers}, which cannot fill {pp} stages; hint: lower --pp")
    chosen = Precision[kv.upper()] if kv else model.declared or Precision.BF16
    kept = Precisions(chosen, Precision[selector.upper()], Precision[state.upper()])
    lengths = tokens or TOKENS
    told = figures(model, kept, tensor=tp, pipeline=pp, tokens=lengths)
    if gpu is not None:
        prefill = Prefill(model, known.gpu(gpu), tp * pp)
        told["loading"] = loading(prefill, model.of_rank(tp, pp), kept, known.tiers, lengths)
        told["loading"]["weights"] = _weights(prefill)
        told["loading"]["caution"] = prefill.caution or None
    if as_json:
        click.echo(json.dumps(told, indent=2))
        return 0
    console = Console(highlight=False)
    _show(model, told, console)
    if gpu is not None:
        _show_loading(told["loading"], console)
        if why := told["loading"]["weights"]["why_not"]:
            console.print(f"\n{escape(why)}", style="bold", soft_wrap=True)
        if caution := told["loading"]["caution"]:
            console.print(f"\n{escape(caution)}", style="bold", soft_wrap=True)
    if uneven := model.uneven(tp):
        console.print(f"\n{escape(uneven)}", style="bold", soft_wrap=True)
    return 0


def figures(
    model: Model, kept: Precisions, *, tensor: int, pipeline: int, tokens: Sequence[int]
) -> dict[str, Any]:
    """What a model's KV takes, in bytes; those of a rank are of the one that holds most."""
    rank = model.of_rank(tensor, pipeline)
    return {
        "model": model.name,
        "family": model.family,
        "layers": len(model.layers),
        "structure": model.structure(),
        "kv": kept.kv.name.lower(),
        "tp": tensor,
        "pp": pipeline,
        "token_bytes": _number(model.token_bytes(kept)),
        "fixed_bytes": _number(model.fixed_bytes(kept)),
        "snapshot_bytes": _number(model.state_bytes(kept)),
        "snapshot_tokens": model.snapshot_tokens(kept),
        "token_flops": model.token_flops() or None,
        "rank_token_bytes": _number(rank.token_bytes(kept)),
        "rank_fixed_bytes": _number(rank.fixed_bytes(kept)),
        "sequences": [
            {
                "tokens": count,
                "bytes": _number(model.sequence_bytes(count, kept)),
                "rank_bytes": _number(rank.sequence_bytes(count, kept)),
                "prefill_flops": model.recompute_flops(0, count) or None,
            }
            for count in tokens
        ],
    }


def loading(
    oracle: Oracle,
    rank: Model,
    kept: Precisions,
    tiers: Mapping[str, TierPart],
    tokens: Sequence[int],
) -> dict[str, Any]:
    """Computing prompts of some lengths beside loading their KV from one unit of each tier.

    Where each GPU has a unit of its own, all load at once, each what `rank` holds.
    """
    lengths = []
    for count in tokens:
        whole_bytes = float(oracle.model.sequence_bytes(count, kept))
        rank_bytes = float(rank.sequence_bytes(count, kept))
        computed_s = oracle.seconds(count)
        sizes = {name: rank_bytes if one.per_gpu else whole_bytes for name, one in tiers.items()}
        lengths.append(
            {
                "tokens": count,
                "compute_s": computed_s,
                "break_even_gb_per_s": whole_bytes / computed_s / 1e9,
                "speedup": {
                    name: computed_s / tier.load_s(sizes[name]) for name, tier in tiers.items()
                },
            }
        )
    origin = oracle.gpu.origin
    return {
        "gpu": oracle.gpu.name,
        "gpus": oracle.ranks,
        "estimate": "roofline",
        "error_median": ERROR_MEDIAN,
        "error_most": ERROR_MOST,
        "gpu_as_of": origin.as_of,
        "gpu_mark": origin.mark,
        "tiers": {
            name: {"about": tier.about, "mark": tier.origin.mark, "as_of": tier.origin.as_of}
            for name, tier in tiers.items()
        },
        "lengths": lengths,
    }


def _weights(prefill: Prefill) -> dict[str, Any]:
    """Whether the weights fit as the model keeps them, and what would make them fit."""
    room_gb = HBM_SHARE * prefill.gpu.hbm_gb * prefill.ranks
    kept = weights_of(prefill.model)
    weights_gb = prefill.model.weights * WEIGHT_BYTES[kept] / 1e9
    why = ""
    if weights_gb > room_gb:
        least = ceil(weights_gb / (HBM_SHARE * prefill.gpu.hbm_gb))
        half = "; in FP8 they fit" if kept == "bf16" and weights_gb / 2 < room_gb else ""
        why = (
            f"The weights do not fit: {weights_gb:,.0f} GB in {kept.upper()}, and "
            f"{prefill.ranks} x {prefill.gpu.name} have {room_gb:,.0f} GB for weights and KV"
            f"{half}. It takes {least} such GPUs."
        )
    return {"kept": kept, "weights_gb": weights_gb, "room_gb": room_gb, "why_not": why}


def _show_loading(told: dict[str, Any], console: Console) -> None:
    """How much sooner KV is there than it is computed, for each length and tier."""
    lengths = told["lengths"]
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for one in lengths:
        table.add_column(f"{one['tokens']:,} tokens", justify="right", no_wrap=True)
    table.add_row("computing", *(format_seconds(one["compute_s"]) for one in lengths))
    break_even = (f"{one['break_even_gb_per_s']:.3g} GB/s" for one in lengths)
    table.add_row("loading must reach", *break_even)
    for name in told["tiers"]:
        table.add_row(escape(name), *(_times(one["speedup"][name]) for one in lengths))
    console.print(escape(f"\nOn {told['gpus']} x {told['gpu']}, one prompt at a time:\n"))
    console.print(table)
    console.print(
        f"\nComputing is estimated, by {told['error_median']:.0%} wrong in the middle and by "
        f"{told['error_most']:.0%} at worst where it could be checked. 3x means that one such tier "
        "loads a prompt three times as fast as it is computed; below 1x the cache is the slower "
        "way. Under load both wait: 'kvwise sim' says more.",
        soft_wrap=True,
    )


def _times(factor: float) -> str:
    return f"{factor:,.0f}x" if factor >= 9.95 else f"{factor:.1f}x"


def _number(value: Fraction) -> int | float:
    """Whole where it is."""
    return int(value) if value.denominator == 1 else float(value)


def _list(as_json: bool) -> None:
    """Every model that goes by name."""
    kept = Precisions()
    found = [(name, find_model(name)) for name in names()]
    if as_json:
        rows = [
            {
                "model": name,
                "repository": repository(name),
                "token_bytes": _number(model.token_bytes(kept)),
                "fixed_bytes": _number(model.fixed_bytes(kept)),
            }
            for name, model in found
        ]
        click.echo(json.dumps(rows, indent=2))
        return
    table = Table(box=None, pad_edge=False)
    table.add_column("model", no_wrap=True)
    for heading in ("bytes a token", "fixed", "32,768 tokens"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, model in found:
        fixed_bytes = float(model.fixed_bytes(kept))
        table.add_row(
            name,
            f"{float(model.token_bytes(kept)):,.0f}",
            format_size(fixed_bytes) if fixed_bytes else "",
            format_size(float(model.sequence_bytes(32_768, kept))),
        )
    console = Console(highlight=False)
    console.print(table)
    console.print(
        "\nKV in bf16, all ranks together. 'fixed' is what windows and states of a sequence take, "
        "however long it is.\nAny other model: kvwise model path/to/config.json",
        soft_wrap=True,
    )


def _show(model: Model, told: dict[str, Any], console: Console) -> None:
    """One model's figures."""
    console.print(escape(f"{model.name}: {told['layers']} layers, {told['structure']}"))
    parallel = told["tp"] * told["pp"] > 1
    ranks = f"; tensor parallel {told['tp']}, pipeline parallel {told['pp']}" if parallel else ""
    said = " (as its configuration says)" if model.declared and told["kv"] != "bf16" else ""
    console.print(f"KV in {told['kv']}{said}{ranks}\n")
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    table.add_column("all ranks", justify="right", no_wrap=True)
    if parallel:
        table.add_column("the fullest rank", justify="right", no_wrap=True)
    table.add_column("computing it", justify="right", no_wrap=True)
    for what, whole, of_rank, flops in _lines(told):
        sizes = [_size(whole), _size(of_rank)] if parallel else [_size(whole)]
        table.add_row(what, *sizes, _flops(flops))
    console.print(table)
    if told["token_flops"] is None:
        console.print(f"\n{escape(model.why_no_work)}", soft_wrap=True)
    if told["snapshot_bytes"]:
        console.print(
            f"\nA kept prefix needs a snapshot of the state, {format_size(told['snapshot_bytes'])}:"
            f" as much as the KV of {told['snapshot_tokens']:,} tokens.",
            soft_wrap=True,
        )


def _lines(told: dict[str, Any]) -> Iterator[tuple[str, float, float, float | None]]:
    """The lines of the table: what it is of, bytes of all, bytes of a rank, FLOP."""
    yield "one more token", told["token_bytes"], told["rank_token_bytes"], told["token_flops"]
    if told["fixed_bytes"]:
        yield "windows and states", told["fixed_bytes"], told["rank_fixed_bytes"], None
    for one in told["sequences"]:
        yield f"{one['tokens']:,} tokens", one["bytes"], one["rank_bytes"], one["prefill_flops"]


def _flops(flops: float | None) -> str:
    """FLOP with a unit."""
    if not flops:
        return ""
    if flops >= 1e13:
        return f"{flops / 1e12:,.0f} TFLOP"
    return f"{flops / 1e9:,.0f} GFLOP" if flops >= 1e11 else f"{flops / 1e9:.3g} GFLOP"


def _size(size_bytes: float) -> str:
    """Bytes as they are where that is short, else with a unit."""
    if size_bytes < 1 << 20:
        return f"{size_bytes:,.10g} B" if size_bytes % 1 else f"{size_bytes:,.0f} B"
    return format_size(size_bytes)
