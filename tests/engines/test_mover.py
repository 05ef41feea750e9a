"""The mover: every job ends exactly once, and only believed copies count."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
import pytest

from kvwise.core.layout import Group, GroupKind, Layout
from kvwise.engines.copying import Chunks, CopyPlan, DeviceLayer, Planner
from kvwise.engines.host_copy import HostCopier
from kvwise.engines.mover import Load, LoadJob, Mover, Stored, StoreJob, wait_loads
from kvwise.live.clock import deadline_after
from kvwise.live.messages import Cache
from tests.live.support import eventually

LAYOUT = Layout(4, 4, (Group(GroupKind.FULL, (64, 64)),))
PAGE = 128


class Arena:
    """The part of a cache that a mover uses, with leases that a test can end."""

    def __init__(self) -> None:
        self.memory = np.arange(64 * PAGE, dtype=np.int64).astype(np.uint8)
        self.ready = 99
        self.failed: set[int] = set()
        self.looks = 0

    def progress(self, lease: int) -> tuple[int, bool]:
        """As a cache."""
        self.looks += 1
        return self.ready, lease in self.failed

    @property
    def pages(self) -> memoryview:
        """As a cache."""
        return self.memory.data

    @property
    def address(self) -> int:
        """As a cache."""
        return self.memory.ctypes.data


class Copies(HostCopier):
    """A host copier that a test can hold, break and watch."""

    def __init__(self) -> None:
        super().__init__()
        self.may = threading.Event()
        self.may.set()
        self.then: Callable[[], None] = lambda: None
        self.pinned: list[int] = []
        self.order: list[str] = []

    def pin(self, address: int, size_bytes: int) -> None:
        """Note it."""
        self.pinned.append(address)

    def load(self, plan: CopyPlan, fence: object, on_layer: Callable[[int], None]) -> None:
        """Copy when allowed."""
        self.order.append("load")
        assert self.may.wait(10)
        super().load(plan, fence, on_layer)
        self.then()

    def store(self, plan: CopyPlan, fence: object) -> None:
        """Copy when allowed."""
        self.order.append("store")
        assert self.may.wait(10)
        super().store(plan, fence)
        self.then()


class Bench:
    """A mover with everything around it."""

    def __init__(self) -> None:
        self.arena, self.copier = Arena(), Copies()
        self.device = np.zeros((2, 16, 64), dtype=np.uint8)
        layers = [DeviceLayer(0, self.device[n].ctypes.data, 64, 64) for n in range(2)]
        planner = Planner(LAYOUT, layers, rank=0, page_bytes=PAGE)
        self.mover = Mover(cast("Cache", self.arena), planner, self.copier)

    def load(self, lease: int = 1, *, chunks: int = 3, timeout_s: float = 10.0) -> Load:
        """Start a load of so many chunks into blocks 1, 2, ..."""
        return self.mover.load(self.job(lease, chunks=chunks, timeout_s=timeout_s), None)

    def job(self, lease: int = 1, *, chunks: int = 3, timeout_s: float = 10.0) -> LoadJob:
        """The job of such a load."""
        return LoadJob(lease, self.chunks(chunks), deadline_after(timeout_s))

    @staticmethod
    def chunks(count: int) -> Chunks:
        """Chunks in pages and blocks of the same numbers."""
        numbers = np.arange(1, count + 1).reshape(count, 1)
        return Chunks(numbers, numbers)

    def is_loaded(self, chunks: int) -> bool:
        """Whether the first chunks are on the device."""
        pages = self.arena.memory.reshape(64, 2, 64)
        return all(
            np.array_equal(self.device[layer, chunk], pages[chunk, layer])
            for chunk in range(1, chunks + 1)
            for layer in range(2)
        )

    def stored(self) -> Stored:
        """The one store that ended."""
        assert eventually(lambda: bool(self.mover._stored))
        (stored,) = self.mover.take_stored()
        return stored


@pytest.fixture
def bench() -> Iterator[Bench]:
    """A mover, closed afterwards."""
    made = Bench()
    yield made
    made.copier.may.set()
    assert made.mover.close(10)


def test_a_load_follows_what_is_ready(bench: Bench) -> None:
    """Chunks are copied as they enter the arena, and the load ends with the last one."""
    bench.arena.ready = 1
    load = bench.load()
    assert eventually(lambda: load.good == 1)
    assert bench.is_loaded(1)
    assert not load.ended.is_set()
    bench.arena.ready = 3
    assert wait_loads([load], 10)
    assert (load.good, load.problem, load.copied_bytes) == (3, "", 3 * 128)
    assert bench.is_loaded(3)


def test_a_slow_load_does_not_hold_up_others(bench: Bench) -> None:
    """More loads than threads wait for the disk, and one whose chunks are there goes through."""
    bench.arena.ready = 1
    slow = [bench.load(lease) for lease in range(1, 6)]
    quick = bench.load(9, chunks=1)
    assert wait_loads([quick], 10)
    assert quick.problem == ""
    assert not any(load.ended.is_set() for load in slow)
    bench.arena.ready = 3
    assert wait_loads(slow, 10)


def test_a_lease_that_ends_is_a_failure(bench: Bench) -> None:
    """Before the copy, or during it: the load says so, and what was good before stays counted."""
    bench.arena.failed.add(1)
    first = bench.load(1)
    assert wait_loads([first], 10)
    assert (first.good, first.problem) == (0, "lease ended")
    bench.copier.then = lambda: bench.arena.failed.add(2)
    second = bench.load(2)
    assert wait_loads([second], 10)
    assert (second.good, second.problem) == (0, "lease lost during the copy")


def test_a_load_does_not_wait_beyond_its_deadline(bench: Bench) -> None:
    """What is not in the arena in time will be computed."""
    bench.arena.ready = 1
    load = bench.load(timeout_s=0.05)
    assert wait_loads([load], 10)
    assert (load.good, load.problem) == (1, "deadline")


def test_a_load_can_be_cancelled(bench: Bench) -> None:
    """Nobody waits for it any more: it ends soon, in whatever state."""
    bench.arena.ready = 0
    load = bench.load()
    load.cancelled = True
    assert wait_loads([load], 10)
    assert load.problem == "cancelled"


def test_a_copier_that_breaks_ends_the_load(bench: Bench) -> None:
    """Whatever it raises becomes the load's problem, and the thread goes on."""

    def broken() -> None:
        raise ZeroDivisionError("oops")

    bench.copier.then = broken
    load = bench.load()
    assert wait_loads([load], 10)
    assert load.problem == "ZeroDivisionError: oops"
    bench.copier.then = lambda: None
    assert wait_loads([bench.load(2)], 10)


def test_layered_loads_arrive_layer_by_layer(bench: Bench) -> None:
    """Loads that go together are copied together, once all are ready; the gate opens by layers."""
    bench.arena.ready = 2
    loads, gate = bench.mover.load_layered([bench.job(1), bench.job(2, chunks=2)], None)
    assert not gate.wait(0, 0.02)
    bench.arena.ready = 3
    assert gate.wait(0, 10)
    assert gate.wait_finished(10)
    assert [(load.good, load.problem) for load in loads] == [(3, ""), (2, "")]
    assert bench.copier.order == ["load"]
    assert bench.is_loaded(3)


def test_a_layered_load_that_fails_leaves_the_others_alone(bench: Bench) -> None:
    """One lease ended before: the rest is copied, and nobody waits for ever."""
    bench.arena.failed.add(1)
    loads, gate = bench.mover.load_layered([bench.job(1), bench.job(2)], None)
    assert gate.wait_finished(10)
    assert [load.problem for load in loads] == ["lease ended", ""]


def test_a_layered_load_that_breaks_opens_the_gate(bench: Bench) -> None:
    """The engine's thread must not hang on a copy that raised."""

    def broken() -> None:
        raise OSError("gone")

    bench.copier.then = broken
    (load,), gate = bench.mover.load_layered([bench.job()], None)
    assert gate.wait_finished(10)
    assert load.problem == "OSError: gone"


def test_a_store_ends_once(bench: Bench) -> None:
    """Its bytes are in the arena, and all its chunks are good."""
    bench.device[:] = 7
    bench.mover.store(StoreJob(5, bench.chunks(2)), None)
    stored = bench.stored()
    assert (stored.lease, stored.good, stored.copied_bytes) == (5, 2, 256)
    assert (bench.arena.memory[PAGE : 3 * PAGE] == 7).all()
    assert bench.mover.take_stored() == []


@pytest.mark.pain("W12")
@pytest.mark.parametrize("when", ["before", "during"])
def test_a_store_into_pages_that_are_not_ours_is_not_good(bench: Bench, when: str) -> None:
    """If the lease is gone before the copy nothing is written; if later, nothing is believed."""
    if when == "before":
        bench.arena.failed.add(5)
    bench.copier.then = lambda: bench.arena.failed.add(5)
    bench.mover.store(StoreJob(5, bench.chunks(2)), None)
    assert bench.stored().good == 0
    assert bench.copier.order == ([] if when == "before" else ["store"])


@pytest.mark.pain("W12")
def test_late_stores_are_condemned(bench: Bench) -> None:
    """A barrier that runs out of time lets the engine go on; the store then counts for nothing."""
    bench.copier.may.clear()
    bench.mover.store(StoreJob(5, bench.chunks(2)), None)
    assert not bench.mover.wait_stores([5], 0.02)
    assert bench.mover.take_stored() == []
    bench.copier.may.set()
    assert bench.mover.wait_stores([5, 6], 10)
    assert bench.stored().good == 0


def test_a_store_that_breaks_is_reported(bench: Bench) -> None:
    """Whatever the copier raises, the lease is heard of again."""

    def broken() -> None:
        raise OSError("gone")

    bench.copier.then = broken
    bench.mover.store(StoreJob(5, bench.chunks(2)), None)
    assert bench.stored().good == 0


def test_a_replaced_arena_is_pinned_before_it_is_used(bench: Bench) -> None:
    """A daemon came back: the next copy goes to its arena, pinned anew."""
    assert wait_loads([bench.load(1)], 10)
    old = bench.arena.memory
    bench.arena.memory = np.full_like(old, 9)
    assert wait_loads([bench.load(2)], 10)
    assert bench.copier.pinned == [old.ctypes.data, bench.arena.memory.ctypes.data]
    assert (bench.device[:, 1:4] == 9).all()


def test_an_arena_at_the_address_of_an_earlier_one_is_pinned_anew(bench: Bench) -> None:
    """Other memory may be mapped where an arena was: what is pinned there is not that memory."""
    assert wait_loads([bench.load(1)], 10)
    bench.arena.memory = bench.arena.memory.view()
    assert wait_loads([bench.load(2)], 10)
    assert wait_loads([bench.load(3)], 10)
    assert bench.copier.pinned == [bench.arena.memory.ctypes.data] * 2


@pytest.mark.pain("C10")
def test_an_arena_is_not_replaced_under_a_copy(bench: Bench) -> None:
    """While a store still reads the old arena, a load of the new one is lost, not unpinned."""
    bench.copier.may.clear()
    bench.mover.store(StoreJob(5, bench.chunks(2)), None)
    assert eventually(lambda: bench.copier.order == ["store"])
    old, bench.arena.memory = bench.arena.memory, np.full_like(bench.arena.memory, 9)
    load = bench.load()
    assert wait_loads([load], 10)
    assert load.problem == "lease lost during the copy"
    assert bench.copier.pinned == [old.ctypes.data]
    bench.copier.may.set()
    assert bench.mover.wait_stores([5], 10)


def test_closing_ends_everything() -> None:
    """Loads under way end, stores finish, and later jobs end at once."""
    bench = Bench()
    bench.arena.ready = 0
    loads = [bench.load(lease) for lease in range(5)]
    assert bench.mover.close(10)
    assert wait_loads(loads, 10)
    assert {load.problem for load in loads} <= {"closed"}
    late = bench.load(9)
    assert (late.ended.is_set(), late.problem) == (True, "closed")
    _, gate = bench.mover.load_layered([bench.job(8)], None)
    assert gate.wait_finished(0)
    bench.mover.store(StoreJob(7, bench.chunks(1)), None)
    assert bench.stored().good == 0


def test_many_jobs_at_once_all_end(bench: Bench) -> None:
    """Loads and stores of several threads: each ends, exactly once."""
    seen: list[Any] = []

    def work(base: int) -> None:
        for lease in range(base, base + 20):
            seen.append(bench.load(lease))
            bench.mover.store(StoreJob(lease + 1000, bench.chunks(1)), None)

    threads = [threading.Thread(target=work, args=(n * 100,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert wait_loads(seen, 10)
    assert bench.mover.wait_stores(range(1000, 1300), 10)
    assert sorted(stored.lease for stored in bench.mover.take_stored()) == sorted(
        load.job.lease + 1000 for load in seen
    )
