"""Runs comparisons: memcpy, kvwise and the peer in turns, and a row for each operation."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from kvwise.bench.machine import memory_bytes
from kvwise.bench.peers.cases import Case
from kvwise.bench.peers.installs import PEERS
from kvwise.bench.peers.side import YARDSTICK
from kvwise.bench.peers.talk import Driver, DriverLost, PeerError, our_command, peer_command
from kvwise.bench.progress import Progress
from kvwise.bench.rows import Row
from kvwise.bench.yardstick import Spread, movement, ratio
from kvwise.units import format_size

OURS = "kvwise"
DIGITS = 3


@dataclass(slots=True)
class Found:
    """What came out of the comparisons made so far; `moved` names yardsticks that did."""

    rows: list[Row] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    moved: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Ground:
    """What all comparisons share.

    Attributes:
        pythons: interpreters that were named, by peer.
        folder: on the disk to measure.
        passes: rounds that count.
        progress: where to say what is under way.
    """

    pythons: Mapping[str, Path]
    folder: Path
    passes: int
    progress: Progress


@dataclass(slots=True)
class Turns:
    """The rates of one side, operation to one rate for each pass that counts."""

    driver: Driver
    rates: dict[str, list[float]] = field(default_factory=dict)

    def take(self, progress: Progress, number: int, passes: int) -> None:
        """One round; round 0 warms up and leaves nothing."""
        which = f", pass {number} of {passes}" if number else ", warming up"
        for op, rate in self.driver.round(progress, which).items():
            if number:
                self.rates.setdefault(op, []).append(rate)


def compare(case: Case, ground: Ground, found: Found) -> None:
    """Make one comparison; what the peer cannot do is skipped with its last words.

    Raises:
        PeerError: kvwise's side failed, which is never skipped.
    """
    name = case.name
    free_bytes = memory_bytes("MemAvailable")
    if case.memory_bytes > free_bytes:
        found.skipped.append(
            f"{name}: about {format_size(case.memory_bytes)} of memory are needed, "
            f"{format_size(free_bytes)} are free"
        )
        return
    try:
        ours, theirs = _passes(case, ground)
    except DriverLost as error:
        if error.side == OURS:
            raise PeerError(f"kvwise's own side failed: {error}") from error
        found.skipped.append(f"{name}: {PEERS[case.peer].explain(str(error))}")
        return
    rows = _rows(case, ours.rates, theirs.rates)
    found.rows += rows
    found.moved += movement(f"{YARDSTICK} beside {name}", ours.rates[YARDSTICK])
    told = ", ".join(f"{row['op']} {row['ratio']:.2f}" for row in rows)
    ground.progress.done(f"{name}: kvwise / peer {told}")


def _passes(case: Case, ground: Ground) -> tuple[Turns, Turns]:
    """Both sides' rates of all passes. Who goes first changes from pass to pass."""
    with ExitStack() as undo:
        theirs = Turns(_their_driver(case, ground, undo))
        ours = Turns(_our_driver(case, ground, undo))
        for side in (theirs, ours):
            side.driver.start(ground.progress)
        order = [ours, theirs]
        for number in range(ground.passes + 1):
            for side in order:
                side.take(ground.progress, number, ground.passes)
            order.reverse()
        return ours, theirs


def _our_driver(case: Case, ground: Ground, undo: ExitStack) -> Driver:
    """Start kvwise's side."""
    place = _folder(None, undo)
    spec = case.ours | _on_disk(case, ground, undo)
    driver = Driver(OURS, our_command(), spec, place)
    undo.callback(driver.close)
    return driver


def _their_driver(case: Case, ground: Ground, undo: ExitStack) -> Driver:
    """Start the peer's side."""
    place = _folder(None, undo)
    command = peer_command(case.driver, PEERS[case.peer].python(ground.pythons), place)
    driver = Driver(case.driver, command, case.spec | _on_disk(case, ground, undo), place)
    undo.callback(driver.close)
    return driver


def _on_disk(case: Case, ground: Ground, undo: ExitStack) -> dict[str, str]:
    """What a side is told of its folder on the disk to measure, where it needs one."""
    return {"folder": str(_folder(ground.folder, undo))} if case.on_disk else {}


def _folder(parent: Path | None, undo: ExitStack) -> Path:
    """An empty folder that goes with the undo stack."""
    made = tempfile.TemporaryDirectory(
        dir=parent, prefix=".kvwise-bench-peers-", ignore_cleanup_errors=True
    )
    return Path(undo.enter_context(made))


def _rows(
    case: Case, ours: Mapping[str, list[float]], theirs: Mapping[str, list[float]]
) -> list[Row]:
    """A row for each operation of the peer; the last word of its name is ours."""
    rows: list[Row] = []
    for operation, rates in theirs.items():
        mode, _, op = operation.rpartition(" ")
        held = ratio(ours[op], rates)
        rows.append(
            {
                "peer": case.peer,
                "path": f"{case.path} {mode}".strip(),
                "op": op,
                "object_bytes": case.load.object_bytes,
                "gbps": round(Spread.of(rates).median, DIGITS),
                "kvwise_gbps": round(Spread.of(ours[op]).median, DIGITS),
                "ratio": round(held.median, DIGITS),
                "ratio_low": round(held.low, DIGITS),
                "ratio_high": round(held.high, DIGITS),
                "memcpy_gbps": round(Spread.of(ours[YARDSTICK]).median, DIGITS),
                "note": case.note,
            }
        )
    return rows
