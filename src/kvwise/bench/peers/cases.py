"""Which comparisons there are: what each side moves, and how it is started. It measures nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from kvwise.bench.peers.ours import Load, Paged
from kvwise.units import GIB, MIB, format_size

REQUEST_BYTES = 64 * MIB
"""What one request moves: the KV of some hundred to some thousand tokens."""

SERVER = Paged(layers=8, blocks=1024, block_tokens=16, half_bytes=32 * 1024, tokens=4096)
SERVER_SHAPE = "(2,1024,16,8,128):bfloat16:8"
"""The same shape as LMCache writes it: 8 heads of 128 in 16-bit floats."""

SERVER_REQUESTS = 3
SERVER_MODES = 2
L2_WORKERS = 4
ADAPTER_ROUNDS = 1


@dataclass(frozen=True, slots=True)
class Case:
    """One comparison.

    Attributes:
        peer: whose.
        path: what is compared, in words.
        load: what a round moves each way.
        driver: module of the peer's side.
        spec: what that is told; a folder is added where `on_disk`.
        ours: what kvwise's side is told, likewise; see `side`.
        on_disk: whether both sides get a folder on the disk to measure.
        memory_bytes: about what both sides hold together.
        note: what a reader must know to take the ratio right.
    """

    peer: str
    path: str
    load: Load
    driver: str
    spec: dict[str, Any]
    ours: dict[str, Any]
    on_disk: bool = False
    memory_bytes: int = 0
    note: str = ""

    @property
    def name(self) -> str:
        """What to call it in messages."""
        return f"{self.peer}, {self.path}, {format_size(self.load.object_bytes)}"


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure.

    Attributes:
        objects: bytes of an object, each one a round of its own.
        set_bytes: bytes of all objects of a round, more than a processor's cache.
        passes: rounds that count; one more warms up.
        peers: names of peers.
    """

    objects: Sequence[int]
    set_bytes: int
    passes: int
    peers: Sequence[str] = field(default=("lmcache", "mooncake", "nixl"))

    def load(self, object_bytes: int, *, at_once: int = 0) -> Load:
        """A round of objects of that size."""
        count = max(1, self.set_bytes // object_bytes)
        return Load(object_bytes, count, at_once or max(1, REQUEST_BYTES // object_bytes))


def cases(plan: Plan) -> list[Case]:
    """All comparisons with the chosen peers."""
    found: list[Case] = []
    for object_bytes in plan.objects:
        load = plan.load(object_bytes)
        found += _memory_cases(load)
        found += _disk_cases(load, plan)
    found.append(_server_case(plan))
    order = {peer: number for number, peer in enumerate(plan.peers)}
    return sorted((case for case in found if case.peer in order), key=lambda c: order[c.peer])


def _memory_cases(load: Load) -> list[Case]:
    """Host memory, in the peer's process or in another one."""
    spec = _told(load)
    ours = _memory(load)
    held = 8 * load.total_bytes
    return [
        Case(
            "lmcache", "memory, one process", load, "lmcache_storage", spec, ours,
            memory_bytes=held,
            note="StorageManager with LocalCPU in the caller's process; kvwise's daemon is another",
        ),
        Case(
            "mooncake", "memory, one process", load, "mooncake_store", spec | {"remote": False},
            ours, memory_bytes=held,
            note="segment in the caller's process; kvwise's daemon is another process",
        ),
        Case(
            "mooncake", "memory, two processes", load, "mooncake_store", spec | {"remote": True},
            ours, memory_bytes=held,
            note="TCP on loopback against shared memory: what each has for two local processes",
        ),
    ]  # fmt: skip


def _disk_cases(load: Load, plan: Plan) -> list[Case]:
    """Files past the page cache. Neither side calls fsync."""
    spec = _told(load)
    whole = plan.load(load.object_bytes, at_once=load.count)
    adapter = {"what": "l2", "workers": L2_WORKERS, "rounds": ADAPTER_ROUNDS}
    held = 6 * load.total_bytes
    found = [
        Case(
            "lmcache", "disk, LocalDisk O_DIRECT", load, "lmcache_storage", spec,
            _disk(load, copies=True), on_disk=True, memory_bytes=held,
            note="with the copies from and to the caller; kvwise also verifies a checksum",
        ),
        Case(
            "lmcache", "disk, fs_native O_DIRECT", whole, "lmcache_bench", _told(whole) | adapter,
            _disk(whole, copies=False), on_disk=True, memory_bytes=held,
            note=f"a file for each object, {L2_WORKERS} workers, one call for all objects; "
            "kvwise also verifies a checksum",
        ),
    ]  # fmt: skip
    found += [
        Case(
            "nixl", f"disk, {engine} O_DIRECT", load, "nixl_file", spec | {"engine": engine},
            _disk(load, copies=False), on_disk=True, memory_bytes=held,
            note="NIXL overwrites one preallocated file; kvwise appends to new ones, keeps names "
            "and verifies a checksum",
        )
        for engine in ("io_uring", "libaio")
    ]  # fmt: skip
    return found


def _server_case(plan: Plan) -> Case:
    """Paged KV between an engine's process and a server's."""
    load, requests = SERVER.load, SERVER_REQUESTS
    stored_bytes = (plan.passes + 1) * SERVER_MODES * requests * load.total_bytes
    pool_gib = math.ceil(1.1 * stored_bytes / GIB)
    spec = {"what": "server", "pool_gib": pool_gib, "tokens": SERVER.tokens}
    spec |= {"shape": SERVER_SHAPE, "total_bytes": load.total_bytes, "requests": requests}

    ours = _told(load) | {"what": "paged", "paged": asdict(SERVER), "requests": requests}
    ours |= {"dram_bytes": (requests + 1) * load.total_bytes}
    return Case(
        "lmcache", "server", load, "lmcache_bench", spec, ours,
        memory_bytes=(pool_gib + 4) * GIB,
        note="paged KV of 8 layers, 4096 tokens a request, neighbouring blocks; the lookup is in "
        "kvwise's get and not in LMCache's",
    )  # fmt: skip


def _told(load: Load) -> dict[str, Any]:
    """What both sides are told of a round."""
    return {"object_bytes": load.object_bytes, "count": load.count, "at_once": load.at_once}


def _memory(load: Load) -> dict[str, Any]:
    """What kvwise's side in memory is told."""
    return _told(load) | {"what": "memory", "dram_bytes": load.total_bytes + 2 * REQUEST_BYTES}


def _disk(load: Load, *, copies: bool) -> dict[str, Any]:
    """What kvwise's side on disk is told."""
    return _told(load) | {"what": "disk", "copies": copies}
