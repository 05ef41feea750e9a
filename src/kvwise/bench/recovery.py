"""Owns the measurement of a restart: how long a store takes to find the objects of its last life.

Real objects are written through the disk tier, as small as they can be, so that a million fit on a
workstation. It judges no figure.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import xxhash

from kvwise import config as configuration
from kvwise.bench.rows import Row
from kvwise.codecs import frame
from kvwise.codecs.base import scratch
from kvwise.config import Config
from kvwise.core.keys import ROOT
from kvwise.live.node import Node
from kvwise.tiers.base import Placed, Record
from kvwise.tiers.directio import Io
from kvwise.tiers.disk import DiskConfig, DiskTier
from kvwise.units import GIB, MIB

RAW_BYTES = 4096
CHAIN_RECORDS = 64
"""Records of one prompt: each names the one before it as its parent."""

_BATCH_RECORDS = 256
_SPACE, _LAYOUT = b"recovery measure", b"one block of 4Ki"


def measure_recovery(folder: Path, records: int, segment_bytes: int = 256 * MIB) -> Row:
    """Write so many records below `folder` and time the next two lives, which must find them all.

    The first of them opens the tier alone; the second is a whole store, brain included. Nothing
    drops the page cache in between, and the files stay for the caller to delete.

    Returns:
        A row: `seconds` for the store, `scan_seconds` for the tier alone.
    """
    config = _config(folder, records, segment_bytes)
    with closing(_tier(config)) as tier:
        _fill(tier, records)
    with closing(_tier(config)) as tier:
        start_ns = time.perf_counter_ns()
        found = sum(len(batch.locations) // 8 for batch in tier.scan())
        scan_s = (time.perf_counter_ns() - start_ns) / 1e9
    start_ns = time.perf_counter_ns()
    node = Node(config)
    seconds = (time.perf_counter_ns() - start_ns) / 1e9
    known = node.status()["levels"]["tiers"]["disk"]["objects"]
    node.close(0.0)
    if not found == known == records:
        raise RuntimeError(f"of {records} records the tier found {found}, the store {known}")
    return {
        "path": "recovery",
        "records": records,
        "segment_bytes": segment_bytes,
        "scan_seconds": scan_s,
        "seconds": seconds,
        "records_per_s": records / seconds,
        "per_million_s": seconds / records * 1e6,
    }


def room_bytes(records: int) -> int:
    """Free space that measuring so many records needs."""
    return 2 * GIB + records * frame.frame_bytes(RAW_BYTES)


def _config(folder: Path, records: int, segment_bytes: int) -> Config:
    """A store with a small arena and a disk that has room for all records."""
    values: dict[str, object] = {
        "dram.size": "16MiB",
        "dram.page": RAW_BYTES,
        "disk.paths": [str(folder / "recovery")],
        "disk.size": GIB + records * 2 * frame.frame_bytes(RAW_BYTES),
        "disk.segment": segment_bytes,
        "serve.metrics": "",
    }
    return configuration.load(overrides=values, environ={})


def _tier(config: Config) -> DiskTier:
    """The disk tier of that store."""
    disk = config.disk
    directories = tuple(Path(path) for path in disk.paths)
    made = DiskConfig(
        directories, disk.size, disk.min_free, segment_bytes=disk.segment, io=Io(disk.io)
    )
    return DiskTier(made, clock_ns=time.monotonic_ns)


def _fill(tier: DiskTier, records: int) -> None:
    """Store all records, a batch in one call."""
    list(tier.scan())
    payload = [scratch(RAW_BYTES)]
    for first in range(0, records, _BATCH_RECORDS):
        numbers = range(first, min(first + _BATCH_RECORDS, records))
        for answer in tier.put([(record, payload) for record in _records(numbers)]):
            if not isinstance(answer, Placed):
                raise answer


def _records(numbers: range) -> Iterator[Record]:
    """Records whose keys are unlike each other's, in chains."""
    for number in numbers:
        parent = _key(number - 1) if number % CHAIN_RECORDS else ROOT
        yield Record(_key(number), parent, _SPACE, _LAYOUT, RAW_BYTES)


def _key(number: int) -> bytes:
    """The key of a record."""
    return xxhash.xxh3_128_digest(number.to_bytes(8, "little"))
