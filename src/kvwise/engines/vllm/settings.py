"""Reads vLLM's configuration: what the connector needs of it, and what it must refuse to serve.

It touches no tensor; what only tensors can tell is refused in `shape`.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvwise import config
from kvwise.errors import EngineError

if TYPE_CHECKING:
    from vllm.config import CacheConfig, ParallelConfig, SpeculativeConfig, VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

DRAFTLESS = ("ngram", "ngram_gpu", "suffix")
"""Ways of speculative decoding that keep no KV of their own."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Settings:
    """What both halves know from the start.

    Attributes:
        config: kvwise's own configuration, `kv_connector_extra_config` included.
        engine: names the engine; scheduler and workers of one engine share it.
        ranks: workers of the engine; each holds a part of the KV.
        can_load, can_store: from `kv_role`.
        can_layer: whether loads that this step's forward pass reads can be served safely.
        full_graphs: whether CUDA graphs may skip the hooks inside attention.
        events: whether KV events are published.
    """

    config: config.Config
    engine: str
    ranks: int
    can_load: bool
    can_store: bool
    can_layer: bool
    full_graphs: bool
    events: bool


def read_settings(vllm_config: VllmConfig, kv_cache_config: KVCacheConfig) -> Settings:
    """The settings of an engine.

    Raises:
        EngineError: the engine cannot be served safely; the message says what to change.
        ConfigError: the extra configuration has a key or a value that kvwise does not know.
    """
    transfer = vllm_config.kv_transfer_config
    ours = config.load(overrides=transfer.kv_connector_extra_config)
    _refuse_caching(vllm_config.cache_config)
    _refuse_parallel(vllm_config.parallel_config)
    _refuse_speculation(vllm_config.speculative_config)
    groups = len(kv_cache_config.kv_cache_groups)
    can_layer = groups == 1 and vllm_config.max_concurrent_batches == 1
    if ours.client.load == "sync" and not can_layer:
        raise EngineError(
            "client.load = sync cannot be served safely here: "
            + (
                f"the model has {groups} KV cache groups, and vLLM has no way to report a failed "
                "synchronous load then"
                if groups > 1
                else "with several steps in flight a failed load is noticed after its tokens were "
                "used; add --no-async-scheduling"
            )
            + "; or leave client.load at auto"
        )
    if transfer.kv_load_failure_policy != "recompute":
        _log.warning(
            'kv_load_failure_policy is %r: a failed load fails its request. Set it to "recompute".',
            transfer.kv_load_failure_policy,
        )
    graphs = vllm_config.compilation_config.cudagraph_mode
    events = vllm_config.kv_events_config
    return Settings(
        config=ours,
        engine=str(transfer.engine_id),
        ranks=vllm_config.parallel_config.tensor_parallel_size,
        can_load=transfer.is_kv_consumer,
        can_store=transfer.is_kv_producer,
        can_layer=can_layer and ours.client.load != "async",
        full_graphs=graphs is not None and graphs.has_full_cudagraphs(),
        events=events is not None and events.enable_kv_cache_events,
    )


def _refuse_caching(cache_config: CacheConfig) -> None:
    """Refuse engines whose own prefix cache is off or has keys that mean nothing elsewhere."""
    if not cache_config.enable_prefix_caching:
        raise EngineError(
            "vLLM's prefix caching is off, so loaded KV would be ignored or misread; add "
            "--enable-prefix-caching (vLLM turns it off for MLA models on CPU: those cannot be "
            "served), or remove the connector"
        )
    algorithm = cache_config.prefix_caching_hash_algo
    if not algorithm.startswith("sha256"):
        raise EngineError(
            f"--prefix-caching-hash-algo {algorithm} gives keys that differ between processes and "
            "can be made to collide; use sha256"
        )
    if getattr(cache_config, "calculate_kv_scales", False):
        raise EngineError(
            "--calculate-kv-scales makes the meaning of KV bytes depend on the first request; "
            "use scales from the checkpoint"
        )


def _refuse_parallel(parallel: ParallelConfig) -> None:
    """Refuse ways of splitting a model that objects have no place for."""
    for name in (
        "pipeline_parallel_size",
        "decode_context_parallel_size",
        "prefill_context_parallel_size",
    ):
        if getattr(parallel, name, 1) > 1:
            option = "--" + name.replace("_", "-")
            raise EngineError(f"{option} {getattr(parallel, name)} is not supported; use 1")


def _refuse_speculation(speculative: SpeculativeConfig | None) -> None:
    """Refuse drafters that keep KV: a hit would need theirs as well."""
    if speculative is not None and speculative.method not in DRAFTLESS:
        raise EngineError(
            f"speculative decoding with method {speculative.method!r} keeps draft KV, which is not "
            f"restored yet; use one of {', '.join(DRAFTLESS)} or none"
        )
