"""Owns the measurement of one question: how long a prompt waits to hear what of it is cached.

A real daemon answers through its socket, its garbage collector at work. A lookup looks at keys
and not at payload, so the objects are as small as a page can be.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np

from kvwise.bench.daemon import Daemon, DaemonOptions
from kvwise.bench.places import SetupError
from kvwise.bench.progress import Progress
from kvwise.bench.rows import Row
from kvwise.core.keys import KEY_BYTES
from kvwise.core.layout import Group, GroupKind, Layout
from kvwise.core.words import Namespace
from kvwise.live.blocks import put
from kvwise.live.client import Client
from kvwise.live.messages import Ask, Release, Step
from kvwise.units import KIB, MIB

PAGE_BYTES = 4 * KIB
BLOCK_TOKENS = 16
PROMPTS_BLOCKS = (64, 1024, 8192)
GOALS_P99_MS = {8192: 1.0}
ANSWER_S = 5.0

_LAYOUT = Layout(BLOCK_TOKENS, BLOCK_TOKENS, (Group(GroupKind.FULL, (PAGE_BYTES,)),))


def measure_lookup(folder: Path, rounds: int, progress: Progress) -> list[Row]:
    """A row for each length of prompt; `folder` takes a socket and a log for the time being."""
    pages = 2 * sum(PROMPTS_BLOCKS)
    options = DaemonOptions(
        folder / "lookup.sock",
        dram_bytes=pages * PAGE_BYTES + MIB,
        log=folder / "lookup.log",
        settings={"KVWISE_DRAM_PAGE": str(PAGE_BYTES), "KVWISE_PLAN_POLICY": "load"},
    )
    with Daemon.start(options, progress):
        client = Client(str(options.socket), "bench", timeout_s=ANSWER_S)
        try:
            return [_row(client, blocks, rounds, progress) for blocks in PROMPTS_BLOCKS]
        finally:
            client.close()


def _row(client: Client, blocks: int, rounds: int, progress: Progress) -> Row:
    """Store one prompt and ask for it again and again."""
    space = Namespace(os.urandom(KEY_BYTES), f"bench lookup {blocks}", _LAYOUT)
    client.join(space)
    keys = os.urandom(KEY_BYTES * blocks)
    put(client, space, keys, [bytes(PAGE_BYTES)] * blocks)
    ask = Ask("ask", space.digest, keys, 0, blocks * BLOCK_TOKENS + 1)
    times_ms = []
    for number in range(rounds + 1):
        if not number % 16:
            progress.now(f"lookup of {blocks} blocks, {number} of {rounds}")
        started = time.perf_counter()
        plan = client.ask(ask)
        took_ms = (time.perf_counter() - started) * 1e3
        if plan.chunks != blocks:
            raise SetupError(f"the daemon found {plan.chunks} of {blocks} blocks")
        client.step(Step(releases=[Release(plan.lease)]))
        if number:  # the first question warms up
            times_ms.append(took_ms)
    return {
        "path": "lookup",
        "blocks": blocks,
        "rounds": rounds,
        "p50_ms": round(float(np.percentile(times_ms, 50)), 3),
        "p99_ms": round(float(np.percentile(times_ms, 99)), 3),
        "max_ms": round(max(times_ms), 3),
        "goal_p99_ms": GOALS_P99_MS.get(blocks),
    }
