"""Owns what a demo run showed: medians, comparisons, goals met or missed, what to doubt.

It measures nothing and draws nothing. What went wrong is named in `problems`, in words.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median
from typing import Any

import msgspec

from kvwise.bench.measure import Phase, Sample
from kvwise.bench.talks import PREFIX_TOKENS
from kvwise.core.words import Decision

DRAM_SPEEDUP_GOAL = 20.0
DISK_SPEEDUP_GOAL = 15.0
DRAM_OVER_DEVICE_GOAL = 1.2

_SOURCE = {Phase.DRAM: "dram", Phase.DRAM_RESTARTED: "dram", Phase.DISK: "disk"}
_HITS = (Phase.DEVICE, Phase.DRAM, Phase.DRAM_RESTARTED, Phase.DISK)


@dataclass(frozen=True, slots=True)
class Goal:
    """One thing that the run should show."""

    text: str
    target: float
    measured: float
    met: bool


@dataclass(frozen=True, slots=True)
class Replay:
    """What feeding one event log to a fresh brain showed."""

    log: str
    equal: bool
    events: int
    divergence: str


@dataclass(frozen=True, slots=True)
class Row:
    """One measured request and what kvwise decided about it."""

    sample: Sample
    decision: Decision | None


@dataclass(frozen=True, slots=True)
class Setting:
    """What was measured on what."""

    version: str
    engine: dict[str, Any]
    model: str
    machine: dict[str, Any]
    started: str
    took_s: float


@dataclass(frozen=True, slots=True)
class Report:
    """Everything a run showed."""

    setting: Setting
    prefix_tokens: int
    ttft_ms: dict[str, float]
    spread_ms: dict[str, tuple[float, float]]
    tokens_equal: bool
    distinct_answers: int
    documents: int
    speedup: dict[str, float]
    goals: list[Goal]
    problems: list[str]
    warnings: list[str]
    rows: list[Row]
    replays: list[Replay]

    def to_json(self) -> bytes:
        """The report as `report.json` has it."""
        samples: dict[str, list[dict[str, Any]]] = {}
        for row in self.rows:
            one = msgspec.to_builtins(row.sample)
            samples.setdefault(one.pop("phase"), []).append(one)
        return msgspec.json.format(
            msgspec.json.encode(
                {
                    "ttft_ms": self.ttft_ms,
                    "spread_ms": self.spread_ms,
                    "tokens_equal": self.tokens_equal,
                    "distinct_answers": self.distinct_answers,
                    "speedup": self.speedup,
                    "goals": self.goals,
                    "problems": self.problems,
                    "warnings": self.warnings,
                    "prefix_tokens": self.prefix_tokens,
                    "kvwise": self.setting.version,
                    "engine": self.setting.engine,
                    "model": self.setting.model,
                    "machine": self.setting.machine,
                    "started": self.setting.started,
                    "took_s": round(self.setting.took_s, 1),
                    "replay": {
                        "equal": bool(self.replays) and all(r.equal for r in self.replays),
                        "logs": self.replays,
                    },
                    "decisions": [row.decision for row in self.rows if row.decision],
                    "samples": samples,
                }
            )
        )


def conclude(
    setting: Setting, samples: list[Sample], decisions: list[Decision], replays: list[Replay]
) -> Report:
    """What these samples show."""
    rows = [Row(sample, _decision_about(sample, decisions)) for sample in samples]
    times = {phase: [s.ttft_ms for s in samples if s.phase is phase] for phase in Phase}
    ttft_ms = {phase.value: round(median(ms), 2) for phase, ms in times.items() if ms}
    spread = {p.value: (round(min(ms), 2), round(max(ms), 2)) for p, ms in times.items() if ms}
    answers = {s.document: s.tokens for s in reversed(samples)}
    hits = [s.cached_tokens for s in samples if s.phase is Phase.DRAM]
    unequal = _unequal(samples)
    return Report(
        setting=setting,
        prefix_tokens=int(median(hits)) if hits else 0,
        ttft_ms=ttft_ms,
        spread_ms=spread,
        tokens_equal=not unequal,
        distinct_answers=len(set(answers.values())),
        documents=len(answers),
        speedup={
            "dram": _ratio(ttft_ms, Phase.RECOMPUTE, Phase.DRAM),
            "disk": _ratio(ttft_ms, Phase.RECOMPUTE, Phase.DISK),
        },
        goals=_goals(ttft_ms),
        problems=[*unequal, *_wrong_sources(rows), *_bad_replays(replays)],
        warnings=_busy(setting.machine),
        rows=rows,
        replays=replays,
    )


def _decision_about(sample: Sample, decisions: Iterable[Decision]) -> Decision | None:
    """The decision about a request; the engine wraps the name that it was given in its own."""
    wrapped = f"-{sample.name}"
    found = (d for d in decisions if d.request.endswith(wrapped) or f"{wrapped}-" in d.request)
    return next(found, None)


def _ratio(ttft_ms: dict[str, float], slow: Phase, fast: Phase) -> float:
    """How many times as long one phase takes as the other; 0 when one was not measured."""
    if not ttft_ms.get(slow) or not ttft_ms.get(fast):
        return 0.0
    return round(ttft_ms[slow] / ttft_ms[fast], 2)


def _goals(ttft_ms: dict[str, float]) -> list[Goal]:
    """The goals and what was measured."""
    dram = _ratio(ttft_ms, Phase.RECOMPUTE, Phase.DRAM)
    disk = _ratio(ttft_ms, Phase.RECOMPUTE, Phase.DISK)
    over = _ratio(ttft_ms, Phase.DRAM, Phase.DEVICE)
    return [
        Goal(
            "memory is at least this many times faster than computing",
            DRAM_SPEEDUP_GOAL,
            dram,
            dram >= DRAM_SPEEDUP_GOAL,
        ),
        Goal(
            "disk is at least this many times faster than computing",
            DISK_SPEEDUP_GOAL,
            disk,
            disk >= DISK_SPEEDUP_GOAL,
        ),
        Goal(
            "memory takes at most this many times as long as the engine's own cache",
            DRAM_OVER_DEVICE_GOAL,
            over,
            0 < over <= DRAM_OVER_DEVICE_GOAL,
        ),
    ]


def _unequal(samples: list[Sample]) -> list[str]:
    """Requests whose tokens differ from those of computing the same prompt."""
    computed = {s.document: s.tokens for s in samples if s.phase is Phase.RECOMPUTE}
    return [
        f"{s.name}: its tokens differ from those of computing the same prompt"
        for s in samples
        if s.tokens != computed.get(s.document)
    ]


def _wrong_sources(rows: list[Row]) -> list[str]:
    """Requests whose KV did not come from where their phase says."""
    wrong = []
    for sample, decision in ((row.sample, row.decision) for row in rows):
        if sample.phase in _HITS and sample.cached_tokens != PREFIX_TOKENS:
            wrong.append(
                f"{sample.name}: {sample.cached_tokens} tokens came from a cache, "
                f"not {PREFIX_TOKENS}"
            )
        if sample.phase not in _HITS and sample.cached_tokens:
            wrong.append(f"{sample.name}: {sample.cached_tokens} tokens came from a cache")
        source = _SOURCE.get(sample.phase)
        if source and (decision is None or set(decision.tiers) != {source}):
            tiers = " and ".join(decision.tiers) if decision else "nowhere that it knows of"
            wrong.append(f"{sample.name}: kvwise loaded from {tiers or 'nowhere'}, not {source}")
    return wrong


def _busy(facts: dict[str, Any]) -> list[str]:
    """A warning when others were using the machine before the run began."""
    load, cores = facts.get("load_average", 0), facts.get("cores", 1)
    if load <= cores:
        return []
    text = f"the machine was busy before the run began (load average {load:g} on {cores} cores)"
    return [f"{text}: times are longer then, and vary more"]


def _bad_replays(replays: list[Replay]) -> list[str]:
    """Event logs that did not lead to the same commands again."""
    return [f"{r.log}: replaying it diverged: {r.divergence}" for r in replays if not r.equal]
