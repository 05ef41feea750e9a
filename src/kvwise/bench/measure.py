"""Owns the measured requests: which source each phase leaves to answer from, and what came out.

It starts and stops no process, and draws no conclusion. Before each request the engine's own prefix
cache is emptied, unless the phase is about that cache.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from kvwise.bench import chat
from kvwise.bench.chat import Question
from kvwise.bench.progress import Progress
from kvwise.bench.talks import ANSWER_TOKENS, UNSEEN, Talk
from kvwise.core.words import Decision


class Phase(StrEnum):
    """Where the prompt's KV comes from."""

    FIRST_VISIT = "first_visit"
    RECOMPUTE = "recompute"
    DEVICE = "device"
    DRAM = "dram"
    DRAM_RESTARTED = "dram_after_engine_restart"
    DISK = "disk_after_restart"


@dataclass(frozen=True, slots=True)
class Sample:
    """One measured request.

    Attributes:
        name: what engine and cache called the request.
        phase: where its KV should have come from.
        document: which conversation it belongs to.
        ttft_ms: milliseconds from sending it until its first token was here.
        prompt_tokens: tokens of its prompt.
        cached_tokens: tokens of its prompt that the engine did not compute.
        tokens: ids of the tokens generated.
        text: the same as text.
    """

    name: str
    phase: Phase
    document: int
    ttft_ms: float
    prompt_tokens: int
    cached_tokens: int
    tokens: tuple[int, ...]
    text: str


@dataclass(slots=True)
class Bench:
    """What was measured so far, and where to measure on.

    Attributes:
        progress: where to say what is under way.
        talks: the conversations.
        samples: every request, in order.
        decisions: what kvwise decided about them.
    """

    progress: Progress
    talks: list[Talk] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)

    def measure(self, port: int, phase: Phase, talk: Talk, round_number: int = 1) -> None:
        """Ask the question of a conversation once."""
        at = self.talks.index(talk) + 1
        self.progress.now(
            f"{phase.value.replace('_', ' ')}: the {talk.title} ({at} of {len(self.talks)})"
        )
        hints = UNSEEN if phase is Phase.RECOMPUTE else None
        if phase is not Phase.DEVICE:
            chat.forget(port)
        name = f"{phase.value.replace('_', '-')}-{talk.number}-{round_number}"
        answer = chat.ask(port, Question(name, talk.messages, ANSWER_TOKENS, hints=hints))
        self.samples.append(
            Sample(
                name=name,
                phase=phase,
                document=talk.number,
                ttft_ms=answer.ttft_s * 1000,
                prompt_tokens=answer.prompt_tokens,
                cached_tokens=answer.cached_tokens,
                tokens=answer.tokens,
                text=answer.text,
            )
        )

    def learn(self, decisions: list[Decision]) -> None:
        """Take in what a daemon decided, each decision once."""
        known = set(self.decisions_by_name())
        self.decisions += [d for d in decisions if d.request not in known]

    def decisions_by_name(self) -> dict[str, Decision]:
        """Decisions by the request that they are about."""
        return {decision.request: decision for decision in self.decisions}


def interleaved(bench: Bench, port: int, repeats: int) -> None:
    """Compute, hit the device and hit the memory in turn, document by document.

    What else the machine does meanwhile then weighs on all three alike.
    """
    for talk in bench.talks:
        bench.measure(port, Phase.RECOMPUTE, talk)
        for number in range(1, repeats + 1):
            bench.measure(port, Phase.DEVICE, talk, number)
        for number in range(1, repeats + 1):
            bench.measure(port, Phase.DRAM, talk, number)


def each(bench: Bench, port: int, phase: Phase, repeats: int = 1) -> None:
    """Measure one phase over all documents."""
    for number in range(1, repeats + 1):
        for talk in bench.talks:
            bench.measure(port, phase, talk, number)
