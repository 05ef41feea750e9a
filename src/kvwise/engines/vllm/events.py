"""KV events: tells whoever follows vLLM's event stream which blocks kvwise came to hold.

Only what this engine knows is told: its own stores, and loads that found something gone. Evictions
happen in the daemon and are not announced, so a follower must take a kvwise entry for a hint.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvwise.engines.vllm.prompts import Grid, Prompt

if TYPE_CHECKING:
    from vllm.distributed.kv_events import KVCacheEvent

EVENTS_MAX = 10_000
"""Events that may wait for vLLM to take them; it does so every step."""


class Events:
    """Collects events, in vLLM's own words."""

    def __init__(self, grid: Grid) -> None:
        """Nothing has happened yet."""
        self._grid = grid
        self._events: list[KVCacheEvent] = []

    def take(self) -> list[KVCacheEvent]:
        """Everything since the last call."""
        events, self._events = self._events, []
        return events

    def stored(self, prompt: Prompt, chunks: list[int]) -> None:
        """These chunks of a prompt are in host memory now."""
        from vllm.distributed.kv_events import MEDIUM_CPU, BlockStored
        from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

        request, blocks, size = prompt.request, self._grid.blocks, self._grid.block_tokens
        for chunk in chunks[: EVENTS_MAX - len(self._events)]:
            first = chunk * blocks
            hashes = request.block_hashes
            self._events.append(
                BlockStored(
                    block_hashes=[
                        maybe_convert_block_hash(one) for one in hashes[first : first + blocks]
                    ],
                    parent_block_hash=(
                        maybe_convert_block_hash(hashes[first - 1]) if first else None
                    ),
                    token_ids=list(request.all_token_ids[first * size : (first + blocks) * size]),
                    block_size=size,
                    lora_id=getattr(request.lora_request, "lora_int_id", None),
                    medium=MEDIUM_CPU,
                    lora_name=getattr(request.lora_request, "lora_name", None),
                )
            )

    def missed(self, prompt: Prompt, chunk: int) -> None:
        """This chunk of a prompt was promised and could not be had: do not count on it."""
        from vllm.distributed.kv_events import MEDIUM_CPU, MEDIUM_STORAGE, BlockRemoved
        from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

        first, blocks = chunk * self._grid.blocks, self._grid.blocks
        hashes = prompt.request.block_hashes[first : first + blocks]
        gone = [maybe_convert_block_hash(one) for one in hashes]
        if gone and len(self._events) < EVENTS_MAX:
            self._events += [
                BlockRemoved(block_hashes=gone, medium=medium)
                for medium in (MEDIUM_CPU, MEDIUM_STORAGE)
            ]
