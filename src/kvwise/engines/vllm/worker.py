"""The worker half: carries out a step's orders on one rank, around the forward pass.

It asks nobody anything. What it may touch is in the orders; what became of it is in the report.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from kvwise.engines.copying import Copier, Planner
from kvwise.engines.host_copy import HostCopier
from kvwise.engines.mover import Gate, Load, LoadJob, Mover, StoreJob
from kvwise.engines.vllm.orders import (
    LoadOrder,
    LoadReport,
    StepOrders,
    StepReport,
    StoreOrder,
    StoreReport,
)
from kvwise.engines.vllm.settings import Settings
from kvwise.engines.vllm.shape import Shape, read_shape
from kvwise.errors import EngineError
from kvwise.live.clock import deadline_after, now_ns
from kvwise.live.messages import Cache

if TYPE_CHECKING:
    from torch import Tensor, device
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

BARRIER_S = 5.0
"""How long a step waits for copies out of blocks that it may overwrite; late ones are discarded."""

IDLE_S = 0.001
"""How long a step that computes nothing waits for a load: an engine that spins slows the copy."""

STUCK_S = 120.0
"""A copy into blocks that the model reads and that does not end in this time is a broken device."""

_log = logging.getLogger(__name__)


class WorkerSide:
    """One rank. All methods are called on the engine's own thread."""

    def __init__(self, settings: Settings, cache: Cache) -> None:
        """Ready to be told about tensors; owns `cache` from now on."""
        self._settings = settings
        self._cache = cache
        self._whole_first = settings.full_graphs
        self._between = True  # on a CPU, copies beside a step would only take its cores
        self._due: list[StoreOrder] = []
        self._shape: Shape | None = None
        self._mover: Mover | None = None
        self._copier: Copier | None = None
        self._beside: dict[str, tuple[LoadOrder, Load | None]] = {}
        self._layered: list[tuple[LoadOrder, Load | None]] = []
        self._gate: Gate | None = None
        self._awaited: set[int] = set()
        self._invalid: set[int] = set()
        self._report = StepReport(0)

    @property
    def shape(self) -> Shape:
        """What the tensors look like.

        Raises:
            EngineError: no tensors were registered yet.
        """
        if self._shape is None:
            raise EngineError("vLLM has not registered its KV cache yet")
        return self._shape

    def register(
        self,
        vllm_config: VllmConfig,
        kv_cache_config: KVCacheConfig,
        kv_caches: Mapping[str, Tensor],
    ) -> None:
        """Learn where the KV cache lies.

        Raises:
            EngineError: its shape is not recognised.
        """
        wanted = self._settings.config.client.chunk_tokens
        shape = read_shape(vllm_config, kv_cache_config, kv_caches, chunk_tokens=wanted)
        planner = Planner(
            shape.facts.layout,
            shape.layers,
            rank=shape.part,
            page_bytes=self._cache.page_bytes,
        )
        self.unregister()
        self._shape = shape
        where = next(iter(kv_caches.values())).device
        self._copier = _copier(where)
        self._between = where.type == "cpu"
        self._mover = Mover(self._cache, planner, self._copier)
        _log.info("serving %s; %s", shape.facts.layout, shape.facts.interior)

    def unregister(self) -> None:
        """Let go of the tensors: end every copy first. Idempotent."""
        if self._mover is not None and not self._mover.close(BARRIER_S):
            _log.error("a copy did not end within %s s", BARRIER_S)
        if self._copier is not None:
            self._copier.close()
        self._mover = self._copier = self._shape = None
        self._due = []

    def close(self) -> None:
        """Give up everything. Idempotent."""
        self.unregister()
        self._cache.close()

    # --- one step, in the order of the calls ---

    def begin(self, orders: StepOrders) -> None:
        """Before anything of the step is written: end what still reads blocks it may write."""
        self._report = StepReport(orders.number)
        begin = now_ns()
        self._store_due()
        if orders.barrier and not self._moving.wait_stores(orders.barrier, BARRIER_S):
            _log.error("stores took longer than %s s and are discarded", BARRIER_S)
        for order, load in self._beside.values():
            if order.number in orders.cancels and load is not None:
                load.cancelled = True
        self._blocked_since(begin)

    def start_loads(self, orders: StepOrders) -> None:
        """Start this step's loads; those that the step reads may have to be complete first."""
        if self._report.number != orders.number:
            self.begin(orders)  # a runner that does not announce preemptions
        fence = self._copying.fence() if orders.loads else None
        layered = [order for order in orders.loads if order.layered]
        for order in orders.loads:
            if not order.layered:
                load = self._moving.load(_job(order), fence) if len(order.chunks.pages) else None
                self._beside[order.request] = (order, load)
        if layered:
            good = [order for order in layered if len(order.chunks.pages)]
            loads, self._gate = self._moving.load_layered([_job(o) for o in good], fence)
            started = {order.number: load for order, load in zip(good, loads, strict=True)}
            self._layered = [(order, started.get(order.number)) for order in layered]
            self._awaited.clear()
            if self._whole_first:
                self._wait_gate(None)
                self._awaited.update(range(len(self.shape.layers)))

    def wait_layer(self, name: str) -> None:
        """Inside attention: the KV of this layer must be there."""
        if self._gate is not None:
            number = self.shape.numbers.get(name)
            if number is not None:
                self._wait_gate(number)
                self._awaited.add(number)

    def finish(self, orders: StepOrders) -> None:
        """After the forward pass: see to the stores, and know how the step's own loads ended.

        What is copied between steps waits until the next one begins, and be it one that computes
        nothing: the tokens of this step are on their way by then. Only after loads that the step
        read it does not wait: if one failed, its chunks are offered anew in the next step.
        """
        begin = now_ns()
        if orders.stores and self.shape.stores:
            self._due += orders.stores
            if not self._between or any(load.layered for load in orders.loads):
                self._store_due()
        self._blocked_since(begin)
        self._end_layered()
        under_way = [load for _, load in self._beside.values() if load is not None]
        if under_way and not orders.timed:
            under_way[0].ended.wait(IDLE_S)

    def take_results(self) -> tuple[set[str], set[str]]:
        """(requests whose load beside the engine ended, those of them whose load failed)."""
        finished, failed = set(), set()
        for request, (order, load) in list(self._beside.items()):
            if load is None or load.ended.is_set():
                del self._beside[request]
                finished.add(request)
                report = self._report.loads[order.number] = _load_report(load)
                if report.problem:
                    failed.add(request)
        return finished, failed

    def take_invalid(self) -> set[int]:
        """Blocks that the step read although they were not loaded.

        A runner that drafts asks before the step is finished, but after the forward pass.
        """
        self._end_layered()
        invalid, self._invalid = self._invalid, set()
        return invalid

    def take_report(self, orders: StepOrders) -> StepReport | None:
        """What became of orders; None when nobody needs to know anything of this step."""
        report, self._report = self._report, StepReport(orders.number)
        if self._mover is not None:
            for stored in self._mover.take_stored():
                report.stores[stored.lease] = StoreReport(1, stored.good, stored.copied_bytes)
        return report if orders.timed or report.loads or report.stores else None

    # --- inside ---

    @property
    def _moving(self) -> Mover:
        """The mover; there is none before tensors are registered."""
        if self._mover is None:
            raise EngineError("vLLM has not registered its KV cache yet")
        return self._mover

    @property
    def _copying(self) -> Copier:
        """The copier; there is none before tensors are registered."""
        if self._copier is None:
            raise EngineError("vLLM has not registered its KV cache yet")
        return self._copier

    def _store_due(self) -> None:
        """Store what the device has computed; on a CPU it is over before anything else happens."""
        due, self._due = self._due, []
        if due:
            fence = self._copying.fence()
            for order in due:
                self._moving.store(StoreJob(order.lease, order.chunks), fence)
            if self._between:
                self._moving.wait_stores([order.lease for order in due], BARRIER_S)

    def _wait_gate(self, layer: int | None) -> None:
        """Wait for one layer, or for the end, of the loads that this step reads.

        Raises:
            EngineError: a copy into blocks of the model hangs; nothing can be trusted any more.
        """
        gate, begin = self._gate, now_ns()
        if gate is None:
            return
        if not (gate.wait_finished(STUCK_S) if layer is None else gate.wait(layer, STUCK_S)):
            raise EngineError(f"a copy into the KV cache did not end within {STUCK_S} s")
        self._blocked_since(begin)

    def _end_layered(self) -> None:
        """Judge the loads that this step has read, if it read any.

        A step whose graph skipped the hooks may have read too early, whatever the copies say.
        """
        if self._gate is None:
            return
        self._wait_gate(None)
        skipped = len(self.shape.layers) - len(self._awaited)
        if skipped:
            _log.error("%d layers did not wait for their KV; loads will be whole first", skipped)
            self._whole_first = True
        for order, load in self._layered:
            report = self._report.loads[order.number] = _load_report(load)
            if skipped:
                report.good, report.problem = 0, "layers did not wait"
            if report.problem:
                self._invalid |= order.block_ids()
        self._layered, self._gate = [], None
        self._awaited.clear()

    def _blocked_since(self, begin: int) -> None:
        """Count time that the engine's thread spent here."""
        self._report.blocked_ns += now_ns() - begin


def _job(order: LoadOrder) -> LoadJob:
    """The mover's job for an order, its deadline counted from now."""
    return LoadJob(order.lease, order.chunks, deadline_after(order.wait_s))


def _load_report(load: Load | None) -> LoadReport:
    """How a load ended on this rank; one without pages never began."""
    if load is None:
        return LoadReport(1, 0, 0, 0, 0, "refused")
    return LoadReport(1, load.good, load.copied_bytes, load.copy_ns, load.waited_ns, load.problem)


def _copier(where: device) -> Copier:
    """The copier for the device that holds the KV cache."""
    if where.type == "cpu":
        return HostCopier()
    if where.type == "cuda":
        from kvwise.engines.cuda import CudaCopier
        from kvwise.engines.cuda_device import TorchDevice

        return CudaCopier(TorchDevice(where.index))
    raise EngineError(f"KV on {where.type} devices is not supported; cpu and cuda are")
