"""Blocks of prompts as nodes of one prefix tree. It knows no format and keeps no text.

A block is found by the block before it and by its own content, so it means the same prompt up to
its end wherever it is met. Formats whose ids already mean that lose nothing by it, and formats
whose ids mean content alone gain the order.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Sequence

from kvwise.errors import TraceError

BLOCKS_MAX = 50_000_000
"""Different blocks in one trace: some 10 GB of tree."""

PIECE_BITS = 32
"""Bits of the position in a piece; the piece's own number is above them."""


class PrefixTree:
    """All blocks of a trace. Numbers are given in the order of first appearance.

    Attributes:
        parents: the block before each block, negative for the first of a prompt.
    """

    def __init__(self) -> None:
        self.parents = array("i")
        self._children: dict[tuple[int, Hashable], int] = {}
        self._roots: dict[Hashable, int] = {}
        self._last: dict[Hashable, tuple[list[Hashable], array[int]]] = {}

    def path(self, scope: Hashable, contents: Sequence[Hashable]) -> array[int]:
        """The blocks of a prompt, root first; content means nothing outside its scope.

        What a prompt has in common with the one before it in the same scope is not looked up.
        """
        root = self._roots.setdefault(scope, -1 - len(self._roots))
        before, known = self._last.get(scope, ([], array("i")))
        wanted = list(contents)
        same = _common(before, wanted)
        path = known[:same]
        parent = path[-1] if same else root
        parents, children = self.parents, self._children
        for content in wanted[same:]:
            key = (parent, content)
            block = children.get(key, -1)
            if block < 0:
                block = children[key] = len(parents)
                parents.append(parent)
            path.append(block)
            parent = block
        if len(parents) > BLOCKS_MAX:
            raise TraceError(
                f"more than {BLOCKS_MAX} different blocks; hint: take a part of the trace"
            )
        self._last[scope] = (wanted, path)
        return path


def _common(one: list[Hashable], other: list[Hashable]) -> int:
    """How many items two lists have in common at their beginning."""
    equal, differ = 0, min(len(one), len(other)) + 1
    while differ - equal > 1:
        middle = (equal + differ) // 2
        if one[equal:middle] == other[equal:middle]:
            equal = middle
        else:
            differ = middle
    return equal


class Cutter:
    """Cuts a prompt that grows by numbered pieces into blocks.

    Token j of a piece is the same token wherever the piece appears, so blocks are equal when the
    same parts of the same pieces are in them.

    Attributes:
        blocks: the content of every full block.
        tokens: length of the prompt.
    """

    def __init__(self, block_tokens: int) -> None:
        self.blocks: list[Hashable] = []
        self.tokens = 0
        self._block_tokens = block_tokens
        self._open: tuple[int, ...] = ()
        """The parts of the last block that is not full: where each begins, and its length."""

    def add(self, piece: int, tokens: int) -> None:
        """Go on with a piece."""
        if not tokens:
            return
        size, at, first = self._block_tokens, 0, piece << PIECE_BITS
        filled = self.tokens % size
        self.tokens += tokens
        if filled:
            at = min(tokens, size - filled)
            self._open += (first, at)
            if filled + at < size:
                return
            self.blocks.append(self._open)
            self._open = ()
        whole = at + (tokens - at) // size * size
        self.blocks.extend(range(first + at, first + whole, size))
        if whole < tokens:
            self._open = (first + whole, tokens - whole)

    def with_partial(self) -> list[Hashable]:
        """The content of every block, the last one though it may not be full."""
        return [*self.blocks, self._open] if self._open else self.blocks
