"""The GPU kernel that moves scattered rows of bytes, for any page size and any layout.

It is the one module that needs Triton; import it only where a GPU, Triton's interpreter or its
compiler is at hand. It trusts its rows: addresses were checked by those who made them.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from triton.errors import TritonError

from kvwise.errors import EngineError

TILE_BYTES = 8192
"""Bytes that one program moves: 16 for each of 128 threads, four times."""

ALIGNMENTS: dict[int, tuple[Any, int]] = {
    16: (tl.int64, 8),
    8: (tl.int64, 8),
    4: (tl.int32, 4),
    2: (tl.int16, 2),
    1: (tl.int8, 1),
}
"""What all addresses and sizes of a launch are multiples of: the word to move, its bytes.

A word divides every size, so that no row has a tail smaller than a word. Words of 8 bytes whose
addresses are multiples of 16 are moved two at a time, the widest access that a GPU has.
"""


@triton.jit  # type: ignore[untyped-decorator]
def copy_rows_kernel(
    rows: torch.Tensor,
    WORD: tl.constexpr,  # noqa: N803
    WORD_BYTES: tl.constexpr,  # noqa: N803
    TILE: tl.constexpr,  # noqa: N803
    ALIGN: tl.constexpr,  # noqa: N803
) -> None:
    """Move one tile of one row. `rows` holds source, target and size of each, as 64-bit integers.

    The hints after each cast are what lets the compiler use the widest access: a pointer made from
    an integer has no known alignment of its own.
    """
    row = rows + tl.program_id(0).to(tl.int64) * 3
    start = tl.program_id(1).to(tl.int64) * (TILE * WORD_BYTES)
    source = (tl.load(row) + start).to(tl.pointer_type(WORD))
    target = (tl.load(row + 1) + start).to(tl.pointer_type(WORD))
    words = tl.multiple_of((tl.load(row + 2) - start) // WORD_BYTES, ALIGN // WORD_BYTES)
    lane = tl.arange(0, TILE)
    inside = lane < words
    value = tl.load(tl.multiple_of(source, ALIGN) + lane, mask=inside)
    tl.store(tl.multiple_of(target, ALIGN) + lane, value, mask=inside)


def copy_rows(rows: torch.Tensor, *, longest: int, alignment: int) -> None:
    """Start the copies of a table on the current stream.

    Args:
        rows: tensor of shape [n, 3] on the device: source, target, size; sizes above zero.
        longest: largest size in it.
        alignment: a key of `ALIGNMENTS` that divides everything in it.

    Raises:
        EngineError: the kernel could not be compiled or launched on this device.
    """
    word, word_bytes = ALIGNMENTS[alignment]
    grid = (rows.shape[0], triton.cdiv(longest, TILE_BYTES))
    try:
        copy_rows_kernel[grid](rows, word, word_bytes, TILE_BYTES // word_bytes, alignment)
    except TritonError as error:
        raise EngineError(f"the copy kernel cannot run on this GPU: {error}") from error
