"""Groups of commands that are imported on use, and how a polite kill ends one. It has no verb."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from types import FrameType
from typing import ClassVar

import click

from kvwise.errors import ConfigError


class LazyGroup(click.Group):
    """A group whose commands are imported on use, so that its help needs none of them.

    Attributes:
        table: every command with its one line in the help, in the order of the help.
        module: where the command `{}` is; the module's `command` is it.
        nouns: what a command is called, and what several are.
    """

    table: ClassVar[Mapping[str, str]]
    module: ClassVar[str]
    nouns: ClassVar[tuple[str, str]]

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Commands in the order in which a newcomer meets them."""
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, or None when there is none of that name."""
        if cmd_name not in self.table:
            return None
        name = self.module.format(cmd_name.replace("-", "_"))
        command = import_module(name).command
        if not isinstance(command, click.Command):
            raise TypeError(f"{name}.command is not a click command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command and its arguments; an unknown one is answered with the nearest name."""
        if args[0] not in self.table:
            near, path = get_close_matches(args[0], self.table, n=1), ctx.command_path
            hint = (
                f"did you mean '{path} {near[0]}'?"
                if near
                else f"{path} --help lists the {self.nouns[1].lower()}"
            )
            raise ConfigError(f"there is no {self.nouns[0]} {args[0]!r}; hint: {hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands from the table, without importing them."""
        with formatter.section(self.nouns[1]):
            formatter.write_dl(list(self.table.items()))


def take_kills_as_ctrl_c() -> None:
    """Let a polite kill or a closed terminal end this command in order, as Ctrl-C does."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        before = signal.signal(number, _interrupt)
        click.get_current_context().call_on_close(partial(signal.signal, number, before))


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Do what Ctrl-C does."""
    del number, frame
    raise KeyboardInterrupt
