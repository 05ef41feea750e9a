"""Owns the conversations that the demo measures: a long document, one turn, and a second question.

It builds prompts and times nothing. Every measured prompt is a full engine step and a little more:
its first 2,048 tokens are computed in one step when nothing is cached, and are exactly what a cache
gives back. Computing and loading then differ in nothing but where those tokens' KV came from, so
that tokens that differ are the cache's fault and not that of rounding in kernels of other shapes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kvwise.bench import chat
from kvwise.bench.chat import Message, Question
from kvwise.bench.documents import document
from kvwise.bench.server import STEP_TOKENS

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


def open_talk(port: int, number: int) -> Talk:
    """The conversation about document `number`, its first answer given by the engine at `port`.

    Raises:
        EngineError: the engine refused or fell silent.
    """
    page = document(number)
    first, second = page.questions
    # The first words differ, or all conversations would share the blocks of the system prompt.
    system = {"role": "system", "content": f"Record {number + 1}: the {page.title}. Be brief."}
    words = page.text.split(" ")

    def prompt(count: int) -> list[Message]:
        """The opening with so many words of the document."""
        return [system, _user(f"{' '.join(words[:count])}\n\n{first}")]

    opening = prompt(
        _fitting_words(port, len(words), lambda count: _then(prompt(count), "", second))
    )
    name = f"opening-{number}"
    answer = chat.ask(port, Question(name, opening, ANSWER_TOKENS, to_the_end=False, hints=UNSEEN))
    messages = _then(opening, answer.text, second)
    return Talk(number, page.title, messages, chat.count_tokens(port, messages))


def _user(text: str) -> Message:
    """What the user says."""
    return {"role": "user", "content": text}


def _then(opening: list[Message], answer: str, question: str) -> list[Message]:
    """The conversation after one answer and one more question."""
    return [*opening, {"role": "assistant", "content": answer}, _user(question)]


def _fitting_words(port: int, words: int, prompt: Callable[[int], list[Message]]) -> int:
    """How many of a document's words make `prompt(count)` as long as is wanted."""
    count = words
    for _ in range(_FIT_ROUNDS):
        over = chat.count_tokens(port, prompt(count)) - _EMPTY_ANSWER_TOKENS
        if not over:
            break
        # A word is one token or more, mostly one and a half: half of what is over never cuts too
        # much, and the rounds allowed halve any difference to nothing.
        count = min(words, count - (over // 2 or over))
    return count
