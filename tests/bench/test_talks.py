"""Conversations are cut so that a cache can give back exactly what one step computes."""

from __future__ import annotations

from kvwise.bench.server import BLOCK_TOKENS
from kvwise.bench.talks import PREFIX_TOKENS, UNSEEN, Talk, open_talk
from tests.bench.fakes import FakeEngine, said, serving


def test_the_prompt_ends_within_the_block_after_the_prefix() -> None:
    """Whatever the first answer is, only the prefix can come from a cache."""
    for answer in ("", "It was written by Ada Brandt for the council."):
        with serving(FakeEngine([said(answer, 1), "[DONE]"])) as engine:
            talk = open_talk(engine.port, number=3)

        assert talk.fits
        assert talk.messages[1]["content"] == answer
        assert [message["role"] for message in talk.messages] == ["user", "assistant", "user"]


def test_opening_a_conversation_leaves_no_trace_in_the_cache() -> None:
    """The measured prompt has to be new to kvwise when it is first asked."""
    with serving(FakeEngine([said("x", 1), "[DONE]"])) as engine:
        open_talk(engine.port, number=0)
    asked = [body for path, body in engine.asked if path == "/v1/chat/completions"]

    assert [body["kv_transfer_params"]["kvwise"] for body in asked] == [UNSEEN]


def test_what_fits() -> None:
    """At least one token is left to compute, and no whole block more."""
    sizes = (PREFIX_TOKENS, PREFIX_TOKENS + 1, PREFIX_TOKENS + BLOCK_TOKENS)
    fits = [Talk(0, "", [], size).fits for size in (*sizes, sizes[-1] + 1)]

    assert fits == [False, True, True, False]
