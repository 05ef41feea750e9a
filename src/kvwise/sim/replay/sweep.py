"""Sweep: many runs of one trace, each beside what an exact LRU and foresight would hit.

It runs nothing in parallel itself: who has processes gives each of them jobs.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from kvwise.sim.replay.clairvoyant import clairvoyant_hits
from kvwise.sim.replay.single import Job, Run
from kvwise.sim.replay.tape import Tape
from kvwise.sim.trace.distance import Reuse


@dataclass(frozen=True, slots=True)
class Bounds:
    """Ratios that no policy is needed for: of an exact LRU, and of one that knows the future."""

    lru_hit_ratio: float
    clairvoyant_hit_ratio: float

    def gap_closed(self, hit_ratio: float) -> float | None:
        """Share of the way from LRU to foresight; negative below LRU, None where there is none."""
        gap = self.clairvoyant_hit_ratio - self.lru_hit_ratio
        return (hit_ratio - self.lru_hit_ratio) / gap if gap > 0 else None


def bounds_of(reuse: Reuse, capacity_blocks: int) -> Bounds:
    """The bounds of a trace at a capacity."""
    blocks = max(1, reuse.input_blocks)
    best = clairvoyant_hits(reuse, capacity_blocks)
    return Bounds(reuse.hit_ratio(capacity_blocks), best / blocks)


@dataclass(frozen=True, slots=True)
class Result:
    """A run, its bounds and how long it took.

    Attributes:
        took_s: of the run alone, by the clock of whoever ran it.
    """

    job: Job
    capacity_blocks: int
    run: Run
    bounds: Bounds
    took_s: float

    @property
    def hit_ratio(self) -> float:
        """Hit blocks over all input blocks, the cold start included."""
        return self.run.hit_blocks / max(1, self.run.input_blocks)

    def to_builtins(self) -> dict[str, Any]:
        """Everything as plain values."""
        return {
            "policy": self.job.eviction,
            "plan": self.job.plan,
            "capacity_tokens": self.job.capacity_tokens,
            "capacity_blocks": self.capacity_blocks,
            "hit_ratio": self.hit_ratio,
            "lru_hit_ratio": self.bounds.lru_hit_ratio,
            "clairvoyant_hit_ratio": self.bounds.clairvoyant_hit_ratio,
            "gap_closed": self.bounds.gap_closed(self.hit_ratio),
            **asdict(self.run),
            "requests_per_s": round(self.run.requests / max(self.took_s, 1e-9), 1),
        }


def result_of(tape: Tape, reuse: Reuse, job: Job, outcome: tuple[Run, float]) -> Result:
    """A run that took some seconds, beside its bounds."""
    blocks = job.capacity_blocks(tape)
    return Result(job, blocks, outcome[0], bounds_of(reuse, blocks), outcome[1])
