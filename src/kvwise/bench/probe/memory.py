"""Owns the measurement of memcpy within each NUMA node, by one thread and by all of its cores.

Memory is touched first by the node's own cores, so that it lies there. No processor cache holds
what is copied. It changes no setting, and leaves the affinity of the calling thread alone.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from kvwise.bench.probe.limits import ROUNDS_WISHED, Found, Tell, figure, left_s, rounds
from kvwise.bench.yardstick import Memory, gbps, working_set_bytes
from kvwise.errors import ConfigError
from kvwise.host import Host, control_group_limits, number_list
from kvwise.units import MIB, format_size

OBJECT_BYTES = 2 * MIB
"""What is copied at once: an object of a usual model."""
SLICE_S = 0.3
"""How long one figure is taken."""
THREADS_MAX = 16


@dataclass(frozen=True, slots=True)
class Node:
    """A NUMA node, with those of its processors that this process may use."""

    number: int
    cpus: tuple[int, ...]


def numa_nodes(host: Host) -> list[Node]:
    """The nodes of a host; one with everything where the kernel tells of none."""
    allowed = os.sched_getaffinity(0)
    folder = "/sys/devices/system/node"
    found = []
    for number in number_list(host.read(f"{folder}/online")):
        cpus = set(number_list(host.read(f"{folder}/node{number}/cpulist")))
        found.append(Node(number, tuple(sorted(allowed & cpus))))
    return found or [Node(0, tuple(sorted(allowed)))]


def measure_memory(host: Host, end_s: float, tell: Tell) -> Found:
    """Copy within each node until a moment, nodes one after the other."""
    found = Found()
    nodes = numa_nodes(host)
    for at, node in enumerate(nodes):
        if not node.cpus:
            found.skipped.append(f"memory of node {node.number}: no processor of it may be used")
            continue
        share_s = left_s(end_s) / (len(nodes) - at)
        try:
            _require_memory(host)
            found.add(_measure_node(node, time.monotonic() + share_s, tell))
        except (ConfigError, OSError, MemoryError) as error:
            found.skipped.append(f"memory of node {node.number}: {error}")
    return found


def _require_memory(host: Host) -> None:
    """Refuse where the kernel would end this process for what it takes.

    Raises:
        ConfigError: the control group allows too little beside what is there already.
    """
    wanted = 2 * working_set_bytes(copies=2)
    limit = min(control_group_limits(host), default=0)
    if limit and 2 * wanted > limit:
        raise ConfigError(
            f"{format_size(wanted)} of memory are needed, and the control group may use "
            f"{format_size(limit)} in all; hint: raise its limit, or run this outside of it"
        )


def _measure_node(node: Node, end_s: float, tell: Tell) -> Found:
    """Copy within a node by one thread and by many, in turns."""
    most = min(len(node.cpus), THREADS_MAX)
    pin = partial(os.sched_setaffinity, 0, node.cpus)
    with ThreadPoolExecutor(most, initializer=pin) as pool:
        tell(f"memory of node {node.number}: filling it")
        copier = pool.submit(_Copier, working_set_bytes(copies=2)).result()
        actions: dict[int, Callable[[], float]] = {
            threads: partial(copier.gbps, pool, threads) for threads in sorted({1, most})
        }
        least_s = time.monotonic() + len(actions) * SLICE_S * ROUNDS_WISHED
        figures = rounds(
            actions,
            max(end_s, least_s),  # filling it is most of the work, so something must come of it
            lambda threads: tell(f"memory of node {node.number}, threads: {threads}"),
        )
    found = Found()
    for threads, values in figures.items():
        where = {"part": "memory", "node": node.number, "threads": threads}
        if values:
            found.rows.append({**where, "object_bytes": OBJECT_BYTES, **figure(values)})
        else:
            found.skipped.append(f"memory of node {node.number}, threads {threads}: no time left")
    return found


class _Copier:
    """Two buffers, and threads that copy a part each from one to the other."""

    def __init__(self, size_bytes: int) -> None:
        """Take and fill both; whoever calls this touches them first."""
        self._source, self._target = Memory(size_bytes, seed=1), Memory(size_bytes, seed=2)
        self._size_bytes = size_bytes

    def gbps(self, pool: ThreadPoolExecutor, threads: int) -> float:
        """The rate of so many threads together."""
        each = self._size_bytes // threads // OBJECT_BYTES * OBJECT_BYTES
        parts = [pool.submit(self._copy, number * each, each) for number in range(threads)]
        return sum(part.result() for part in parts)

    def _copy(self, start: int, size_bytes: int) -> float:
        """The rate of one thread that copies its part object by object, again and again."""
        source, target = self._source.address + start, self._target.address + start
        moved, started = 0, time.perf_counter()
        while True:
            for offset in range(0, size_bytes, OBJECT_BYTES):
                ctypes.memmove(target + offset, source + offset, OBJECT_BYTES)
                moved += OBJECT_BYTES
                took_s = time.perf_counter() - started
                if took_s >= SLICE_S:
                    return gbps(moved, took_s)
