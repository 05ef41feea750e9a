"""Owns the measurement of the way to and from the arena, as an engine's worker goes it.

A real daemon in a process of its own, a real client here, and the product's planner, mover and
copier between. What stands in for the engine is its KV cache alone: memory laid out as vLLM lays it
out on a CPU. It decides nothing and computes no KV.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np

from kvwise.bench.places import SetupError
from kvwise.bench.yardstick import Memory, gbps
from kvwise.core.keys import KEY_BYTES, ROOT
from kvwise.core.layout import Group, GroupKind, Layout
from kvwise.core.words import Namespace
from kvwise.engines.copying import Addresses, Chunks, DeviceLayer, Planner
from kvwise.engines.host_copy import HostCopier
from kvwise.engines.mover import Load, LoadJob, Mover, StoreJob, wait_loads
from kvwise.engines.pieces import KvTensor, device_layer
from kvwise.live.client import Client
from kvwise.live.clock import deadline_after
from kvwise.live.leases import unpack_pages
from kvwise.live.messages import Ask, Fill, Grant, Offer, Release, Step
from kvwise.units import KIB, MIB, format_size

REQUEST_BYTES = 128 * MIB
"""KV of one request: 1,024 tokens of a model with 8 billion parameters."""

ANSWER_S = 30.0
"""How long anything may take here before the bench gives up."""


@dataclass(frozen=True, slots=True)
class Model:
    """A model's KV as far as copying it goes.

    Attributes:
        name: whose shape it is.
        layers: how many there are.
        block_tokens: tokens of one block of the engine.
        block_bytes: bytes of one block in one layer.
        blocks: blocks of one object.
    """

    name: str
    layers: int
    block_tokens: int
    block_bytes: int
    blocks: int

    @property
    def layout(self) -> Layout:
        """The shape of its objects."""
        group = Group(GroupKind.FULL, (self.block_bytes,) * self.layers)
        return Layout(self.block_tokens, self.block_tokens * self.blocks, (group,))

    @property
    def object_bytes(self) -> int:
        """Bytes of one object."""
        return self.layout.object_bytes


MODELS = (
    Model("SmolLM2-135M", 30, 32, 24 * KIB, 1),
    Model("Llama-3.1-8B", 32, 16, 64 * KIB, 1),
    Model("Llama-3.1-8B", 32, 16, 64 * KIB, 8),
)
"""Objects of 720 KiB, 2 MiB and 16 MiB."""


@dataclass(frozen=True, slots=True)
class _Request:
    """The keys of one prompt, and the blocks of the engine that hold its KV, row for row."""

    name: str
    keys: bytes
    blocks: Addresses

    @property
    def chunks(self) -> int:
        """How many objects it has."""
        return len(self.blocks)


class DramPath:
    """One model's KV cache in this process, and the way between it and the arena.

    A context manager. Blocks of a prompt are shuffled over the KV cache, as in an engine that has
    run for long; the arena gives pages as it does.
    """

    def __init__(self, client: Client, model: Model, memory: Memory) -> None:
        """Join the daemon; `memory` is the KV cache, whole objects of it are used."""
        self.model = model
        self._client = client
        self._space = Namespace(os.urandom(KEY_BYTES), f"bench {model.name}", model.layout)
        client.join(self._space)
        objects = len(memory.bytes) // model.object_bytes
        self.total_bytes = objects * model.object_bytes
        layers = _layers(model, memory.address, objects * model.blocks)
        planner = Planner(model.layout, layers, rank=0, page_bytes=client.page_bytes)
        self._copier = HostCopier()
        self._mover = Mover(client, planner, self._copier)
        self._requests = list(_requests(model, objects))
        self._ended: list[Fill] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._mover.close(ANSWER_S)
        self._copier.close()
        self._client.clear(self._space.digest)

    @property
    def copier(self) -> str:
        """What moves the bytes: `compiled` or `numpy`."""
        return self._copier.kind

    @property
    def objects_per_request(self) -> int:
        """Objects that travel under one lease."""
        return self._requests[0].chunks

    def put(self) -> float:
        """GB/s from the KV cache to the arena, for all requests from offer to acknowledgement."""
        self._client.clear(self._space.digest)
        started = time.perf_counter()
        for request in self._requests:
            self._store(request)
        self._client.step(Step(fills=self._told()))
        return gbps(self.total_bytes, time.perf_counter() - started)

    def get(self) -> float:
        """GB/s from the arena to the KV cache, for all requests from question to release."""
        started = time.perf_counter()
        for request in self._requests:
            self._load(request)
        return gbps(self.total_bytes, time.perf_counter() - started)

    def _store(self, request: _Request) -> None:
        """Offer a request's objects, copy them, and have the next step say that they are there."""
        offer = Offer(request.name, self._space.digest, ROOT, request.keys)
        (grant,) = self._client.step(Step(fills=self._told(), offers=[offer]))
        if len(grant.chunks) != request.chunks:
            raise SetupError(
                f"the daemon took {len(grant.chunks)} of {request.chunks} objects of "
                f"{format_size(self.model.object_bytes)}"
            )
        job = StoreJob(grant.lease, _chunks(request, grant))
        self._mover.store(job, self._copier.fence())
        self._mover.wait_stores([grant.lease], ANSWER_S)
        stored = self._mover.take_stored()
        if [one.good for one in stored] != [request.chunks]:
            raise SetupError("a copy into the arena failed")
        self._ended = [Fill(grant.lease, request.chunks)]

    def _load(self, request: _Request) -> None:
        """Ask for a request's objects, want them, copy them, and release them."""
        tokens = request.chunks * self.model.layout.chunk_tokens
        plan = self._client.ask(Ask(request.name, self._space.digest, request.keys, 0, tokens + 1))
        if plan.chunks != request.chunks or not plan.lease:
            raise SetupError(f"the daemon offers {plan.chunks} of {request.chunks} objects")
        grant = self._client.want(plan.lease, plan.chunks)
        job = LoadJob(plan.lease, _chunks(request, grant), deadline_after(plan.wait_s))
        load = self._mover.load(job, self._copier.fence())
        wait_loads([load], ANSWER_S)
        if load.good != request.chunks:
            raise SetupError(f"a copy out of the arena failed: {load.problem or 'too slow'}")
        self._client.step(Step(releases=[_release(plan.lease, load)]))

    def _told(self) -> list[Fill]:
        """What the next step has to say."""
        ended, self._ended = self._ended, []
        return ended


def _layers(model: Model, address: int, blocks: int) -> list[DeviceLayer]:
    """One tensor for each layer, one behind the other, each of so many whole blocks."""
    words = model.block_bytes // 2
    return [
        device_layer(
            KvTensor(
                f"layer {layer}",
                address + layer * blocks * model.block_bytes,
                (blocks, words),
                (words, 1),
                2,
            ),
            group=0,
            blocks=blocks,
        )
        for layer in range(model.layers)
    ]


def _requests(model: Model, objects: int) -> Iterator[_Request]:
    """Requests of about `REQUEST_BYTES` that together use every block once."""
    blocks = np.random.default_rng(0).permutation(objects * model.blocks).astype(np.int64)
    rows = blocks.reshape(objects, model.blocks)
    each = max(1, REQUEST_BYTES // model.object_bytes)
    for number, first in enumerate(range(0, objects, each)):
        part = rows[first : first + each]
        yield _Request(f"bench-{number}", os.urandom(KEY_BYTES * len(part)), part)


def _chunks(request: _Request, grant: Grant) -> Chunks:
    """What to copy for a grant of all of a request's objects."""
    pages = np.array(unpack_pages(grant.pages), dtype=np.int64)
    return Chunks(pages.reshape(request.chunks, -1), request.blocks)


def _release(lease: int, load: Load) -> Release:
    """What the daemon is told of a load."""
    return Release(lease, load.copied_bytes, load.copy_ns, load.waited_ns)
