"""Report: many outcomes added up, and one failure told so that it can be looked into. It runs none.

Whatever is told of a failure names its seed; who prints it adds the commit, and both together give
the same run again.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any

from kvwise.core.keys import split_keys
from kvwise.core.words import Command, Decision, Event, Item
from kvwise.sim.shrink import Shrunk
from kvwise.sim.world import Outcome
from kvwise.units import NS_PER_MS

KEY_DIGITS = 8
"""Digits of a key that a report shows; a collision among the few keys of a scenario is unlikely."""


@dataclass(slots=True)
class Summary:
    """Totals of a run over many seeds."""

    seeds: int = 0
    events: int = 0
    commands: int = 0
    simulated_s: float = 0.0
    done: int = 0
    aborted: int = 0
    loaded_chunks: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    failed: list[Outcome] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        """Count one more seed."""
        self.seeds += 1
        self.events += outcome.events
        self.commands += outcome.commands
        self.simulated_s += outcome.simulated_s
        self.done += outcome.done
        self.aborted += outcome.aborted
        self.loaded_chunks += outcome.loaded_chunks
        self.faults.update(outcome.faults)
        self.reasons.update(outcome.reasons)
        if outcome.failure is not None:
            self.failed.append(outcome)

    def to_builtins(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {
            "seeds": self.seeds,
            "failed": [failed_seed(outcome) for outcome in self.failed],
            "events": self.events,
            "commands": self.commands,
            "simulated_s": round(self.simulated_s, 3),
            "requests": {"done": self.done, "aborted": self.aborted},
            "loaded_chunks": self.loaded_chunks,
            "faults": dict(sorted(self.faults.items())),
            "reasons": dict(sorted(self.reasons.items())),
        }


def failed_seed(outcome: Outcome) -> dict[str, Any]:
    """The failure of one seed as plain data; nothing but the seed when it did not fail."""
    failure = outcome.failure
    if failure is None:
        return {"seed": outcome.seed}
    return {
        "seed": outcome.seed,
        "rule": failure.rule,
        "details": failure.details,
        "event": failure.at_event,
    }


def tell(shrunk: Shrunk, *, events: int) -> list[str]:
    """A shrunk failure in lines: what is left of the scenario, and its last events."""
    scenario, failure = shrunk.scenario, shrunk.outcome.failure
    lines = [f"shrunk in {shrunk.tries} runs to {shrunk.outcome.events} events:"]
    lines += [f"  {engine}" for engine in scenario.engines]
    lines.append(f"  {scenario.brain}")
    for request in scenario.requests:
        lines.append(
            f"  {request.at_ns / NS_PER_MS:9.3f} ms  {request.name} on engine {request.engine}: "
            f"{request.prompt_tokens} + {request.output_tokens} tokens, chunks {request.content}"
        )
    for upset in scenario.plan.upsets:
        lines.append(
            f"  {upset.at_ns / NS_PER_MS:9.3f} ms  {upset.kind.value} of {upset.target}, "
            f"for {upset.lasts_ns / NS_PER_MS:.3f} ms"
        )
    lines += [f"  {fault.value}: {rate:.0%}" for fault, rate in scenario.plan.rates.items()]
    if failure is not None:
        lines.append(f"broken: {failure.details}")
        lines.append(f"last {min(events, len(failure.trace))} events, each with its commands:")
        for event, commands in failure.trace[-events:]:
            lines += [say(event), *(f"    {say(command)}" for command in commands)]
    return lines


def say(word: Event | Command) -> str:
    """An event or a command on one line, keys as the first hexadecimal digits of each."""
    said = [f"{field.name}={_short(getattr(word, field.name))}" for field in fields(word)]
    return f"{type(word).__name__}({', '.join(said)})"


def _short(value: object) -> str:
    match value:
        case bytes():
            return "+".join(key.hex()[:KEY_DIGITS] for key in split_keys(value)) or "none"
        case Item():
            return f"{_short(value.key)} below {_short(value.parent)} in pages {value.pages}"
        case tuple() if value and isinstance(value[0], Item):
            return "[" + "; ".join(_short(item) for item in value) + "]"
        case Decision():
            return f"{value.choice.value} because {value.why.value}"
        case Enum():
            return str(value.value)
        case dict():
            return "{" + ", ".join(f"{_short(k)}: {v}" for k, v in value.items()) + "}"
        case _:
            return str(value)
