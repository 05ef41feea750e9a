"""What a soak sees of a daemon from outside: memory, descriptors, threads, and its own account.

It judges one thing, whether memory grew, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import linear_regression
from typing import Any

from kvwise.units import MIB

SLOPE_MB_PER_MIN = 0.5
"""Growth that is taken for noise of the allocator: at this rate a day adds 0.7 GB, so a run must be
long enough to tell; see `GROWTH_MB`."""

GROWTH_MB = 4.0
"""Growth within the second half of a run that is taken for noise, whatever the rate."""


@dataclass(frozen=True, slots=True)
class Process:
    """What the kernel says of a process at one moment.

    Attributes:
        rss_mb: resident memory in MiB, shared memory included.
        descriptors, threads: how many it has.
    """

    rss_mb: float
    descriptors: int
    threads: int


def look(pid: int) -> Process:
    """Look at a process of this user.

    Raises:
        OSError: it is gone.
    """
    place = Path(f"/proc/{pid}")
    fields = dict(
        line.split(":", 1) for line in (place / "status").read_text().splitlines() if ":" in line
    )
    rss_kib = int(fields["VmRSS"].split()[0])
    return Process(rss_kib / 1024, len(list((place / "fd").iterdir())), int(fields["Threads"]))


@dataclass(frozen=True, slots=True)
class Sample:
    """A process, and the seconds since the run began."""

    at_s: float
    process: Process


@dataclass(frozen=True, slots=True)
class Growth:
    """How memory grew over the second half of a run, and how much of that is allowed."""

    mb_per_min: float
    allowed_mb_per_min: float

    @property
    def is_leak(self) -> bool:
        """Whether it grew by more than noise."""
        return self.mb_per_min > self.allowed_mb_per_min


def growth(samples: Sequence[Sample]) -> Growth:
    """A line through the second half of the samples, when every table has its size."""
    late = samples[len(samples) // 2 :]
    minutes = [sample.at_s / 60 for sample in late]
    if len(late) < 3 or minutes[-1] == minutes[0]:
        return Growth(0.0, float("inf"))
    slope = linear_regression(minutes, [sample.process.rss_mb for sample in late]).slope
    allowed = max(SLOPE_MB_PER_MIN, GROWTH_MB / (minutes[-1] - minutes[0]))
    return Growth(slope, allowed)


def busy(status: dict[str, Any]) -> dict[str, int]:
    """What is under way: leases, jobs, writes that wait. All are zero in a daemon at rest."""
    levels = status["levels"]
    return {
        "leases": sum(levels["leases"].values()),
        "jobs": sum(levels["jobs"].values()),
        "queued": sum(tier["queued_objects"] for tier in levels["tiers"].values()),
    }


def held(status: dict[str, Any]) -> dict[str, int]:
    """What is held: pages, blocks and bytes. All are zero in a daemon that was cleared."""
    levels = status["levels"]
    return {
        "pages": status["arena"]["pages"] - levels["pages_free"],
        "blocks": levels["blocks"],
        **{f"{name}_bytes": tier["used_bytes"] for name, tier in levels["tiers"].items()},
    }


def evictions(status: dict[str, Any]) -> dict[str, int]:
    """Objects that had to make room, by tier."""
    dropped = status["counters"]["dropped"]
    return {name: dropped.get(f"{name}|evicted", 0) for name in status["levels"]["tiers"]}


def disk_bytes(folder: Path) -> int:
    """Bytes that the files of a directory really take on disk."""
    return sum(512 * path.stat().st_blocks for path in folder.iterdir())


def arena_is_touched(status: dict[str, Any]) -> bool:
    """Whether every page of the arena has its memory: from then on it cannot grow."""
    arena = status["arena"]
    untouched_bytes: int = arena["pages"] * arena["page_bytes"] - arena["resident_bytes"]
    return untouched_bytes < MIB
