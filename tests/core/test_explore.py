"""Explore: a tier that is passed over is looked at, seldom and at little cost."""

from __future__ import annotations

import struct
from dataclasses import replace

from kvwise.core.brain import Brain
from kvwise.core.explore import REQUESTS_MIN, SHARE, Explorer
from kvwise.core.words import (
    Asked,
    Done,
    Joined,
    Load,
    Observed,
    Planned,
    Recovered,
    Released,
    Wanted,
    Why,
)
from tests.core.tiny import CHUNK, KEYS, SPACE, config, pick


def test_looking_is_paid_for() -> None:
    """It takes so many requests, and a hundredth of their time; a measurement starts anew."""
    explorer = Explorer(2)
    for _ in range(REQUESTS_MIN - 1):
        explorer.passed(1, 1.0)
        assert not explorer.may_look(1, 0.0)
    explorer.passed(1, 1.0)
    assert not explorer.may_look(1, SHARE * REQUESTS_MIN + 0.01)
    assert explorer.may_look(1, SHARE * REQUESTS_MIN - 0.01)
    assert not explorer.may_look(1, 0.0)
    for _ in range(REQUESTS_MIN):
        explorer.passed(1, 1.0)
    explorer.measured(1)
    assert not explorer.may_look(1, 0.0)


def found(made: Brain, keys: bytes) -> None:
    """A chain of eight objects is on the disk; without keys, that was all."""
    made.handle(
        Recovered(
            now_ns=1,
            tier=1,
            space=SPACE.digest if keys else b"",
            keys=keys,
            parents=(bytes(16) + keys)[: len(keys)],
            locations=struct.pack("<8Q", *range(1, 9)) if keys else b"",
            stored_bytes=struct.pack("<8I", *[12288] * 8) if keys else b"",
            raw_bytes=SPACE.layout.object_bytes,
        )
    )


def request(made: Brain, keys: bytes, now_ns: int, took_ns: int) -> Planned:
    """Ask for a chain, and load what is promised in so long a time."""
    asked = Asked(now_ns, 1, f"q{now_ns}", SPACE.digest, keys, 0, 8 * CHUNK + 1)
    planned = pick(made.handle(asked), Planned)
    if planned.lease:
        jobs = made.handle(Wanted(now_ns, 1, planned.lease, planned.chunks))
        for job in jobs:
            for item in range(len(job.items) if isinstance(job, Load) else 0):
                made.handle(Done(now_ns + took_ns, job.job, item))  # type: ignore[union-attr]
        made.handle(Released(now_ns + took_ns, 1, planned.lease, 1000, 1000, took_ns))
    return planned


def test_a_disk_that_is_thought_slow_is_looked_at() -> None:
    """Requests are turned away from the disk; a chunk now and then finds out how fast it is."""
    plain = config()
    slow = replace(plain.tiers[1], rate_bytes_per_s=1e5)
    made = Brain(replace(plain, tiers=(plain.tiers[0], slow)))
    made.handle(Joined(0, 1, SPACE))
    found(made, KEYS)
    found(made, b"")
    for step in range(20):
        made.handle(Observed(2, 1, SPACE.digest, 128, 128 * 64.0, 0.128 + step * 1e-6))
    whys = []
    for number in range(20 * REQUESTS_MIN):
        planned = request(made, KEYS, 10**12 + number * 10**6, 100_000)
        whys.append(planned.decision.why)
        if planned.chunks == 8:
            break
    assert whys[-1] is Why.FASTER
    assert whys[: REQUESTS_MIN - 1] == [Why.SLOWER] * (REQUESTS_MIN - 1)
    assert 0 < whys.count(Why.EXPLORE) <= len(whys) / REQUESTS_MIN
    made.check()
