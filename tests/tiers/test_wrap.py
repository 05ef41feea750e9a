"""Wrappers change what they are about and nothing else. Time is a number here, nobody sleeps."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvwise.errors import FailureKind
from kvwise.testing.memory import MemoryTier, Shelf
from kvwise.testing.tiers import (
    CAPACITY_BYTES,
    Medium,
    VerifyingTierSuite,
    content,
    filled,
    put_many,
    record,
    verdicts,
    want,
)
from kvwise.tiers.base import Placed, Tier
from kvwise.tiers.wrap import Delayed, Faulty, Metered, Throttled, Wrapped, chance

RAW_BYTES = 10_000


class Time:
    """A clock that moves only when somebody sleeps."""

    def __init__(self) -> None:
        self.now_ns = 0

    def clock_ns(self) -> int:
        """The present."""
        return self.now_ns

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.now_ns += round(seconds * 1e9)


class Layers(Shelf):
    """A shelf whose tier is wrapped in everything at once, at settings that change nothing."""

    def open(self, capacity_bytes: int) -> Tier:  # type: ignore[override]
        """The wrapped tier."""
        time = Time()
        tier: Tier = Wrapped(MemoryTier(self, capacity_bytes))
        tier = Throttled(tier, bytes_per_s=1e9, clock_ns=time.clock_ns, sleep=time.sleep)
        tier = Delayed(tier, fixed_s=0.1, jitter_s=0.1, seed=1, sleep=time.sleep)
        return Metered(Faulty(tier, seed=1), clock_ns=time.clock_ns)


class TestWrapped(VerifyingTierSuite):
    """A wrapped tier is a tier."""

    def medium(self, home: Path) -> Medium:
        """A shelf behind all wrappers."""
        return Layers()


def memory() -> MemoryTier:
    """A tier to wrap."""
    return MemoryTier(Shelf(), CAPACITY_BYTES)


def test_meter_counts_both_ways() -> None:
    """Objects, bytes, failures and time are counted for each verb."""
    time = Time()
    slow = Delayed(memory(), fixed_s=2.0, jitter_s=0.0, seed=0, sleep=time.sleep)
    tier = Metered(slow, clock_ns=time.clock_ns)
    placed = put_many(tier, range(3), RAW_BYTES)
    tier.put([(record(9, CAPACITY_BYTES), filled(9, CAPACITY_BYTES))])
    tier.free([placed[1]])
    verdicts(tier, [want(n, RAW_BYTES, p) for n, p in placed.items()])

    assert (tier.puts.objects, tier.puts.size_bytes) == (3, 3 * RAW_BYTES)
    assert tier.puts.failures == {FailureKind.FULL: 1}
    assert tier.puts.busy_ns == 4_000_000_000
    assert (tier.gets.objects, tier.gets.size_bytes) == (2, 2 * RAW_BYTES)
    assert tier.gets.failures == {FailureKind.MISSING: 1}
    assert tier.gets.busy_ns == 2_000_000_000


def test_throttle_is_one_link() -> None:
    """Everything that passes takes its bytes' time; an idle link saves nothing up."""
    time = Time()
    tier = Throttled(memory(), bytes_per_s=RAW_BYTES, clock_ns=time.clock_ns, sleep=time.sleep)
    placed = put_many(tier, range(3), RAW_BYTES)
    assert time.now_ns == 3_000_000_000

    time.now_ns += 60_000_000_000
    seen = [time.now_ns for _ in tier.get([want(n, RAW_BYTES, p) for n, p in placed.items()])]
    assert seen == [64_000_000_000, 65_000_000_000, 66_000_000_000]


def test_throttle_queues_callers() -> None:
    """A second caller waits behind the bytes of the first."""
    slept: list[float] = []
    tier = Throttled(memory(), bytes_per_s=RAW_BYTES, clock_ns=lambda: 0, sleep=slept.append)
    for number in range(3):
        put_many(tier, [number], RAW_BYTES)

    assert slept == pytest.approx([1.0, 2.0, 3.0])


def test_delay_is_repeatable_and_bounded() -> None:
    """The same seed waits the same times; another seed waits others, all within the jitter."""
    waits: dict[int, list[float]] = {}
    for turn, seed in enumerate((1, 1, 2)):
        slept = waits.setdefault(turn, [])
        tier = Delayed(memory(), fixed_s=1.0, jitter_s=0.5, seed=seed, sleep=slept.append)
        for number in range(20):
            placed = put_many(tier, [number], RAW_BYTES)
            verdicts(tier, [want(number, RAW_BYTES, placed[number])])

    assert waits[0] == waits[1] != waits[2]
    assert len(set(waits[0])) == 40
    assert all(1.0 <= wait < 1.5 for wait in waits[0])


def test_nothing_asked_takes_no_time() -> None:
    """Empty batches do not wait."""
    slept: list[float] = []
    tier = Delayed(memory(), fixed_s=1.0, jitter_s=0.0, seed=0, sleep=slept.append)
    tier.put([])
    list(tier.get([]))

    assert slept == []


def test_faults_follow_from_seed_and_key() -> None:
    """The same keys fail in every run and in every batching, at about the rate that was set."""
    rates = {FailureKind.IO: 0.2, FailureKind.FULL: 0.1}

    def failing(batch: int) -> dict[int, FailureKind]:
        tier, found = Faulty(memory(), seed=5, puts=rates), {}
        for start in range(0, 600, batch):
            numbers = range(start, start + batch)
            answers = tier.put([(record(n, 10), filled(n, 10)) for n in numbers])
            for number, answer in zip(numbers, answers, strict=True):
                if not isinstance(answer, Placed):
                    found[number] = answer.kind
        return found

    once = failing(1)
    kinds = list(once.values())
    assert once == failing(20)
    assert 80 <= kinds.count(FailureKind.IO) <= 160
    assert 30 <= kinds.count(FailureKind.FULL) <= 95


def test_faulty_put_writes_nothing() -> None:
    """An object whose put failed is not on the medium."""
    inner = memory()
    answers = Faulty(inner, seed=1, puts={FailureKind.IO: 1.0}).put(
        [(record(1, RAW_BYTES), filled(1, RAW_BYTES))]
    )

    assert not isinstance(answers[0], Placed)
    assert inner.used_bytes == 0


def test_faulty_get_leaves_wrong_bytes() -> None:
    """A failed read leaves buffers that nobody may use, so that using them is noticed."""
    inner = memory()
    placed = put_many(inner, [1], RAW_BYTES)
    asked = want(1, RAW_BYTES, placed[1])
    tier = Faulty(inner, seed=1, gets={FailureKind.CORRUPT: 1.0})

    assert verdicts(tier, [asked]) == [FailureKind.CORRUPT]
    assert b"".join(asked.buffers) not in {content(1, RAW_BYTES), bytes(RAW_BYTES)}


def test_chance_is_even() -> None:
    """Drawn numbers fill the unit interval evenly, for every verb apart."""
    drawn = [chance(1, b"get", n.to_bytes(16, "little")) for n in range(4000)]

    assert 0.47 < sum(drawn) / len(drawn) < 0.53
    assert all(0 <= one < 1 for one in drawn)
    assert chance(1, b"get", b"key") != chance(1, b"put", b"key")
