"""Owns the load that is put on an engine: one request timed, or several under way at a time.

It starts no engine and compares nothing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from kvwise.bench import chat
from kvwise.bench.chat import Answer, Message, Question
from kvwise.bench.engine_cpu import Meter

Conversation = list[Message]
HELD = "vllm:kvwise_held_seconds_total"
"""The counter, one series for copies and one for answers."""
STORED = "vllm:kvwise_stored_tokens_total"


@dataclass(frozen=True, slots=True)
class Timed:
    """One request.

    Attributes:
        ttft_ms: from sending it until its first token was here.
        request_ms: until its last token was here.
        cpu_ms: processor time of the engine's workers meanwhile.
        waited_ms: how long they had to wait for a processor.
        cached_tokens: tokens of its prompt that the engine did not compute.
    """

    ttft_ms: float
    request_ms: float
    cpu_ms: float
    waited_ms: float
    cached_tokens: int

    def mean(self, other: Timed) -> Timed:
        """What a request between these two would have taken."""
        return Timed(
            ttft_ms=math.sqrt(self.ttft_ms * other.ttft_ms),
            request_ms=math.sqrt(self.request_ms * other.request_ms),
            cpu_ms=math.sqrt(self.cpu_ms * other.cpu_ms),
            waited_ms=math.sqrt(self.waited_ms * other.waited_ms),
            cached_tokens=min(self.cached_tokens, other.cached_tokens),
        )


@dataclass(frozen=True, slots=True)
class Burst:
    """Several requests, some of them at a time.

    Attributes:
        tokens_per_s: tokens of prompts and answers, over the time from first to last.
        cached_tokens: tokens of prompts that the engine did not compute.
    """

    tokens_per_s: float
    cached_tokens: int

    def mean(self, other: Burst) -> Burst:
        """What a burst between these two would have come to."""
        tokens_per_s = math.sqrt(self.tokens_per_s * other.tokens_per_s)
        return Burst(tokens_per_s, min(self.cached_tokens, other.cached_tokens))


class Load:
    """Sends requests to one engine, each under a name that no other has."""

    def __init__(self, port: int, answer_tokens: int, meter: Meter) -> None:
        self.port = port
        self._answer_tokens = answer_tokens
        self._meter = meter
        self._sent = 0

    def one(
        self,
        prompt: Conversation,
        answer_tokens: int | None = None,
        hints: dict[str, bool] | None = None,
    ) -> Timed:
        """Ask once, with nothing else under way.

        For an answer of another length, and with hints for kvwise, if so wished.

        Raises:
            EngineError: the engine refused or fell silent.
        """
        before, begin_s = self._meter.read(), time.perf_counter()
        answer = self._ask(prompt, answer_tokens, hints)
        request_ms = (time.perf_counter() - begin_s) * 1000
        spent = self._meter.read() - before
        return Timed(
            ttft_ms=answer.ttft_s * 1000,
            request_ms=request_ms,
            cpu_ms=spent.used_ns / 1e6,
            waited_ms=spent.waited_ns / 1e6,
            cached_tokens=answer.cached_tokens,
        )

    def burst(self, prompts: Sequence[Conversation], at_a_time: int) -> Burst:
        """Ask all, so many at a time.

        Raises:
            EngineError: the engine refused one or fell silent.
        """
        begin_s = time.perf_counter()
        with ThreadPoolExecutor(at_a_time, thread_name_prefix="kvwise-bench") as pool:
            answers = list(pool.map(self._ask, prompts))
        seconds = time.perf_counter() - begin_s
        tokens = sum(answer.prompt_tokens + len(answer.tokens) for answer in answers)
        return Burst(tokens / seconds, sum(answer.cached_tokens for answer in answers))

    def held_s(self) -> float:
        """Seconds for which the engine has waited for kvwise so far, by kvwise's own account."""
        return self._counted(HELD)

    def stored_tokens(self) -> float:
        """Tokens that the engine has given to kvwise so far."""
        return self._counted(STORED)

    def forget(self) -> None:
        """Empty the engine's own prefix cache; what kvwise holds stays."""
        chat.forget(self.port)

    def _counted(self, name: str) -> float:
        """All series of a counter."""
        lines = chat.metrics(self.port).splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))

    def _ask(
        self,
        prompt: Conversation,
        answer_tokens: int | None = None,
        hints: dict[str, bool] | None = None,
    ) -> Answer:
        """Send a prompt and read the answer to its end."""
        self._sent += 1
        name = f"bench-{self.port}-{self._sent}"
        tokens = answer_tokens or self._answer_tokens
        return chat.ask(self.port, Question(name, prompt, tokens, hints=hints))
