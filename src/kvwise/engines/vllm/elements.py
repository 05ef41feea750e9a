"""What the numbers in vLLM's KV cache are, for codecs: their kind, and which head each belongs to.

Only a codec that changes numbers looks at heads; a wrong guess costs it precision, never more. What
is not recognised is said to be unknown, and then stays as it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvwise.core.elements import Elements, Kind

KINDS = {
    "bfloat16": Kind.BF16,
    "float16": Kind.FP16,
    "half": Kind.FP16,
    "float32": Kind.FP32,
    "float": Kind.FP32,
    "float8_e4m3fn": Kind.E4M3,
    "float8_e5m2": Kind.E5M2,
}
"""Kinds by the names of torch's types."""

STORED = {"fp8": Kind.E4M3, "fp8_e4m3": Kind.E4M3, "fp8_e5m2": Kind.E5M2}
"""Kinds by vLLM's names of what it keeps as plain bytes."""

TRANSPOSED_ON_CPU = "LBHNC"
"""The layout in which a block has, head after head, all of K and then all of V."""


@dataclass(frozen=True, slots=True)
class Block:
    """One layer's block: the type of its numbers, and its axes in memory, far ones first."""

    dtype: str
    axes: tuple[tuple[int, int], ...]
    heads: int


def elements_of(blocks: Iterable[Block], cache_dtype: str, layout: str) -> Elements | None:
    """What all blocks hold; None if that is unknown, or not the same kind."""
    found = {_elements(block, cache_dtype, layout) for block in blocks}
    known = [one for one in found if one is not None]
    kinds = {one.kind for one in known}
    if len(kinds) != 1 or len(known) != len(found):
        return None
    if len(known) == 1:
        return known[0]
    common = math.gcd(*(one.tensor_elements for one in known))
    return Elements(kinds.pop(), common, 1, common)


def _elements(block: Block, cache_dtype: str, layout: str) -> Elements | None:
    """What one block holds."""
    name = block.dtype.removeprefix("torch.")
    kind = STORED.get(cache_dtype) if name == "uint8" else KINDS.get(name)
    sizes = [size for _, size in block.axes]
    total = math.prod(sizes)
    if kind is None or not total:
        return None
    if sizes.count(block.heads) != 1 or block.heads < 2:
        return Elements(kind, total, 1, total)
    return _by_head(kind, sizes, sizes.index(block.heads), layout)


def _by_head(kind: Kind, sizes: Sequence[int], place: int, layout: str) -> Elements:
    """A block of which one axis counts heads."""
    heads, total, run = sizes[place], math.prod(sizes), math.prod(sizes[place + 1 :])
    if layout == TRANSPOSED_ON_CPU and place == 0 and run % 2 == 0:
        return Elements(kind, total, 2 * heads, run // 2)
    apart = place > 0 and sizes[0] == 2
    return Elements(kind, total // 2 if apart else total, heads, run)
