"""Prompts that nobody repeats: the disk learns to leave them, and to take up what returns."""

from __future__ import annotations

import time
from pathlib import Path

from kvwise.live.blocks import get, put
from kvwise.live.client import Client
from tests.live.support import SPACE, client_of, payloads, prompt, settings, thread_daemon

CHUNKS = 4
OBJECT_BYTES = 16384
PROMPTS = 400
RESUME_MAX = 100
"""Requests within which writing begins again once prompts return."""

PAUSE_S = 0.01
"""Between prompts: that none came back is known only of times that have passed."""


def written_bytes(client: Client) -> int:
    """Bytes on their way to the disk or there."""
    client.flush(1.0)
    return int(client.status()["counters"]["written_bytes"].get("disk", 0))


def serve(client: Client, seed: int) -> None:
    """Answer a prompt: load what is there, store the rest."""
    time.sleep(PAUSE_S)
    keys = prompt(seed, CHUNKS)
    if len(get(client, SPACE, keys)) < CHUNKS:
        put(client, SPACE, keys, payloads(keys))


def test_one_shot_prompts_leave_the_disk_alone(tmp_path: Path) -> None:
    """After a while hardly any of them is written; what returns is written again soon."""
    config = settings(tmp_path, disk=True, write_min_chance=0.02)
    with thread_daemon(config):
        client = client_of(config)
        for seed in range(PROMPTS // 2):
            serve(client, seed)
        before = written_bytes(client)
        for seed in range(PROMPTS // 2, PROMPTS):
            serve(client, seed)
        late = written_bytes(client) - before
        assert late < 0.02 * PROMPTS // 2 * CHUNKS * OBJECT_BYTES

        requests = 0
        while written_bytes(client) - before - late < CHUNKS * OBJECT_BYTES:
            serve(client, 10_000 + requests % 5)
            requests += 1
            assert requests <= RESUME_MAX
        client.close()
