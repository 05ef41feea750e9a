"""kvwise's side of the comparisons in memory: a client of a daemon in a process of its own.

What a peer keeps in its own process is kept by the daemon here, since that is the shipped form.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kvwise.bench.children import Child
from kvwise.bench.peers.talk import PeerError
from kvwise.bench.progress import Progress
from kvwise.bench.yardstick import Memory, gbps
from kvwise.core.keys import KEY_BYTES, ROOT
from kvwise.core.layout import Group, GroupKind, Layout
from kvwise.core.words import Namespace
from kvwise.engines.copying import Addresses, Chunks, DeviceLayer, Planner
from kvwise.engines.host_copy import HostCopier
from kvwise.errors import CacheUnavailable
from kvwise.live.client import Client
from kvwise.live.messages import Ask, Fill, Offer, Release, Step

TOKENS = 256
"""Tokens of one object; only its bytes matter here."""

SPACE = b"bench peers kvwi"
START_S = 30.0
STOP_S = 30.0
CALL_S = 10.0
_LOOK_S = 0.0001


@dataclass(frozen=True, slots=True)
class Load:
    """What one round moves.

    Attributes:
        object_bytes: bytes of an object.
        count: objects, each with bytes of its own.
        at_once: objects in one request.
    """

    object_bytes: int
    count: int
    at_once: int

    @property
    def total_bytes(self) -> int:
        """Bytes that a round moves each way."""
        return self.object_bytes * self.count

    @property
    def requests(self) -> list[range]:
        """The numbers of the objects of each request."""
        ends = range(0, self.count, self.at_once)
        return [range(n, min(n + self.at_once, self.count)) for n in ends]


@dataclass(frozen=True, slots=True)
class Paged:
    """A paged KV cache as an engine keeps it: for each layer all blocks of K, then those of V.

    Attributes:
        layers, blocks, block_tokens: its shape.
        half_bytes: bytes of K, and of V, of one block of one layer.
        tokens: tokens of one request.
    """

    layers: int
    blocks: int
    block_tokens: int
    half_bytes: int
    tokens: int

    @property
    def layer_bytes(self) -> int:
        """Bytes of one layer."""
        return 2 * self.blocks * self.half_bytes

    @property
    def load(self) -> Load:
        """One request in a round, cut into objects of TOKENS tokens."""
        object_bytes = 2 * self.half_bytes * self.layers * TOKENS // self.block_tokens
        count = self.tokens // TOKENS
        return Load(object_bytes, count, count)

    def device_layers(self, address: int) -> list[DeviceLayer]:
        """Where the layers lie when the first one is at `address`."""
        return [
            DeviceLayer(
                group=0,
                address=address + n * self.layer_bytes,
                stride=self.half_bytes,
                page_bytes=2 * self.half_bytes,
                pieces=(0, self.blocks * self.half_bytes),
            )
            for n in range(self.layers)
        ]


class Wire:
    """A client of a daemon, and the product's own copies between memory and arena.

    How copies ended is told with the next step, as an engine tells it once for each of its steps.
    """

    def __init__(self, client: Client, layout: Layout) -> None:
        self._client = client
        self._layout = layout
        self._copier = HostCopier()
        self._fills: list[Fill] = []
        self._releases: list[Release] = []
        client.join(Namespace(SPACE, "bench peers", layout))

    def planner(self, layers: list[DeviceLayer]) -> Planner:
        """Plans for a device whose layers lie there."""
        return Planner(self._layout, layers, rank=0, page_bytes=self._client.page_bytes)

    def put(self, keys: bytes, blocks: Addresses, planner: Planner) -> None:
        """Offer objects and copy them into the pages that are granted.

        Raises:
            PeerError: not all of them were taken.
        """
        offer = Offer(request=keys[:8].hex(), space=SPACE, parent=ROOT, keys=keys)
        (grant,) = self._client.step(Step(fills=self._fills, offers=[offer]))
        self._fills = []
        if len(grant.chunks) != len(blocks):
            raise PeerError(f"kvwise took {len(grant.chunks)} of {len(blocks)} objects")
        chunks = Chunks(_pages(grant.pages, len(blocks)), blocks)
        plan = planner.plan(chunks, self._client.address, whole=True)
        self._copier.store(plan, self._copier.fence())
        self._require(grant.lease)
        self._fills.append(Fill(grant.lease, len(blocks)))

    def get(self, keys: bytes, blocks: Addresses, planner: Planner) -> None:
        """Ask for objects and copy them out.

        Raises:
            PeerError: not all of them came.
        """
        count = len(blocks)
        tokens = count * self._layout.chunk_tokens + 1
        plan = self._client.ask(Ask(keys[:8].hex(), SPACE, keys, 0, tokens))
        if plan.chunks != count:
            raise PeerError(f"kvwise offers {plan.chunks} of {count} objects: {plan.decision}")
        grant = self._client.want(plan.lease, count)
        deadline = time.monotonic() + CALL_S
        while self._require(plan.lease) < count:
            if time.monotonic() > deadline:
                raise PeerError("kvwise did not bring the objects in time")
            time.sleep(_LOOK_S)
        chunks = Chunks(_pages(grant.pages, count), blocks)
        copies = planner.plan(chunks, self._client.address, whole=True)
        self._copier.load(copies, self._copier.fence(), _nobody)
        self._require(plan.lease)
        copied_bytes = count * self._layout.object_bytes
        self._releases.append(Release(plan.lease, copied_bytes=copied_bytes))

    def tell(self) -> None:
        """Say how the copies so far ended: what was put can be found from here on."""
        self._client.step(Step(fills=self._fills, releases=self._releases))
        self._fills, self._releases = [], []

    def forget(self) -> None:
        """Drop everything."""
        self._client.clear()

    def _require(self, lease: int) -> int:
        """Chunks of a lease that are there; refuses one that ended."""
        ready, failed = self._client.progress(lease)
        if failed:
            raise PeerError("a lease of kvwise ended during a copy")
        return ready


def _nobody(_layer: int) -> None:
    """Nobody waits for this layer."""


def _pages(packed: bytes, count: int) -> Addresses:
    """Page numbers, one row for each object."""
    return np.frombuffer(packed, "<u4").astype(np.int64).reshape(count, -1)


@contextmanager
def daemon(dram_bytes: int, progress: Progress) -> Iterator[Client]:
    """A daemon with so much memory in a process of its own, and a client of it.

    Raises:
        SetupError: it did not start.
    """
    with tempfile.TemporaryDirectory(prefix="kvwise-peers-") as name:
        socket = Path(name) / "sock"
        command = [sys.executable, "-m", "kvwise", "serve", "--socket", str(socket)]
        command += ["--dram", str(dram_bytes), "--metrics", ""]
        env = os.environ | {"KVWISE_PLAN_POLICY": "load"}
        log = Path(name) / "log"
        with Child("kvwise serve", command, log=log, env=env, stop_s=STOP_S) as child:
            doing = "starting the cache daemon"
            child.wait_until(lambda: _answers(socket), START_S, progress, doing)
            client = Client(str(socket), "bench-peers", timeout_s=CALL_S)
            try:
                yield client
            finally:
                client.close()


def _answers(socket: Path) -> bool:
    """Whether a daemon serves this socket."""
    if not socket.exists():
        return False
    try:
        Client(str(socket), "bench-peers", timeout_s=1.0).close()
    except CacheUnavailable:
        return False
    return True


class MemorySide:
    """Objects between ordinary memory of this process and the daemon's memory.

    Attributes:
        source, target: where objects begin and end.
    """

    def __init__(self, client: Client, load: Load) -> None:
        group = Group(GroupKind.FULL, (load.object_bytes,))
        self._load = load
        self._wire = Wire(client, Layout(TOKENS, TOKENS, (group,)))
        self.source, self.target = Memory(load.total_bytes, seed=1), Memory(load.total_bytes)
        self._from = self._wire.planner([_flat(self.source, load)])
        self._to = self._wire.planner([_flat(self.target, load)])

    def round(self) -> dict[str, float]:
        """Put all objects, get them back, compare; GB/s of each."""
        load = self._load
        self.target.clear()
        keys = [os.urandom(len(request) * KEY_BYTES) for request in load.requests]
        blocks = [np.array(request, np.int64).reshape(-1, 1) for request in load.requests]
        begin = time.perf_counter()
        for some, where in zip(keys, blocks, strict=True):
            self._wire.put(some, where, self._from)
        self._wire.tell()
        middle = time.perf_counter()
        for some, where in zip(keys, blocks, strict=True):
            self._wire.get(some, where, self._to)
        self._wire.tell()
        end = time.perf_counter()
        require_same(self.source, self.target)
        self._wire.forget()
        total = load.total_bytes
        return {"put": gbps(total, middle - begin), "get": gbps(total, end - middle)}


def require_same(source: Memory, target: Memory) -> None:
    """Refuse contents that differ.

    Raises:
        PeerError: they do.
    """
    if not np.array_equal(source.bytes, target.bytes):
        raise PeerError("kvwise gave back other bytes than were stored")


def _flat(memory: Memory, load: Load) -> DeviceLayer:
    """Objects one after another, each in one piece."""
    size = load.object_bytes
    return DeviceLayer(group=0, address=memory.address, stride=size, page_bytes=size)


class PagedSide:
    """Requests between a paged KV cache of this process and the daemon's memory.

    Attributes:
        source, target: the caches where requests begin and end.
    """

    def __init__(self, client: Client, paged: Paged, requests: int) -> None:
        group = Group(GroupKind.FULL, (2 * paged.half_bytes,) * paged.layers)
        self._paged = paged
        self._requests = requests
        self._wire = Wire(client, Layout(paged.block_tokens, TOKENS, (group,)))
        size_bytes = paged.layers * paged.layer_bytes
        self.source, self.target = Memory(size_bytes, seed=1), Memory(size_bytes)
        self._from = self._wire.planner(paged.device_layers(self.source.address))
        self._to = self._wire.planner(paged.device_layers(self.target.address))

    def round(self) -> dict[str, float]:
        """Store and retrieve requests from neighbouring blocks; GB/s by the median request."""
        paged, load = self._paged, self._paged.load
        each = paged.tokens // paged.block_tokens
        puts, gets = [], []
        for number in range(self._requests):
            self.target.clear()
            first = number * each % max(1, paged.blocks - each + 1)
            blocks = np.arange(first, first + each, dtype=np.int64).reshape(load.count, -1)
            keys = os.urandom(load.count * KEY_BYTES)
            begin = time.perf_counter()
            self._wire.put(keys, blocks, self._from)
            self._wire.tell()
            middle = time.perf_counter()
            self._wire.get(keys, blocks, self._to)
            self._wire.tell()
            puts.append(middle - begin)
            gets.append(time.perf_counter() - middle)
            self._compare(first, each)
        self._wire.forget()
        put_s, get_s = float(np.median(puts)), float(np.median(gets))
        return {"put": gbps(load.total_bytes, put_s), "get": gbps(load.total_bytes, get_s)}

    def _compare(self, first: int, count: int) -> None:
        """Refuse blocks that came back changed."""
        half, paged = self._paged.half_bytes, self._paged
        shape = (paged.layers, 2, paged.blocks, half)
        source, target = self.source.bytes.reshape(shape), self.target.bytes.reshape(shape)
        if not np.array_equal(
            source[:, :, first : first + count], target[:, :, first : first + count]
        ):
            raise PeerError("kvwise gave back other bytes than were stored")
