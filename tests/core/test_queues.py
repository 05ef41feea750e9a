"""Queues: the brain counts what engines, tiers and links still have to do, and plans with it."""

from __future__ import annotations

import struct
from dataclasses import replace

from kvwise.core.brain import Brain
from kvwise.core.keys import chain_keys
from kvwise.core.words import (
    Asked,
    Choice,
    Done,
    Ending,
    Filled,
    Granted,
    Joined,
    Judged,
    Load,
    Observed,
    Offered,
    Planned,
    Recovered,
    Released,
    Wanted,
    Why,
)
from tests.core.tiny import CHUNK, KEYS, SPACE, config, pick, store

OTHER = chain_keys(SPACE.digest, [7] * 8 * CHUNK, CHUNK)
TOTAL = 8 * CHUNK + 1


def made() -> Brain:
    """Two prompts of eight chunks on a disk that reads one in 12 ms, computed in 2 ms each."""
    plain = config()
    slow = replace(plain.tiers[1], rate_bytes_per_s=SPACE.layout.object_bytes / 0.012)
    brain = Brain(replace(plain, tiers=(plain.tiers[0], slow)))
    for client in (1, 2):
        brain.handle(Joined(0, client, SPACE))
    for keys in (KEYS, OTHER):
        brain.handle(
            Recovered(
                1,
                1,
                SPACE.digest,
                keys,
                bytes(16) + keys[:-16],
                struct.pack("<8Q", *range(1, 9)),
                struct.pack("<8I", *[12288] * 8),
                SPACE.layout.object_bytes,
            )
        )
    brain.handle(Recovered(1, 1, b"", b"", b"", b"", b"", 0))
    for step in range(20):
        brain.handle(Observed(2, 1, SPACE.digest, 128, 128 * 64.0, 0.016 + step * 1e-7))
    return brain


def ask(brain: Brain, name: str, keys: bytes = KEYS, *, client: int = 1, **more: int) -> Planned:
    """A request at 10 ms."""
    asked = Asked(10_000_000, client, name, SPACE.digest, keys, 0, TOTAL, **more)  # type: ignore[arg-type]
    return pick(brain.handle(asked), Planned)


def test_a_busy_engine_loads_what_an_idle_one_computes() -> None:
    """The decision says what was hidden; what fits behind the backlog is loaded, and no more."""
    brain = made()
    idle = ask(brain, "idle").decision
    assert (idle.choice, idle.why, idle.backlog_s) == (Choice.RECOMPUTE, Why.SLOWER, 0.0)
    part = ask(brain, "part", backlog_tokens=400).decision
    assert part.choice is Choice.LOAD_PART
    assert 0 < part.load_tokens < 8 * CHUNK
    assert part.load_s <= part.backlog_s * 1.2
    busy = ask(brain, "busy", backlog_tokens=4000).decision
    assert (busy.choice, busy.exposed_s) == (Choice.LOAD, 0.0)


def test_long_contexts_make_a_backlog_longer() -> None:
    """Pairs count: the same tokens after a long prefix keep the engine busy for longer."""
    brain = made()
    near = ask(brain, "near", backlog_tokens=400)
    asked = Asked(10_000_000, 1, "far", SPACE.digest, KEYS, 0, TOTAL, backlog_tokens=400)
    far = pick(brain.handle(replace(asked, backlog_pairs=4e6)), Planned)
    assert far.decision.backlog_s > near.decision.backlog_s


def test_what_is_being_read_is_waited_for() -> None:
    """A second request for the same chunks expects the rest of the first read, not another one."""
    brain = made()
    first = ask(brain, "first", backlog_tokens=10**6)
    jobs = [c for c in brain.handle(Wanted(10_000_000, 1, first.lease, 8)) if isinstance(c, Load)]
    twin = ask(brain, "twin", client=2, backlog_tokens=10**6).decision
    stranger = ask(brain, "stranger", OTHER, client=2, backlog_tokens=10**6).decision
    assert twin.load_s < 1.1 * first.decision.load_s
    assert twin.own_s < 0.1 * first.decision.own_s
    assert stranger.load_s > 1.8 * first.decision.load_s
    for item in range(6):
        brain.handle(Done(11_000_000, jobs[0].job, item))
    late = ask(brain, "late", client=2, backlog_tokens=10**6).decision
    assert late.load_s < 0.4 * first.decision.load_s
    assert late.own_s < 0.1 * first.decision.own_s


def test_copies_of_one_client_wait_for_each_other_only() -> None:
    """What is in the arena queues on the link of its engine until that has released it."""
    brain = made()
    store(brain, chain_keys(SPACE.digest, [3] * 8 * CHUNK, CHUNK))
    keys = chain_keys(SPACE.digest, [3] * 8 * CHUNK, CHUNK)
    first = ask(brain, "first", keys)
    brain.handle(Wanted(10_000_000, 1, first.lease, 8))
    same, other = ask(brain, "same", keys), ask(brain, "other", keys, client=2)
    assert same.decision.load_s > other.decision.load_s == first.decision.load_s
    brain.handle(Released(11_000_000, 1, first.lease, 1, 0, 1_000_000))
    assert ask(brain, "again", keys).decision.load_s == first.decision.load_s


def test_tokens_that_are_just_being_stored_are_counted() -> None:
    """A request that comes while its prefix is being filled computes, and the chance is counted."""
    brain = made()
    keys = chain_keys(SPACE.digest, [5] * 8 * CHUNK, CHUNK)
    offered = Offered(9, 1, "w", SPACE.digest, bytes(16), keys, 128)
    granted = pick(brain.handle(offered), Granted)
    ask(brain, "early", keys)
    assert brain.snapshot()["counters"]["storing_tokens"] == 8 * CHUNK
    brain.handle(Filled(10, 1, granted.lease, 8))
    ask(brain, "later", keys)
    assert brain.snapshot()["counters"]["storing_tokens"] == 8 * CHUNK


def test_decisions_are_judged_by_what_became_of_them() -> None:
    """Each ends once: computed, loaded, failed or unused; good loads say how far off they were."""
    brain = made()
    loaded = ask(brain, "loaded", backlog_tokens=10**6)
    brain.handle(Wanted(10_000_000, 1, loaded.lease, 8))
    ended = brain.handle(Released(11_000_000, 1, loaded.lease, 1000, 1000, 200_000_000))
    assert pick(ended, Judged).decision.ending is Ending.LOADED
    off = (loaded.decision.load_s - 0.2) / 0.2
    estimates = brain.snapshot()["estimates"]["disk"]
    assert (estimates["loads"], estimates["bias"], estimates["error"]) == (1, off, abs(off))
    failed = ask(brain, "failed", OTHER, backlog_tokens=10**6)
    brain.handle(Wanted(12_000_000, 1, failed.lease, 8))
    ended = brain.handle(Released(13_000_000, 1, failed.lease, failed=True))
    assert pick(ended, Judged).decision.ending is Ending.FAILED
    unused = ask(brain, "unused", OTHER, client=2, backlog_tokens=10**6)
    ended = brain.handle(Released(14_000_000, 2, unused.lease))
    assert pick(ended, Judged).decision.ending is Ending.UNUSED
    asked = Asked(
        15_000_000, 1, "none", SPACE.digest, chain_keys(SPACE.digest, [8] * 16, 16), 0, 17
    )
    assert pick(brain.handle(asked), Judged).decision.ending is Ending.COMPUTED
    assert brain.snapshot()["estimates"]["disk"]["loads"] == 1
