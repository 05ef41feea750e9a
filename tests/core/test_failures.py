"""Failures: what the brain makes of reads, writes and clients that fail. Named scenarios."""

from __future__ import annotations

import pytest

from kvwise.core.keys import ROOT, chain_keys
from kvwise.core.words import (
    Cleared,
    Command,
    Done,
    Drop,
    Ended,
    Failed,
    Filled,
    Granted,
    Left,
    Load,
    Offered,
    Progress,
    Released,
    Space,
    Store,
    Wanted,
)
from kvwise.errors import FailureKind
from tests.core.tiny import CHUNK, KEYS, SPACE, ask, brain, evict_dram, finish, pick, store


@pytest.mark.pain("C7", "H6")
@pytest.mark.parametrize("kind", list(FailureKind))
def test_a_failed_read_fails_its_leases_and_frees_its_pages(kind: FailureKind) -> None:
    """C7, H6: one failure is one failed load, then a miss (or the block, if it may be there)."""
    made = brain(disk_objects=200)
    finish(made, store(made))
    evict_dram(made)
    planned = ask(made)
    load = pick(made.handle(Wanted(4, 1, planned.lease, 8)), Load)
    commands: list[Command] = []
    for item in range(8):
        if item == 3:
            commands += made.handle(Failed(5, load.job, item, kind))
        else:
            commands += made.handle(Done(5, load.job, item, elapsed_ns=1000))
    last = [c for c in commands if isinstance(c, Progress)][-1]
    assert (last.ready, last.failed) == (3, True)
    made.handle(Released(6, 1, planned.lease, failed=True))
    made.check()
    again = ask(made, name="again")
    gone = kind in {FailureKind.MISSING, FailureKind.CORRUPT, FailureKind.IO}
    assert again.load_tokens == (3 if gone else 8) * CHUNK
    assert made.snapshot()["counters"]["failures"] == {f"disk|{kind.value}": 1}


@pytest.mark.pain("W1")
def test_w1_a_failed_fill_is_never_seen() -> None:
    """W1: chunks whose write failed, and all after them, are misses."""
    made = brain()
    granted = pick(made.handle(Offered(1, 1, "w", SPACE.digest, ROOT, KEYS, 128)), Granted)
    assert ask(made, name="early").chunks == 0
    made.handle(Filled(2, 1, granted.lease, 5))
    made.check()
    assert ask(made).load_tokens == 5 * CHUNK


@pytest.mark.pain("M1")
def test_a_dead_client_releases_everything() -> None:
    """M1: leases of a client that is gone end, and what it was writing goes."""
    made = brain()
    store(made, KEYS[:64])
    planned = ask(made)
    made.handle(Wanted(4, 1, planned.lease, 4))
    made.handle(Offered(5, 1, "w", SPACE.digest, KEYS[48:64], KEYS[64:], 128))
    commands = made.handle(Left(6, 1))
    assert len([c for c in commands if isinstance(c, Ended)]) == 2
    made.check()
    levels = made.snapshot()["levels"]
    assert levels["leases"] == {"load": 0, "store": 0}
    assert levels["blocks"] == 4


def test_a_full_answer_is_believed_until_room_is_made() -> None:
    """D3: after a write failed for lack of room, the next one evicts before it tries."""
    made = brain(disk_objects=200)
    finish(made, store(made, KEYS[:16]))
    begun = store(made, chain_keys(SPACE.digest, [9] * CHUNK, CHUNK))
    made.handle(Failed(3, pick(begun, Store).job, 0, FailureKind.FULL))
    commands = store(made, chain_keys(SPACE.digest, [8] * CHUNK, CHUNK))
    dropped = [c.keys for c in commands if isinstance(c, Drop) and c.tier == 1]
    assert dropped == [KEYS[:16]]
    assert len(pick(commands, Store).items) == 1


def test_a_clear_during_a_load_fails_it_at_once() -> None:
    """A block cleared while it is read will never be READY: nobody waits for it to a deadline."""
    made = brain(disk_objects=200)
    finish(made, store(made))
    evict_dram(made)
    planned = ask(made)
    load = pick(made.handle(Wanted(4, 1, planned.lease, 8)), Load)
    made.handle(Cleared(5))
    progress = pick(made.handle(Done(6, load.job, 0, elapsed_ns=1000)), Progress)
    assert progress == Progress(planned.lease, 0, failed=True)
    made.check()


def test_what_never_was_is_not_counted_as_dropped() -> None:
    """The counter of dropped objects is the number of objects that commands name."""
    made = brain(disk_objects=200)
    out = store(made)
    job = pick(out, Store)
    for item in range(8):
        out += made.handle(Failed(3, job.job, item, FailureKind.IO))
    out += made.handle(Cleared(4))
    told = sum(len(c.locations) for c in out if isinstance(c, Drop))
    assert told == sum(made.snapshot()["counters"]["dropped"].values()) == 8


@pytest.mark.pain("D3")
def test_d3_the_watermark_stops_writes() -> None:
    """D3: when the filesystem has no room left above its watermark, nothing more is written."""
    made = brain(disk_objects=200)
    made.handle(Space(1, 1, 0))
    commands = store(made)
    assert not [c for c in commands if isinstance(c, Store)]
    made.handle(Space(2, 1, 10**9))
    again = store(made, chain_keys(SPACE.digest, [9] * CHUNK, CHUNK))
    assert len(pick(again, Store).items) == 1


def test_a_hole_left_by_a_failed_write_can_be_evicted() -> None:
    """A block that could not be written, above some that could, does not stay in the arena."""
    made = brain(disk_objects=200)
    job = pick(store(made), Store)
    made.handle(Failed(3, job.job, 0, FailureKind.IO))
    for item in range(1, 8):
        made.handle(Done(3, job.job, item, item, 12288, 1_000_000))
    many = chain_keys(SPACE.digest, [9] * (20 * CHUNK), CHUNK)
    granted = pick(made.handle(Offered(4, 1, "w", SPACE.digest, ROOT, many)), Granted)
    made.check()
    assert len(granted.chunks) == 20
    assert made.snapshot()["levels"]["tiers"]["disk"]["objects"] == 0


def test_a_hole_whose_successor_is_in_use_stays() -> None:
    """Nobody loses what a plan promised because a block before it has no copy on the disk."""
    made = brain(disk_objects=200)
    job = pick(store(made), Store)
    made.handle(Failed(3, job.job, 0, FailureKind.IO))
    for item in range(1, 8):
        made.handle(Done(3, job.job, item, item, 12288, 1_000_000))
    planned = ask(made)
    many = chain_keys(SPACE.digest, [9] * (20 * CHUNK), CHUNK)
    granted = pick(made.handle(Offered(4, 1, "w", SPACE.digest, ROOT, many)), Granted)
    made.check()
    assert len(granted.chunks) == 12
    assert len(pick(made.handle(Wanted(5, 1, planned.lease, 8)), Granted).chunks) == 8
