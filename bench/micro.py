"""Small measurements of the parts, each beside a yardstick taken in the same minute.

It measures no engine. Every figure is the median of rounds; GB/s are 1e9 bytes per second. The
disk figures bypass the page cache where the directory allows it; a virtual machine's host may still
cache, so only the share of the yardstick means something.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from kvwise.codecs import frame
from kvwise.core.brain import Brain
from kvwise.core.keys import chain_keys
from kvwise.core.layout import Group, GroupKind, Layout
from kvwise.core.words import Asked, Event, Filled, Granted, Joined, Namespace, Offered, TierSpec
from kvwise.core.world import BrainConfig
from kvwise.live.blocks import put
from kvwise.live.client import Client
from kvwise.live.messages import Ask, Step
from kvwise.tiers.base import Placed, Record, Want
from kvwise.tiers.directio import Io, open_flags, probe
from kvwise.tiers.disk import DiskConfig, DiskTier
from kvwise.tiers.dram import Arena, ArenaShape
from kvwise.units import GIB, KIB, MIB

OBJECTS = 64
OBJECT_BYTES = 720 * KIB
"""One chunk of 32 tokens of SmolLM2-135M in 16-bit floats."""
PAGE_BYTES = 128 * KIB
ROUNDS = 7
RUN_BYTES = 4 * MIB
TRIPS = 200
SPACE = b"s" * 16
LAYOUT = Layout(32, 32, (Group(GroupKind.FULL, (24 * KIB,) * 30),))


def median_s(action: Callable[[], object], rounds: int = ROUNDS) -> float:
    """Median seconds of an action, after one round to warm up."""
    action()
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        action()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def gbps(size_bytes: int, seconds: float) -> float:
    """Rate, rounded to what the measurement can tell."""
    return round(size_bytes / seconds / 1e9, 2)


def filled_arena() -> Arena:
    """An arena whose every page holds bytes of its own."""
    arena = Arena.create(ArenaShape.of(OBJECTS * OBJECT_BYTES // PAGE_BYTES + OBJECTS, PAGE_BYTES))
    for number in range(arena.shape.page_count):
        arena.page(number)[:] = os.urandom(PAGE_BYTES)
    return arena


def measure_checksum(arena: Arena) -> dict[str, float]:
    """The frame's checksum over objects in the arena, and a plain copy of the same bytes."""
    pieces = [arena.pages[: OBJECTS * OBJECT_BYTES]]
    target = bytearray(OBJECTS * OBJECT_BYTES)

    def copy() -> None:
        target[:] = pieces[0]

    return {
        "checksum_gbps": gbps(len(target), median_s(lambda: frame.checksum(pieces))),
        "copy_gbps": gbps(len(target), median_s(copy)),
    }


def measure_disk(folder: Path, arena: Arena) -> dict[str, object]:
    """The disk tier's put and get of a batch, against plain vectored calls of the same run size."""
    io = probe(folder, Io.AUTO)
    config = DiskConfig((folder,), capacity_bytes=GIB, min_free_bytes=GIB)
    tier = DiskTier(config, clock_ns=time.monotonic_ns)
    rounds = [(*plain_disk(folder, arena, io), *framed_disk(tier, arena)) for _ in range(ROUNDS)]
    tier.close()
    write, read, put, get = (statistics.median(column) for column in zip(*rounds, strict=True))
    total = OBJECTS * OBJECT_BYTES
    return {
        "io": io.value,
        "put_gbps": gbps(total, put),
        "plain_write_gbps": gbps(total, write),
        "put_share": round(write / put, 2),
        "get_gbps": gbps(total, get),
        "plain_read_gbps": gbps(total, read),
        "get_share": round(read / get, 2),
    }


def framed_disk(tier: DiskTier, arena: Arena) -> tuple[float, float]:
    """Seconds to put and to get a batch of objects, which leave the tier afterwards."""
    each = -(-OBJECT_BYTES // PAGE_BYTES)
    batch = [
        (
            Record(n.to_bytes(16, "little"), SPACE, SPACE, SPACE, OBJECT_BYTES),
            arena.buffers(range(n * each, (n + 1) * each), OBJECT_BYTES),
        )
        for n in range(OBJECTS)
    ]
    started = time.perf_counter()
    placed = [p for p in tier.put(batch) if isinstance(p, Placed)]
    put_s = time.perf_counter() - started
    wants = [
        Want(record.key, SPACE, OBJECT_BYTES, p.location, p.stored_bytes, buffers)
        for (record, buffers), p in zip(batch, placed, strict=True)
    ]
    started = time.perf_counter()
    errors = [error for _, error in tier.get(wants) if error is not None]
    get_s = time.perf_counter() - started
    if errors:
        sys.exit(f"error: the disk tier could not read back: {errors[0]}")
    tier.free(placed)
    return put_s, get_s


def plain_disk(folder: Path, arena: Arena, io: Io) -> tuple[float, float]:
    """Seconds to write and to read the same bytes without frames or checksums, one call a run."""
    path = folder / "plain"
    total = OBJECTS * OBJECT_BYTES
    memory = mmap.mmap(-1, RUN_BYTES)
    memory[:] = arena.pages[:RUN_BYTES]
    fd = os.open(path, os.O_RDWR | os.O_CREAT | open_flags(io), 0o600)
    try:
        started = time.perf_counter()
        for offset in range(0, total, RUN_BYTES):
            os.pwritev(fd, [memory], offset)
        middle = time.perf_counter()
        for offset in range(0, total, RUN_BYTES):
            os.preadv(fd, [memory], offset)
        return middle - started, time.perf_counter() - middle
    finally:
        os.close(fd)
        path.unlink()
        memory.close()


def measure_brain() -> dict[str, float]:
    """Time the brain needs for one request of 64 chunks that is found, asked and released."""
    dram = TierSpec("dram", GIB, PAGE_BYTES, 0, 1e10, 1e-5)
    brain = Brain(BrainConfig(page_bytes=PAGE_BYTES, tiers=(dram,)))
    keys = chain_keys(SPACE, list(range(64 * 32)), 32)

    def granted(event: Event) -> Granted:
        """The grant in what an event is answered with."""
        return next(c for c in brain.handle(event) if isinstance(c, Granted))

    brain.handle(Joined(1, 1, Namespace(SPACE, "bench", LAYOUT)))
    grant = granted(Offered(2, 1, "r", SPACE, b"\0" * 16, keys))
    brain.handle(Filled(3, 1, grant.lease, len(grant.chunks)))
    asks = 200

    def ask() -> None:
        for number in range(asks):
            brain.handle(Asked(4 + number, 1, "r", SPACE, keys, 0, 64 * 32 + 1))

    return {"brain_ask_64_chunks_us": round(median_s(ask) / asks * 1e6, 1)}


@contextmanager
def daemon(folder: Path) -> Iterator[Client]:
    """A daemon of its own process, and a client attached to it."""
    path = folder / "bench.sock"
    command = [sys.executable, "-m", "kvwise", "serve", "--json", "--socket", str(path)]
    command += ["--dram", "256MiB", "--metrics", ""]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        if child.stdout is None or not child.stdout.readline():
            sys.exit("error: the daemon did not start; hint: kvwise doctor")
        client = Client(str(path), "bench", timeout_s=5.0)
        yield client
        client.close()
    finally:
        child.terminate()
        child.wait(30)


def measure_socket(folder: Path) -> dict[str, float]:
    """Round trips to a daemon: a request of 64 chunks that are all found, and an empty step."""
    namespace = Namespace(SPACE, "bench", LAYOUT)
    keys = chain_keys(SPACE, list(range(64 * 32)), 32)
    ask = Ask("r", SPACE, keys, 0, 64 * 32 + 1)
    with daemon(folder) as client:
        client.join(namespace)
        put(client, namespace, keys, [bytes(OBJECT_BYTES)] * 64)
        if not client.ask(ask).load_tokens:
            sys.exit("error: the daemon does not offer what was stored")

        def many(verb: Callable[[], object]) -> float:
            return round(median_s(lambda: [verb() for _ in range(TRIPS)]) / TRIPS * 1e6, 1)

        return {
            "socket_ask_64_chunks_us": many(lambda: client.ask(ask)),
            "socket_empty_step_us": many(lambda: client.step(Step())),
        }


def main() -> None:
    """Measure everything and print one JSON object."""
    parser = argparse.ArgumentParser(description="Measure kvwise's parts against yardsticks.")
    parser.add_argument("--folder", type=Path, help="where to measure the disk (default: here)")
    options = parser.parse_args()
    arena = filled_arena()
    with tempfile.TemporaryDirectory(prefix=".kvwise-bench-", dir=options.folder or ".") as name:
        result = {
            **measure_checksum(arena),
            "disk": measure_disk(Path(name), arena),
            **measure_brain(),
            **measure_socket(Path(name)),
        }
    arena.close()
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
