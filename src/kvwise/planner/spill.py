"""What drives hit beyond memory, and how much of it is left when fewer blocks are written.

It counts blocks of a trace by exact LRU; it knows no bytes and no prices.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvwise.sim.trace.distance import Reuse
from kvwise.sim.trace.records import Trace


@dataclass(frozen=True, slots=True)
class Spill:
    """Hits that memory does not have and drives do, if everything were written to them.

    Attributes:
        hits: how many.
        later_hits: of blocks that had been in two prompts before: what is left when a block is
            written only once it has come a second time.
        best: hits of the best blocks, of the best two, and so on: what is left when only so many
            are written, by somebody who knows what will come.
    """

    hits: int
    later_hits: int
    best: npt.NDArray[np.int64]

    @property
    def later_share(self) -> float:
        """What writing at the second time leaves of the hits."""
        return self.later_hits / max(1, self.hits)

    def best_share(self, blocks: float) -> float:
        """The most that so many written blocks can leave of the hits."""
        count = int(min(blocks, len(self.best)))
        return int(self.best[count - 1]) / self.hits if count else 0.0


def spill(trace: Trace, reuse: Reuse, memory_blocks: int, all_blocks: int) -> Spill:
    """Count the hits of a trace between two sizes of an LRU, block by block."""
    first = reuse.hits(memory_blocks).tolist()
    last = reuse.hits(all_blocks).tolist()
    lengths = reuse.blocks.tolist()
    bounds = np.searchsorted(reuse.request, np.arange(len(trace.requests) + 1)).tolist()
    hits = np.zeros(len(trace.parents), dtype=np.int64)
    seen = np.zeros(len(trace.parents), dtype=np.int32)
    later = 0
    for number, request in enumerate(trace.requests):
        if not request.blocks:
            continue
        path = np.frombuffer(request.blocks, dtype=np.int32)
        start = 0
        for run in range(bounds[number], bounds[number + 1]):
            found = path[start + first[run] : start + last[run]]
            if found.size:
                hits[found] += 1
                later += int(np.count_nonzero(seen[found] >= 2))
            start += lengths[run]
        seen[path] += 1
    best = np.cumsum(np.sort(hits[hits > 0])[::-1])
    return Spill(int(hits.sum()), later, best)
