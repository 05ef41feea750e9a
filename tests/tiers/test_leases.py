"""The lease table in front of the arena's pages: one writer, many readers. No pages are used."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwise.tiers.dram import Arena, ArenaShape, SlotState


@pytest.fixture
def arena() -> Iterator[Arena]:
    """A small arena."""
    arena = Arena.create(ArenaShape.of(16, 4096))
    yield arena
    arena.close()


def test_progress_follows_the_lease(arena: Arena) -> None:
    """A lease reads what was written last; failed and ended both read as failed."""
    assert arena.progress_read(5) == (0, True)
    for ready, state, expected in [
        (0, SlotState.ACTIVE, (0, False)),
        (3, SlotState.ACTIVE, (3, False)),
        (4, SlotState.FAILED, (4, True)),
        (4, SlotState.ENDED, (4, True)),
        (0, SlotState.FREE, (0, True)),
    ]:
        arena.progress_write(5, ready, state)
        assert arena.progress_read(5) == expected


def test_a_slot_has_one_lease(arena: Arena) -> None:
    """When two leases share a slot, the older one reads as failed."""
    slots = arena.shape.lease_slots
    arena.progress_write(5, 3, SlotState.ACTIVE)
    arena.progress_write(5 + slots, 1, SlotState.ACTIVE)

    assert arena.progress_read(5) == (0, True)
    assert arena.progress_read(5 + slots) == (1, False)
    assert arena.progress_read(5 + 2 * slots) == (0, True)


def test_largest_numbers_fit(arena: Arena) -> None:
    """Lease and ready are 32 bits each and do not run into each other."""
    most = 2**32 - 1
    arena.progress_write(most, most, SlotState.ACTIVE)

    assert arena.progress_read(most) == (most, False)


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(0, 9), st.sampled_from(SlotState))))
def test_table_against_a_dictionary(writes: list[tuple[int, int, SlotState]]) -> None:
    """After any writes, each lease reads its own last state, or failed when it lost its slot."""
    arena = Arena.create(ArenaShape(2 * 4096, 4096, 4096), huge_pages=False)
    slots = arena.shape.lease_slots
    model: dict[int, tuple[int, int, SlotState]] = {}
    for number, ready, state in writes:
        lease = number * (slots // 4)
        arena.progress_write(lease, ready, state)
        model[lease % slots] = lease, ready, state
    for number in range(1, 31):
        lease = number * (slots // 4)
        owner, ready, state = model.get(lease % slots, (0, 0, SlotState.FREE))
        expected = (ready, state is not SlotState.ACTIVE) if owner == lease else (0, True)

        assert arena.progress_read(lease) == expected
    arena.close()


def test_a_reader_never_sees_two_lives(arena: Arena) -> None:
    """While a slot passes from lease to lease, an ended lease never reads as alive again."""
    slots, stop = arena.shape.lease_slots, threading.Event()
    ended = [0]

    def write() -> None:
        for life in range(1, 20_000):
            lease = 5 + life * slots
            arena.progress_write(lease, 0, SlotState.ACTIVE)
            arena.progress_write(lease, 1, SlotState.ENDED)
            ended[0] = lease
        stop.set()

    writer = threading.Thread(target=write)
    writer.start()
    lies = 0
    while not stop.is_set():
        lease = ended[0]
        if lease and not arena.progress_read(lease)[1]:
            lies += 1
    writer.join(60)

    assert lies == 0
