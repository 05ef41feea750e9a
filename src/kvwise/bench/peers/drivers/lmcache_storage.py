"""LMCache's StorageManager in this process, in host memory or on disk past the page cache.

put is allocate, copy in, store and wait until it can be found; get is fetch and copy out. The
copies stand for those from and to a device and are plain memmoves.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kvwise.bench.peers.drivers.base import (
    DriverError,
    Rates,
    Region,
    Round,
    Spec,
    Stopwatch,
    parts,
    run,
)

TOKENS = 256
VISIBLE_S = 60
_LOOK_S = 0.0002


class Storage:
    """A StorageManager with one place to keep objects: one of TOKENS tokens and one layer each."""

    def __init__(self, spec: Spec) -> None:
        os.environ.update(LMCACHE_TRACK_USAGE="false", LMCACHE_LOG_LEVEL="ERROR")
        import torch
        from lmcache.v1.config import LMCacheEngineConfig
        from lmcache.v1.event_manager import EventManager
        from lmcache.v1.memory_management import MemoryFormat
        from lmcache.v1.metadata import LMCacheMetadata
        from lmcache.v1.storage_backend.storage_manager import StorageManager

        self.dtype, self.format = torch.bfloat16, MemoryFormat.KV_2LTD
        width = spec["object_bytes"] // (2 * TOKENS * self.dtype.itemsize)
        self.shape = torch.Size([2, 1, TOKENS, width])
        self.manager: Any = StorageManager(
            config=LMCacheEngineConfig.from_defaults(**_settings(spec)),
            metadata=LMCacheMetadata(
                model_name="bench",
                world_size=1,
                local_world_size=1,
                worker_id=0,
                local_worker_id=0,
                kv_dtype=self.dtype,
                kv_shape=(1, 2, TOKENS, 1, width),
                chunk_size=TOKENS,
            ),
            event_manager=EventManager(),
        )
        self.name, self.backend = list(self.manager.storage_backends.items())[-1]

    def key(self, number: int) -> Any:
        """The key of an object."""
        from lmcache.utils import CacheEngineKey

        return CacheEngineKey(
            model_name="bench", world_size=1, worker_id=0, chunk_hash=number, dtype=self.dtype
        )

    def put(self, keys: list[Any], addresses: list[int], size_bytes: int) -> None:
        """Store objects; they may become visible later."""
        objects = []
        for address in addresses:
            found = self.manager.allocate(self.shape, self.dtype, fmt=self.format)
            if found is None:
                raise DriverError("LMCache has no memory for another object")
            ctypes.memmove(found.tensor.data_ptr(), address, size_bytes)
            objects.append(found)
        self.manager.batched_put(keys, objects)

    def wait_visible(self, keys: list[Any]) -> None:
        """Wait until all of them can be found."""
        deadline = time.monotonic() + VISIBLE_S
        while not all(self.backend.contains(key) for key in keys):
            if time.monotonic() > deadline:
                raise DriverError("objects do not become visible")
            time.sleep(_LOOK_S)

    def get(self, keys: list[Any], addresses: list[int], size_bytes: int) -> None:
        """Fetch objects into memory of ours."""
        found = self.manager.batched_get(keys, location=self.name)
        for one, address in zip(found, addresses, strict=True):
            if one is None:
                raise DriverError("an object that was stored is gone")
            ctypes.memmove(address, one.tensor.data_ptr(), size_bytes)
            one.ref_count_down()

    def remove(self, keys: list[Any]) -> None:
        """Give the room of these objects back."""
        for key in keys:
            self.manager.remove(key)


def _settings(spec: Spec) -> dict[str, Any]:
    """The configuration for host memory, or for a folder past the page cache."""
    total_bytes = spec["count"] * spec["object_bytes"]
    pool_gib = max(1.0, 2 * total_bytes / (1 << 30))
    settings = {"chunk_size": TOKENS, "max_local_cpu_size": pool_gib}
    if not spec.get("folder"):
        return settings | {"local_cpu": True}
    return settings | {
        "local_cpu": False,
        "local_disk": spec["folder"],
        "max_local_disk_size": 4 * pool_gib,
        "extra_config": {"use_odirect": True},
    }


@contextmanager
def prepare(spec: Spec) -> Iterator[Round]:
    """Memory with bytes of its own for every object, and a place to keep objects."""
    count, size_bytes = spec["count"], spec["object_bytes"]
    source = Region(count * size_bytes, random=True)
    target = Region(count * size_bytes, random=False)
    storage, numbers = Storage(spec), itertools.count(1)
    requests = parts(count, spec["at_once"])

    def do_round() -> Rates:
        keys = [storage.key(next(numbers)) for _ in range(count)]
        put, get = Stopwatch(), Stopwatch()
        target.wipe()
        with put:
            for request in requests:
                places = [source.address + n * size_bytes for n in request]
                storage.put([keys[n] for n in request], places, size_bytes)
            storage.wait_visible(keys)
        with get:
            for request in requests:
                places = [target.address + n * size_bytes for n in request]
                storage.get([keys[n] for n in request], places, size_bytes)
        source.require_same(target)
        storage.remove(keys)
        return {"put": put.gbps(source.size_bytes), "get": get.gbps(source.size_bytes)}

    yield do_round


if __name__ == "__main__":
    run(prepare)
