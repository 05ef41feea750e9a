"""kvwise's side as a program: it answers rounds as the peers' drivers do, in a session of its own.

A busy machine shares its processors out by sessions, so a side that ran in the caller's session
would get less of them than the peer. Memcpy runs here too, between the very buffers of the side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console

from kvwise.bench.peers.drivers.base import Rates, Round, Spec, run
from kvwise.bench.peers.ourdisk import disk_side
from kvwise.bench.peers.ours import Load, MemorySide, Paged, PagedSide, daemon
from kvwise.bench.progress import Terminal
from kvwise.bench.yardstick import Memcpy, Memory

YARDSTICK = "memcpy"


class Side(Protocol):
    """What does rounds between two pieces of memory."""

    source: Memory
    target: Memory

    def round(self) -> Rates:
        """GB/s of each operation."""
        ...


@contextmanager
def memory(spec: dict[str, Any], load: Load) -> Iterator[Side]:
    """A daemon's memory, whole objects."""
    with Terminal(Console(stderr=True)) as progress, daemon(spec["dram_bytes"], progress) as client:
        yield MemorySide(client, load)


@contextmanager
def paged(spec: dict[str, Any], load: Load) -> Iterator[Side]:
    """A daemon's memory, requests of paged KV."""
    del load
    with Terminal(Console(stderr=True)) as progress, daemon(spec["dram_bytes"], progress) as client:
        yield PagedSide(client, Paged(**spec["paged"]), spec["requests"])


@contextmanager
def disk(spec: dict[str, Any], load: Load) -> Iterator[Side]:
    """The disk tier."""
    with disk_side(Path(spec["folder"]), load, copies=spec["copies"]) as side:
        yield side


SIDES: dict[str, Callable[..., Any]] = {"memory": memory, "paged": paged, "disk": disk}


@contextmanager
def prepare(spec: Spec) -> Iterator[Round]:
    """The side that the specification names; each round begins with the yardstick."""
    load = Load(spec["object_bytes"], spec["count"], spec["at_once"])
    with SIDES[spec["what"]](spec, load) as side:
        memcpy = Memcpy(side.source, side.target)

        def do_round() -> Rates:
            copied = memcpy.gbps(load.object_bytes)
            rates: Rates = side.round()
            return rates | {YARDSTICK: copied}

        yield do_round


if __name__ == "__main__":
    run(prepare)
