"""Options that say how a trace is to be read, for every verb that reads one. It reads nothing."""

from __future__ import annotations

from typing import TypedDict

import click

from kvwise.cli.options import Finite, giving
from kvwise.sim.trace.assembly import Options, Pace
from kvwise.sim.trace.read import FORMATS


class Reading(TypedDict):
    """How files are to be read, as options say it."""

    format_: str | None
    block_tokens: int | None
    start_every: float
    in_turn: bool
    pace: str
    api_factor: float
    mix_models: bool
    absolute_subagents: bool


reading = giving(
    [
        click.option(
            "--format",
            "format_",
            type=click.Choice(list(FORMATS)),
            help="What the files are, instead of telling it from their content.",
        ),
        click.option(
            "--block-tokens",
            type=click.IntRange(1, 1 << 20),
            help="Tokens of a block, where it is not the format's usual number.",
        ),
        click.option(
            "--start-every",
            type=Finite(0, 1e9),
            default=0.0,
            show_default=True,
            help="Seconds from the start of one recorded session to the next (weka, sharegpt).",
        ),
        click.option(
            "--in-turn", is_flag=True, help="Each session starts when the one before has ended."
        ),
        click.option(
            "--pace",
            type=click.Choice([pace.value for pace in Pace]),
            default=Pace.RECORDED.value,
            show_default=True,
            help="When a session's requests come: as recorded, after its pauses alone, or after "
            "its pauses and the server's times (weka).",
        ),
        click.option(
            "--api-factor",
            type=Finite(0, 1e6),
            default=1.0,
            show_default=True,
            help="What the server's times are multiplied by, with --pace scaled.",
        ),
        click.option(
            "--mix-models", is_flag=True, help="Let models of one session share blocks (weka)."
        ),
        click.option(
            "--absolute-subagents",
            is_flag=True,
            help="Times in a subagent count from the start of the session (weka).",
        ),
    ]
)
"""Give a command the options of `Reading`."""


def options_of(said: Reading) -> Options:
    """What the options mean."""
    return Options(
        format=said["format_"] or "",
        block_tokens=said["block_tokens"] or 0,
        models_apart=not said["mix_models"],
        absolute_subagents=said["absolute_subagents"],
        pace=Pace(said["pace"]),
        api_factor=said["api_factor"],
        start_every_s=said["start_every"],
        in_turn=said["in_turn"],
    )
