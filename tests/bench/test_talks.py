"""Conversations are cut so that a cache can give back exactly what one step computes."""

from __future__ import annotations

from kvwise.bench.server import BLOCK_TOKENS
from kvwise.bench.talks import PREFIX_TOKENS, UNSEEN, open_talk
from tests.bench.fakes import FakeEngine, said, serving


def test_the_prompt_ends_within_the_block_after_the_prefix() -> None:
    """Whatever the first answer is, only the prefix can come from a cache."""
    for answer in ("", "It was written by Ada Brandt for the council."):
        with serving(FakeEngine([said(answer, 1), "[DONE]"])) as engine:
            talk = open_talk(engine.port, number=3)

        assert PREFIX_TOKENS < talk.prompt_tokens <= PREFIX_TOKENS + BLOCK_TOKENS
        roles = [message["role"] for message in talk.messages]
        assert roles == ["system", "user", "assistant", "user"]
        assert talk.messages[2]["content"] == answer


def test_conversations_share_no_block() -> None:
    """What one conversation left in a cache must not help the next one."""
    with serving(FakeEngine([said("x", 1), "[DONE]"])) as engine:
        starts = [open_talk(engine.port, n).messages[0]["content"].split()[1] for n in range(14)]

    assert len(set(starts)) == 14


def test_opening_a_conversation_leaves_no_trace_in_the_cache() -> None:
    """The measured prompt has to be new to kvwise when it is first asked."""
    with serving(FakeEngine([said("x", 1), "[DONE]"])) as engine:
        open_talk(engine.port, number=0)
    asked = [body for path, body in engine.asked if path == "/v1/chat/completions"]

    assert [body["kv_transfer_params"]["kvwise"] for body in asked] == [UNSEEN]
