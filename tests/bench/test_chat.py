"""The streamed request: what it sends, what it collects, and how every failure is named."""

from __future__ import annotations

import pytest

from kvwise.bench import chat
from kvwise.bench.chat import Question
from kvwise.bench.server import free_port
from kvwise.errors import EngineError
from tests.bench.fakes import FakeEngine, said, serving, used

QUESTION = Question("dram-1-1", [{"role": "user", "content": "who?"}], 24, hints={"no_load": True})


def test_an_answer_is_put_together() -> None:
    """Tokens, text and counts come from the pieces of the stream."""
    stream = [said(""), said("A ke", 5, 6), said("eper", 7), used(2064, 2048), "[DONE]"]
    with serving(FakeEngine(stream)) as engine:
        answer = chat.ask(engine.port, QUESTION)

    assert answer.tokens == (5, 6, 7)
    assert answer.text == "A keeper"
    assert (answer.prompt_tokens, answer.cached_tokens) == (2064, 2048)
    assert answer.ttft_s > 0


def test_the_request_is_repeatable_and_named() -> None:
    """Greedy decoding, token ids, the request's name, and the hints for the cache."""
    with serving(FakeEngine([said("x", 1), "[DONE]"])) as engine:
        chat.ask(engine.port, QUESTION)
    path, body = engine.asked[0]

    assert path == "/v1/chat/completions"
    assert (body["temperature"], body["return_token_ids"], body["ignore_eos"]) == (0, True, True)
    assert body["request_id"] == "dram-1-1"
    assert body["kv_transfer_params"] == {"kvwise": {"no_load": True}}


@pytest.mark.parametrize(
    ("stream", "message"),
    [
        (["[DONE]"], "without a token"),
        ([said("")], "without a token"),
        ([said("x", 1), {"error": {"message": "died"}}], "in the middle of an answer"),
    ],
)
def test_a_broken_answer_is_an_error(stream: list[object], message: str) -> None:
    """Half an answer is never measured."""
    with serving(FakeEngine(stream)) as engine, pytest.raises(EngineError, match=message):
        chat.ask(engine.port, QUESTION)


def test_a_refusal_is_quoted() -> None:
    """The engine's status and words reach the user."""
    with (
        serving(FakeEngine([said("too long")], status=400)) as engine,
        pytest.raises(EngineError, match=r"answered 400: .*too long"),
    ):
        chat.ask(engine.port, QUESTION)


def test_no_engine_is_an_error_and_not_healthy() -> None:
    """A closed port is told from a slow engine."""
    port = free_port()
    with pytest.raises(EngineError, match="broke off"):
        chat.ask(port, QUESTION)

    assert not chat.healthy(port)


def test_small_questions() -> None:
    """Version, length of a prompt, health, and emptying the prefix cache."""
    with serving(FakeEngine()) as engine:
        version, healthy = chat.version(engine.port), chat.healthy(engine.port)
        count = chat.count_tokens(engine.port, QUESTION.messages)
        chat.forget(engine.port)

    assert (version, healthy, count) == ("0.32.0", True, 8)
    assert engine.asked[-1][0] == "/reset_prefix_cache"


def test_an_engine_that_is_not_well_is_not_healthy() -> None:
    """An answer other than success is no health."""
    with serving(FakeEngine(status=503)) as engine:
        healthy = chat.healthy(engine.port)

    assert not healthy
