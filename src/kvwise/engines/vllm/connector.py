"""The connector as vLLM sees it: one thin class for both roles, each call handed to the right half.

It keeps no books. Every method that is here does something; for the rest vLLM's defaults are right.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
    KVConnectorWorkerMetadata,
    SupportsHMA,
)
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from kvwise.engines.vllm.orders import Facts, StepOrders, StepReport
from kvwise.engines.vllm.scheduler import SchedulerSide
from kvwise.engines.vllm.settings import read_settings
from kvwise.engines.vllm.stats import KvwisePromMetrics, KvwiseStats
from kvwise.engines.vllm.worker import WorkerSide
from kvwise.errors import EngineError
from kvwise.live.embedded import connect

if TYPE_CHECKING:
    from torch import Tensor
    from vllm.config import KVTransferConfig, VllmConfig
    from vllm.distributed.kv_events import KVCacheEvent
    from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
        KVConnectorPromMetrics,
        KVConnectorStats,
    )
    from vllm.forward_context import ForwardContext
    from vllm.v1.attention.backend import AttentionMetadata
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

# Plain data that also tests without vLLM can make; vLLM only asks for the classes' names.
KVConnectorMetadata.register(StepOrders)
KVConnectorWorkerMetadata.register(StepReport)
KVConnectorHandshakeMetadata.register(Facts)


class KvwiseConnector(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc]  # vLLM is Any here
    """kvwise for vLLM: `kv_connector` = KvwiseConnector, `kv_role` = kv_both.

    `kv_connector_extra_config` holds kvwise's own configuration, nested or with dotted names.
    """

    _SOURCES: ClassVar[dict[str, CacheHitSource]] = {
        "dram": CacheHitSource.HOST,
        "disk": CacheHitSource.DISK,
    }

    def __init__(
        self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig
    ) -> None:
        """Build the half that `role` asks for, attached to the cache.

        Raises:
            EngineError: the engine cannot be served safely; the message says what to change.
            ConfigError: the extra configuration is wrong.
            CacheUnavailable: there is no cache and none could be started.
        """
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        settings = read_settings(vllm_config, kv_cache_config)
        cache = connect(settings.config, settings.engine)
        self._scheduler_side: SchedulerSide | None = None
        self._worker_side: WorkerSide | None = None
        if role == KVConnectorRole.SCHEDULER:
            self._scheduler_side = SchedulerSide(settings, cache)
        else:
            self._worker_side = WorkerSide(settings, cache)

    @property
    def _scheduler(self) -> SchedulerSide:
        """The scheduler half, where this is it."""
        if self._scheduler_side is None:
            raise EngineError("vLLM called a scheduler hook of a worker's connector")
        return self._scheduler_side

    @property
    def _worker(self) -> WorkerSide:
        """The worker half, where this is it."""
        if self._worker_side is None:
            raise EngineError("vLLM called a worker hook of the scheduler's connector")
        return self._worker_side

    # --- both roles ---

    @property
    def requires_kv_delivery(self) -> bool:
        """A store that is lost is only a later miss."""
        return False

    @classmethod
    def supports_sleep_mode(cls, kv_transfer_config: KVTransferConfig) -> bool:  # noqa: ARG003
        """Sleeping engines move their KV cache; copies under way are not fenced against that."""
        return False

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        """Only who insists on layered loads needs the hooks; otherwise loads are whole first."""
        client = extra_config.get("client")
        nested = client.get("load") if isinstance(client, dict) else None
        return "sync" in (nested, extra_config.get("client.load"))

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> KVConnectorStats:
        """Counters as vLLM passes them on."""
        return KvwiseStats(data=data or {})

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: VllmConfig,
        metric_types: dict[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> KVConnectorPromMetrics:
        """The counters on `/metrics`."""
        return KvwisePromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def get_kv_connector_stats(self) -> KVConnectorStats | None:
        """Counters since the last call; the scheduler half has them all."""
        counts = self._scheduler_side.take_counts() if self._scheduler_side is not None else {}
        return KvwiseStats(data=counts) if counts else None

    def shutdown(self) -> None:
        """End what is under way. vLLM does not always call this, and nothing depends on it."""
        if self._scheduler_side is not None:
            self._scheduler_side.close()
        if self._worker_side is not None:
            self._worker_side.close()

    # --- scheduler ---

    def set_xfer_handshake_metadata_pp_aware(
        self, metadata: dict[tuple[int, int], KVConnectorHandshakeMetadata]
    ) -> None:
        """Hear from every rank what its KV cache looks like."""
        facts = [one for one in metadata.values() if isinstance(one, Facts)]
        self._scheduler.introduce(self._vllm_config, facts)

    def bind_kv_cache_manager(self, kv_cache_manager: KVCacheManager) -> None:
        """Learn who owns the blocks."""
        super().bind_kv_cache_manager(kv_cache_manager)
        self._scheduler.bind(kv_cache_manager)

    def on_new_request(self, request: Request) -> None:
        """A request arrived."""
        self._scheduler.new_request(request)

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """How many tokens can be loaded beyond what the device holds."""
        return self._scheduler.matched(request, num_computed_tokens)

    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        """Blocks are allocated."""
        self._scheduler.allocated(request, blocks, num_external_tokens)

    def get_external_cache_hit_sources(
        self, request: Request, num_external_tokens: int
    ) -> dict[CacheHitSource, int]:
        """Loaded tokens by where they come from."""
        split: dict[CacheHitSource, int] = {}
        for tier, tokens in self._scheduler.sources(request).items():
            source = self._SOURCES.get(tier, CacheHitSource.EXTERNAL_UNSPECIFIED)
            split[source] = split.get(source, 0) + tokens
        return split if num_external_tokens else {}

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        """The orders of this step."""
        return self._scheduler.orders(scheduler_output)

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        """What became of a step's orders."""
        self._scheduler.results(connector_output)

    def request_finished(
        self, request: Request, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        """A request is over. Its blocks may go: stores that still read them are fenced."""
        return False, self._scheduler.finished(request)

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """As `request_finished`, for any number of groups."""
        return False, self._scheduler.finished(request)

    def take_events(self) -> Iterable[KVCacheEvent]:
        """KV events since the last call."""
        return self._scheduler.take_events()

    def has_pending_push_work(self) -> bool:
        """Whether stores are under way that only a further step can report."""
        return self._scheduler.has_unfinished

    def reset_cache(self) -> bool:
        """Forget everything."""
        return self._scheduler.reset(self._vllm_config)

    # --- worker ---

    def register_kv_caches(self, kv_caches: dict[str, Tensor]) -> None:
        """Learn where the KV cache lies."""
        self._worker.register(self._vllm_config, self._kv_cache_config, kv_caches)

    def unregister_kv_caches(self) -> None:
        """Let go of the KV cache."""
        self._worker.unregister()

    def get_handshake_metadata(self) -> KVConnectorHandshakeMetadata:
        """What the scheduler half must know of this rank."""
        return self._worker.shape.facts

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        """Before anything is overwritten."""
        self._worker.begin(kv_connector_metadata)

    def start_load_kv(self, forward_context: ForwardContext, **kwargs: Any) -> None:  # vLLM's
        """Start this step's loads."""
        self._worker.start_loads(self._get_connector_metadata())

    def wait_for_layer_load(self, layer_name: str) -> None:
        """A layer is about to be read."""
        self._worker.wait_layer(layer_name)

    def save_kv_layer(
        self,
        layer_name: str,
        kv_layer: Tensor,
        attn_metadata: AttentionMetadata,
        **kwargs: Any,  # vLLM's
    ) -> None:
        """Nothing: chunks are stored whole, after the step."""

    def wait_for_save(self) -> None:
        """The step has run."""
        self._worker.finish(self._get_connector_metadata())

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        """Loads beside the steps that ended."""
        finished, failed = self._worker.take_results()
        return KVConnectorTransferResults(finished_recving=finished, failed_recving=failed)

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Blocks that this step read although they were not loaded."""
        return self._worker.take_invalid()

    def build_connector_worker_meta(self) -> KVConnectorWorkerMetadata | None:
        """What became of orders."""
        return self._worker.take_report(self._get_connector_metadata())
