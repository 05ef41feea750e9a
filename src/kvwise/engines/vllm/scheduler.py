"""The scheduler half: tells vLLM what can be loaded, orders loads and stores, keeps the books.

It follows vLLM's calls and owns no policy: what is worth loading or keeping is the cache's answer.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from kvwise.core.hints import Hints
from kvwise.core.layout import GroupKind
from kvwise.core.words import Choice, Why
from kvwise.engines.vllm.counts import Counts
from kvwise.engines.vllm.events import Events
from kvwise.engines.vllm.link import Link
from kvwise.engines.vllm.loads import Loading, Loads, split_tokens
from kvwise.engines.vllm.namespace import namespace_of
from kvwise.engines.vllm.orders import Facts, StepOrders, StepReport
from kvwise.engines.vllm.prompts import PARAMS, Adapters, Grid, Prompt, prompt_of
from kvwise.engines.vllm.rhythm import Rhythm
from kvwise.engines.vllm.settings import Settings
from kvwise.engines.vllm.stores import Stores
from kvwise.errors import BugError, EngineError
from kvwise.live.clock import now_ns
from kvwise.live.messages import Cache
from kvwise.units import NS_PER_S, format_size

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.distributed.kv_events import KVCacheEvent
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request


_log = logging.getLogger(__name__)


class _Serving:
    """What there is for one namespace, once the ranks have told their facts."""

    def __init__(
        self, settings: Settings, link: Link, counts: Counts, *, facts: Facts, space: bytes
    ) -> None:
        layout = facts.layout
        self.facts = facts
        self.grid = Grid(space, layout.block_tokens, layout.chunk_tokens)
        layers = sum(len(group.pages_bytes) for group in layout.groups)
        self.loads = Loads(
            link,
            counts,
            self.grid,
            ranks=settings.ranks,
            layers=layers if settings.can_layer else 0,
        )
        self.stores = Stores(link, counts, self.grid, ranks=layout.ranks)
        self.rhythm = Rhythm(space)
        self.events = Events(self.grid) if settings.events else None
        self.slides = any(group.kind is GroupKind.WINDOW for group in layout.groups)

    def committed(self, prompt: Prompt, chunks: list[int]) -> None:
        """Chunks entered the cache."""
        if self.events is not None:
            self.events.stored(prompt, chunks)


class SchedulerSide:
    """One engine. All methods are called on the scheduler's thread."""

    def __init__(self, settings: Settings, cache: Cache) -> None:
        """Serves nothing until it was introduced to the ranks; owns `cache` from now on."""
        self._settings = settings
        self._counts = Counts()
        self._link = Link(cache, self._counts)
        self._adapters = Adapters()
        self._prompts: dict[str, Prompt] = {}
        self._manager: KVCacheManager | None = None
        self._serving: _Serving | None = None
        self._step = 0
        self._generation = 0

    def introduce(self, vllm_config: VllmConfig, facts: Collection[Facts]) -> None:
        """Hear what the ranks found out, and open the namespace.

        Raises:
            EngineError: the ranks do not fit together, or the model cannot be identified.
            ConfigError: the cache has no room for such objects.
        """
        if len(facts) != self._settings.ranks or len(set(facts)) != 1:
            raise EngineError(
                f"{len(facts)} of {self._settings.ranks} ranks have told about their KV cache, and "
                f"{len(set(facts))} different things: {[one.interior for one in set(facts)]}"
            )
        fact = next(iter(facts))
        self._open(vllm_config, fact)
        self._warn_of_churn(fact)

    def bind(self, manager: KVCacheManager) -> None:
        """Be told who owns vLLM's blocks.

        Raises:
            EngineError: it has changed beyond what loads inside a step rely on.
        """
        self._manager = manager
        if self._settings.can_layer and not hasattr(manager, "evict_blocks"):
            raise EngineError(
                "this vLLM cannot take back blocks of a failed load; set client.load = async"
            )

    # --- requests ---

    def new_request(self, request: Request) -> None:
        """A request arrived."""
        self._prompts[request.request_id] = prompt_of(request, self._adapters)

    def matched(self, request: Request, local: int) -> tuple[int | None, bool]:
        """(tokens to load beyond `local`, whether beside the steps); None: ask again later."""
        serving, prompt = self._serving, self._prompts.get(request.request_id)
        if serving is None or prompt is None:
            return 0, False
        if serving.loads.is_awaited(prompt):
            return None, False
        if not self._settings.can_load or prompt.hints.no_load or request.skip_reading_prefix_cache:
            prompt.outcome |= {"choice": Choice.RECOMPUTE.value, "why": Why.DISABLED.value}
            return 0, False
        plan = serving.loads.plan(prompt, local, self._ahead(prompt))
        tokens = serving.loads.tokens(prompt, plan, local) if plan is not None else 0
        if plan is None or not tokens:
            return 0, False
        always = self._settings.config.client.load == "sync"
        prompt.layered = self._settings.can_layer and (plan.ready or always)
        return tokens, not prompt.layered

    def allocated(self, request: Request, blocks: KVCacheBlocks, tokens: int) -> None:
        """VLLM has blocks for a request, `tokens` of them to be loaded."""
        serving, prompt = self._serving, self._prompts.get(request.request_id)
        if serving is None or prompt is None:
            return
        prompt.admitted = True
        if tokens and prompt.plan is not None:
            prompt.sources = split_tokens(prompt.plan, tokens)
            serving.loads.order(prompt, blocks.get_block_ids(), tokens, layered=prompt.layered)
        elif tokens:
            raise BugError(f"vLLM loads {tokens} tokens of {prompt.name} that nobody planned")
        else:
            serving.loads.give_back(prompt)

    def sources(self, request: Request) -> dict[str, int]:
        """Tokens of a request's last load by the tier they come from."""
        prompt = self._prompts.get(request.request_id)
        return prompt.sources if prompt is not None else {}

    def finished(self, request: Request) -> dict[str, object] | None:
        """A request is over, for whatever reason; the answer is what its response says of it."""
        prompt = self._prompts.pop(request.request_id, None)
        if prompt is None:
            return None
        if self._serving is not None:
            self._serving.loads.forget(prompt)
        return {PARAMS: prompt.outcome} if prompt.outcome else None

    # --- steps ---

    def orders(self, output: SchedulerOutput) -> StepOrders:
        """What the ranks have to do around this step."""
        self._step += 1
        orders = StepOrders(self._step, timed=output.total_num_scheduled_tokens > 0)
        serving = self._serving
        if serving is None:
            return orders
        scheduled = output.num_scheduled_tokens
        orders.loads, orders.cancels = serving.loads.take_orders()
        orders.barrier = serving.stores.barrier(
            () if serving.slides else scheduled.keys(), output.preempted_req_ids or ()
        )
        work = []
        for name, new in scheduled.items():
            prompt = self._prompts.get(name)
            if prompt is not None:
                before = prompt.request.num_computed_tokens
                work.append((new, before))
                self._collect(serving, prompt, before + new, output)
        orders.stores = serving.stores.order(self._step)
        if orders.timed:
            clean = not any(load.layered for load in orders.loads)
            serving.rhythm.begin(self._step, now_ns(), work, clean=clean)
        elif not self._prompts:
            self._link.flush()
        return orders

    def results(self, output: KVConnectorOutput) -> None:
        """What became of a step's orders, on all ranks."""
        serving, report = self._serving, output.kv_connector_worker_meta
        if serving is None or not isinstance(report, StepReport):
            return
        ended = [serving.loads.report(number, load) for number, load in report.loads.items()]
        loads = [load for load in ended if load is not None]
        for load in loads:
            if load.failed:
                self._missed(serving, load)
            elif load.sources.keys() - {"dram"}:
                serving.committed(load.prompt, load.chunks)
        if output.invalid_block_ids or any(load.failed and load.order.layered for load in loads):
            serving.stores.doubt(report.number, "load failed")
        for lease, store in report.stores.items():
            serving.stores.report(lease, store, serving.committed)
        self._counts.add("held_seconds", report.blocked_ns / NS_PER_S, "copies")
        timing = serving.rhythm.end(report.number, now_ns(), report.blocked_ns)
        if timing is not None:
            self._link.time(timing)
        if not self._prompts:
            self._link.flush()

    @property
    def has_unfinished(self) -> bool:
        """Whether the engine should go on stepping, idle as it may be: a store is on its way."""
        return self._serving is not None and self._serving.stores.in_flight

    # --- the rest ---

    def take_events(self) -> list[KVCacheEvent]:
        """KV events since the last call."""
        events = self._serving.events if self._serving is not None else None
        return events.take() if events is not None else []

    def take_counts(self) -> dict[str, float]:
        """Counters since the last call."""
        return self._counts.take()

    def reset(self, vllm_config: VllmConfig) -> bool:
        """Forget everything: whoever asks has usually changed the weights under the engine.

        Their files say nothing about them any more, so from now on this engine shares with nobody.
        Requests under way are left alone: part of their KV is of the old weights.
        """
        serving = self._serving
        if serving is None:
            return True
        if serving.loads.in_flight:
            return False
        for prompt in self._prompts.values():
            serving.loads.give_back(prompt)
            prompt.hints = Hints(no_store=True, no_load=True)
        serving.stores.doubt(0, "reset")
        cleared = self._link.clear(serving.grid.space)
        self._generation += 1
        self._open(vllm_config, serving.facts)
        return cleared

    def close(self) -> None:
        """Say what is left to say and hang up."""
        self._link.close()

    # --- inside ---

    def _ahead(self, prompt: Prompt) -> Iterator[Prompt]:
        """Prompts that are computed before this one: vLLM asks about those at the head of a queue.

        So whoever waits as well comes later, and whoever has blocks comes first.
        """
        return (one for one in self._prompts.values() if one.admitted and one is not prompt)

    def _open(self, vllm_config: VllmConfig, facts: Facts) -> None:
        """Open a namespace and start with empty books."""
        generation = f"{self._settings.engine} {self._generation}" if self._generation else ""
        lossy = self._settings.config.client.lossy
        namespace = namespace_of(vllm_config, facts, generation=generation, lossy=lossy)
        self._link.join(namespace)
        self._serving = _Serving(
            self._settings, self._link, self._counts, facts=facts, space=namespace.digest
        )

    def _warn_of_churn(self, facts: Facts) -> None:
        """Say so where the cache holds no more than the engine itself: it can hardly add a hit."""
        own_bytes = int(facts.device_tokens * facts.layout.bytes_per_token)
        held_bytes = self._link.capacity_bytes()
        if held_bytes is not None and held_bytes <= own_bytes:
            _log.warning(
                "the engine keeps %s of KV itself, and kvwise no more than %s, so that most of it "
                "is there already: raise dram.size, or set disk.paths and disk.size",
                format_size(own_bytes),
                format_size(held_bytes),
            )

    def _collect(
        self, serving: _Serving, prompt: Prompt, computed: int, output: SchedulerOutput
    ) -> None:
        """Note chunks that this step completes. Tokens not known yet are no chunk's end."""
        tokens = min(computed, prompt.request.num_tokens)
        if not self._settings.can_store or prompt.hints.no_store or prompt.hints.no_reuse:
            return
        if tokens // serving.grid.chunk_tokens > prompt.stored:
            tables = output.kv_connector_block_state.get_block_ids(prompt.name)
            if tables is not None:
                serving.stores.collect(prompt, tables, tokens)

    def _missed(self, serving: _Serving, load: Loading) -> None:
        """A load failed: nobody may find its blocks in vLLM's own prefix cache.

        Loads beside the steps enter it only when they are believed. Those inside a step are in it
        from the start, and so are the blocks computed on top of them.
        """
        report = load.report
        if serving.events is not None and report is not None:
            serving.events.missed(load.prompt, load.plan.first_chunk + report.good)
        if load.order.layered and self._manager is not None:
            first = load.local // serving.grid.block_tokens
            self._manager.evict_blocks({block for block in load.tables[0][first:] if block})
