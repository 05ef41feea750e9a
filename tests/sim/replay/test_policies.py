"""What policies make of kinds of work: never used again, used from some time on, and others."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import islice

import pytest

from kvwise.sim.replay.profile import DEFAULT, PROFILES
from kvwise.sim.replay.single import Job, Run, run_single
from kvwise.sim.replay.tape import tape_of
from kvwise.sim.trace.make import PARAMETERS, make_rows
from kvwise.sim.trace.prefix import PrefixTree
from kvwise.sim.trace.records import Request, Trace
from kvwise.units import NS_PER_MS
from tests.sim.trace.support import quiet

BLOCK_TOKENS = 512
SETTINGS = {
    kind: {name: one.default for name, one in PARAMETERS[kind].items()} for kind in PARAMETERS
}
MIXES = {
    "chat": ("chat",),
    "agent": ("agent",),
    "rag": ("rag",),
    "mix": ("chat", "rag", "oneshot"),
}


@cache
def trace_of(*parts: tuple[tuple[str, ...], int]) -> Trace:
    """Kinds of work one after the other, each with so many requests."""
    tree, told, begin_ns = PrefixTree(), list[Request](), 0
    for number, (kinds, requests) in enumerate(parts):
        rows = make_rows(dict.fromkeys(kinds, 1.0), SETTINGS, number)
        for row in islice(rows, requests):
            ids = [(number << 40) + one for one in row.hash_ids]
            told.append(
                Request(
                    begin_ns + row.timestamp * NS_PER_MS,
                    row.input_length,
                    row.output_length,
                    tree.path(0, ids),
                )
            )
        begin_ns = told[-1].arrival_ns
    return Trace("made", BLOCK_TOKENS, tuple(told), tree.parents, ())


def ran(trace: Trace, blocks: int, policy: str = "worth") -> Run:
    """A run with memory for so many blocks."""
    job = Job(policy, "load", blocks * BLOCK_TOKENS)
    return run_single(tape_of(trace), PROFILES[DEFAULT], job, quiet)


def later(trace: Trace, first: int, blocks: int) -> tuple[int, int, int]:
    """From request `first` on: blocks asked for, hit, and written."""
    whole = ran(trace, blocks)
    before = ran(replace(trace, requests=trace.requests[:first]), blocks)
    return (
        whole.input_blocks - before.input_blocks,
        whole.hit_blocks - before.hit_blocks,
        whole.blocks_written - before.blocks_written,
    )


def test_what_is_never_used_again_is_soon_not_written() -> None:
    """Of prompts that are asked once, the last half of 400 is hardly written any more."""
    asked, _, written = later(trace_of((("oneshot",), 400)), 200, 100)
    assert written < 0.02 * asked


def test_reuse_that_begins_is_noticed() -> None:
    """After 300 prompts that were asked once come chats: of the last hundred most hits are had."""
    trace = trace_of((("oneshot",), 300), (("chat",), 300))
    asked, hit, written = later(trace, 500, 400)
    _, known, _ = later(trace_of((("chat",), 300)), 200, 400)
    assert written > 0
    assert asked > hit > 0
    assert hit > 0.9 * known


@pytest.mark.parametrize("blocks", [60, 300, 1_500])
@pytest.mark.parametrize("kinds", MIXES)
def test_it_is_no_worse_than_lru(kinds: str, blocks: int) -> None:
    """Whatever the work, and whether much or little of it fits."""
    trace = trace_of((MIXES[kinds], 150 if kinds == "agent" else 900))
    worth, lru = (ran(trace, blocks, policy) for policy in ("worth", "lru"))
    assert worth.hit_blocks >= lru.hit_blocks - 0.003 * lru.input_blocks
