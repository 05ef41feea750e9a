"""`kvwise bench`: one subcommand per bench, imported when used. It measures nothing itself."""

from __future__ import annotations

from typing import Final

import click

from kvwise.cli.groups import LazyGroup, take_kills_as_ctrl_c

BENCHES: Final[dict[str, str]] = {
    "tiers": "Memory, disk and bookkeeping, beside memcpy and fio.",
    "codec": "Ratio and speed of every codec, on real KV, beside memcpy and zstd.",
    "boundary": "A codec on the way to disk: where it pays, and whether auto knows.",
    "quality": "What FP8 and NVFP4 change: a real model on KV that came back from a disk.",
    "engine": "A real engine with and without kvwise: cost when cold, gain on a hit.",
    "never-worse": "A real engine on a slow disk: choosing beside always loading, and never.",
    "peers": "LMCache, Mooncake Store and NIXL, in turns with kvwise.",
    "soak": "A daemon under abuse, for minutes or days: wrong bytes, leaks, pins.",
}
"""Every bench with its one line in the help; the module `bench_<name>` beside this holds it."""


class Benches(LazyGroup):
    """The benches of the verb."""

    table = BENCHES
    module = "kvwise.cli.bench_{}"
    nouns = ("bench", "Benches")


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
    take_kills_as_ctrl_c()
