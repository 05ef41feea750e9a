"""Mooncake Store with its memory in this process, or in another one reached over TCP.

Buffers are registered, so put and get copy nothing on the way. It starts Mooncake's master and, for
another process, a provider that owns the memory.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from kvwise.bench.peers.drivers.base import (
    DriverError,
    Rates,
    Region,
    Round,
    Spec,
    Stopwatch,
    child,
    free_port,
    parts,
    run,
    wait_for_port,
)

SEGMENT_BYTES_MIN = 64 << 20
"""Mooncake refuses much smaller ones."""

LOCAL_BUFFER_BYTES = 128 << 20
LEASE_MS = 1500
"""A read that takes longer fails, and an object that was read cannot be removed for as long."""

START_S = 30
FULL = 0.9
"""Share of the memory that is written once before anything is measured."""

PROVIDE = "provide"


def connect(master: int, metadata: int, segment_bytes: int) -> Any:
    """A store that owns so much memory."""
    from mooncake.store import MooncakeDistributedStore

    store = MooncakeDistributedStore()
    code = store.setup(
        f"127.0.0.1:{free_port()}",
        f"http://127.0.0.1:{metadata}/metadata",
        segment_bytes,
        LOCAL_BUFFER_BYTES,
        "tcp",
        "",
        f"127.0.0.1:{master}",
    )
    if code != 0:
        raise DriverError(f"Mooncake's setup failed with code {code}")
    return store


def provide(master: int, metadata: int, segment_bytes: int) -> None:
    """Own memory for others until standard input is closed."""
    store = connect(master, metadata, segment_bytes)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.read()
    store.close()


def start_master(undo: ExitStack) -> tuple[int, int]:
    """The ports of a new master and of its metadata."""
    master, metadata, metrics = free_port(), free_port(), free_port()
    command = [str(Path(sys.executable).parent / "mooncake_master"), f"--rpc_port={master}"]
    command += ["--enable_http_metadata_server=true", "--http_metadata_server_host=127.0.0.1"]
    command += [f"--http_metadata_server_port={metadata}", f"--metrics_port={metrics}"]
    command += [f"--default_kv_lease_ttl={LEASE_MS}"]
    process = undo.enter_context(child(command))
    wait_for_port(master, process, START_S)
    wait_for_port(metadata, process, START_S)
    return master, metadata


def start_provider(undo: ExitStack, master: int, metadata: int, segment_bytes: int) -> None:
    """Another process that owns memory; it gives up with the undo stack."""
    command = [sys.executable, "-P", "-m", "kvwise.bench.peers.drivers.mooncake_store", PROVIDE]
    command += [str(master), str(metadata), str(segment_bytes)]
    process = undo.enter_context(child(command, heard=True))
    for line in process.stdout or ():
        if line.strip() == b"ready":
            return
    raise DriverError("the process that should own Mooncake's memory ended")


class Store:
    """A store and the registered buffers of this process."""

    def __init__(self, store: Any, spec: Spec) -> None:
        self.store = store
        self.size_bytes = spec["object_bytes"]
        self.requests = parts(spec["count"], spec["at_once"])
        total_bytes = spec["count"] * self.size_bytes
        self.source = Region(total_bytes, random=True)
        self.target = Region(total_bytes, random=False)
        for region in (self.source, self.target):
            if store.register_buffer(region.address, total_bytes) != 0:
                raise DriverError("Mooncake did not register a buffer")

    def put(self, keys: list[str]) -> None:
        """Store every object."""
        for request in self.requests:
            names, places, sizes = self._request(request, keys, self.source)
            codes = self.store.batch_put_from(names, places, sizes)
            if any(codes):
                raise DriverError(f"Mooncake did not store an object: codes {sorted(set(codes))}")

    def get(self, keys: list[str]) -> None:
        """Read every object."""
        for request in self.requests:
            names, places, sizes = self._request(request, keys, self.target)
            read = self.store.batch_get_into(names, places, sizes)
            if read != sizes:
                raise DriverError(f"Mooncake did not give back an object: read {sorted(set(read))}")

    def forget(self) -> None:
        """Remove every object; one that was just read is under a lease, and would stay."""
        time.sleep(1.2 * LEASE_MS / 1000)
        self.store.remove_all()

    def touch(self, segment_bytes: int) -> None:
        """Write most of the memory once, so that no round meets fresh pages."""
        for number in range(int(FULL * segment_bytes) // self.size_bytes):
            if self.store.put_from(f"touch-{number}", self.source.address, self.size_bytes):
                break  # it is full already
        self.forget()

    def _request(
        self, request: range, keys: list[str], region: Region
    ) -> tuple[list[str], list[int], list[int]]:
        """Names, places and sizes of the objects of a request."""
        places = [region.address + n * self.size_bytes for n in request]
        return [keys[n] for n in request], places, [self.size_bytes] * len(request)


@contextmanager
def prepare(spec: Spec) -> Iterator[Round]:
    """A master, perhaps a provider, and a store with memory that was touched."""
    segment_bytes = max(SEGMENT_BYTES_MIN, 2 * spec["count"] * spec["object_bytes"])
    numbers = itertools.count(1)
    with ExitStack() as undo:
        master, metadata = start_master(undo)
        if spec["remote"]:
            start_provider(undo, master, metadata, segment_bytes)
        opened = connect(master, metadata, 0 if spec["remote"] else segment_bytes)
        undo.callback(opened.close)
        time.sleep(1.0)  # the master learns of a segment a little later
        store = Store(opened, spec)
        store.touch(segment_bytes)

        def do_round() -> Rates:
            number = next(numbers)
            keys = [f"{number}-{n}" for n in range(spec["count"])]
            put, get = Stopwatch(), Stopwatch()
            store.target.wipe()
            with put:
                store.put(keys)
            with get:
                store.get(keys)
            store.source.require_same(store.target)
            store.forget()
            total_bytes = store.source.size_bytes
            return {"put": put.gbps(total_bytes), "get": get.gbps(total_bytes)}

        yield do_round


if __name__ == "__main__":
    if sys.argv[1] == PROVIDE:
        provide(*map(int, sys.argv[2:]))
    else:
        run(prepare)
