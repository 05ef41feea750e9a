"""The prefix tree and the cutter against models of a few lines. No file is read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwise.errors import TraceError
from kvwise.sim.trace import prefix
from kvwise.sim.trace.prefix import Cutter, PrefixTree

PROMPTS = st.lists(st.tuples(st.integers(0, 1), st.lists(st.integers(0, 2), max_size=6)))
PIECES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=6)


@given(PROMPTS)
def test_a_block_is_its_whole_prefix(prompts: list[tuple[int, list[int]]]) -> None:
    """Two prompts of one scope have the same block exactly where they agree up to its end."""
    tree = PrefixTree()
    paths = [tree.path(scope, ids).tolist() for scope, ids in prompts]
    model: dict[tuple[int, tuple[int, ...]], int] = {}
    for (scope, ids), path in zip(prompts, paths, strict=True):
        wanted = [
            model.setdefault((scope, tuple(ids[: n + 1])), len(model)) for n in range(len(ids))
        ]
        assert path == wanted
    assert len(tree.parents) == len(model)


def tokens_of(pieces: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Every token of a prompt: its piece and its place in that."""
    return [(piece, n) for piece, length in pieces for n in range(length)]


@given(PIECES, PIECES, st.integers(1, 5))
def test_blocks_are_equal_when_their_tokens_are(
    one: list[tuple[int, int]], other: list[tuple[int, int]], size: int
) -> None:
    """Whole blocks of two prompts are equal exactly where their tokens are, the last one too."""
    prompts = []
    for pieces in (one, other):
        cutter, tokens = Cutter(size), tokens_of(pieces)
        for piece, length in pieces:
            cutter.add(piece, length)
        assert cutter.tokens == len(tokens)
        assert len(cutter.blocks) == len(tokens) // size
        assert len(cutter.with_partial()) == -(-len(tokens) // size)
        prompts.append((cutter, tokens))
    (first, first_tokens), (second, second_tokens) = prompts
    for n, (a, b) in enumerate(zip(first.blocks, second.blocks, strict=False)):
        span = slice(n * size, (n + 1) * size)
        begin = n * size
        same = first_tokens[span] == second_tokens[span]
        runs_same = _runs(one, begin, size) == _runs(other, begin, size)
        assert (a == b) == (same and runs_same)


def _runs(pieces: list[tuple[int, int]], begin: int, size: int) -> list[tuple[int, int]]:
    """The parts of pieces that a block is made of: the first token of each, and how many."""
    parts, at = [], 0
    for piece, length in pieces:
        low, high = max(at, begin), min(at + length, begin + size)
        if low < high:
            parts.append((piece, low - at, high - low))
        at += length
    return [(piece << 8 | start, count) for piece, start, count in parts]


def test_a_tree_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """More different blocks than allowed are refused, with what to do."""
    monkeypatch.setattr(prefix, "BLOCKS_MAX", 5)
    tree = PrefixTree()
    tree.path(0, [1, 2, 3])

    with pytest.raises(TraceError, match="more than 5 different blocks; hint: take a part"):
        tree.path(1, [1, 2, 3])
