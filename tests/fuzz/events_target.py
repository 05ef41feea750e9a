"""Event logs as hostile bytes would have them. It owns no format.

An input is a row of records, each with its kind in front; what a file needs around them (magic,
checksums, and the digests that the brain's answers lead to) is made right, so that a replay gets to
the end unless an event stops it. An input that begins with the magic is a file as it is.
"""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec

from kvwise.core.balance import Balance
from kvwise.core.brain import Brain
from kvwise.core.hints import Hints
from kvwise.core.keys import ROOT
from kvwise.core.words import (
    Asked,
    Budgeted,
    Cleared,
    Done,
    Event,
    Failed,
    Filled,
    Joined,
    Left,
    Observed,
    Offered,
    Recovered,
    Released,
    Space,
    Tick,
    TierSpec,
    Wanted,
)
from kvwise.core.world import BrainConfig
from kvwise.errors import FailureKind
from kvwise.live import events
from tests.fuzz.mutate import join, split
from tests.live.support import CHUNK, PAGE, SPACE, prompt

_SHARED_MEMORY = Path("/dev/shm")
BRAIN = BrainConfig(
    page_bytes=PAGE,
    tiers=(
        TierSpec("dram", 64 * PAGE, PAGE, 0, 1e10, 0.0),
        TierSpec("disk", 1 << 20, PAGE, PAGE, 1e9, 5e-4),
    ),
    policy="load",
)


def open_events(stack: ExitStack) -> Callable[[bytes], None]:
    """Replay a file; whatever it holds, the verdict or the error is one that is documented."""
    base = _SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvwise-fuzz-", dir=base)))
    path = folder / "events.kvlog"

    def attempt(data: bytes) -> None:
        path.write_bytes(data if data.startswith(events.MAGIC) else written(data))
        verdict, _ = events.replay(path)
        assert verdict.equal == (not verdict.divergence)

    return attempt


def written(data: bytes) -> bytes:
    """The file of a row of records."""
    parts, digests = [events.MAGIC], _Answers()
    for record in split(data):
        kind, body = record[:1] or b"\0", record[1:]
        if kind[0] in (events._HEADER, events._FULL):
            digests.begin(body)
            parts.append(events._record(kind[0], body))
        else:
            parts.append(events._record(kind[0], body + digests.after(kind[0], body)))
    tail = data[len(join(split(data))) :]
    return b"".join(parts) + tail


class _Answers:
    """The digests that a log must hold for a replay to go on. The first damage ends them."""

    def __init__(self) -> None:
        self._brain: Brain | None = None
        self._digest = events._Digest()

    def begin(self, body: bytes) -> None:
        """A header."""
        if self._brain is None:
            try:
                header = msgspec.msgpack.decode(body, type=events.Header)
                self._brain = events.fresh_brain(header)
            except (msgspec.MsgspecError, *events.UNFIT):
                self._brain = None

    def after(self, kind: int, body: bytes) -> bytes:
        """The digest after an event."""
        if self._brain is not None and 1 <= kind <= len(events._EVENTS):
            try:
                event = msgspec.msgpack.decode(body, type=events._EVENTS[kind - 1])
                return self._digest.add(self._brain.handle(event))
            except (msgspec.MsgspecError, *events.UNFIT):
                self._brain = None
        return bytes(events.DIGEST_BYTES)


def _rows() -> Iterator[list[Event]]:
    """The life of a request and of a tier, in events."""
    keys, digest = prompt(1, 3), SPACE.digest
    joined, tick = Joined(1, 1, SPACE), Tick(900_000_000)
    offered = Offered(2, 1, "r", digest, ROOT, keys, 3 * CHUNK + 1)
    asked = Asked(5, 1, "q", digest, keys, 0, 3 * CHUNK + 1)
    places, sizes = struct.pack("<3Q", 1, 2, 3), struct.pack("<3I", *[16384] * 3)
    raw_bytes = SPACE.layout.object_bytes
    recovered = Recovered(1, 1, digest, keys, ROOT + keys[:-16], places, sizes, raw_bytes)
    nothing = Recovered(1, 1, b"", b"", b"", b"", b"", 0)
    yield [joined, offered, Filled(3, 1, 1, 3), tick, asked, Wanted(6, 1, 2, 3)]
    yield [joined, offered, Filled(3, 1, 1, 2), asked, Released(9, 1, 2, 9000, 5, 7), Left(10, 1)]
    yield [
        recovered,
        nothing,
        joined,
        asked,
        Wanted(6, 1, 1, 3),
        *(Done(7, 1, n) for n in range(3)),
    ]
    yield [
        recovered,
        nothing,
        joined,
        asked,
        Wanted(6, 1, 1, 3),
        Failed(7, 1, 0, FailureKind.CORRUPT),
    ]
    yield [
        joined,
        offered,
        Filled(3, 1, 1, 3),
        tick,
        *(Done(7, 1, n, n, 16384, 9) for n in range(3)),
    ]
    left = Balance(1e6, 5, 3.0, 60.0, ((90, 1e9), (130, 2e10)))
    wishes = Hints(pin_s=0.5, ttl_s=0.7, priority=1.0)
    wished = Offered(2, 1, "r", digest, ROOT, keys, 3 * CHUNK + 1, wishes)
    yield [Budgeted(1, 1, left, 9.0), joined, wished, Filled(3, 1, 1, 3), tick]
    yield [joined, Observed(2, 1, digest, 512, 1e5, 0.1), Space(3, 1, 1 << 20), Cleared(4), tick]


def logs() -> list[bytes]:
    """Good logs, as rows of records."""
    header = b"\0" + msgspec.msgpack.encode(events.Header("0.1.0", BRAIN))
    encode = msgspec.msgpack.encode
    return [
        join([header, *(bytes([events._KIND[type(e)]]) + encode(e) for e in row)])
        for row in _rows()
    ] + [events.MAGIC + struct.pack("<II", 5, 0)]
