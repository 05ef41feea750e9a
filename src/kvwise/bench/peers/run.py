"""One run of `kvwise bench peers`, from its options to its rows. It ends all that it started."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from kvwise.bench.machine import describe
from kvwise.bench.peers.cases import Case, Plan, cases
from kvwise.bench.peers.compare import Found, Ground, compare
from kvwise.bench.peers.installs import PEERS
from kvwise.bench.places import SetupError
from kvwise.bench.progress import Progress, Steps
from kvwise.bench.rows import Rows
from kvwise.bench.yardstick import moved_note, working_set_bytes
from kvwise.codecs.base import BLOCK_BYTES
from kvwise.errors import ConfigError
from kvwise.units import GIB, MIB, format_size

OBJECTS = (2 * MIB, 16 * MIB)
OBJECT_BYTES_MAX = 64 * MIB
PASSES = 5
QUICK_PASSES = 1
QUICK_SET_BYTES = 128 * MIB
COPIES = 10
"""Sets of objects in memory at one time: both sides' buffers and pools, and the yardstick's."""

DISK_COPIES = 6
"""Sets of objects on disk at one time, with room to spare."""

BUSY = 0.5
"""Load for each processor from which a run says that the machine was not quiet."""

MACHINE_NOTE = (
    "kvwise, the peer and memcpy take turns; the ratio is kvwise / peer by the median pass"
)


@dataclass(frozen=True, slots=True)
class Options:
    """What to run.

    Attributes:
        peers: names, in the order of the rows.
        pythons: interpreters to use in place of our own environments, by peer.
        install: whether to make environments that are missing.
        objects: sizes of objects.
        passes: rounds that count.
        quick: one pass over less than a large cache holds: for trying it out.
        disk: a folder on the disk to measure.
    """

    peers: Sequence[str]
    pythons: Mapping[str, Path]
    install: bool
    objects: Sequence[int]
    passes: int
    quick: bool
    disk: Path

    def __post_init__(self) -> None:
        """Refuse what no side could do.

        Raises:
            ConfigError: with a hint.
        """
        for size_bytes in self.objects:
            if size_bytes % BLOCK_BYTES or not BLOCK_BYTES <= size_bytes <= OBJECT_BYTES_MAX:
                raise ConfigError(
                    f"an object of {size_bytes} bytes cannot be compared; hint: multiples of "
                    f"{format_size(BLOCK_BYTES)} up to {format_size(OBJECT_BYTES_MAX)}"
                )
        for name, python in self.pythons.items():
            if name not in PEERS:
                raise ConfigError(f"there is no peer {name!r}; hint: {', '.join(PEERS)}")
            if not os.access(python, os.X_OK) or python.is_dir():
                raise ConfigError(
                    f"{python} cannot be executed; hint: --python {name}=/path/to/bin/python"
                )

    @property
    def command(self) -> str:
        """How to run it again."""
        words = ["kvwise bench peers", *(f"--peer {name}" for name in self.peers)]
        words += [f"--python {name}={path}" for name, path in self.pythons.items()]
        words += [f"--objects {spoken(size_bytes)}" for size_bytes in self.objects]
        words += ["--quick"] if self.quick else [f"--passes {self.passes}"]
        return " ".join([*words, f"--disk {self.disk}"])


def spoken(size_bytes: int) -> str:
    """A size as it is written on the command line: 2MiB."""
    return format_size(size_bytes).replace(" ", "").replace(".0", "")


class Stopped(KeyboardInterrupt):
    """Somebody stopped a run.

    Attributes:
        result: the rows of the comparisons that were finished.
    """

    def __init__(self, result: Rows) -> None:
        super().__init__()
        self.result = result


def run(options: Options, progress: Progress) -> Rows:
    """Compare with every chosen peer that there is.

    Raises:
        KvwiseError: kvwise's side failed, there is no peer, or no room for the measurement.
        Stopped: somebody stopped it, and this is what was found until then.
    """
    started = datetime.now(UTC).isoformat(timespec="seconds")
    if options.install:
        for name in options.peers:
            if name not in options.pythons:
                PEERS[name].install(progress)
    passes = QUICK_PASSES if options.quick else options.passes
    set_bytes = QUICK_SET_BYTES if options.quick else working_set_bytes(copies=COPIES)
    _require_disk(options.disk, DISK_COPIES * set_bytes)
    plan = Plan(options.objects, set_bytes, passes, options.peers)
    found = Found(notes=_busy())
    chosen = [case for case in cases(plan) if _present(case, options, found)]
    if not chosen:
        raise SetupError(_nothing(options))
    if options.quick:
        found.notes.append("a quick run: one pass, sets that a large cache may hold")
    steps, done = Steps(progress, len(chosen)), 0
    try:
        for case in chosen:
            steps.next(case.name)
            compare(case, Ground(options.pythons, options.disk, passes, steps), found)
            done += 1
    except KeyboardInterrupt:
        found.notes.append(f"stopped after {done} of {len(chosen)} comparisons")
        raise Stopped(_rows(options, started, found)) from None
    return _rows(options, started, found)


def _rows(options: Options, started: str, found: Found) -> Rows:
    """The result; notes about ratios only where there are some."""
    notes = [*found.notes, *moved_note(found.moved)]
    return Rows(
        bench="peers",
        command=options.command,
        started=started,
        machine=describe(options.disk),
        rows=found.rows,
        skipped=found.skipped,
        notes=[MACHINE_NOTE, *notes] if found.rows else notes,
    )


def _nothing(options: Options) -> str:
    """That there is nobody to compare with, and the command that changes it, in one line."""
    words = ["kvwise bench peers"]
    if set(options.peers) != set(PEERS):
        words += [f"--peer {name}" for name in options.peers]
    takes = format_size(sum(PEERS[name].takes_bytes for name in options.peers))
    return f"nothing to compare; run `{' '.join(words)} --install` ({takes})"


def _busy() -> list[str]:
    """A note when other work keeps the machine busy before anything was started."""
    load = os.getloadavg()[0]
    if load < BUSY * len(os.sched_getaffinity(0)):
        return []
    note = (
        f"the machine was busy before the run (load average {load:.1f}): ratios mean little then, "
        "since the two sides need processors at different moments"
    )
    return [note]


def _present(case: Case, options: Options, found: Found) -> bool:
    """Whether the peer can be started at all; if not, that is said once."""
    reason = PEERS[case.peer].absent(options.pythons)
    if reason and reason not in found.skipped:
        found.skipped.append(reason)
    return not reason


def _require_disk(folder: Path, need_bytes: int) -> None:
    """Refuse a folder that cannot be used, before anything is started.

    Raises:
        ConfigError: it is none, cannot be written, or has too little room.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder} is no folder; hint: --disk names one on the disk to measure")
    if not os.access(folder, os.W_OK):
        raise ConfigError(f"{folder} cannot be written; hint: --disk names a folder of yours")
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < need_bytes + GIB:
        raise ConfigError(
            f"{folder} has {format_size(free_bytes)} free, {format_size(need_bytes + GIB)} are "
            "needed; hint: --disk names a folder on a larger disk"
        )
