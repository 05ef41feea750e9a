"""What drivers of a brain share: one namespace and client, a warm-up, a digest. It decides nothing.

A brain that knows no speeds yet would be judged by its first guesses. So before a trace begins it
is told what an engine that has run for a while has told it: copies and steps of a few sizes, as the
profile has them. The blocks for that are gone again when the trace begins.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import msgspec
import numpy as np

from kvwise.core.brain import Brain
from kvwise.core.elements import Elements, Kind
from kvwise.core.keys import KEY_BYTES, ROOT, namespace_digest
from kvwise.core.layout import Group, GroupKind, Layout
from kvwise.core.words import (
    Asked,
    Cleared,
    Command,
    Done,
    Event,
    Filled,
    Granted,
    Joined,
    Namespace,
    Observed,
    Offered,
    Planned,
    Released,
    Store,
    Wanted,
)
from kvwise.errors import ConfigError
from kvwise.sim.replay.profile import Profile
from kvwise.sim.replay.tape import keys_of
from kvwise.units import NS_PER_S

CLIENT = 1
LEARNS = "worth"
"""The policy that may refuse; with the others, which are there to compare, all is written."""

FIRST_TOKEN_S = 1.0
"""A first guess by which every load is worth it, so that the warm-up may measure the link."""

_COPIES = 32
_COPY_CHUNKS_MAX = 8
_STEP_SIZES = (64, 256, 1_024, 4_096, 16_384)
_STEP_ROUNDS = 16
_LABEL = "replay"
_DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class Space:
    """The one namespace of a simulated node: objects of `chunk_tokens` tokens."""

    namespace: Namespace
    chunk_tokens: int

    @property
    def digest(self) -> bytes:
        """What events name it by."""
        return self.namespace.digest

    @property
    def object_bytes(self) -> int:
        """Bytes of one object."""
        return self.namespace.layout.object_bytes


def space_of(profile: Profile, chunk_tokens: int) -> Space:
    """The namespace of a model with objects of a size.

    Raises:
        ConfigError: objects would be too large.
    """
    pages_bytes = (profile.kv_bytes_per_token * chunk_tokens,)
    try:
        layout = Layout(chunk_tokens, chunk_tokens, (Group(GroupKind.FULL, pages_bytes),))
    except ValueError as error:
        raise ConfigError(f"kv_bytes_per_token: {error}") from error
    digest = namespace_digest({"model": profile.name, "chunk": str(chunk_tokens)})
    number = layout.object_bytes // Kind.BF16.bytes
    elements = Elements(Kind.BF16, number, 1, number)
    return Space(Namespace(digest, _LABEL, layout, FIRST_TOKEN_S, elements=elements), chunk_tokens)


def planned(commands: list[Command]) -> Planned:
    """The answer to `Asked` among commands."""
    return next(command for command in commands if isinstance(command, Planned))


def granted(commands: list[Command]) -> Granted:
    """The answer to `Offered` or `Wanted` among commands."""
    return next(command for command in commands if isinstance(command, Granted))


def teach(brain: Brain, profile: Profile, space: Space, chunks_max: int, clients: int = 1) -> None:
    """Let clients join, and tell the brain the profile's speeds at time zero.

    Args:
        brain: has heard nothing yet.
        profile: what is told.
        space: what the clients join.
        chunks_max: how many objects its arena holds.
        clients: engines, numbered from `CLIENT`.
    """
    for client in range(CLIENT, CLIENT + clients):
        _hear(brain, Joined(0, client, space.namespace))
    most = min(chunks_max, _COPY_CHUNKS_MAX)
    keys = keys_of(np.arange(most, dtype=np.uint64) + np.uint64(1 << 40)).tobytes()
    offer = Offered(0, CLIENT, "warm-up", space.digest, ROOT, keys)
    _hear(brain, Filled(0, CLIENT, granted(_hear(brain, offer)).lease, most))
    for number in range(_COPIES):
        _copy(brain, profile, space, keys, number % most + 1)
    for number in range(_STEP_ROUNDS):
        for new in _STEP_SIZES:
            cached = number * new // 2
            seconds = profile.step_s + profile.compute_s(new, cached)
            pairs = new * (cached + new / 2)
            _hear(brain, Observed(0, CLIENT, space.digest, new, pairs, seconds))
    _hear(brain, Cleared(0))


def _hear(brain: Brain, event: Event) -> list[Command]:
    """Tell the brain something; what it has written is written at once."""
    out = brain.handle(event)
    jobs = [command for command in out if isinstance(command, Store)]
    for job in jobs:
        for item in range(len(job.items)):
            more = brain.handle(Done(0, job.job, item, stored_bytes=job.raw_bytes))
            jobs += [command for command in more if isinstance(command, Store)]
    return out


def _copy(brain: Brain, profile: Profile, space: Space, keys: bytes, chunks: int) -> None:
    """One load from the arena, if the brain's policy loads at all.

    It is one request that asks again and again: nothing may be learned of reuse from it.
    """
    total = (len(keys) // KEY_BYTES + 1) * space.chunk_tokens
    asked = Asked(0, CLIENT, "warm-up", space.digest, keys, 0, total)
    plan = planned(_hear(brain, asked))
    if not plan.lease:
        return
    chunks = min(chunks, plan.chunks)
    _hear(brain, Wanted(0, CLIENT, plan.lease, chunks))
    size_bytes = chunks * space.object_bytes
    took_ns = round(profile.load_s(size_bytes) * NS_PER_S)
    _hear(brain, Released(0, CLIENT, plan.lease, size_bytes, took_ns, took_ns))


class Digest:
    """A digest of all commands so far: equal inputs have equal ones."""

    def __init__(self) -> None:
        """Of no commands."""
        self._hasher = hashlib.blake2b(digest_size=_DIGEST_BYTES, person=b"kvwise-replay-1")
        self._encode = msgspec.msgpack.Encoder().encode

    def add(self, commands: list[Command]) -> None:
        """More commands."""
        self._hasher.update(self._encode([(type(one).__name__, one) for one in commands]))

    def text(self) -> str:
        """The digest in hexadecimal."""
        return self._hasher.hexdigest()
