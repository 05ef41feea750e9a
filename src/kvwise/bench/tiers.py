"""Owns `kvwise bench tiers`: which parts are measured, in which folder, beside which yardstick.

It measures nothing itself. Whatever it starts or writes is gone when it returns or is interrupted.
"""

from __future__ import annotations

import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import numpy as np

from kvwise.bench.daemon import Daemon, DaemonOptions
from kvwise.bench.disk import DiskPath
from kvwise.bench.dram import MODELS, DramPath, Model
from kvwise.bench.index import measure_index
from kvwise.bench.lookup import measure_lookup
from kvwise.bench.machine import describe
from kvwise.bench.places import SetupError
from kvwise.bench.progress import Progress
from kvwise.bench.recovery import measure_recovery, room_bytes
from kvwise.bench.rows import Row, Rows
from kvwise.bench.yardstick import (
    CpuTime,
    Memcpy,
    Memory,
    Spread,
    fio_missing,
    moved_note,
    movement,
    ratio,
    take_turns,
    working_set_bytes,
)
from kvwise.errors import ConfigError
from kvwise.live.client import Client
from kvwise.units import MIB, format_size

SIZES: Final = {format_size(model.object_bytes).replace(" ", "").replace(".0", ""): model
                for model in MODELS}  # fmt: skip
"""What an object's size is called on the command line, and whose object it is."""

DISK_BYTES, DISK_BYTES_QUICK = 1024 * MIB, 128 * MIB
LOOKUPS, LOOKUPS_QUICK = 400, 50
BLOCKS, BLOCKS_QUICK = 1_000_000, 100_000
RECORDS, RECORDS_QUICK = 200_000, 20_000
PASSES, PASSES_QUICK = 5, 2
ANSWER_S = 5.0

GOALS: Final = {"dram.put": 0.90, "dram.get": 0.90, "disk.put": 0.90, "disk.get": 0.95}
"""The least part of its yardstick that each path should reach."""


@dataclass(frozen=True, slots=True)
class TiersOptions:
    """What to measure.

    Attributes:
        disk: an existing folder on the disk to measure.
        objects: names of object sizes, see `SIZES`.
        parts: names of parts, see `PARTS`.
        passes: figures of each rate; 0 chooses.
        records: objects that a restart has to find; 0 chooses.
        quick: fewer passes and less of everything, to see that it works.
    """

    disk: Path
    objects: Sequence[str]
    parts: Sequence[str]
    passes: int = 0
    records: int = 0
    quick: bool = False

    @property
    def models(self) -> list[Model]:
        """Whose objects are moved."""
        return [SIZES[name] for name in self.objects]

    @property
    def turns(self) -> int:
        """Passes that count."""
        return self.passes or (PASSES_QUICK if self.quick else PASSES)

    @property
    def restarted(self) -> int:
        """Objects that a restart has to find."""
        return self.records or (RECORDS_QUICK if self.quick else RECORDS)

    @property
    def command(self) -> str:
        """How to run it again."""
        words = ["kvwise", "bench", "tiers", "--disk", str(self.disk)]
        words += [word for name in self.objects for word in ("--objects", name)]
        words += [word for name in self.parts for word in ("--part", name)]
        words += ["--passes", str(self.turns), "--records", str(self.restarted)]
        words += ["--quick"] if self.quick else []
        return shlex.join(words)


@dataclass(slots=True)
class _Run:
    """What parts share, and where they put what they found."""

    options: TiersOptions
    progress: Progress
    scratch: Path
    rows: list[Row] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    moved: list[str] = field(default_factory=list)

    def turns(self, what: str, actions: dict[str, Callable[[], float]]) -> dict[str, list[float]]:
        """Let measurements take turns, telling what is under way."""
        return take_turns(
            actions, self.options.turns, lambda text: self.progress.now(f"{what}: {text}")
        )

    def note(self, *texts: str) -> None:
        """Keep what a reader must know."""
        self.notes += texts


def measure_tiers(options: TiersOptions, progress: Progress) -> Rows:
    """Measure the parts asked for; one that fails, or gives wrong bytes, takes no other with it.

    Raises:
        ConfigError: the folder or the memory of this machine does not do.
    """
    started = datetime.now(UTC).isoformat(timespec="seconds")
    machine = describe(options.disk)
    with tempfile.TemporaryDirectory(prefix="kvwise-bench-") as scratch:
        run = _Run(options, progress, Path(scratch))
        for name in options.parts:
            try:
                PARTS[name](run)
            except SetupError as error:
                run.failed.append(f"{name}: {error}")
            else:
                progress.done(f"measured: {name}")
    run.note(*moved_note(run.moved))
    if machine["load_average"] > machine["cores"] / 2:
        run.note(
            f"load average {machine['load_average']} on {machine['cores']} cores before the "
            "start: what hands work from thread to thread suffers more from that than a yardstick"
        )
    return Rows(
        bench="tiers",
        command=options.command,
        started=started,
        machine=machine,
        rows=run.rows,
        skipped=run.skipped,
        notes=run.notes,
        failed=run.failed,
    )


# --- parts ---------------------------------------------------------------------------------------


def _dram(run: _Run) -> None:
    """Between an engine's memory and the arena."""
    size_bytes = working_set_bytes(copies=4)
    device, target = Memory(size_bytes, seed=1), Memory(size_bytes, seed=2)
    options = DaemonOptions(
        run.scratch / "dram.sock",
        dram_bytes=size_bytes + size_bytes // 8 + 64 * MIB,
        log=run.scratch / "dram.log",
        settings={"KVWISE_PLAN_POLICY": "load"},
    )
    with Daemon.start(options, run.progress):
        client = Client(str(options.socket), "bench", timeout_s=ANSWER_S)
        try:
            for model in run.options.models:
                _dram_rows(run, client, model, device, target)
        finally:
            client.close()
    run.note(
        "dram: one thread; the blocks of each prompt are shuffled over the engine's memory; "
        f"{format_size(size_bytes)} are moved in each pass, which no processor cache holds"
    )


def _dram_rows(run: _Run, client: Client, model: Model, device: Memory, target: Memory) -> None:
    """Both directions for one size of object, then a look at the bytes."""
    memcpy, cpu = Memcpy(device, target), CpuTime()
    with DramPath(client, model, device) as path:
        found = run.turns(
            f"dram, {format_size(model.object_bytes)}",
            {
                "memcpy": cpu.of("memcpy", lambda: memcpy.gbps(model.object_bytes)),
                "put": cpu.of("put", path.put),
                "get": cpu.of("get", path.get),
            },
        )
        more = {"model": model.name, "objects_per_request": path.objects_per_request}
        more["copier"] = path.copier
        device.clear()
        path.get()
        used = slice(0, path.total_bytes)
        if not np.array_equal(device.bytes[used], target.bytes[used]):
            raise SetupError("the arena gave back other bytes than it was given")
    for way in ("put", "get"):
        row = _rate_row(f"dram.{way}", model.object_bytes, found[way], found["memcpy"])
        spent = {"cpu_ratio": round(cpu.ratio("memcpy", way).median, 3)}
        run.rows.append(row | {"reference": "memcpy"} | spent | more)
    run.moved += movement(f"memcpy of {format_size(model.object_bytes)}", found["memcpy"])


def _disk(run: _Run) -> None:
    """Between the arena and the disk."""
    if missing := fio_missing():
        run.skipped += [f"disk.put and disk.get have no yardstick: {missing}"]
        return
    total_bytes = DISK_BYTES_QUICK if run.options.quick else DISK_BYTES
    with _folder(run.options.disk, need_bytes=3 * total_bytes) as folder:
        for model in run.options.models:
            _disk_rows(run, folder, model.object_bytes, total_bytes)
    run.note(
        "disk: the tier and fio both write new files and never wait for the medium (no fsync); "
        "fio moves the same bytes, in calls as long as the tier's"
    )


def _disk_rows(run: _Run, folder: Path, object_bytes: int, total_bytes: int) -> None:
    """Both directions for one size of object, then a look at the bytes."""
    with DiskPath(folder / "tier", object_bytes, total_bytes) as path:
        writer, reader = path.writer(folder), path.reader(folder)
        found = run.turns(
            f"disk, {format_size(object_bytes)}",
            {
                "fio write": writer.write,
                "put": path.put,
                "fio to read": reader.write,
                "fio read": reader.read,
                "get": path.get,
            },
        )
        reader.remove()
        path.verify()
        seen = {"io": path.io.value, "memory": path.memory}
    for way, mode, fio in (("put", "write", writer), ("get", "read", reader)):
        yardstick = found[f"fio {mode}"]
        row = _rate_row(f"disk.{way}", object_bytes, found[way], yardstick)
        more = {"reference": "fio", "reference_command": fio.spoken(mode)}
        run.rows.append(row | more | seen)
        run.moved += movement(f"fio {mode} of {format_size(object_bytes)}", yardstick)


def _lookup(run: _Run) -> None:
    """How long a prompt waits for an answer."""
    rounds = LOOKUPS_QUICK if run.options.quick else LOOKUPS
    run.rows += measure_lookup(run.scratch, rounds, run.progress)


def _index(run: _Run) -> None:
    """What a large cache costs."""
    blocks = BLOCKS_QUICK if run.options.quick else BLOCKS
    run.progress.now(f"index: taking in {blocks:,} blocks")
    run.rows.append(measure_index(blocks))


def _recovery(run: _Run) -> None:
    """How long a restart takes to find what the disk holds."""
    records = run.options.restarted
    run.progress.now(f"recovery: writing {records:,} small objects, and finding them again")
    with _folder(run.options.disk, need_bytes=room_bytes(records)) as folder:
        run.rows.append(measure_recovery(folder, records) | {"goal_per_million_s": 2.0})
    run.note("recovery: the files were just written, so the system's page cache may hold them")


PARTS: Final[dict[str, Callable[[_Run], None]]] = {
    "dram": _dram,
    "disk": _disk,
    "lookup": _lookup,
    "index": _index,
    "recovery": _recovery,
}
"""Every part, in the order of a run."""


# --- helpers -------------------------------------------------------------------------------------


def _rate_row(
    path: str, object_bytes: int, figures: Sequence[float], yardstick: Sequence[float]
) -> Row:
    """Rates and their part of the yardstick, medians with the least and the most of all passes."""
    row: Row = {"path": path, "object_bytes": object_bytes, "passes": len(figures)}
    spreads = {
        "gbps": Spread.of(figures),
        "reference_gbps": Spread.of(yardstick),
        "ratio": ratio(figures, yardstick),
    }
    for name, spread in spreads.items():
        row[name] = round(spread.median, 3)
        row[f"{name}_low"], row[f"{name}_high"] = round(spread.low, 3), round(spread.high, 3)
    return row | {"goal_ratio": GOALS[path]}


@contextmanager
def _folder(parent: Path, need_bytes: int) -> Iterator[Path]:
    """A folder to measure in, removed afterwards.

    Raises:
        ConfigError: there is no room, or nothing may be written there.
    """
    try:
        free_bytes = shutil.disk_usage(parent).free
        if free_bytes < need_bytes:
            raise ConfigError(
                f"{parent} has {format_size(free_bytes)} free, and {format_size(need_bytes)} are "
                "needed; hint: --disk names another folder, --quick needs less"
            )
        place = tempfile.TemporaryDirectory(prefix=".kvwise-bench-", dir=parent)
    except OSError as error:
        raise ConfigError(
            f"{parent} cannot be measured: {error.strerror}; hint: --disk names a folder that "
            "you may write to"
        ) from error
    with place as name:
        yield Path(name)
