"""Traces of requests as hostile bytes would have them, in every format. It owns no format.

An input is one file of a trace, or several with a zero byte between them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

from kvwise.sim.trace.summary import summarise
from tests.sim.trace.support import SAMPLE, load, quiet

_SHARED_MEMORY = Path("/dev/shm")
BETWEEN = b"\0"
FILES_MAX = 6


def open_trace(stack: ExitStack) -> Callable[[bytes], None]:
    """Read files as one trace; what is accepted is whole, and can be measured."""
    base = _SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvwise-fuzz-", dir=base)))

    def attempt(data: bytes) -> None:
        paths = []
        for number, part in enumerate(data.split(BETWEEN, FILES_MAX - 1)):
            paths.append(folder / f"{number}.json")
            paths[-1].write_bytes(part)
        trace = load(*paths)
        assert all(a.arrival_ns <= b.arrival_ns for a, b in pairwise(trace.requests))
        summary = summarise(trace, quiet)
        assert summary.requests == len(trace.requests) > 0
        if summary.blocks is not None:
            blocks = summary.blocks
            assert blocks.input_blocks >= blocks.distinct_blocks > 0
            assert 0 <= blocks.reuse < 1
            assert blocks.curve[-1].hit_ratio == blocks.reuse

    return attempt


def traces() -> list[bytes]:
    """The samples of all formats."""
    return [
        BETWEEN.join(path.read_bytes() for path in sorted(sample.iterdir()))
        if sample.is_dir()
        else sample.read_bytes()
        for sample in SAMPLE.values()
    ]
