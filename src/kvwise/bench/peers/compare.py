"""Runs comparisons: yardstick, kvwise and the peer in turns, and a row for each operation."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from kvwise.bench.machine import memory_bytes
from kvwise.bench.peers.cases import Case, Rounds
from kvwise.bench.peers.installs import PEERS
from kvwise.bench.peers.talk import Driver, DriverLost
from kvwise.bench.progress import Progress
from kvwise.bench.rows import Row
from kvwise.bench.yardstick import Memcpy, Spread, movement, ratio
from kvwise.units import format_size

OURS, THEIRS, YARDSTICK = "kvwise", "peer", "memcpy"
DIGITS = 3


@dataclass(slots=True)
class Found:
    """What came out of the comparisons made so far."""

    rows: list[Row] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Ground:
    """What all comparisons share.

    Attributes:
        pythons: interpreters that were named, by peer.
        folder: on the disk to measure.
        memcpy: the yardstick.
        passes: rounds that count.
        progress: where to say what is under way.
    """

    pythons: Mapping[str, Path]
    folder: Path
    memcpy: Memcpy
    passes: int
    progress: Progress


def compare(case: Case, ground: Ground, found: Found) -> None:
    """Make one comparison; what the peer cannot do is skipped with its last words.

    Raises:
        KvwiseError: kvwise's side failed, which is never skipped.
    """
    name = f"{case.peer}, {case.path}, {format_size(case.load.object_bytes)}"
    free_bytes = memory_bytes("MemAvailable")
    if case.memory_bytes > free_bytes:
        found.skipped.append(
            f"{name}: about {format_size(case.memory_bytes)} of memory are needed, "
            f"{format_size(free_bytes)} are free"
        )
        return
    try:
        rates = _passes(case, ground, name)
    except DriverLost as error:
        found.skipped.append(f"{name}: {PEERS[case.peer].explain(str(error))}")
    else:
        found.rows += _rows(case, rates)
        found.notes += [f"{name}: {note}" for note in movement(YARDSTICK, rates[YARDSTICK])]
        ground.progress.done(name)


def _passes(case: Case, ground: Ground, name: str) -> dict[str, list[float]]:
    """The rates of all passes, by side and operation; the first pass warms up and is dropped.

    Who goes first changes from pass to pass.
    """
    python = PEERS[case.peer].python(ground.pythons)
    rates: dict[str, list[float]] = {YARDSTICK: []}
    with ExitStack() as undo:
        folders = _folders(case, ground, undo)
        theirs = undo.enter_context(_driver(case, python, folders[THEIRS], ground.progress))
        ours = undo.enter_context(case.ours(folders[OURS], ground.progress))
        sides: list[tuple[str, Rounds]] = [(OURS, ours), (THEIRS, theirs)]
        for number in range(ground.passes + 1):
            which = f"pass {number} of {ground.passes}" if number else "warming up"
            ground.progress.now(f"{name}, {which}")
            copied = ground.memcpy.gbps(case.load.object_bytes)
            for side, do_round in sides:
                for op, rate in do_round().items():
                    if number:
                        rates.setdefault(f"{side} {op}", []).append(rate)
            if number:
                rates[YARDSTICK].append(copied)
            sides.reverse()
    return rates


def _folders(case: Case, ground: Ground, undo: ExitStack) -> dict[str, Path]:
    """An empty folder for each side, on the disk to measure; they go with the undo stack."""
    return {
        side: Path(
            undo.enter_context(
                tempfile.TemporaryDirectory(
                    dir=ground.folder,
                    prefix=f".kvwise-bench-{case.peer}-",
                    ignore_cleanup_errors=True,
                )
            )
        )
        for side in (OURS, THEIRS)
    }


@contextmanager
def _driver(case: Case, python: Path, folder: Path, progress: Progress) -> Iterator[Rounds]:
    """The peer's side, started."""
    spec = case.spec | ({"folder": str(folder)} if case.on_disk else {})
    with tempfile.TemporaryDirectory(prefix="kvwise-peer-") as place:
        driver = Driver(case.driver, python, spec, Path(place))
        try:
            driver.start(progress)
            yield lambda: driver.round(progress)
        finally:
            driver.close()


def _rows(case: Case, rates: Mapping[str, list[float]]) -> list[Row]:
    """A row for each operation of the peer; the last word of its name is ours."""
    rows: list[Row] = []
    for name, theirs in rates.items():
        side, _, operation = name.partition(" ")
        if side != THEIRS:
            continue
        mode, _, op = operation.rpartition(" ")
        ours = rates[f"{OURS} {op}"]
        held = ratio(ours, theirs)
        rows.append(
            {
                "peer": case.peer,
                "path": f"{case.path} {mode}".strip(),
                "op": op,
                "object_bytes": case.load.object_bytes,
                "gbps": round(Spread.of(theirs).median, DIGITS),
                "kvwise_gbps": round(Spread.of(ours).median, DIGITS),
                "ratio": round(held.median, DIGITS),
                "ratio_low": round(held.low, DIGITS),
                "ratio_high": round(held.high, DIGITS),
                "memcpy_gbps": round(Spread.of(rates[YARDSTICK]).median, DIGITS),
                "note": case.note,
            }
        )
    return rows
