"""`kvwise bench`: one subcommand per bench, imported when used. It measures nothing itself."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from typing import Final

import click

from kvwise.errors import ConfigError

BENCHES: Final[dict[str, str]] = {
    "soak": "A daemon under abuse, for minutes or days: wrong bytes, leaks, pins.",
    "engine": "what kvwise costs cold requests on a real engine, and what its hits bring",
    "peers": "kvwise beside LMCache, Mooncake Store and NIXL on this machine.",
}
"""Every bench with its one line in the help; the module `bench_<name>` beside this holds it."""


class Benches(click.Group):
    """A group whose benches are imported on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Benches from the parts to the whole."""
        return list(BENCHES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The bench's command, or None when there is no such bench."""
        if cmd_name not in BENCHES:
            return None
        command = import_module(f"kvwise.cli.bench_{cmd_name}").command
        if not isinstance(command, click.Command):
            raise TypeError(f"kvwise.cli.bench_{cmd_name}.command is not a click command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The bench and its arguments; an unknown one is answered with the nearest name."""
        if args[0] not in BENCHES:
            near = get_close_matches(args[0], BENCHES, n=1)
            hint = f"did you mean 'kvwise bench {near[0]}'?" if near else "kvwise bench --help"
            raise ConfigError(f"there is no bench {args[0]!r}; hint: {hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the benches from the table, without importing them."""
        with formatter.section("Benches"):
            formatter.write_dl(list(BENCHES.items()))


@click.command(
    cls=Benches,
    subcommand_metavar="BENCH ...",
    epilog="""\b
Examples:
  kvwise bench tiers --disk /mnt/nvme0
  kvwise bench tiers --json | jq '.rows[] | select(.path == "disk.get")'
  kvwise bench BENCH --help
""",
)
def command() -> None:
    """Measure kvwise beside a yardstick of the same minute.

    A figure alone says little on a machine that others share, so every rate is given with the
    rate of memcpy, fio, the engine without kvwise, or another cache, taken in turns with it.
    """
