"""The vocabulary: every event the brain hears, every command and answer it gives. Data only.

Events go in, commands come out, and both are plain frozen data that can be logged and replayed.
Time arrives inside events as `now_ns`. Keys travel joined, 16 bytes each.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from kvwise.core.balance import Balance
from kvwise.core.elements import AS_IS, Coding, Elements, Form
from kvwise.core.hints import NO_HINTS, Hints
from kvwise.core.layout import Layout
from kvwise.core.timing import Equipped, Timed
from kvwise.errors import FailureKind

DRAM = 0
"""Index of the arena tier: every object passes through it."""


class Choice(Enum):
    """What a plan decided for a request."""

    LOAD = "load"
    LOAD_PART = "load_part"
    RECOMPUTE = "recompute"


class Ending(Enum):
    """What became of a decision."""

    OPEN = "open"
    COMPUTED = "computed"
    LOADED = "loaded"
    FAILED = "failed"
    UNUSED = "unused"


class Why(Enum):
    """Reasons of decisions, refusals and drops. Metrics count them, `explain` prints them."""

    FASTER = "faster"
    FORCED = "forced"
    NO_MATCH = "no_match"
    ON_DEVICE = "on_device"
    SLOWER = "slower"
    TAIL_SLOWER = "tail_slower"
    TOO_LATE = "too_late"
    EXPLORE = "explore"
    NO_ROOM = "no_room"
    TOO_SHORT = "too_short"
    PRESENT = "present"
    NO_PARENT = "no_parent"
    BUSY = "busy"
    BUDGET = "budget"
    WORTH = "worth"
    FULL = "full"
    DISABLED = "disabled"
    EVICTED = "evicted"
    CORRUPT = "corrupt"
    FAILED = "failed"
    CLEARED = "cleared"
    EXPIRED = "expired"
    ORPHANED = "orphaned"


@dataclass(frozen=True, slots=True)
class Namespace:
    """Everything that blocks of one producer share.

    Attributes:
        digest: 16 bytes, see `keys.namespace_digest`.
        label: readable name, for people and metrics.
        layout: shape of its objects.
        token_s: first guess of the seconds one token takes to compute, before any is measured.
        pair_tokens: first guess of what a pair of tokens takes, in tokens; 0 if unknown.
        elements: what its objects hold; None if that is not known, and then they stay as they are.
        lossy: coding that its engine allows to change numbers; PLAIN for none. Part of `digest`.
    """

    digest: bytes
    label: str
    layout: Layout
    token_s: float = 1e-3
    pair_tokens: float = 0.0
    elements: Elements | None = None
    lossy: Coding = Coding.PLAIN


@dataclass(frozen=True, slots=True)
class TierSpec:
    """What the brain must know of a tier.

    Attributes:
        name: `dram`, `disk`, ...; the metric label.
        capacity_bytes: hard cap on the bytes the tier may hold, padding and headers included.
        unit_bytes: allocation unit; an object takes a multiple of it.
        overhead_bytes: bytes a stored object needs beyond its payload.
        rate_bytes_per_s: first guess of the read rate, before any is measured.
        latency_s: first guess of the fixed time of one load, before any is measured.
        run_bytes: of a load, what is still to be decoded when its last byte has come; 0 for all.
        lanes: threads that decode at once.
    """

    name: str
    capacity_bytes: int
    unit_bytes: int
    overhead_bytes: int
    rate_bytes_per_s: float
    latency_s: float
    run_bytes: int = 0
    lanes: int = 1


@dataclass(frozen=True, slots=True)
class Joined:
    """A client attached to a namespace. All connections of one engine are one client."""

    now_ns: int
    client: int
    namespace: Namespace


@dataclass(frozen=True, slots=True)
class Left:
    """The last connection of a client is gone: all its leases end."""

    now_ns: int
    client: int


@dataclass(frozen=True, slots=True)
class Asked:
    """How much of this prompt should be loaded? Answered by `Planned`; pins what it promises.

    Attributes:
        request: the engine's name for the request; asking again replaces the earlier answer.
        space: namespace digest.
        keys: of every whole chunk of the prompt, in order.
        local_tokens: leading tokens that the device already holds.
        total_tokens: tokens of the prompt; at least one is always left to compute.
        backlog_tokens: tokens of prompts that the engine still has to compute before this one.
        backlog_pairs: sum over those prompts of n * (c + n / 2), n new tokens after c cached ones.
        layers: over which copies from the arena overlap with computing; 0 if they cannot.
        requests: how many share the engine's steps now, this one included.
    """

    now_ns: int
    client: int
    request: str
    space: bytes
    keys: bytes
    local_tokens: int
    total_tokens: int
    hints: Hints = NO_HINTS
    backlog_tokens: int = 0
    backlog_pairs: float = 0.0
    layers: int = 0
    requests: int = 1


@dataclass(frozen=True, slots=True)
class Wanted:
    """The engine has room: start the load of a lease. `chunks` may be fewer than were promised."""

    now_ns: int
    client: int
    lease: int
    chunks: int


@dataclass(frozen=True, slots=True)
class Offered:
    """These chunks were just computed and could be kept; answered by `Granted`.

    Attributes:
        parent: key of the chunk before the first one; `keys.ROOT` at the start of a prompt.
        total_tokens: tokens of the request's prompt, 0 when unknown.
    """

    now_ns: int
    client: int
    request: str
    space: bytes
    parent: bytes
    keys: bytes
    total_tokens: int = 0
    hints: Hints = NO_HINTS


@dataclass(frozen=True, slots=True)
class Filled:
    """The client wrote the granted pages of a store lease; the first `good` chunks are whole."""

    now_ns: int
    client: int
    lease: int
    good: int


@dataclass(frozen=True, slots=True)
class Released:
    """The client is done with a load lease. Times are what the client measured, 0 if nothing moved.

    Attributes:
        copied_bytes: bytes copied from the arena to the device.
        copy_ns: time that copying took.
        waited_ns: time from `Wanted` until the last byte was on the device.
        failed: the client gave up (deadline, engine abort, bad data).
    """

    now_ns: int
    client: int
    lease: int
    copied_bytes: int = 0
    copy_ns: int = 0
    waited_ns: int = 0
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Observed:
    """One engine step was timed.

    Attributes:
        tokens: tokens computed in the step.
        pairs: sum over requests of n * (c + n / 2), n new tokens after c cached ones.
        requests: how many were in the step.
    """

    now_ns: int
    client: int
    space: bytes
    tokens: int
    pairs: float
    seconds: float
    requests: int = 1


@dataclass(frozen=True, slots=True)
class Done:
    """One item of a job finished: its bytes are where the command said.

    Attributes:
        location: for a store, the token the tier gives for finding the bytes again.
        stored_bytes: for a store, bytes that the tier spent on it.
        elapsed_ns: time the item took, its share of a batch.
    """

    now_ns: int
    job: int
    item: int
    location: int = 0
    stored_bytes: int = 0
    elapsed_ns: int = 0


@dataclass(frozen=True, slots=True)
class Failed:
    """One item of a job failed; the kind says how."""

    now_ns: int
    job: int
    item: int
    kind: FailureKind


@dataclass(frozen=True, slots=True)
class Recovered:
    """Records that a tier found at start-up, in any order, as columns; without any, that was all.

    Attributes:
        tier: index of the tier.
        keys, parents: of the records, joined.
        locations: one token for each record, little-endian u64.
        stored_bytes: what each takes, little-endian u32; `Layout` has the bound for that.
        raw_bytes: payload bytes of each record.
    """

    now_ns: int
    tier: int
    space: bytes
    keys: bytes
    parents: bytes
    locations: bytes
    stored_bytes: bytes
    raw_bytes: int


@dataclass(frozen=True, slots=True)
class Space:
    """A tier's own view of the room it has left below its cap (its filesystem may be fuller)."""

    now_ns: int
    tier: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class Cleared:
    """Drop everything that is not in use; `space` empty means every namespace."""

    now_ns: int
    space: bytes = b""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed: leases expire, deferred writes may start."""

    now_ns: int


@dataclass(frozen=True, slots=True)
class Budgeted:
    """What an earlier life left of a tier's write budget; comes before anything is written.

    Attributes:
        away_s: time between the lives, as far as it is known.
    """

    now_ns: int
    tier: int
    balance: Balance
    away_s: float = 0.0


Event = (
    Joined | Left | Asked | Wanted | Offered | Filled | Released | Observed | Done | Failed
    | Recovered | Space | Cleared | Tick | Budgeted | Timed | Equipped
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Decision:
    """Why a request was loaded or recomputed: inputs, estimates, choice. Outcome added later.

    Attributes:
        match_tokens: leading tokens found in the cache, device included.
        load_tokens: tokens the plan loads; 0 for recompute.
        tiers: tokens to load by tier name, in the order of the prompt.
        load_s, recompute_s: estimated seconds of the best load, queues included, and to compute it.
        margin: fraction of `own_s` by which the load must win.
        actual_s, ending: measured seconds, and what became of it; 0 and OPEN while unknown.
        own_s: part of `load_s` in which it keeps tiers and links busy itself.
        backlog_s: estimated seconds until the engine is done with earlier prompts.
        exposed_s: part of `load_s` that delays the first token: hidden behind no other work.
        relief_s: what the engine's time is worth to loads that are under way.
        doubt_s: by how much loading must win for the uncertainty of all this. It does when
            `recompute_s + relief_s - exposed_s > margin * own_s + doubt_s`.
        pin_refused: whether a hint to keep blocks was not followed: too many are kept.
    """

    now_ns: int
    request: str
    namespace: str
    total_tokens: int
    local_tokens: int
    match_tokens: int
    load_tokens: int
    tiers: dict[str, int]
    load_s: float
    recompute_s: float
    margin: float
    choice: Choice
    why: Why
    actual_s: float = 0.0
    ending: Ending = Ending.OPEN
    own_s: float = 0.0
    backlog_s: float = 0.0
    exposed_s: float = 0.0
    relief_s: float = 0.0
    doubt_s: float = 0.0
    pin_refused: bool = False


@dataclass(frozen=True, slots=True)
class Planned:
    """Answer to `Asked`. `lease` is 0 when nothing is to be loaded.

    Attributes:
        first_chunk: index of the first chunk to load.
        chunks: how many to load from there; each is pinned until the lease ends.
        load_tokens: tokens beyond `local_tokens` that they provide.
        ready: whether all of it is in the arena now.
        deadline_ns: how long the client should wait for the load, from `Wanted` on.
    """

    client: int
    request: str
    lease: int
    first_chunk: int
    chunks: int
    load_tokens: int
    ready: bool
    deadline_ns: int
    decision: Decision


@dataclass(frozen=True, slots=True)
class Granted:
    """Answer to `Wanted` and to `Offered`: arena pages of each chunk.

    Attributes:
        chunks: indexes, within the keys of the question, of the chunks that have pages.
        pages: page numbers, `pages_per_object` for each chunk, in order.
        reasons: why the other chunks were refused, counted.
    """

    client: int
    lease: int
    chunks: tuple[int, ...]
    pages: tuple[int, ...]
    reasons: dict[Why, int]


@dataclass(frozen=True, slots=True)
class Progress:
    """The first `ready` chunks of a load lease are in the arena; `failed` means no more will be."""

    lease: int
    ready: int
    failed: bool


@dataclass(frozen=True, slots=True)
class Ended:
    """A lease is over; its pages may be reused at once."""

    lease: int


@dataclass(frozen=True, slots=True)
class Judged:
    """It is known what became of a decision; this only tells."""

    client: int
    decision: Decision


@dataclass(frozen=True, slots=True)
class Item:
    """One object of a job.

    Attributes:
        location: for a load, where the tier put it.
        stored_bytes: for a load, what the tier spends on it.
        pages: arena pages that hold, or will hold, the payload.
    """

    key: bytes
    parent: bytes
    location: int
    stored_bytes: int
    pages: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Load:
    """Read objects of a tier into arena pages. Each item ends in one `Done` or `Failed`."""

    job: int
    tier: int
    space: bytes
    raw_bytes: int
    items: tuple[Item, ...]
    deadline_ns: int


@dataclass(frozen=True, slots=True)
class Store:
    """Write objects from arena pages to a tier, in a form. Each item ends in `Done` or `Failed`."""

    job: int
    tier: int
    space: bytes
    layout: bytes
    raw_bytes: int
    items: tuple[Item, ...]
    form: Form = AS_IS


@dataclass(frozen=True, slots=True)
class Drop:
    """These objects are no longer on a tier: give their space back, tell whoever follows events.

    Keys (joined), locations and stored bytes, one for each object; arena pages are free already.
    """

    tier: int
    keys: bytes
    locations: tuple[int, ...]
    stored_bytes: tuple[int, ...]
    why: Why


Command = Planned | Granted | Progress | Ended | Load | Store | Drop | Judged
