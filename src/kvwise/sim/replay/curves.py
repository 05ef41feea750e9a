"""Curves: disk hits against bytes written, of one way to choose beside the others. It runs nothing.

Two runs write different amounts even under the same budget, so a run is held against what the
others get for the bytes that it wrote: the best point of their curves up to there, with straight
lines between points. Writing nothing is a point of every curve.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from kvwise.core.admit import ADMISSIONS, ALL, WORTH
from kvwise.sim.replay.writes import LRU, Rule, WriteJob, WriteRun

OURS = Rule(WORTH, WORTH)
"""What a daemon does."""

RULES = (*(Rule(name, LRU) for name in ADMISSIONS if name != WORTH), OURS)
"""What the stacks that people have do, and then what kvwise does."""

ABLATION = Rule(WORTH, LRU)
"""Its admission alone, with the eviction of the others."""

EVERYTHING = Rule(ALL, LRU)
"""What all shares of writes are shares of."""

Point = tuple[int, int]
"""Bytes written, and what that brought."""


@dataclass(frozen=True, slots=True)
class Beside:
    """A run beside the best of the others.

    Attributes:
        others_disk_hits: disk hits they have for as many bytes as this run wrote, or fewer.
        ratio: disk hits of this run over those; None where they have none.
        total_ratio: the same of hits in memory and on disk together.
    """

    others_disk_hits: float
    ratio: float | None
    total_ratio: float | None


@dataclass(frozen=True, slots=True)
class WriteResult:
    """A run, and how it compares if it is kvwise's own."""

    job: WriteJob
    run: WriteRun
    beside: Beside | None

    def to_builtins(self) -> dict[str, Any]:
        """Everything as plain values."""
        return {
            "admission": self.job.rule.admission,
            "eviction": self.job.rule.eviction,
            "budget": self.job.share,
            "budget_bytes_per_day": self.job.per_day_bytes,
            "hit_ratio": self.run.hit_ratio,
            **asdict(self.run),
            **(asdict(self.beside) if self.beside is not None else {}),
        }


def best_at(curves: Iterable[Sequence[Point]], written_bytes: int) -> float:
    """The most that any curve has at so many bytes or fewer, on straight lines from point to point.

    Beyond its last point a curve goes on level.
    """
    best = 0.0
    for curve in curves:
        points = sorted(curve)
        for (left, low), (right, high) in pairwise([*points, (1 << 62, points[-1][1])]):
            if left > written_bytes:
                break
            part = min(1.0, (written_bytes - left) / max(1, right - left))
            best = max(best, low, low + part * (high - low))
    return best


def results_of(jobs: Sequence[WriteJob], runs: Sequence[WriteRun]) -> list[WriteResult]:
    """All runs of one trace, those of kvwise's own admission held against the others."""
    done = list(zip(jobs, runs, strict=True))
    disk, total = dict[Rule, list[Point]](), dict[Rule, list[Point]]()
    for job, run in done:
        if job.rule.admission != WORTH:
            none = (0, min(one.dram_hits for other, one in done if other.rule == job.rule))
            written = run.disk_bytes_written
            disk.setdefault(job.rule, [(0, 0)]).append((written, run.disk_hits))
            total.setdefault(job.rule, [none]).append((written, run.dram_hits + run.disk_hits))
    return [
        WriteResult(job, run, _beside(run, disk.values(), total.values()))
        if job.rule.admission == WORTH
        else WriteResult(job, run, None)
        for job, run in done
    ]


def _beside(
    run: WriteRun, disk: Iterable[Sequence[Point]], total: Iterable[Sequence[Point]]
) -> Beside:
    """One run against curves of disk hits and of all hits."""
    others = best_at(disk, run.disk_bytes_written)
    all_others = best_at(total, run.disk_bytes_written)
    ratio = run.disk_hits / others if others else None
    all_hits = run.dram_hits + run.disk_hits
    return Beside(others, ratio, all_hits / all_others if all_others else None)
