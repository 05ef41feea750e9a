"""Owns the conversations that the demo measures: a long document, one turn, and a second question.

It builds prompts and times nothing. Every measured prompt is a full engine step and a little more:
its first 2,048 tokens are computed in one step when nothing is cached, and are exactly what a cache
gives back. Computing and loading then differ in nothing but where those tokens' KV came from, so
that tokens that differ are the cache's fault and not that of rounding in kernels of other shapes.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvwise.bench import chat
from kvwise.bench.chat import Message, Question
from kvwise.bench.documents import document
from kvwise.bench.server import BLOCK_TOKENS, STEP_TOKENS

PREFIX_TOKENS = STEP_TOKENS
ANSWER_TOKENS = 24
UNSEEN = {"no_load": True, "no_store": True}
"""Hints for a request that kvwise must neither serve nor learn from."""

_EMPTY_ANSWER_TOKENS = PREFIX_TOKENS + 2
"""Length of the prompt without the first answer, so that any answer ends within the next block."""
_FIT_ROUNDS = 8


@dataclass(frozen=True, slots=True)
class Talk:
    """One conversation up to the question that is measured.

    Attributes:
        number: which document it is about.
        title: what the document is about.
        messages: the conversation.
        prompt_tokens: its length as the engine counts it.
    """

    number: int
    title: str
    messages: list[Message]
    prompt_tokens: int

    @property
    def fits(self) -> bool:
        """Whether exactly the first step's tokens can come from a cache."""
        return PREFIX_TOKENS < self.prompt_tokens <= PREFIX_TOKENS + BLOCK_TOKENS


def open_talk(port: int, number: int) -> Talk:
    """The conversation about document `number`, its first answer given by the engine at `port`.

    Raises:
        EngineError: the engine refused or fell silent.
    """
    page = document(number)
    first, second = page.questions
    words = page.text.split(" ")
    count = _fitting_words(port, words, (first, second))
    opening = [_user(f"{' '.join(words[:count])}\n\n{first}")]
    name = f"opening-{number}"
    answer = chat.ask(port, Question(name, opening, ANSWER_TOKENS, to_the_end=False, hints=UNSEEN))
    messages = [*opening, {"role": "assistant", "content": answer.text}, _user(second)]
    return Talk(number, page.title, messages, chat.count_tokens(port, messages))


def _user(text: str) -> Message:
    """What the user says."""
    return {"role": "user", "content": text}


def _fitting_words(port: int, words: list[str], questions: tuple[str, str]) -> int:
    """How many words of the document give a prompt of the wanted length, the answer left out."""
    first, second = questions
    count = len(words)
    for _ in range(_FIT_ROUNDS):
        text = f"{' '.join(words[:count])}\n\n{first}"
        prompt = [_user(text), {"role": "assistant", "content": ""}, _user(second)]
        over = chat.count_tokens(port, prompt) - _EMPTY_ANSWER_TOKENS
        if not over:
            break
        # A word is at least one token, so this never cuts too much.
        count = min(len(words), count - (over // 2 or over))
    return count
