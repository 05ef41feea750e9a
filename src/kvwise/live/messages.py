"""The verbs between a client and the store, and the interface both `Store` and `Client` offer.

Frames on the socket are a 4-byte little-endian length and one MessagePack message. Payload never
crosses the socket: it lies in the arena, whose descriptor is passed once, at `attach`. Nothing here
sends or decides.

A lease on the wire is `epoch << 32 | number`: the epoch is drawn anew by every daemon, so a lease
of a daemon that died can never be taken for one of its successor.
"""

from __future__ import annotations

from typing import Annotated, Any, Protocol

import msgspec

from kvwise.core.words import Decision, Hints, Namespace

PROTOCOL = 1
FRAME_BYTES_MAX = 64 * 1024 * 1024
Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=2e9)]
"""Bounds that replies are decoded with: an engine computes with them and checks nothing again."""


class Attach(msgspec.Struct, tag="attach", frozen=True):
    """First message of a connection. Connections with the same `engine` are one client."""

    protocol: int
    engine: str


class Attached(msgspec.Struct, tag="attached", frozen=True):
    """Reply to `Attach`; the arena's descriptor travels beside it."""

    arena_bytes: int
    page_bytes: int
    data_offset: int
    epoch: int
    version: str
    pid: int


class Join(msgspec.Struct, tag="join", frozen=True):
    """Open a namespace for this client."""

    namespace: Namespace


class Ask(msgspec.Struct, tag="ask", frozen=True):
    """How much of this prompt should be loaded? See `words.Asked`."""

    request: str
    space: bytes
    keys: bytes
    local_tokens: int
    total_tokens: int
    hints: Hints = Hints()
    backlog_tokens: int = 0
    backlog_pairs: float = 0.0
    layers: int = 0
    requests: int = 1


class Plan(msgspec.Struct, tag="plan", frozen=True):
    """Reply to `Ask`, see `words.Planned`."""

    lease: int
    first_chunk: Count
    chunks: Count
    load_tokens: Count
    ready: bool
    wait_s: Seconds
    decision: Decision


class Want(msgspec.Struct, tag="want", frozen=True):
    """Start the load of a lease; replied to with `Grant`."""

    lease: int
    chunks: int


class Offer(msgspec.Struct, frozen=True):
    """Freshly computed chunks of one request; `parent` is the key before the first."""

    request: str
    space: bytes
    parent: bytes
    keys: bytes
    total_tokens: int = 0
    hints: Hints = Hints()


class Fill(msgspec.Struct, frozen=True):
    """The first `good` chunks of a store lease are written."""

    lease: int
    good: int


class Release(msgspec.Struct, frozen=True):
    """A load lease is no longer needed, see `words.Released`."""

    lease: int
    copied_bytes: int = 0
    copy_ns: int = 0
    waited_ns: int = 0
    failed: bool = False


class Timing(msgspec.Struct, frozen=True):
    """One engine step was timed, see `words.Observed`."""

    space: bytes
    tokens: int
    pairs: float
    seconds: float
    requests: int = 1


class Step(msgspec.Struct, tag="step", frozen=True):
    """All that an engine has to say once per step; replied to with `Grants`, one for each offer."""

    fills: list[Fill] = []
    releases: list[Release] = []
    offers: list[Offer] = []
    timings: list[Timing] = []


class Grant(msgspec.Struct, tag="grant", frozen=True):
    """Arena pages for chunks. `chunks` are indexes into the keys asked for.

    `pages` holds little-endian u32 page numbers, the same count for every chunk.
    """

    lease: int
    chunks: list[Count]
    pages: bytes


class Grants(msgspec.Struct, tag="grants", frozen=True):
    """Reply to `Step`."""

    grants: list[Grant]


class Explain(msgspec.Struct, tag="explain", frozen=True):
    """Give the last decisions, newest last."""

    limit: int = 20


class Decisions(msgspec.Struct, tag="decisions", frozen=True):
    """Reply to `Explain`."""

    decisions: list[Decision]


class Status(msgspec.Struct, tag="status", frozen=True):
    """Ask for counters and levels."""


class StatusReply(msgspec.Struct, tag="status_reply", frozen=True):
    """Reply to `Status`: plain nested dictionaries, see `live/stats.py`."""

    status: dict[str, Any]


class Clear(msgspec.Struct, tag="clear", frozen=True):
    """Drop what is not in use; an empty `space` means every namespace."""

    space: bytes = b""


class Flush(msgspec.Struct, tag="flush", frozen=True):
    """Report how many deferred writes are left; replied to with `Ok`, whose `value` is that."""


class Ok(msgspec.Struct, tag="ok", frozen=True):
    """Reply without content."""

    value: Count = 0


class Problem(msgspec.Struct, tag="problem", frozen=True):
    """The verb could not be carried out; the connection stays usable."""

    kind: str
    message: str


Request = Attach | Join | Ask | Want | Step | Explain | Status | Clear | Flush
Reply = Attached | Plan | Grant | Grants | Decisions | StatusReply | Ok | Problem


class Cache(Protocol):
    """What an engine adapter uses. `Store` offers it in this process, `Client` over a socket.

    Every verb returns within the configured deadline or raises `CacheUnavailable`.
    """

    def join(self, namespace: Namespace) -> None:
        """Open a namespace; idempotent."""
        ...

    def ask(self, ask: Ask) -> Plan:
        """Plan a request. Asking again for the same request replaces the earlier plan."""
        ...

    def want(self, lease: int, chunks: int) -> Grant:
        """Start a planned load and learn its pages. Poll `progress`."""
        ...

    def step(self, step: Step) -> list[Grant]:
        """Say everything of one engine step; one grant for each offer, in order."""
        ...

    def explain(self, limit: int = 20) -> list[Decision]:
        """The last decisions, newest last."""
        ...

    def status(self) -> dict[str, Any]:
        """Counters and levels."""
        ...

    def clear(self, space: bytes = b"") -> None:
        """Drop what is not in use."""
        ...

    def flush(self, timeout_s: float) -> bool:
        """Wait until deferred writes are done; False when time ran out."""
        ...

    def progress(self, lease: int) -> tuple[int, bool]:
        """(chunks of the lease that are in the arena, whether it failed or ended).

        Read from shared memory, no round trip. A lease that ended reads as failed, and so does one
        of another daemon than the one whose arena is mapped here. A store lease reads (0, False)
        while its pages belong to the caller.

        The caller's duty, for loads and stores: call this before taking `pages` or `address` for a
        copy (a daemon that came back is mapped here, and only here) and once more after the copy;
        a copy whose lease then reads as failed did not happen.
        """
        ...

    @property
    def page_bytes(self) -> int:
        """Bytes of one arena page."""
        ...

    @property
    def pages(self) -> memoryview:
        """The arena's pages: page p is bytes [p * page_bytes, (p + 1) * page_bytes). Writable.

        Take it anew for every copy and hold it until the copy is over: it keeps the mapping alive.
        """
        ...

    @property
    def address(self) -> int:
        """Address of `pages` in this process; it changes when a daemon was replaced."""
        ...

    def close(self) -> None:
        """Detach; leases of this connection's client end when its last connection closes."""
        ...
