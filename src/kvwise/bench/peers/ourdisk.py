"""kvwise's disk tier as one side of a comparison: past the page cache, every checksum verified.

It is driven as the daemon drives it, from arena pages and with the daemon's number of threads, but
without the daemon, since the peers' disk adapters are driven without theirs. Where a comparison
includes a caller's copies, a thread stands for the client, whose process would make them.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from kvwise.bench.peers.ours import Load, require_same
from kvwise.bench.yardstick import Memory, gbps
from kvwise.config import Config
from kvwise.tiers.base import Placed, Record, Want
from kvwise.tiers.directio import Io
from kvwise.tiers.disk import DiskConfig, DiskTier
from kvwise.tiers.dram import Arena, ArenaShape
from kvwise.units import MIB, round_up

SPACE = b"bench peers disk"
KEY_BYTES = 16


class DiskSide:
    """Objects between an arena and files, or between ordinary memory and files by way of it.

    Attributes:
        source, target: ordinary memory where objects begin and end.
    """

    def __init__(self, tier: DiskTier, arena: Arena, load: Load, *, copies: bool) -> None:
        """Everything is touched here, so that no round pays for its first use.

        Args:
            tier: on the disk to measure.
            arena: with pages for all objects.
            load: what a round moves.
            copies: whether a put begins in ordinary memory, and a get ends there.
        """
        self._tier, self._arena, self._load, self._copies = tier, arena, load, copies
        self.source, self.target = Memory(load.total_bytes, seed=1), Memory(load.total_bytes)
        each = round_up(load.object_bytes, arena.shape.page_bytes) // arena.shape.page_bytes
        self._places = [
            arena.address + n * each * arena.shape.page_bytes for n in range(load.count)
        ]
        self._buffers = [
            arena.buffers(range(n * each, (n + 1) * each), load.object_bytes)
            for n in range(load.count)
        ]

    def round(self) -> dict[str, float]:
        """Write all objects, read them back, compare; GB/s of each."""
        keys = [os.urandom(KEY_BYTES) for _ in range(self._load.count)]
        records = [Record(key, SPACE, SPACE, SPACE, self._load.object_bytes) for key in keys]
        if not self._copies:
            self._copy_in(range(self._load.count))
        begin = time.perf_counter()
        placed = self._put(records)
        put_s = time.perf_counter() - begin
        self.target.clear()
        self._wipe()
        begin = time.perf_counter()
        self._get(records, placed)
        get_s = time.perf_counter() - begin
        if not self._copies:
            self._copy_out(range(self._load.count))
        require_same(self.source, self.target)
        self._tier.free(placed)
        total = self._load.total_bytes
        return {"put": gbps(total, put_s), "get": gbps(total, get_s)}

    def _put(self, records: list[Record]) -> list[Placed]:
        """Write request by request; the hand copies the next ones in meanwhile."""
        placed: list[Placed] = []
        requests = self._load.requests
        with ThreadPoolExecutor(1, "hand") as hand:
            there = [hand.submit(self._copy_in, r) for r in requests] if self._copies else []
            for number, request in enumerate(requests):
                if there:
                    there[number].result()
                for answer in self._tier.put([(records[n], self._buffers[n]) for n in request]):
                    if not isinstance(answer, Placed):
                        raise answer
                    placed.append(answer)
        return placed

    def _get(self, records: list[Record], placed: list[Placed]) -> None:
        """Read request by request; the hand copies out what has arrived meanwhile."""
        size_bytes = self._load.object_bytes
        with ThreadPoolExecutor(1, "hand") as hand:
            for request in self._load.requests:
                wants = [
                    Want(
                        records[n].key,
                        SPACE,
                        size_bytes,
                        placed[n].location,
                        placed[n].stored_bytes,
                        self._buffers[n],
                    )
                    for n in request
                ]
                for index, error in self._tier.get(wants):
                    if error is not None:
                        raise error
                    if self._copies:
                        hand.submit(self._copy_out, request[index : index + 1])

    def _copy_in(self, request: range) -> None:
        """Ordinary memory to the arena."""
        size_bytes = self._load.object_bytes
        for n in request:
            ctypes.memmove(self._places[n], self.source.address + n * size_bytes, size_bytes)

    def _copy_out(self, request: range) -> None:
        """The arena to ordinary memory."""
        size_bytes = self._load.object_bytes
        for n in request:
            ctypes.memmove(self.target.address + n * size_bytes, self._places[n], size_bytes)

    def _wipe(self) -> None:
        """Zeros in the arena, so that the comparison sees only what was read."""
        ctypes.memset(self._arena.address, 0, self._arena.pages.nbytes)


@contextmanager
def disk_side(folder: Path, load: Load, *, copies: bool) -> Iterator[DiskSide]:
    """A disk tier in an empty folder, with the defaults of a daemon.

    Raises:
        ConfigError: the folder cannot be used past the page cache.
    """
    defaults = Config()
    page_bytes = defaults.dram.page
    pages = load.count * round_up(load.object_bytes, page_bytes) // page_bytes
    arena = Arena.create(ArenaShape.of(pages, page_bytes))
    arena.populate(0, pages)  # as a node does, ahead of use
    try:
        config = DiskConfig(
            (folder,),
            capacity_bytes=2 * load.total_bytes + 64 * MIB,
            min_free_bytes=0,
            segment_bytes=defaults.disk.segment,
            io=Io.DIRECT,
            readers=defaults.disk.threads,
        )
        tier = DiskTier(config, clock_ns=time.monotonic_ns)
        try:
            yield DiskSide(tier, arena, load, copies=copies)
        finally:
            tier.close()
    finally:
        arena.close()
