"""A recorded demo run, for tests of what is concluded and shown."""

from __future__ import annotations

from dataclasses import replace

from kvwise.bench.measure import Phase, Sample
from kvwise.bench.result import Replay, Report, Setting, conclude
from kvwise.core.words import Choice, Decision, Why

TTFT_MS = {
    Phase.FIRST_VISIT: 2673.4,
    Phase.RECOMPUTE: 2395.1,
    Phase.DEVICE: 80.9,
    Phase.DRAM: 88.8,
    Phase.DRAM_RESTARTED: 95.6,
    Phase.DISK: 139.5,
}
TIER = {Phase.DRAM: "dram", Phase.DRAM_RESTARTED: "dram", Phase.DISK: "disk"}
COMPUTED = (Phase.FIRST_VISIT, Phase.RECOMPUTE)
SETTING = Setting(
    version="0.1.0",
    engine={"name": "vLLM on the CPU", "version": "0.32.0", "answer_tokens": 24},
    model="SmolLM2-135M-Instruct, bfloat16",
    machine={"cpu": "AMD EPYC", "cores": 2, "load_average": 0.4},
    started="2026-11-29T15:00:00+00:00",
    took_s=212.0,
)
REPLAYS = [Replay("events-1.kvlog", True, 2011, ""), Replay("events-2.kvlog", True, 594, "")]


def samples() -> list[Sample]:
    """Three documents, asked once in every phase."""
    return [
        Sample(
            name=f"{phase.value.replace('_', '-')}-{document}-1",
            phase=phase,
            document=document,
            ttft_ms=ttft_ms * (1 + 0.05 * (document - 1)),
            prompt_tokens=2064,
            cached_tokens=0 if phase in COMPUTED else 2048,
            tokens=(document, 17, 4),
            text="The record is written by the <keeper> & others",
        )
        for phase, ttft_ms in TTFT_MS.items()
        for document in range(3)
    ]


def decisions() -> list[Decision]:
    """What kvwise decided about the loads, under the engine's names for the requests."""
    return [
        Decision(
            now_ns=1,
            request=f"chatcmpl-{sample.name}-9f2c",
            namespace="demo",
            total_tokens=2064,
            local_tokens=0,
            match_tokens=2048,
            load_tokens=2048,
            tiers={TIER[sample.phase]: 2048},
            load_s=0.012,
            recompute_s=2.287,
            margin=0.1,
            choice=Choice.LOAD,
            why=Why.FASTER,
            actual_s=0.0147,
        )
        for sample in samples()
        if sample.phase in TIER
    ]


def report(
    *, changed: dict[str, Sample] | None = None, slower: float = 1.0, load_average: float = 0.4
) -> Report:
    """The conclusion, with some samples replaced by name, hits slower, another machine load."""
    other = changed or {}
    found = [other.get(s.name, s) for s in samples()]
    found = [replace(s, ttft_ms=s.ttft_ms * slower) if s.phase in TIER else s for s in found]
    setting = replace(SETTING, machine={**SETTING.machine, "load_average": load_average})
    return conclude(setting, found, decisions(), list(REPLAYS))


def with_other_tokens(name: str) -> dict[str, Sample]:
    """A replacement of one sample whose tokens differ."""
    return {s.name: replace(s, tokens=(99,)) for s in samples() if s.name == name}
