"""World: what the parts of the brain share, configuration and state. It decides nothing."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from kvwise.core.blocks import Blocks
from kvwise.core.coding import Codings, Subject
from kvwise.core.cost import Costs, Lane, Pipe, Recompute
from kvwise.core.elements import Coding, Elements
from kvwise.core.explore import Explorer
from kvwise.core.layout import Layout
from kvwise.core.words import DRAM, Command, Namespace, TierSpec
from kvwise.errors import BugError

DEVICE_RATE_BYTES_PER_S = 4e9
DEVICE_LATENCY_S = 2e-4
SPACES_MAX = 4096
LEASES_MAX = 8192


@dataclass(frozen=True, slots=True)
class BrainConfig:
    """Everything the brain is told once.

    Attributes:
        page_bytes: size of an arena page.
        tiers: tier 0 is the arena; the others from fast to slow.
        policy: `auto`, `load` or `recompute`, see `plan`.
        margin: a load must win by this fraction of its own time.
        load_timeout_ns: the longest a client is told to wait for a load.
        lease_ttl_ns: how long an unused load lease is kept.
        tokens_min: shorter prompts are neither stored nor loaded.
        queue_bytes: bound of the deferred writes.
        write_bytes_per_day: budget of each tier below the arena; 0 is no limit.
        chance_min: what is used again with a smaller probability is not written below the arena,
            and not taken in where there is nothing below.
        eviction: name of the eviction policy.
        admission: what is written below the arena, see `admit.ADMISSIONS`.
        codec: how objects are written below the arena, see `coding.CODECS`.
        codings: what this machine can have for it.
    """

    page_bytes: int
    tiers: tuple[TierSpec, ...]
    policy: str = "auto"
    margin: float = 0.02
    load_timeout_ns: int = 10_000_000_000
    lease_ttl_ns: int = 30_000_000_000
    tokens_min: int = 0
    queue_bytes: int = 256 * 1024 * 1024
    write_bytes_per_day: int = 0
    chance_min: float = 0.02
    eviction: str = "lru"
    admission: str = "worth"
    codec: str = "off"
    codings: tuple[Coding, ...] = ()


@dataclass(slots=True)
class Space:
    """One namespace. `layout` is None while its blocks were recovered but nobody joined it yet.

    Attributes:
        elements, lossy: as in `Namespace`.
    """

    number: int
    digest: bytes
    label: str
    raw_bytes: int
    layout: Layout | None = None
    elements: Elements | None = None
    lossy: Coding = Coding.PLAIN

    @property
    def subject(self) -> Subject:
        """What the choice of a coding must know of it."""
        return Subject(self.number, self.elements, self.lossy)


@dataclass(slots=True)
class Tally:
    """Counters, by label. They only ever grow."""

    asked_tokens: int = 0
    storing_tokens: int = 0
    decisions: Counter[str] = field(default_factory=Counter)
    hit_tokens: Counter[str] = field(default_factory=Counter)
    seconds_saved: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    seconds_lost: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    read_bytes: Counter[str] = field(default_factory=Counter)
    written_bytes: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    leases_expired: int = 0


class World:
    """The shared state of one brain."""

    def __init__(self, config: BrainConfig) -> None:
        """Nothing is cached and nobody has joined."""
        self.config = config
        self.blocks = Blocks(config.tiers, config.page_bytes, config.eviction)
        pipes = [Pipe(t.rate_bytes_per_s, t.latency_s) for t in config.tiers]
        self.costs = Costs(
            [None, *pipes[1:]],
            Explorer(len(pipes)),
            reading=[Lane() for _ in config.tiers],
        )
        self.codings = Codings(config.tiers, config.codec, config.codings)
        self.tally = Tally()
        self.out: list[Command] = []
        self.now_ns = 0
        self.spaces: list[Space] = []
        self._space_of: dict[bytes, Space] = {}
        self._number = 0

    def number(self) -> int:
        """A number for the next lease or job; never 0, never used before."""
        self._number += 1
        return self._number

    def name(self, tier: int) -> str:
        """The name of a tier."""
        return self.config.tiers[tier].name

    def is_full(self, digest: bytes) -> bool:
        """Whether this namespace would be one too many."""
        return digest not in self._space_of and len(self.spaces) >= SPACES_MAX

    def labels(self) -> list[str]:
        """Names of all namespaces; those with one label are told apart by their digests."""
        known = Counter(space.label for space in self.spaces)
        return [
            space.label if known[space.label] == 1 else f"{space.label} {space.digest.hex()[:8]}"
            for space in self.spaces
        ]

    def meet(self, digest: bytes, label: str, raw_bytes: int) -> Space:
        """The namespace of a digest, made when it is new."""
        space = self._space_of.get(digest)
        if space is None:
            space = Space(len(self.spaces), digest, label, raw_bytes)
            self.spaces.append(space)
            self._space_of[digest] = space
        return space

    def joined(self, digest: bytes) -> tuple[Space, Layout]:
        """A namespace that somebody joined.

        Raises:
            BugError: nobody did.
        """
        space = self._space_of.get(digest)
        if space is None or space.layout is None:
            raise BugError(f"namespace {digest.hex()} was used before anybody joined it")
        return space, space.layout

    def join(self, namespace: Namespace) -> Space:
        """A client joins a namespace; its shape and first guesses become known.

        Raises:
            BugError: the arena cannot hold even one of its objects.
        """
        raw_bytes = namespace.layout.object_bytes
        if -(-raw_bytes // self.config.page_bytes) > self.blocks.pages.count:
            raise BugError(f"one object of {namespace.label} ({raw_bytes} bytes) exceeds the arena")
        space = self.meet(namespace.digest, namespace.label, raw_bytes)
        if space.layout is None:
            space.layout, space.label = namespace.layout, namespace.label
            space.elements, space.lossy = namespace.elements, namespace.lossy
            self.costs.recompute[space.number] = Recompute(namespace.token_s, namespace.pair_tokens)
            self.costs.device[space.number] = Pipe(DEVICE_RATE_BYTES_PER_S, DEVICE_LATENCY_S)
        return space

    def expected_bytes(self, tier: int, space: Space) -> int:
        """Bytes that an object of a namespace is expected to take, as it would be written now."""
        whole_bytes, coding = self.stored_bytes(tier, space.raw_bytes), self.codings
        share = coding.share(space.number, coding.standing(tier, space.number).coding)
        unit = self.config.tiers[tier].unit_bytes
        return min(whole_bytes, -(-int(whole_bytes * share) // unit) * unit) or unit

    def stored_bytes(self, tier: int, raw_bytes: int) -> int:
        """Bytes that a tier spends on an object at most: as it is, framed and padded."""
        if tier == DRAM:
            unit, extra = self.config.page_bytes, 0
        else:
            unit, extra = self.config.tiers[tier].unit_bytes, self.config.tiers[tier].overhead_bytes
        return -(-(raw_bytes + extra) // unit) * unit
