"""What long benches have in common: options of those with an engine, ends, how notes are shown."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import click
from rich.console import Console
from rich.markup import escape

from kvwise.bench.engine_prompts import LEAST_TOKENS
from kvwise.bench.rows import Rows
from kvwise.cli.options import Command, giving

PROMPT_TOKENS_MAX = 3900
"""The engine's context, less an answer."""


def engine_options(*, out: str, prompt_tokens: int) -> Callable[[Command], Command]:
    """The options of a bench that starts engines, with its own defaults for two of them."""
    options = (
        click.option(
            "--prompt-tokens",
            type=click.IntRange(LEAST_TOKENS, PROMPT_TOKENS_MAX),
            default=prompt_tokens,
            show_default=True,
            help="Tokens of each prompt.",
        ),
        click.option("--quick", is_flag=True, help="Fewer of everything: shows that it works."),
        click.option(
            "--spare-cores",
            type=click.IntRange(0),
            default=spare_cores,
            help="Cores that engines leave to everything else.  [default: 1 where there are two]",
        ),
        click.option("--seed", type=int, default=1, show_default=True, help="Draws prompts."),
        click.option(
            "--out",
            type=click.Path(file_okay=False, path_type=Path),
            default=Path(out),
            show_default=True,
            help="Folder for the logs; the disk tier lies there during the run.",
        ),
        click.option("--json", "as_json", is_flag=True, help="Print the rows as JSON."),
    )

    return giving(options)


def spare_cores() -> int:
    """One core, unless there is only one."""
    return min(1, len(os.sched_getaffinity(0)) - 1)


def end_in_order() -> None:
    """Let a polite kill or a closed terminal end a run in order, as Ctrl-C does."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise KeyboardInterrupt


def show_notes(rows: Rows, console: Console) -> None:
    """What a reader must know to take the numbers right."""
    for note in rows.notes:
        console.print(f"[yellow]note[/yellow]: {escape(note)}", highlight=False)
