"""A client process of a soak: puts, gets, verifies every byte, gives up, and leaves leases behind.

It behaves as an engine's worker does, minus the engine, and judges nothing but bytes: what it got
must be what its key says. It says what it did once a second in a line of JSON on standard output,
and a wrong byte at once, so that a client that is killed is still heard.
"""

from __future__ import annotations

import hashlib
import json
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Final

import numpy as np

from kvwise.core.keys import KEY_BYTES, ROOT, chain_keys
from kvwise.core.layout import Group, GroupKind, Layout
from kvwise.core.words import Namespace
from kvwise.errors import CacheUnavailable
from kvwise.live.client import Client
from kvwise.live.leases import unpack_pages
from kvwise.live.messages import Ask, Cache, Fill, Grant, Offer, Plan, Release, Step

CHUNK_TOKENS = 16
SPACES: Final = (
    Namespace(
        b"soak-plain".ljust(16, b"."),
        "soak plain",
        Layout(CHUNK_TOKENS, CHUNK_TOKENS, (Group(GroupKind.FULL, (40_000, 23_000)),)),
        token_s=1e-3,
    ),
    Namespace(
        b"soak-window".ljust(16, b"."),
        "soak window",
        Layout(
            CHUNK_TOKENS,
            2 * CHUNK_TOKENS,
            (
                Group(GroupKind.FULL, (50_000,)),
                Group(GroupKind.WINDOW, (27_001,), window_tokens=64),
            ),
        ),
        token_s=1e-3,
    ),
)
"""Two models with objects of 63,000 and 154,002 bytes: neither fills its last page."""

DOCUMENTS = 150
BRANCHES = 4
DOCUMENT_CHUNKS_MAX = 8
BRANCH_CHUNKS_MAX = 5

ABORT = 0.06
"""Share of requests that give up somewhere in the middle."""
ON_DEVICE = 0.2
"""Share of requests whose first tokens are on the device already."""
ABANDON_EVERY_S = 5.0
"""How often a load lease is left to expire: more of them would pin the whole arena."""

TIMEOUT_S = 2.0
REPORT_S = 1.0
_LOOK_S = 0.0005
_BACK_OFF_S = 0.05
_PIECE_BYTES = 4096
_DIGEST_BYTES = 64
_RELEASED_TOGETHER = 8
"""Leases of more requests could pin the whole arena."""


def pattern(key: bytes, size_bytes: int) -> bytes:
    """The payload that belongs to a key and to no other; no two of its 4 KiB pieces are alike."""
    repeats = _PIECE_BYTES // _DIGEST_BYTES
    pieces = [
        hashlib.blake2b(key, digest_size=_DIGEST_BYTES, salt=n.to_bytes(8, "little")).digest()
        * repeats
        for n in range(-(-size_bytes // _PIECE_BYTES))
    ]
    return b"".join(pieces)[:size_bytes]


def prompt(space: Namespace, document: int, branch: int) -> bytes:
    """Keys of a prompt: branches of one document share its beginning."""
    shared = 1 + document % DOCUMENT_CHUNKS_MAX
    own = 1 + (document + branch) % BRANCH_CHUNKS_MAX
    size = space.layout.chunk_tokens
    tokens = [document * 1000 + n for n in range(shared * size)]
    tokens += [1_000_000 + (document * BRANCHES + branch) * 1000 + n for n in range(own * size)]
    return chain_keys(space.digest, tokens, size)


def split(keys: bytes) -> list[bytes]:
    """Keys one by one."""
    return [keys[at : at + KEY_BYTES] for at in range(0, len(keys), KEY_BYTES)]


@dataclass(slots=True)
class Turn:
    """One request: a name that is not used twice, its namespace and keys, tokens on the device."""

    name: str
    space: Namespace
    keys: list[bytes]
    local_tokens: int

    @property
    def tokens(self) -> int:
        """Tokens of the prompt: one more than its chunks hold."""
        return len(self.keys) * self.space.layout.chunk_tokens + 1


class SoakClient:
    """Requests, one after another, of a cache that anything may happen to.

    Attributes:
        counts: what was done, by name; it only grows.
    """

    def __init__(self, cache: Cache, name: str, seed: int) -> None:
        """Join both namespaces.

        Raises:
            CacheUnavailable: the daemon does not answer.
        """
        self._cache = cache
        self._name = name
        self._dice = np.random.default_rng(seed)
        self._abandoned_s = time.monotonic()
        self.counts: Counter[str] = Counter()
        for space in SPACES:
            cache.join(space)

    def turn(self) -> None:
        """Serve one request as an engine would: load what is there, store the rest.

        Raises:
            CacheUnavailable: the daemon does not answer.
        """
        turn, plan = self._asked()
        loaded = 0
        if plan.lease:
            loaded = self._load(turn, plan)
        else:
            self.counts["misses"] += 1
        self._store(turn, turn.local_tokens // turn.space.layout.chunk_tokens + loaded)

    def glance(self, requests: int) -> None:
        """Ask for that many prompts, and neither load nor store them.

        Raises:
            CacheUnavailable: the daemon does not answer.
        """
        releases: list[Release] = []
        for _ in range(requests):
            _, plan = self._asked()
            if plan.lease:
                releases.append(Release(plan.lease))
            if len(releases) >= _RELEASED_TOGETHER:
                self._cache.step(Step(releases=releases))
                releases = []
        self._cache.step(Step(releases=releases))

    def _asked(self) -> tuple[Turn, Plan]:
        """The next request, and what it was told."""
        self.counts["requests"] += 1
        turn = self._drawn()
        ask = Ask(turn.name, turn.space.digest, b"".join(turn.keys), turn.local_tokens, turn.tokens)
        return turn, self._cache.ask(ask)

    def _drawn(self) -> Turn:
        """What to ask next: some documents again and again, most of them now and then."""
        space = SPACES[int(self._dice.integers(len(SPACES)))]
        document = int(DOCUMENTS * self._dice.random() ** 2)
        keys = split(prompt(space, document, int(self._dice.integers(BRANCHES))))
        local_tokens = 0
        if self._dice.random() < ON_DEVICE:
            local_tokens = CHUNK_TOKENS * int(self._dice.integers(len(keys)))
        return Turn(f"{self._name}-{self.counts['requests']}", space, keys, local_tokens)

    # --- loads ---

    def _load(self, turn: Turn, plan: Plan) -> int:
        """Load what was planned; how many chunks came."""
        if time.monotonic() - self._abandoned_s > ABANDON_EVERY_S:
            self._abandoned_s = time.monotonic()
            self.counts["abandoned"] += 1
            return 0
        chance = self._dice.random()
        if chance < ABORT / 2:
            return self._give_up(plan)
        chunks = int(self._dice.integers(1, plan.chunks + 1)) if chance < 3 * ABORT else plan.chunks
        started_ns = time.monotonic_ns()
        grant = self._cache.want(plan.lease, chunks)
        if chance < ABORT:
            return self._give_up(plan)
        loaded = self._verified(turn, plan, grant)
        self.counts["gets"] += 1
        self.counts["hits" if loaded else "lost_hits"] += 1
        release = Release(
            plan.lease,
            copied_bytes=loaded * turn.space.layout.object_bytes,
            waited_ns=time.monotonic_ns() - started_ns,
            failed=not loaded,
        )
        self._cache.step(Step(releases=[release]))
        return loaded

    def _give_up(self, plan: Plan) -> int:
        """Abort a request, perhaps while its bytes are on their way."""
        self.counts["aborts"] += 1
        self._cache.step(Step(releases=[Release(plan.lease, failed=True)]))
        return 0

    def _verified(self, turn: Turn, plan: Plan, grant: Grant) -> int:
        """Copy what was granted and hold every byte against its key; the chunks that came.

        Bytes count only when the lease still lives after the copy: that is the caller's duty.
        """
        if not grant.chunks or not self._arrived(plan.lease, len(grant.chunks), plan.wait_s):
            return 0
        pages = unpack_pages(grant.pages)
        each = len(pages) // len(grant.chunks)
        memory, page_bytes = self._cache.pages, self._cache.page_bytes
        payloads = [
            b"".join(
                memory[page * page_bytes : (page + 1) * page_bytes]
                for page in pages[place * each : (place + 1) * each]
            )
            for place in range(len(grant.chunks))
        ]
        if self._cache.progress(plan.lease)[1]:
            return 0
        size_bytes = turn.space.layout.object_bytes
        for chunk, payload in zip(grant.chunks, payloads, strict=True):
            self._compare(turn.keys[plan.first_chunk + chunk], payload[:size_bytes])
        return len(grant.chunks)

    def _compare(self, key: bytes, payload: bytes) -> None:
        """Count every byte that is not the one that the key stands for."""
        self.counts["verified_bytes"] += len(payload)
        expected = pattern(key, len(payload))
        if payload != expected:
            pair = (np.frombuffer(payload, np.uint8), np.frombuffer(expected, np.uint8))
            self.counts["wrong_bytes"] += int(np.count_nonzero(pair[0] != pair[1]))
            tell(self.counts)

    def _arrived(self, lease: int, chunks: int, wait_s: float) -> bool:
        """Wait until a load is complete; False when it failed or took too long."""
        deadline_s = time.monotonic() + wait_s
        while time.monotonic() < deadline_s:
            ready, failed = self._cache.progress(lease)
            if failed or ready >= chunks:
                return not failed
            time.sleep(_LOOK_S)
        return False

    # --- stores ---

    def _store(self, turn: Turn, first: int) -> None:
        """Offer what had to be computed, and fill what is granted: all, a part, or nothing."""
        rest = turn.keys[first:]
        if not rest:
            return
        parent = turn.keys[first - 1] if first else ROOT
        offer = Offer(turn.name, turn.space.digest, parent, b"".join(rest), turn.tokens)
        (grant,) = self._cache.step(Step(offers=[offer]))
        if not grant.lease or self._cache.progress(grant.lease)[1]:
            return
        good = len(grant.chunks)
        if self._dice.random() < ABORT:
            self.counts["aborts"] += 1
            good = int(self._dice.integers(good))
        self._fill(turn.space, grant, rest, good)
        if self._cache.progress(grant.lease)[1]:
            good = 0
        self.counts["puts"] += good
        self._cache.step(Step(fills=[Fill(grant.lease, good)]))

    def _fill(self, space: Namespace, grant: Grant, keys: Sequence[bytes], good: int) -> None:
        """Write the first chunks of a grant."""
        memory, page_bytes = self._cache.pages, self._cache.page_bytes
        pages = unpack_pages(grant.pages)
        each = len(pages) // len(grant.chunks)
        for place, chunk in enumerate(grant.chunks[:good]):
            payload = pattern(keys[chunk], space.layout.object_bytes)
            for n, page in enumerate(pages[place * each : (place + 1) * each]):
                piece = payload[n * page_bytes : (n + 1) * page_bytes]
                memory[page * page_bytes : page * page_bytes + len(piece)] = piece


def tell(counts: Counter[str]) -> None:
    """One line with everything counted so far."""
    sys.stdout.write(json.dumps(counts) + "\n")
    sys.stdout.flush()


def main(arguments: list[str]) -> int:
    """Ask the daemon at a socket until told to stop: `SOCKET NAME SEED`."""
    socket, name, seed = arguments
    stopping: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        del frame
        stopping.append(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    cache = Client(socket, name, timeout_s=TIMEOUT_S)
    client = SoakClient(cache, name, int(seed))
    told_s = time.monotonic()
    while not stopping:
        try:
            client.turn()
        except CacheUnavailable:
            client.counts["unavailable"] += 1
            time.sleep(_BACK_OFF_S)
        if time.monotonic() - told_s >= REPORT_S:
            told_s = time.monotonic()
            tell(client.counts)
    tell(client.counts)
    cache.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
