"""Owns the one-shot workload: prompts that nobody sends again, and how little of them is written.

It starts nothing but a daemon anew, as operators would, which has learned nothing yet. What is
written to disk of each half of the requests is held against what writing everything would come to.
"""

from __future__ import annotations

from dataclasses import replace

from kvwise.bench.engine_load import Conversation, Load
from kvwise.bench.engine_prompts import Prompts
from kvwise.bench.engine_rig import Rig
from kvwise.bench.rows import Row
from kvwise.bench.server import BLOCK_TOKENS
from kvwise.core.layout import default_chunk_tokens

TOKEN_BYTES = 23_040
"""KV of a token of the model."""

CHUNK_TOKENS = default_chunk_tokens(BLOCK_TOKENS, BLOCK_TOKENS * TOKEN_BYTES)
ANSWER_TOKENS = 1


def one_shot(rig: Rig, requests: int, prompts: Prompts, load: Load, known: Conversation) -> Row:
    """Send that many prompts; `known` is what the restarted daemon is waited for with.

    Raises:
        EngineError: the engine refused a request or fell silent.
        SetupError: the disk is too slow, or the engine did not come back to the daemon.
    """
    rig.only(rig.cached)
    rig.daemon.options = replace(rig.daemon.options, settings={})
    rig.restart_daemon(load, known)
    rig.settle()
    half, written = requests // 2, []
    for which in ("first", "second"):
        before = rig.daemon.written_bytes()
        for number in range(half):
            rig.progress.now(f"one-shot prompt {number + 1} of {half}, {which} half")
            load.one(prompts.next(), ANSWER_TOKENS)
        rig.settle()
        written.append(rig.daemon.written_bytes() - before)
    row = share_row(written, half, prompts.tokens)
    rig.progress.done(f"one-shot: {row['written_share'][1]:.1%} of the second half was written")
    return row


def share_row(written_bytes: list[int], half: int, prompt_tokens: int) -> Row:
    """What was written of each half of the requests, as a part of everything that could be."""
    all_bytes = half * (prompt_tokens // CHUNK_TOKENS) * CHUNK_TOKENS * TOKEN_BYTES
    return {
        "path": "one_shot",
        "requests": 2 * half,
        "prompt_tokens": prompt_tokens,
        "written_bytes": written_bytes,
        "all_bytes": all_bytes,
        "written_share": [round(some / all_bytes, 4) for some in written_bytes],
    }
