"""Block tables: which device blocks the chunks of a request lie in. Pure arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvwise.engines.copying import SKIP, Addresses
from kvwise.engines.vllm.prompts import Grid

NULL_BLOCK = 0
"""vLLM's stand-in for a block that is not kept, outside a sliding window."""

Tables = Sequence[Sequence[int]]
"""Block numbers of one request, one list for each group, from its first token on."""


def chunk_blocks(
    tables: Tables, grid: Grid, chunks: range, *, only: range | None = None
) -> Addresses:
    """Blocks of these chunks, one row each, group after group, as `copying.Chunks` wants them.

    Blocks that vLLM does not keep, that the table does not reach, or that are not in `only`, are
    skipped.
    """
    first, end = chunks.start * grid.blocks, chunks.stop * grid.blocks
    columns = []
    for table in tables:
        numbers = np.full(end - first, SKIP, dtype=np.int64)
        part = np.asarray(table[first:end], dtype=np.int64)
        numbers[: len(part)] = np.where(part == NULL_BLOCK, SKIP, part)
        if only is not None:
            numbers[: max(0, only.start - first)] = SKIP
            numbers[max(0, only.stop - first) :] = SKIP
        columns.append(numbers.reshape(len(chunks), grid.blocks))
    return np.concatenate(columns, axis=1)


def grant_pages(pages: bytes, chunks: int) -> Addresses:
    """Page numbers of a grant, one row for each of its chunks."""
    each = len(pages) // 4 // max(1, chunks)
    return np.frombuffer(pages, dtype="<u4").astype(np.int64).reshape(chunks, each)
