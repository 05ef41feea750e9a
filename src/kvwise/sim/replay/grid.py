"""Grid: whether `auto` is ever worse than always loading or never, cell by cell. It tunes nothing.

A cell is a length of prefix, a number of clients and the rate of a tier. Each client asks for a
prompt that nobody asked for lately, a prefix that is on the tier and some tokens that are new, and
asks again as soon as it has its first token. So the GPU and the tier are as busy as the policy
makes them. Each cell is run three times over the same prompts: always loading, always computing,
and choosing. The first round of requests is not counted.

A cell is contended if it has more than one client, always computing keeps the GPU busy, and always
loading keeps the tier busy, each for more than `BUSY` of the time. Then doing both at once can win:
if one way takes L and the other R for a request, both together take no less than L*R / (L + R).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from kvwise.core.brain import Brain
from kvwise.core.hints import Hints
from kvwise.core.keys import KEY_BYTES
from kvwise.core.words import Recovered, TierSpec
from kvwise.core.world import BrainConfig
from kvwise.sim.replay.brains import CLIENT, Space, space_of, teach
from kvwise.sim.replay.engine import Call, Engine, EngineSpec
from kvwise.sim.replay.node import Drives, Node, Pipe
from kvwise.sim.replay.profile import Profile
from kvwise.sim.replay.tape import keys_of
from kvwise.sim.timeline import Timeline
from kvwise.sim.trace.assembly import Report
from kvwise.units import NS_PER_S

PREFIX_TOKENS = (2_048, 8_192, 32_768, 131_072)
CLIENTS = (1, 16, 64)
GB_PER_S = (50.0, 14.0, 7.0, 1.0, 0.2)
PLANS = ("load", "recompute", "auto")
NEW_TOKENS = 512
CHUNK_TOKENS = 512
STEP_TOKENS = 8_192
LATENCY_S = 1e-4
REQUESTS_MIN = 200
REPORT_EVERY = 10
WAIT_NS = 1 << 60
ROUNDS = 5
BUSY = 0.7
WORSE_P99, WORSE_MEAN, MIXED = 1.1, 1.02, 0.9
"""Over the better of the two: what p99 and mean must not exceed, and the mean that mixing should
have in contended cells whose bound allows it."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One setting."""

    prefix_tokens: int
    clients: int
    gb_per_s: float

    def told(self) -> str:
        """The cell as it is written on the command line."""
        return f"{self.prefix_tokens},{self.clients},{self.gb_per_s:g}"


def cells() -> list[Cell]:
    """The whole grid."""
    return [
        Cell(prefix, clients, rate)
        for prefix in PREFIX_TOKENS
        for clients in CLIENTS
        for rate in GB_PER_S
    ]


@dataclass(frozen=True, slots=True)
class Outcome:
    """One policy in one cell.

    Attributes:
        mean_s, p99_s: of the time to first token.
        gpu, tier: shares of the time in which they were busy.
        loaded: share of the prefix tokens that were loaded.
        late: loads that were given up.
    """

    mean_s: float
    p99_s: float
    gpu: float
    tier: float
    loaded: float
    late: int


@dataclass(frozen=True, slots=True)
class Compared:
    """Three policies in one cell."""

    cell: Cell
    load: Outcome
    recompute: Outcome
    auto: Outcome

    @property
    def p99_ratio(self) -> float:
        """The p99 of `auto` over that of the better one."""
        return self.auto.p99_s / min(self.load.p99_s, self.recompute.p99_s)

    @property
    def mean_ratio(self) -> float:
        """The mean of `auto` over that of the better one."""
        return self.auto.mean_s / min(self.load.mean_s, self.recompute.mean_s)

    @property
    def is_contended(self) -> bool:
        """Whether either policy alone keeps what it uses busy."""
        busy = self.recompute.gpu > BUSY and self.load.tier > BUSY
        return busy and self.cell.clients > 1

    @property
    def mixing_bound(self) -> float:
        """The least mean ratio that doing both at once could have in a contended cell."""
        slower = max(self.load.mean_s, self.recompute.mean_s)
        return slower / (self.load.mean_s + self.recompute.mean_s)

    @property
    def is_mixed(self) -> bool:
        """Whether doing both at once wins as much as it should."""
        return self.mean_ratio <= MIXED

    @property
    def is_worse(self) -> bool:
        """Whether `auto` breaks the promise here."""
        return self.p99_ratio > WORSE_P99 or self.mean_ratio > WORSE_MEAN

    def to_builtins(self) -> dict[str, Any]:
        """Everything as plain values."""
        return {
            **asdict(self),
            "p99_ratio": self.p99_ratio,
            "mean_ratio": self.mean_ratio,
            "is_contended": self.is_contended,
            "mixing_bound": self.mixing_bound if self.is_contended else None,
            "is_worse": self.is_worse,
        }


class _Loop:
    """Clients that ask, wait for the first token, and ask again."""

    def __init__(self, profile: Profile, cell: Cell, plan: str) -> None:
        """All prefixes are on the tier, and the brain knows the speeds."""
        self._cell, self._plan = cell, plan
        self._space = space_of(profile, CHUNK_TOKENS)
        self._warm = cell.clients
        self._total = self._warm + max(REQUESTS_MIN, ROUNDS * cell.clients)
        self._chunks = cell.prefix_tokens // CHUNK_TOKENS
        each, rate = self._space.object_bytes, cell.gb_per_s * 1e9
        self._prefixes = min(self._total, 2 * cell.clients + 2)
        link = (profile.link_bytes_per_s, profile.link_latency_s)
        arena_bytes = each * (self._chunks + 1) * (cell.clients + 1)
        disk_bytes = each * self._prefixes * self._chunks
        tiers = (
            TierSpec("dram", arena_bytes, each, 0, *link),
            TierSpec("tier", disk_bytes, each, 0, rate, LATENCY_S),
        )
        config = BrainConfig(each, tiers, policy=plan, load_timeout_ns=WAIT_NS)
        self.timeline = Timeline()
        node = Node(self.timeline, Brain(config))
        teach(node.brain, profile, self._space, self._chunks)
        pipes = tuple(Pipe(self.timeline, rate, LATENCY_S) for _ in range(2))
        self.drives = Drives(self.timeline, (pipes[0], pipes[1]), 1.0, node.say)
        node.attach((self.drives,))
        self._keys = _store(node.brain, self._space, self._prefixes, self._chunks)
        hints = Hints(no_store=True)
        spec = EngineSpec(profile, self._space, STEP_TOKENS, cell.clients, hints)
        self.engine = Engine(CLIENT, spec, node, None)
        self.engine.on_first(self._answered)
        self._asked = 0
        self.answered: list[Call] = []

    def run(self, report: Report) -> Outcome:
        """Ask until all is answered."""
        told = 0
        for _ in range(self._cell.clients):
            self._ask()
        before = (0.0, 0, 0)
        while len(self.answered) < self._total and self.timeline.step():
            if len(self.answered) >= told:
                report(f"{self._cell.told()}, {self._plan}: {told} of {self._total} requests")
                told += REPORT_EVERY
            if len(self.answered) <= self._warm:
                now_ns = self.timeline.now_ns
                before = (self.engine.busy_s, self.drives.reads.busy_ns, now_ns)
        counted = self.answered[self._warm :]
        seconds = (self.timeline.now_ns - before[2]) / NS_PER_S
        times = np.array([call.first_ns - call.arrival_ns for call in counted]) / NS_PER_S
        loaded = sum(sum(call.loaded.values()) for call in counted)
        return Outcome(
            mean_s=float(times.mean()),
            p99_s=float(np.quantile(times, 0.99)),
            gpu=min(1.0, (self.engine.busy_s - before[0]) / seconds),
            tier=min(1.0, (self.drives.reads.busy_ns - before[1]) / NS_PER_S / seconds),
            loaded=loaded / (len(counted) * self._cell.prefix_tokens),
            late=sum(call.is_late for call in counted),
        )

    def _ask(self) -> None:
        """One more request, if there are any left."""
        number = self._asked
        if number >= self._total:
            return
        self._asked += 1
        size = self._chunks * KEY_BYTES
        at = number % self._prefixes * size
        tokens = self._cell.prefix_tokens + NEW_TOKENS
        keys = self._keys[at : at + size]
        self.engine.submit(Call(number, self.timeline.now_ns, tokens, 1, [], keys))

    def _answered(self, call: Call) -> None:
        self.answered.append(call)
        self.timeline.after(0, self._ask)


def _store(brain: Brain, space: Space, prefixes: int, chunks: int) -> bytes:
    """Have the tier hold all prefixes, and give their keys, joined."""
    count = prefixes * chunks
    keys = keys_of(np.arange(count, dtype=np.uint64))
    parents = np.roll(keys, 1, axis=0)
    parents[::chunks] = 0
    each = space.object_bytes
    locations = np.arange(count, dtype="<u8").tobytes()
    sizes = np.full(count, each, dtype="<u4").tobytes()
    joined = keys.tobytes()
    brain.handle(Recovered(0, 1, space.digest, joined, parents.tobytes(), locations, sizes, each))
    brain.handle(Recovered(0, 1, space.digest, b"", b"", b"", b"", each))
    return joined


def compare(profile: Profile, cell: Cell, report: Report) -> Compared:
    """Run one cell under every policy."""
    load, recompute, auto = (_Loop(profile, cell, plan).run(report) for plan in PLANS)
    return Compared(cell, load, recompute, auto)
