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
_FIT_ROUNDS, _DRAWS = 4, 8
"""How often words are added or taken away until a prompt fits, and how often others are drawn."""

Count = Callable[[list[Message]], int]
"""How many tokens an engine makes of a conversation."""


class Prompts:
    """Prompts that nobody has sent before, one after the other.

    A token more or less may decide whether a prompt ends in a whole block, and that how much of it
    is left to compute when the blocks are there: a third of the time of a hit.
    """

    def __init__(self, count: Count, tokens: int, seed: int) -> None:
        """Find out how many words make `tokens` tokens.

        Raises:
            EngineError: no number of words does, within one in a hundred.
        """
        self._count = count
        self._seed = seed
        self._words = tokens
        self._made = 0
        self.tokens = tokens
        for _ in range(_FIT_ROUNDS):
            self.tokens = count(self._conversation(0, 0, self._words))
            if self.tokens == tokens:
                return
            self._words = max(1, self._words + tokens - self.tokens)
        if abs(self.tokens - tokens) > tokens // 100:
            raise EngineError(f"no prompt of {tokens} tokens can be made, only of {self.tokens}")

    def next(self) -> list[Message]:
        """One more prompt.

        Raises:
            EngineError: what was drawn does not fit.
        """
        self._made += 1
        for draw in range(_DRAWS):
            words = self._words
            for _ in range(_FIT_ROUNDS):
                found = self._conversation(self._made, draw, words)
                over = self._count(found) - self.tokens
                if not over:
                    return found
                words = max(1, words - over)
        raise EngineError(f"no other prompt of {self.tokens} tokens can be made")

    def _conversation(self, number: int, draw: int, words: int) -> list[Message]:
        """Prompt `number`: its first words already differ, so no block is shared with another."""
        stream = hashlib.shake_128(f"{self._seed}:{number}:{draw}".encode()).digest(words)
        text = " ".join(_WORDS[byte % len(_WORDS)] for byte in stream)
        first = " ".join(_WORDS[byte % len(_WORDS)] for byte in stream[:8])
        return [{"role": "system", "content": first}, {"role": "user", "content": text}]
