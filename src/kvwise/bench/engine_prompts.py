"""Owns prompts for measuring: all of the same length, and none that begins like another.

It measures nothing. A prompt is a conversation of common words, each of them one token for nearly
every model; the engine's own count decides how many of them there are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from kvwise.bench.chat import Message
from kvwise.errors import EngineError

LEAST_TOKENS = 256
"""Shorter prompts are mostly the words around them."""

_WORDS = (
    "time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world",
    "school", "state", "family", "student", "group", "country", "problem", "hand", "part",
    "place", "case", "week", "company", "system", "program", "question", "work", "number",
    "night", "point", "home", "water", "room", "mother", "area", "money", "story", "fact",
    "month", "lot", "right", "study", "book", "eye", "job", "word", "business", "issue", "side",
    "kind", "head", "house", "service", "friend", "father", "power", "hour", "game", "line",
    "end", "member", "law",
)  # fmt: skip
_FIT_ROUNDS = 4

Count = Callable[[list[Message]], int]
"""How many tokens an engine makes of a conversation."""


class Prompts:
    """Prompts that nobody has sent before, one after the other."""

    def __init__(self, count: Count, tokens: int, seed: int) -> None:
        """Find out how many words make `tokens` tokens.

        Raises:
            EngineError: no number of words does, within one in a hundred.
        """
        self._seed = seed
        self._words = tokens
        self._made = 0
        self.tokens = 0
        for _ in range(_FIT_ROUNDS):
            self.tokens = count(self._conversation(0))
            if self.tokens == tokens:
                return
            self._words = max(1, self._words + tokens - self.tokens)
        if abs(self.tokens - tokens) > tokens // 100:
            raise EngineError(f"no prompt of {tokens} tokens can be made, only of {self.tokens}")

    def next(self) -> list[Message]:
        """One more prompt."""
        self._made += 1
        return self._conversation(self._made)

    def _conversation(self, number: int) -> list[Message]:
        """Prompt `number`: its first words already differ, so no block is shared with another."""
        stream = hashlib.shake_128(f"{self._seed}:{number}".encode()).digest(self._words)
        words = " ".join(_WORDS[byte % len(_WORDS)] for byte in stream)
        first = " ".join(_WORDS[byte % len(_WORDS)] for byte in stream[:8])
        return [{"role": "system", "content": first}, {"role": "user", "content": words}]
