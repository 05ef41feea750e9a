"""Owns a toy engine that calls the connector's halves as vLLM does, on plain memory, without vLLM.

What it computes depends on everything before it: a block built on a wrong one is wrong. It keeps no
prefix cache of its own, and asserts nothing.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from kvwise.config import Config
from kvwise.core.layout import GroupKind
from kvwise.core.words import Namespace
from kvwise.engines.vllm import scheduler as scheduler_module
from kvwise.engines.vllm import shape as shape_module
from kvwise.engines.vllm.scheduler import SchedulerSide
from kvwise.engines.vllm.settings import Settings
from kvwise.engines.vllm.worker import WorkerSide
from kvwise.live.clock import deadline_after, seconds_until
from kvwise.live.messages import Cache

BLOCK = 4
PAGE = 3000
BLOCKS = 256
WINDOW = 8


class FullAttentionSpec:
    """Named as vLLM's, which is how the connector knows it."""

    block_size = BLOCK
    real_page_size_bytes = PAGE


class MLAAttentionSpec(FullAttentionSpec):
    """Latent KV: the same on all ranks."""


class SlidingWindowSpec(FullAttentionSpec):
    """Only the last tokens are kept."""

    sliding_window = WINDOW


class SinkFullAttentionSpec(FullAttentionSpec):
    """Something the connector does not know."""


SPECS = {
    "full": FullAttentionSpec,
    "mla": MLAAttentionSpec,
    "window": SlidingWindowSpec,
    "sink": SinkFullAttentionSpec,
}


class Tensor:
    """What the connector looks at of a tensor, over a numpy array."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array
        self.shape = array.shape
        self.itemsize = array.itemsize
        self.device = SimpleNamespace(type="cpu", index=None)
        self.dtype = array.dtype

    def data_ptr(self) -> int:
        """Where it begins."""
        return self.array.ctypes.data

    def stride(self, axis: int | None = None) -> Any:
        """Steps in elements, as torch counts."""
        steps = tuple(step // self.itemsize for step in self.array.strides)
        return steps if axis is None else steps[axis]


def kv_config(groups: Sequence[str], **changes: object) -> Any:
    """A KV cache of these groups, two layers each."""
    facts: dict[str, object] = {
        "num_blocks": BLOCKS,
        "hash_block_size": BLOCK,
        "kv_cache_layout": "LBHNC",
        "kv_tp_replicas": 1,
        "kv_cache_groups": [
            SimpleNamespace(
                layer_names=[f"{number}.{kind}.{layer}" for layer in range(2)],
                kv_cache_spec=SPECS[kind](),
                is_eagle_group=False,
                enable_kv_transfer=True,
                host_resident=False,
            )
            for number, kind in enumerate(groups)
        ],
    }
    return SimpleNamespace(**(facts | changes))


def vllm_config(ranks: int = 1, rank: int = 0) -> Any:
    """What the halves read of vLLM's configuration once they are settled."""
    return SimpleNamespace(
        parallel_config=SimpleNamespace(tensor_parallel_size=ranks, rank=rank),
        cache_config=SimpleNamespace(cache_dtype="auto"),
    )


@dataclass
class Request:
    """A request as vLLM keeps it, as far as the connector looks."""

    request_id: str
    all_token_ids: list[int]
    cache_salt: str | None = None
    lora_request: Any = None
    kv_transfer_params: dict[str, Any] | None = None
    skip_reading_prefix_cache: bool = False
    num_computed_tokens: int = 0
    tables: tuple[list[int], ...] = ()
    waiting: bool = False
    failed: bool = False
    answer: dict[str, Any] | None = None
    loads: list[tuple[int, bool]] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        """All tokens."""
        return len(self.all_token_ids)

    num_prompt_tokens = num_tokens

    @property
    def block_hashes(self) -> list[bytes]:
        """One for each whole block, chained; like vLLM's, blind to what kvwise must keep apart."""
        hashes, last = [], b""
        for start in range(0, self.num_tokens - BLOCK + 1, BLOCK):
            text = repr(self.all_token_ids[start : start + BLOCK]).encode()
            last = hashlib.sha256(last + text).digest()
            hashes.append(last)
        return hashes


def page(request: Request, block: int, layer: str, rank: int) -> np.ndarray[Any, Any]:
    """The right bytes of one block in one layer on one rank; latent KV does not depend on it."""
    who = 0 if ".mla." in layer else rank
    seed = hashlib.sha256(request.block_hashes[block] + layer.encode() + bytes([who])).digest()
    return np.frombuffer(seed * (PAGE // 32 + 1), dtype=np.uint8)[:PAGE]


class Engine:
    """Schedules whole prompts; one step at a time, all ranks in this process."""

    def __init__(
        self,
        caches: Sequence[Cache],
        config: Config,
        *,
        groups: Sequence[str] = ("full",),
        can_layer: bool = True,
    ) -> None:
        """The first cache is the scheduler half's, the others are the ranks'."""
        self.ranks = len(caches) - 1
        self.settings = Settings(
            config=config,
            engine="toy",
            ranks=self.ranks,
            can_load=True,
            can_store=True,
            can_layer=can_layer and len(groups) == 1,
            full_graphs=False,
            events=False,
        )
        self.groups = groups
        self.scheduler = SchedulerSide(self.settings, caches[0])
        self.workers: list[WorkerSide] = []
        self.memory: list[dict[str, Tensor]] = []
        for rank, cache in enumerate(caches[1:]):
            shapes = kv_config(groups)
            memory = {
                name: Tensor(np.zeros((BLOCKS, PAGE), dtype=np.uint8))
                for group in shapes.kv_cache_groups
                for name in group.layer_names
            }
            worker = WorkerSide(self.settings, cache)
            worker.register(vllm_config(self.ranks, rank), shapes, memory)
            self.workers.append(worker)
            self.memory.append(memory)
        self.evicted: set[int] = set()
        self.scheduler.bind(SimpleNamespace(evict_blocks=self.evicted.update))
        facts = [worker.shape.facts for worker in self.workers]
        self.scheduler.introduce(vllm_config(self.ranks), facts)
        self._free = list(range(1, BLOCKS))
        self._ended: set[str] = set()
        self._heard: Counter[str] = Counter()
        self._bad: set[str] = set()

    def run(self, *requests: Request) -> None:
        """Prefill these requests, which arrive together; failed loads are computed."""
        for request in requests:
            self.scheduler.new_request(request)
        left, deadline_ns = list(requests), deadline_after(20.0)
        while left := [one for one in left if not self._is_over(one)]:
            assert seconds_until(deadline_ns), f"{left} do not end"
            self.step(left)
            time.sleep(0.0005)  # a step takes its time
        self.step([])

    def step(self, requests: Sequence[Request]) -> Any:
        """Schedule, run and hear of one step."""
        scheduled = {one.request_id: self._schedule(one) for one in requests if not one.waiting}
        scheduled = {name: new for name, new in scheduled.items() if new}
        by_name = {one.request_id: one for one in requests}
        output = SimpleNamespace(
            num_scheduled_tokens=scheduled,
            total_num_scheduled_tokens=sum(scheduled.values()),
            preempted_req_ids=set(),
            finished_req_ids=self._ended,
            kv_connector_block_state=SimpleNamespace(
                get_block_ids=lambda name: by_name[name].tables
            ),
        )
        self._ended = set()
        orders = self.scheduler.orders(output)
        running = [by_name[name] for name in scheduled]
        report, invalid = None, set()
        for rank, worker in enumerate(self.workers):
            worker.begin(orders)
            worker.start_loads(orders)
            if running:
                self._forward(rank, running, scheduled)
            worker.finish(orders)
            done, bad = worker.take_results()
            self._heard.update(done)
            self._bad |= bad
            invalid |= worker.take_invalid()
            told = worker.take_report(orders)
            report = told if report is None else report.aggregate(told) if told else report
        for one in running:
            one.num_computed_tokens += scheduled[one.request_id]
        self._believe(requests, invalid)
        self.scheduler.results(
            SimpleNamespace(kv_connector_worker_meta=report, invalid_block_ids=invalid)
        )
        return orders

    def is_right(self, request: Request) -> bool:
        """Whether every block that the request needs holds the right bytes on every rank."""
        return all(
            self._right(rank, request, block, request.num_tokens)
            for rank in range(self.ranks)
            for block in range(len(request.block_hashes))
        )

    # --- inside ---

    def _schedule(self, request: Request) -> int:
        """As vLLM: match, allocate, tell; the answer is how many tokens to compute now."""
        if not request.tables:
            tokens, beside = self.scheduler.matched(request, 0)
            if tokens is None:
                return 0
            blocks = -(-request.num_tokens // BLOCK)
            request.tables = tuple(
                self._table(blocks, tokens if kind == "window" else 0) for kind in self.groups
            )
            self.scheduler.allocated(
                request, SimpleNamespace(get_block_ids=lambda: request.tables), tokens
            )
            request.num_computed_tokens = tokens
            if tokens:
                request.loads.append((tokens, beside))
            if beside:
                request.waiting = True
                return 0
        return request.num_tokens - request.num_computed_tokens

    def _table(self, blocks: int, end: int) -> list[int]:
        """New blocks; those that a window has left behind at `end` are not kept."""
        gone = max(0, end - WINDOW + 1) // BLOCK
        return [0] * gone + [self._free.pop() for _ in range(blocks - gone)]

    def _forward(self, rank: int, requests: Sequence[Request], new: dict[str, int]) -> None:
        """Write KV of new tokens: right if everything before is right, wrong otherwise."""
        for name in self.memory[rank]:
            self.workers[rank].wait_layer(name)
        for one in requests:
            start, end = one.num_computed_tokens, one.num_computed_tokens + new[one.request_id]
            good = all(self._right(rank, one, b, start) for b in range(start // BLOCK))
            for block in range(start // BLOCK, end // BLOCK):
                for name, tensor in self.memory[rank].items():
                    right = page(one, block, name, rank)
                    number = one.tables[int(name[0])][block]
                    tensor.array[number] = right if good else ~right

    def _right(self, rank: int, one: Request, block: int, end: int) -> bool:
        """Whether a block is right in all layers that still need it when `end` tokens are there."""
        return all(
            np.array_equal(
                tensor.array[one.tables[int(name[0])][block]], page(one, block, name, rank)
            )
            for name, tensor in self.memory[rank].items()
            if ".window." not in name or (block + 1) * BLOCK > end - WINDOW + 1
        )

    def _believe(self, requests: Sequence[Request], invalid: set[int]) -> None:
        """As vLLM with policy `recompute`: go on, or compute again what did not come.

        A load beside the steps is over when all ranks have said so, each in its own time.
        """
        for one in requests:
            if self._heard[one.request_id] == self.ranks:
                del self._heard[one.request_id]
                one.waiting = False
                if one.request_id in self._bad:
                    self._bad.discard(one.request_id)
                    one.tables, one.num_computed_tokens, one.failed = (), 0, True
            elif one.tables and invalid & set(one.tables[0]):
                first = min(one.tables[0].index(b) for b in invalid if b in one.tables[0])
                one.num_computed_tokens, one.failed = first * BLOCK, True

    def _is_over(self, one: Request) -> bool:
        """Whether a request is computed; it is then finished."""
        if one.waiting or not one.tables or one.num_computed_tokens < one.num_tokens:
            return False
        one.answer = self.scheduler.finished(one)
        self._ended.add(one.request_id)
        return True


def disguise(monkeypatch: Any) -> None:
    """Let the halves do without vLLM and torch: what only they can tell is made up."""

    def interior(*_: object) -> str:
        return "toy"

    def namespace(_config: Any, facts: Any, *, generation: str = "", lossy: str) -> Namespace:
        digest = hashlib.blake2b(
            facts.layout.digest() + f"{generation}{lossy}".encode(), digest_size=16
        ).digest()
        return Namespace(digest, "toy", facts.layout)

    monkeypatch.setattr(shape_module, "_interior", interior)
    monkeypatch.setattr(scheduler_module, "namespace_of", namespace)


def kinds(layout: Any) -> list[GroupKind]:
    """Kinds of the groups of a layout."""
    return [group.kind for group in layout.groups]
