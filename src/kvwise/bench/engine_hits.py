"""Owns the hits: prompts that are asked again, served by kvwise or by the engine's own cache.

It starts nothing but a daemon anew, which leaves the prompts on disk alone. Each request served by
kvwise is followed by the same one served from the device's blocks, and the two are compared.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kvwise.bench.engine_load import Burst, Conversation, Load, Timed
from kvwise.bench.engine_prompts import Prompts
from kvwise.bench.engine_rig import Rig
from kvwise.bench.engine_tax import Plan, burst_columns, request_columns
from kvwise.bench.rows import Row
from kvwise.errors import EngineError


@dataclass(slots=True)
class _Found:
    """What was served by kvwise, and what by the engine's own cache right after it."""

    hits: list[Timed] = field(default_factory=list)
    device: list[Timed] = field(default_factory=list)
    bursts: list[Burst] = field(default_factory=list)
    device_bursts: list[Burst] = field(default_factory=list)

    def one(self, load: Load, prompt: Conversation) -> None:
        """Ask a prompt that the device does not hold, then again when it does."""
        load.forget()
        self.hits.append(load.one(prompt))
        self.device.append(load.one(prompt))

    def burst(self, load: Load, prompts: list[Conversation], at_a_time: int) -> None:
        """The same with all prompts in a burst."""
        load.forget()
        self.bursts.append(load.burst(prompts, at_a_time))
        self.device_bursts.append(load.burst(prompts, at_a_time))

    def row(self, path: str, prompts: Prompts, computed_ms: float) -> Row:
        """What it comes to."""
        return {
            "path": path,
            "against": "the engine's own prefix cache",
            **request_columns(self.hits, self.device),
            **burst_columns(self.bursts, self.device_bursts),
            "prompt_tokens": prompts.tokens,
            "cached_tokens": min(one.cached_tokens for one in self.hits),
            "base_cached_tokens": min(one.cached_tokens for one in self.device),
            "speedup_over_computing": round(
                computed_ms / sorted(one.ttft_ms for one in self.hits)[len(self.hits) // 2], 1
            ),
        }


def hits(rig: Rig, plan: Plan, prompts: Prompts, load: Load, computed_ms: float) -> list[Row]:
    """Measure hits in memory and on disk; `computed_ms` is the time without any.

    Raises:
        EngineError: the engine refused a request, fell silent, or computed what it should load.
        SetupError: the disk is too slow, or the engine did not come back to a restarted daemon.
    """
    rig.only(rig.cached)
    again = [prompts.next() for _ in range(plan.hits)]
    for number, prompt in enumerate(again, 1):
        rig.progress.now(f"storing prompt {number} of {len(again)}")
        load.one(prompt)
    rows = [_memory(rig, plan, load, again).row("hit.dram", prompts, computed_ms)]
    rows.append(_disk(rig, plan, load, again, prompts).row("hit.disk", prompts, computed_ms))
    for row in rows:
        if row["cached_tokens"] < row["base_cached_tokens"]:
            raise EngineError(
                f"{row['path']}: kvwise loaded {row['cached_tokens']} tokens of a prompt of which "
                f"the engine's own cache gives {row['base_cached_tokens']}; hint: ask for longer "
                "prompts, or see `kvwise explain` for why loading was not worth it"
            )
    return rows


def _memory(rig: Rig, plan: Plan, load: Load, again: list[Conversation]) -> _Found:
    """Hits in the arena."""
    found = _Found()
    _Found().one(load, again[0])  # the path is walked once before it is timed
    for repeat in range(plan.repeats):
        rig.progress.now(f"hits in memory, round {repeat + 1} of {plan.repeats}")
        for prompt in again:
            found.one(load, prompt)
    for _ in range(plan.bursts):
        rig.progress.now("bursts of hits in memory")
        found.burst(load, again, plan.at_a_time)
    rig.progress.done(f"{len(found.hits)} hits in memory and as many on the device")
    return found


def _disk(rig: Rig, plan: Plan, load: Load, again: list[Conversation], prompts: Prompts) -> _Found:
    """Hits on disk: each prompt once after each restart of the daemon."""
    found = _Found()
    other = prompts.next()
    load.one(other)
    for restart in range(plan.restarts):
        rig.restart_daemon(load, other)
        for number, prompt in enumerate(again, 1):
            rig.progress.now(f"hits on disk, {number} of {len(again)}, restart {restart + 1}")
            found.one(load, prompt)
        rig.restart_daemon(load, other)
        rig.progress.now("a burst of hits on disk")
        found.burst(load, again, plan.at_a_time)
    rig.progress.done(f"{len(found.hits)} hits on disk and as many on the device")
    return found
