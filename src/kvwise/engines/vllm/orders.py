"""What the halves of the connector tell each other, once per engine step. Data only.

vLLM carries these objects between processes. Chunks are arrays, see `copying.Chunks`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kvwise.core.elements import Elements
from kvwise.core.layout import Layout
from kvwise.engines.copying import SKIP, Chunks


@dataclass(frozen=True, slots=True)
class Facts:
    """What one rank found out from its own tensors; the scheduler half is told before it serves.

    Attributes:
        layout: the shape of every object, the same on all ranks.
        interior: what the opaque bytes inside a block depend on: kernel, order of axes, CPU.
        elements: what the numbers in them are, where that is known.
        device_tokens: about how many tokens the engine's own KV cache holds; 0 if unknown.
    """

    layout: Layout
    interior: str
    elements: Elements | None = None
    device_tokens: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class LoadOrder:
    """Load the chunks of a lease into these blocks. Without pages the load has failed already.

    Attributes:
        number: counts the loads; reports name them by it.
        layered: this step's forward pass reads the blocks, layer by layer.
    """

    number: int
    lease: int
    request: str
    layered: bool
    chunks: Chunks
    wait_s: float

    def block_ids(self, first_chunk: int = 0) -> set[int]:
        """Device blocks that chunks from `first_chunk` on are loaded into."""
        return {int(block) for block in self.chunks.blocks[first_chunk:].flat if block != SKIP}


@dataclass(frozen=True, slots=True)
class StoreOrder:
    """Store these blocks, once this step's forward pass has filled them, into a lease's pages."""

    lease: int
    chunks: Chunks


@dataclass(slots=True)
class StepOrders:
    """Scheduler half to worker halves.

    Attributes:
        number: counts the steps.
        timed: whether the step computes tokens, so that its report is wanted in any case.
        barrier: store leases whose blocks may be overwritten in this step: end them before.
        cancels: numbers of loads that nobody waits for any more.
    """

    number: int
    timed: bool = False
    loads: list[LoadOrder] = field(default_factory=list)
    stores: list[StoreOrder] = field(default_factory=list)
    barrier: list[int] = field(default_factory=list)
    cancels: list[int] = field(default_factory=list)


@dataclass(slots=True)
class LoadReport:
    """How a load ended on the ranks that have reported; the worst of them counts."""

    ranks: int
    good: int
    copied_bytes: int
    copy_ns: int
    waited_ns: int
    problem: str

    def merge(self, other: LoadReport) -> None:
        """Add the report of other ranks."""
        self.ranks += other.ranks
        self.good = min(self.good, other.good)
        self.copied_bytes += other.copied_bytes
        self.copy_ns = max(self.copy_ns, other.copy_ns)
        self.waited_ns = max(self.waited_ns, other.waited_ns)
        self.problem = self.problem or other.problem


@dataclass(slots=True)
class StoreReport:
    """How a store ended on the ranks that have reported: chunks that are good on all of them."""

    ranks: int
    good: int
    copied_bytes: int

    def merge(self, other: StoreReport) -> None:
        """Add the report of other ranks."""
        self.ranks += other.ranks
        self.good = min(self.good, other.good)
        self.copied_bytes += other.copied_bytes


@dataclass(slots=True)
class StepReport:
    """Worker halves to scheduler half, for one step; vLLM merges the ranks with `aggregate`.

    Attributes:
        number: of the step.
        loads: by number of the load.
        stores: by lease.
        blocked_ns: how long copies kept the step from going on.
    """

    number: int
    loads: dict[int, LoadReport] = field(default_factory=dict)
    stores: dict[int, StoreReport] = field(default_factory=dict)
    blocked_ns: int = 0

    def aggregate(self, other: StepReport) -> StepReport:
        """Merge the report of another rank into this one."""
        for number, load in other.loads.items():
            if number in self.loads:
                self.loads[number].merge(load)
            else:
                self.loads[number] = load
        for lease, store in other.stores.items():
            if lease in self.stores:
                self.stores[lease].merge(store)
            else:
                self.stores[lease] = store
        self.blocked_ns = max(self.blocked_ns, other.blocked_ns)
        return self
