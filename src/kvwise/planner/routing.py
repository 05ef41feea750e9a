"""What a fleet hits when every host has a cache of its own, by how requests are sent to hosts.

Requests come in the order of the trace; time plays no part. Each host has an exact LRU of so many
blocks, in which a suffix always leaves before its prefix. A host's load is the blocks that it had
to compute lately: each request lets all loads fade a little, and adds to that of its own host.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from zlib import crc32

import numpy as np
import numpy.typing as npt

from kvwise.sim.dice import Dice
from kvwise.sim.trace.records import Request, Trace

FADE = 0.98
"""Of every load that is left after a request."""

LOAD_SHARE = 1 / 50
"""How much a block of load counts beside a block that is not cached."""

HEAD_BLOCKS = 8
"""First blocks of a prompt that a hash is made of."""

SEED = 1
REPORT_EVERY = 1_000
Report = Callable[[str], None]


class Cache:
    """An LRU of prompts' blocks."""

    def __init__(self, capacity_blocks: int) -> None:
        """It is empty."""
        self._capacity = capacity_blocks
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def cached(self, path: Sequence[int]) -> int:
        """Leading blocks of a prompt that are there; whatever is there has its prefix there."""
        low, high = 0, len(path)
        while low < high:
            middle = (low + high) // 2
            if path[middle] in self._blocks:
                low = middle + 1
            else:
                high = middle
        return low

    def touch(self, path: Sequence[int]) -> None:
        """A prompt was computed here: its blocks are the youngest, its first one most of all."""
        blocks = self._blocks
        for block in reversed(path):
            blocks[block] = None
            blocks.move_to_end(block)
        while len(blocks) > self._capacity:
            blocks.popitem(last=False)


@dataclass(frozen=True, slots=True)
class Routed:
    """What came of one way to send requests.

    Attributes:
        hit_ratio: hit blocks over all input blocks.
        imbalance: blocks computed by the busiest host over those of the mean.
        tokens_per_host: what each holds.
    """

    hit_ratio: float
    imbalance: float
    tokens_per_host: float = 0.0


class Fleet:
    """Hosts that are alike."""

    def __init__(self, hosts: int, capacity_blocks: int) -> None:
        """All are empty and idle."""
        self.caches = [Cache(capacity_blocks) for _ in range(hosts)]
        self.loads: npt.NDArray[np.float64] = np.zeros(hosts)
        self._computed = [0] * hosts
        self._input = 0

    def take(self, host: int, path: Sequence[int]) -> None:
        """A host computes a prompt, but for what it has."""
        cache = self.caches[host]
        new = len(path) - cache.cached(path)
        cache.touch(path)
        self.loads *= FADE
        self.loads[host] += new
        self._computed[host] += new
        self._input += len(path)

    def told(self) -> Routed:
        """What came of it."""
        computed = sum(self._computed)
        mean = computed / len(self.caches)
        ratio = 1 - computed / max(1, self._input)
        return Routed(ratio, max(self._computed) / mean if mean else 1.0)


Route = Callable[[Fleet, int, Sequence[int]], int]
"""Chooses a host for a request: of a fleet, the request's number, and its blocks."""


def _in_turn(fleet: Fleet, number: int, _: Sequence[int]) -> int:
    """One host after the other."""
    return number % len(fleet.caches)


def _by_head(fleet: Fleet, _: int, path: Sequence[int]) -> int:
    """The host that the first blocks of a prompt belong to."""
    head = path[min(HEAD_BLOCKS, len(path)) - 1]
    return crc32(head.to_bytes(8, "little")) % len(fleet.caches)


def _by_cache() -> Route:
    """The host that has least to compute and least to do; any of those that are equal.

    Nobody has anything of a prompt but those that were sent one with the same first block, so
    only these are asked: a fleet of thousands takes hardly longer than one of ten.
    """
    dice, sent = Dice(SEED), dict[int, set[int]]()

    def choose(fleet: Fleet, _: int, path: Sequence[int]) -> int:
        costs = np.full(len(fleet.caches), float(len(path)))
        known = sent.setdefault(path[0], set())
        for host in tuple(known):
            cached = fleet.caches[host].cached(path)
            costs[host] -= cached
            if not cached:
                known.discard(host)
        costs += LOAD_SHARE * fleet.loads
        equal = np.flatnonzero(costs == costs.min())
        host = int(equal[dice.below(len(equal))])
        known.add(host)
        return host

    return choose


ROUTES: dict[str, Callable[[], Route]] = {
    "round_robin": lambda: _in_turn,
    "hash": lambda: _by_head,
    "kv_aware": _by_cache,
}
"""Ways to send requests, by name."""

OWN = "own_cache_in_turn"
"""Requests in turn to engines with nothing below their GPUs: what there is without any plan."""

WITHOUT_MEMORY = "without_memory"
"""Requests where their prefix is, to hosts with the levels that are to be but memory."""

WITH_MEMORY = "with_memory"
"""The same to hosts with memory: what is to be of it, or what might pay of it."""


def route(trace: Trace, name: str, hosts: int, capacity_blocks: int, report: Report) -> Routed:
    """Send all requests of a trace to hosts with so many blocks each."""
    fleet, choose = Fleet(hosts, capacity_blocks), ROUTES[name]()
    for number, request in enumerate(_with_blocks(trace)):
        if number % REPORT_EVERY == 0:
            report(f"routing by {name}: {number} of {len(trace.requests)} requests")
        path = request.blocks
        fleet.take(choose(fleet, number, path), path)
    return fleet.told()


def _with_blocks(trace: Trace) -> list[Request]:
    return [request for request in trace.requests if request.blocks]
