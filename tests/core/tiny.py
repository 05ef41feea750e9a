"""A tiny cache, and how to lead it step by step. Random worlds are in tests/sim."""

from __future__ import annotations

import struct
from typing import TypeVar

from kvwise.core.brain import Brain
from kvwise.core.hints import NO_HINTS, Hints
from kvwise.core.keys import KEY_BYTES, ROOT, chain_keys
from kvwise.core.layout import Group, GroupKind, Layout
from kvwise.core.words import (
    Asked,
    Command,
    Done,
    Filled,
    Granted,
    Joined,
    Load,
    Namespace,
    Offered,
    Planned,
    Recovered,
    Store,
    TierSpec,
)
from kvwise.core.world import BrainConfig

PAGE = 4096
CHUNK = 16
LAYOUT = Layout(16, CHUNK, (Group(GroupKind.FULL, (4096, 2048)),))
SPACE = Namespace(b"s" * 16, "tiny", LAYOUT, 1e-3)
TOKENS = list(range(1000, 1000 + 8 * CHUNK))
KEYS = chain_keys(SPACE.digest, TOKENS, CHUNK)
T = TypeVar("T")


def config(pages: int = 40, disk_objects: int = 30, **more: object) -> BrainConfig:
    """A brain with a small arena and a small disk."""
    tiers = (
        TierSpec("dram", pages * PAGE, PAGE, 0, 1e10, 0.0),
        TierSpec("disk", disk_objects * 12288, 4096, 4096, 1e9, 1e-4),
    )
    rest = {"queue_bytes": 200_000, "chance_min": 0.0} | more
    return BrainConfig(page_bytes=PAGE, tiers=tiers, **rest)  # type: ignore[arg-type]


def pick(commands: list[Command], kind: type[T]) -> T:
    """The one command of a kind."""
    (found,) = [c for c in commands if isinstance(c, kind)]
    return found


def brain(**more: object) -> Brain:
    """A brain that client 1 has joined."""
    made = Brain(config(**more))  # type: ignore[arg-type]
    made.handle(Joined(0, 1, SPACE))
    return made


def store(
    made: Brain, keys: bytes = KEYS, *, parent: bytes = ROOT, now_ns: int = 1
) -> list[Command]:
    """Offer and fill chunks; returns the commands of the fill."""
    granted = pick(made.handle(Offered(now_ns, 1, "w", SPACE.digest, parent, keys, 128)), Granted)
    return made.handle(Filled(now_ns, 1, granted.lease, len(granted.chunks)))


def offer_rest(
    made: Brain, asked: Asked, plan: Planned, total_tokens: int, hints: Hints = NO_HINTS
) -> Granted | None:
    """Offer and fill what a request asked for and did not find; None if it found everything."""
    found = plan.decision.match_tokens // CHUNK * KEY_BYTES
    rest = asked.keys[found:]
    if not rest:
        return None
    parent = asked.keys[found - KEY_BYTES : found] if found else ROOT
    now_ns, name = asked.now_ns, asked.request
    told = Offered(now_ns, 1, name, SPACE.digest, parent, rest, total_tokens, hints)
    grant = pick(made.handle(told), Granted)
    if grant.lease:
        made.handle(Filled(now_ns, 1, grant.lease, len(grant.chunks)))
    return grant


def finish(made: Brain, commands: list[Command], *, first: int = 1) -> list[Command]:
    """Let every job in `commands`, and those that follow, end well."""
    out: list[Command] = []
    queue = [c for c in commands if isinstance(c, Load | Store)]
    location = first
    while queue:
        job = queue.pop(0)
        for item in range(len(job.items)):
            more = made.handle(Done(2, job.job, item, location, 12288, 1_000_000))
            location += 1
            out += more
            queue += [c for c in more if isinstance(c, Load | Store)]
    made.check()
    return out


def recovered(
    keys: bytes, parents: bytes, locations: tuple[int, ...], stored_bytes: int = 12288
) -> Recovered:
    """Records of the disk, all of one size."""
    count = len(locations)
    sizes = struct.pack(f"<{count}I", *[stored_bytes] * count)
    packed = struct.pack(f"<{count}Q", *locations)
    return Recovered(1, 1, SPACE.digest, keys, parents, packed, sizes, LAYOUT.object_bytes)


def ask(made: Brain, *, name: str = "q", local: int = 0, now_ns: int = 3) -> Planned:
    """Plan a prompt that has all of KEYS and one token more."""
    total = len(TOKENS) + 1
    return pick(made.handle(Asked(now_ns, 1, name, SPACE.digest, KEYS, local, total)), Planned)


def evict_dram(made: Brain, *, seed: int = 5) -> None:
    """Fill the arena with other blocks until nothing of KEYS is in it."""
    for number in range(seed, seed + 5):
        other = chain_keys(SPACE.digest, [number] * (4 * CHUNK), CHUNK)
        finish(made, store(made, other), first=1000 * number)
