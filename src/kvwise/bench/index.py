"""Owns the measurement of a large cache's bookkeeping: bytes for each block, pauses it causes.

It runs as a process of its own, because both are properties of a whole process. The brain is the
real one and hears real events; there is no arena, so a million blocks need no memory but their own.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kvwise.bench.places import SetupError
from kvwise.bench.rows import Row
from kvwise.core.brain import Brain
from kvwise.core.keys import KEY_BYTES, ROOT
from kvwise.core.layout import Group, GroupKind, Layout
from kvwise.core.words import (
    Asked,
    Filled,
    Granted,
    Joined,
    Namespace,
    Offered,
    Planned,
    Released,
    TierSpec,
)
from kvwise.core.world import BrainConfig
from kvwise.units import KIB

PAGE_BYTES = 4 * KIB
PROMPT_BLOCKS = 64
BLOCK_TOKENS = 16
PROMPTS_SERVED = 2000
"""Prompts that are asked for, and as many new ones that push old ones out, once all is full."""

GOAL_BYTES = 120
GOAL_PAUSE_MS = 5.0
RUN_S = 600.0

_SPACE = b"bench index     "
_PAGE = os.sysconf("SC_PAGE_SIZE")


def measure_index(blocks: int) -> Row:
    """The row, measured by a fresh process.

    Raises:
        SetupError: that process failed or took too long.
    """
    command = [sys.executable, "-m", "kvwise.bench.index", str(blocks)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise SetupError(f"{blocks} blocks were not taken in within {RUN_S:.0f} s") from error
    if done.returncode:
        raise SetupError(f"the measurement of {blocks} blocks failed: {done.stderr.strip()}")
    row: Row = json.loads(done.stdout)
    return row


class _Server:
    """A brain and the events that an engine would cause."""

    def __init__(self, blocks: int) -> None:
        """A cache with room for so many blocks."""
        dram = TierSpec("dram", blocks * PAGE_BYTES, PAGE_BYTES, 0, 1e10, 1e-5)
        # Its prompts never come back, and the brain would soon take no more of them.
        self._brain = Brain(BrainConfig(PAGE_BYTES, tiers=(dram,), policy="load", chance_min=0.0))
        layout = Layout(BLOCK_TOKENS, BLOCK_TOKENS, (Group(GroupKind.FULL, (PAGE_BYTES,)),))
        self._brain.handle(Joined(1, 1, Namespace(_SPACE, "bench", layout)))
        self._now_ns = 1

    def store(self, number: int) -> int:
        """One prompt is offered and filled; how many blocks were taken."""
        offered = Offered(self._next(), 1, "store", _SPACE, ROOT, _keys(number))
        granted = next(c for c in self._brain.handle(offered) if isinstance(c, Granted))
        self._brain.handle(Filled(self._next(), 1, granted.lease, len(granted.chunks)))
        return len(granted.chunks)

    def ask(self, number: int) -> int:
        """One prompt is asked for and let go again; how many of its blocks were found."""
        tokens = PROMPT_BLOCKS * BLOCK_TOKENS + 1
        asked = Asked(self._next(), 1, "ask", _SPACE, _keys(number), 0, tokens)
        planned = next(c for c in self._brain.handle(asked) if isinstance(c, Planned))
        if planned.lease:
            self._brain.handle(Released(self._next(), 1, planned.lease))
        return planned.chunks

    def _next(self) -> int:
        """The time of the next event: a millisecond later."""
        self._now_ns += 1_000_000
        return self._now_ns


def _keys(number: int) -> bytes:
    """The keys of one prompt: digests, as keys are."""
    return hashlib.shake_128(number.to_bytes(8, "little")).digest(KEY_BYTES * PROMPT_BLOCKS)


@contextmanager
def _pauses() -> Iterator[list[float]]:
    """Milliseconds of every garbage collection while inside."""
    pauses: list[float] = []
    begun = 0.0

    def watch(phase: str, _info: dict[str, int]) -> None:
        nonlocal begun
        if phase == "start":
            begun = time.perf_counter()
        else:
            pauses.append((time.perf_counter() - begun) * 1e3)

    gc.callbacks.append(watch)
    try:
        yield pauses
    finally:
        gc.callbacks.remove(watch)


def _resident_bytes() -> int:
    """Memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE


def measure_here(blocks: int) -> Row:
    """The row, measured in this process."""
    prompts = max(1, blocks // PROMPT_BLOCKS)
    server = _Server(prompts * PROMPT_BLOCKS)
    gc.collect()
    gc.freeze()  # as the daemon does before it serves
    before = _resident_bytes()
    held = sum(server.store(number) for number in range(prompts))
    if held != prompts * PROMPT_BLOCKS:
        raise SetupError(f"the brain took {held} of {prompts * PROMPT_BLOCKS} blocks")
    bytes_per_block = (_resident_bytes() - before) / held
    found, served = 0, min(PROMPTS_SERVED, prompts)
    with _pauses() as pauses:
        started = time.perf_counter()
        for number in range(prompts, prompts + served):
            found += server.ask(number - prompts // 2)
            server.store(number)
        served_s = time.perf_counter() - started
        if found != served * PROMPT_BLOCKS:
            raise SetupError(f"only {found} blocks were found")
        gc.collect()  # the dearest pause there can be; the interpreter chooses when it comes
    return {
        "path": "index",
        "blocks": held,
        "bytes_per_block": round(bytes_per_block, 1),
        "goal_bytes": GOAL_BYTES,
        "gc_pause_max_ms": round(max(pauses), 3),
        "goal_pause_ms": GOAL_PAUSE_MS,
        "collections": len(pauses),
        "prompts_per_s": round(served / served_s, 1),
    }


def main() -> None:
    """Measure with as many blocks as the command line says, and print the row."""
    parser = argparse.ArgumentParser(description="What the bookkeeping of many blocks costs")
    parser.add_argument("blocks", type=int)
    print(json.dumps(measure_here(parser.parse_args().blocks)))


if __name__ == "__main__":
    main()
