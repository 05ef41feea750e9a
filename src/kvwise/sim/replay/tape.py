"""Tape: a trace as columns, ready to be run many times and to be sent to other processes.

It adds the keys that the brain knows blocks by. They stand for a block and all before it, as the
blocks of a trace do, so a hash of the block's number is one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvwise.errors import TraceError
from kvwise.sim.trace.records import Trace

Ints = NDArray[np.int64]
Words = NDArray[np.uint64]

_STEP = 0x9E3779B97F4A7C15
_LANES = (0x243F6A8885A308D3, 0x13198A2E03707344)
"""Where the two halves of a key begin: digits of pi."""


@dataclass(frozen=True, slots=True)
class Tape:
    """A trace without its names.

    Attributes:
        arrival_ns, input_tokens, output_tokens, session: of each request.
        first: where the path of each request begins in `path`, and at the end where the last ends.
        path: blocks of all prompts, root first, one prompt after the other.
        keys: both halves of the key of every block.
    """

    block_tokens: int
    arrival_ns: Ints
    input_tokens: Ints
    output_tokens: Ints
    session: Ints
    first: Ints
    path: NDArray[np.int32]
    keys: Words

    @property
    def requests(self) -> int:
        """How many there are."""
        return len(self.arrival_ns)

    @property
    def distinct_blocks(self) -> int:
        """Different blocks."""
        return len(self.keys)

    def blocks(self, request: int) -> NDArray[np.int32]:
        """The path of a request."""
        return self.path[self.first[request] : self.first[request + 1]]


def tape_of(trace: Trace) -> Tape:
    """The columns of a trace.

    Raises:
        TraceError: it tells nothing of blocks, or all its prompts are empty.
    """
    if not len(trace.parents) and not any(one.input_tokens for one in trace.requests):
        raise TraceError(
            "all prompts of this trace are empty, so there is nothing to keep; "
            "hint: kvwise trace info shows what is in a trace"
        )
    if not len(trace.parents):
        raise TraceError(
            f"a trace of the format {trace.format} tells nothing of blocks, so a cache cannot be "
            "simulated; hint: kvwise trace make makes one with blocks"
        )
    requests = trace.requests
    lengths = [len(request.blocks) for request in requests]
    paths = [np.frombuffer(request.blocks, dtype=np.int32) for request in requests]
    return Tape(
        block_tokens=trace.block_tokens,
        arrival_ns=_column([request.arrival_ns for request in requests]),
        input_tokens=_column([request.input_tokens for request in requests]),
        output_tokens=_column([request.output_tokens for request in requests]),
        session=_column([request.session for request in requests]),
        first=np.concatenate(([0], np.cumsum(_column(lengths)))),
        path=np.concatenate(paths),
        keys=keys_of(np.arange(len(trace.parents), dtype=np.uint64)),
    )


def _column(values: list[int]) -> Ints:
    return np.array(values, dtype=np.int64)


def keys_of(numbers: Words) -> Words:
    """Both halves of the key of each number, by SplitMix64 (Steele, Lea and Flood, 2014)."""
    keys = np.empty((len(numbers), len(_LANES)), dtype=np.uint64)
    for lane, begin in enumerate(_LANES):
        z = numbers * np.uint64(_STEP) + np.uint64(begin)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        keys[:, lane] = z ^ (z >> np.uint64(31))
    return keys
