"""Owns a real vLLM inside this process, with kvwise attached and handles to break it.

It runs in the engine's own environment, started by `child.py`. It asserts nothing: the tests do.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

LONG = "KV cache offloading is useful. " * 12
TAIL = LONG + "And a different tail follows here, longer than one block for sure."
OTHER = "unrelated " * 40
PROMPTS = (LONG, TAIL, OTHER)
"""372, 438 and 400 tokens for the byte tokenizer; the first two share a prefix."""

TOKENS = 32
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "WARNING",
}
"""An engine in this process, quiet and without network."""

PATIENT: dict[str, object] = {
    "plan.policy": "load",
    "dram.size": "64MiB",
    "client.timeout_s": 5.0,
}
"""Loads whatever it costs, and forgives a daemon that gets no core: ranks spin while they wait."""


class Rig:
    """One engine."""

    def __init__(
        self,
        model: str,
        *,
        extra: dict[str, object],
        policy: str = "recompute",
        events: bool = False,
        **options: object,
    ) -> None:
        """Start it; `extra` is kvwise's configuration, `options` are vLLM's."""
        os.environ |= {name: text for name, text in ENVIRONMENT.items() if name not in os.environ}
        from vllm import LLM, SamplingParams
        from vllm.config import KVEventsConfig, KVTransferConfig

        settings: dict[str, Any] = {
            "dtype": "float32",
            "max_model_len": 2048,
            "max_num_seqs": 8,
            "enforce_eager": True,
            "block_size": 32,
            "enable_prefix_caching": True,
            "seed": 0,
            "distributed_executor_backend": "uni",
            "disable_log_stats": False,
        }
        settings["kv_transfer_config"] = KVTransferConfig(
            kv_connector="KvwiseConnector",
            kv_connector_module_path="kvwise.engines.vllm",
            kv_role="kv_both",
            kv_load_failure_policy=policy,
            kv_connector_extra_config=PATIENT | extra,
        )
        if events:
            settings["kv_events_config"] = KVEventsConfig(
                enable_kv_cache_events=True, publisher="null"
            )
        self.llm = LLM(model=model, **(settings | options))
        self._params = SamplingParams

    # --- using it ---

    def run(
        self,
        prompts: Sequence[str] = PROMPTS,
        *,
        together: bool = False,
        tokens: int = TOKENS,
        hints: dict[str, object] | None = None,
        salt: str = "",
    ) -> list[dict[str, Any]]:
        """Generate for each prompt, one after the other or in one batch."""
        extra: dict[str, object] | None = (
            {"kv_transfer_params": {"kvwise": hints}} if hints else None
        )
        params = self.params(tokens, extra)
        asked: list[Any] = [
            {"prompt": prompt, "cache_salt": salt} if salt else prompt for prompt in prompts
        ]
        batches = [asked] if together else [[one] for one in asked]
        answers = [
            answer
            for batch in batches
            for answer in self.llm.generate(batch, params, use_tqdm=False)
        ]
        return [
            {
                "tokens": list(answer.outputs[0].token_ids),
                "finish": answer.outputs[0].finish_reason,
                "cached": answer.num_cached_tokens,
                "said": (answer.kv_transfer_params or {}).get("kvwise", {}),
            }
            for answer in answers
        ]

    def params(self, tokens: int = TOKENS, extra: dict[str, object] | None = None) -> Any:
        """Greedy, and as long as asked."""
        return self._params(temperature=0, max_tokens=tokens, ignore_eos=True, extra_args=extra)

    def forget(self) -> None:
        """Empty vLLM's own prefix cache, so that hits can only come from kvwise."""
        assert self.llm.reset_prefix_cache()

    def counters(self) -> dict[str, float]:
        """Kvwise's counters and vLLM's own about sources, by name and label."""
        found: dict[str, float] = {}
        for metric in self.llm.get_metrics():
            labels = {
                name: text
                for name, text in getattr(metric, "labels", {}).items()
                if name not in ("model_name", "engine")
            }
            if hasattr(metric, "value") and ("kvwise" in metric.name or "cache" in metric.name):
                name = "/".join([metric.name.removeprefix("vllm:"), *labels.values()])
                found[name] = metric.value
        return found

    # --- looking inside, and breaking it ---

    @property
    def scheduler(self) -> Any:
        """VLLM's scheduler."""
        return self.llm.llm_engine.engine_core.engine_core.scheduler

    @property
    def cache(self) -> Any:
        """The scheduler half's cache."""
        return self.scheduler.connector._scheduler._link._cache

    @property
    def worker(self) -> Any:
        """The worker half."""
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        return get_kv_transfer_group()._worker

    @contextmanager
    def lost_leases(self, *, every: int = 1) -> Iterator[None]:
        """Every n-th copy to the device brings wrong bytes and finds its leases gone.

        What is lost are the leases that its thread has looked at since its last copy: all that it
        copied, and perhaps others that were waiting.
        """
        copier, cache = self.worker._copier, self.worker._cache
        load, progress = copier.load, cache.progress
        looked: dict[int, set[int]] = defaultdict(set)
        lost: set[int] = set()
        turns = itertools.count(1)

        def broken_load(plan: Any, *more: object) -> None:
            """Copy; in its turn, spoil what was copied."""
            load(plan, *more)
            leases = looked.pop(threading.get_ident(), set())
            if next(turns) % every == 0:
                spoil(plan)
                lost.update(leases)

        def broken_progress(lease: int) -> tuple[int, bool]:
            """As the cache says, until the lease is lost."""
            looked[threading.get_ident()].add(lease)
            ready, failed = progress(lease)
            return ready, failed or lease in lost

        copier.load, cache.progress = broken_load, broken_progress
        try:
            yield
        finally:
            copier.load, cache.progress = load, progress

    @contextmanager
    def held_loads(self) -> Iterator[Callable[[], None]]:
        """No load gets anywhere until the answer is called."""
        cache = self.worker._cache
        progress, held = cache.progress, {"held": True}

        def held_progress(lease: int) -> tuple[int, bool]:
            """Nothing is ready yet."""
            ready, failed = progress(lease)
            return 0 if held["held"] else ready, failed

        cache.progress = held_progress
        try:
            yield lambda: held.update(held=False)
        finally:
            cache.progress = progress


def spoil(plan: Any) -> None:
    """Flip every bit that a plan has brought to a device in this process."""
    for address, size in zip(plan.device.tolist(), plan.sizes.tolist(), strict=True):
        array = np.frombuffer((ctypes.c_uint8 * size).from_address(address), dtype=np.uint8)
        np.invert(array, out=array)


@contextmanager
def wrong_bytes(cache: Any) -> Iterator[None]:
    """Every bit of the arena is flipped, past all checks; what is written meanwhile stays."""
    arena = np.frombuffer(cache.pages, dtype=np.uint8).reshape(-1, cache.page_bytes)
    before = arena.copy()
    np.invert(arena, out=arena)
    try:
        yield
    finally:
        untouched = (arena == ~before).all(axis=1)
        arena[untouched] = before[untouched]
