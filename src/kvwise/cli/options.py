"""Options that several verbs share, and help that lists them under headings. It runs nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import Any, ClassVar, TypeVar

import click

from kvwise.units import parse_size

Command = TypeVar("Command", bound=Callable[..., Any])
SIZE_MAX = 1 << 53
"""Bytes; no size in a configuration is larger."""

RANGE = re.compile(r"\S*x[<>]=?\S+")
"""What click says of the values that an option takes, in a line of help."""


class Finite(click.FloatRange):
    """A number in a range; what is no number is in none."""

    def convert(
        self, value: float, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """The number, refused where it is not finite."""
        number: float = super().convert(value, param, ctx)
        if not isfinite(number):
            self.fail(f"{value!r} is not a finite number", param, ctx)
        return number


def as_bytes(_: click.Context, __: click.Parameter, value: str) -> int:
    """What an option gives as 4GiB or 500GB; for `callback`.

    Raises:
        BadParameter: the text is no size.
    """
    try:
        size_bytes = parse_size(value)
    except (ValueError, OverflowError) as error:
        raise click.BadParameter(str(error)) from error
    if size_bytes > SIZE_MAX:
        raise click.BadParameter(f"{value!r} is more than 8PiB")
    return size_bytes


def giving(options: Sequence[Callable[[Command], Command]]) -> Callable[[Command], Command]:
    """Give a command these options, in their order."""

    def with_options(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return with_options


class Named(click.Option):
    """An option whose value is not empty: an empty path elsewhere means the folder one is in."""

    def process_value(self, ctx: click.Context, value: object) -> object:
        """The value, refused where there is none."""
        if value == "" or (isinstance(value, list | tuple) and "" in value):
            raise click.BadParameter("it is empty; . is the folder that you are in", ctx, self)
        return super().process_value(ctx, value)


class Sectioned(click.Command):
    """A command with so many options that its help lists them under headings.

    Ranges of values are left to the message that refuses what is outside: lines are for scanning.

    Attributes:
        sections: names of options under each heading, in the order of the help.
        rest: the heading of all others.
    """

    sections: ClassVar[Mapping[str, Sequence[str]]]
    rest: ClassVar[str]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List every option once."""
        heading_of = {name: heading for heading, names in self.sections.items() for name in names}
        lines: dict[str, list[tuple[str, str]]] = {heading: [] for heading in self.sections}
        lines[self.rest] = []
        for parameter in self.get_params(ctx):
            line = parameter.get_help_record(ctx)
            if line is not None and isinstance(parameter, click.Option):
                names, said = line
                heading = heading_of.get(parameter.name or "", self.rest)
                lines[heading].append((names, _without_range(said)))
        for heading, found in lines.items():
            with formatter.section(heading):
                formatter.write_dl(found)


def _without_range(said: str) -> str:
    """A line of help without the range of values."""
    text, mark, extra = said.rpartition("[")
    if not mark or not extra.endswith("]"):
        return said
    parts = extra.removesuffix("]").split("; ")
    kept = "; ".join(part for part in parts if not RANGE.fullmatch(part))
    return f"{text}[{kept}]" if kept else text.rstrip()
