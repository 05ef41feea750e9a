"""The mover: carries out one rank's loads and stores on its own threads, and says how each ended.

It decides nothing: which chunks move, and what a failure means, is the adapter's business. A copy
counts only if its lease was good before and after it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from kvwise.engines.copying import Chunks, Copier, Fence, Planner
from kvwise.live.clock import deadline_after, now_ns, seconds_until
from kvwise.live.messages import Cache

LOAD_THREADS = 2
STORE_THREADS = 1
POLL_S = 0.0003
"""Pause between two looks at a load whose next chunk is not in the arena yet."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadJob:
    """Copy the chunks of a load lease to the device as they become ready.

    Attributes:
        deadline_ns: past it, what is not in the arena yet is not waited for.
    """

    lease: int
    chunks: Chunks
    deadline_ns: int


@dataclass(frozen=True, slots=True)
class StoreJob:
    """Copy chunks from the device into the pages of a store lease."""

    lease: int
    chunks: Chunks


@dataclass(slots=True)
class Load:
    """A load on its way. Written by one mover thread at a time; final once `ended` is set.

    Attributes:
        good: chunks, from the first, that are on the device.
        problem: why there are no more; empty when all went well.
        cancelled: set by whoever no longer wants it; the mover then ends it.
    """

    job: LoadJob
    started_ns: int
    good: int = 0
    copied_bytes: int = 0
    copy_ns: int = 0
    waited_ns: int = 0
    problem: str = ""
    cancelled: bool = False
    ended: threading.Event = field(default_factory=threading.Event)

    @property
    def chunks(self) -> int:
        """How many chunks there are to load."""
        return len(self.job.chunks.pages)

    def end(self, problem: str = "") -> None:
        """Nothing moves for this load any more."""
        if not self.ended.is_set():
            self.problem = problem
            self.waited_ns = now_ns() - self.started_ns
            self.ended.set()


@dataclass(frozen=True, slots=True)
class Stored:
    """How a store job ended: its first `good` chunks are in the arena, all or none."""

    lease: int
    good: int
    copied_bytes: int
    copy_ns: int


class Gate:
    """Counts the layers that have arrived; others wait for a layer or for the end."""

    def __init__(self) -> None:
        """Nothing has arrived yet."""
        self._changed = threading.Condition()
        self._passed = -1
        self._over = False

    def arrive(self, layer: int) -> None:
        """All bytes up to and including `layer` are there."""
        with self._changed:
            self._passed = layer
            self._changed.notify_all()

    def finish(self) -> None:
        """No more layers will arrive, whatever the reason."""
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def wait(self, layer: int, timeout_s: float) -> bool:
        """Wait until `layer` arrived or no more will; False when time ran out."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self._over or self._passed >= layer, timeout=timeout_s
            )

    def wait_finished(self, timeout_s: float) -> bool:
        """Wait until no more layers will arrive; False when time ran out."""
        with self._changed:
            return self._changed.wait_for(lambda: self._over, timeout=timeout_s)


class _Window:
    """The arena as it is mapped now, pinned for the copier; swapped when a daemon was replaced."""

    def __init__(self, cache: Cache, copier: Copier) -> None:
        """Nothing is pinned before the first copy."""
        self._cache = cache
        self._copier = copier
        self._lock = threading.Lock()
        self._view: memoryview | None = None
        self._memory: object = None
        self._address = 0
        self._holders = 0

    def progress(self, lease: int) -> tuple[int, bool]:
        """As `Cache.progress`, one caller at a time, since it may map a new arena."""
        with self._lock:
            return self._cache.progress(lease)

    @contextmanager
    def hold(self, lease: int) -> Iterator[int]:
        """Address of the arena of `lease`, valid inside; 0 when the lease is lost.

        It also counts as lost while another copy is under way in an older arena: that one cannot
        be unpinned yet, and a lost lease is only a miss.
        """
        with self._lock:
            address = self._take(lease)
            self._holders += bool(address)
        try:
            yield address
        finally:
            with self._lock:
                self._holders -= bool(address)

    def _take(self, lease: int) -> int:
        """Check the lease first and the mapping second: the check may replace the mapping.

        Mappings are told apart by identity: a later one may well lie at the address of an earlier.
        """
        _, failed = self._cache.progress(lease)
        if failed:
            return 0
        pages = self._cache.pages
        if pages.obj is not self._memory:
            if self._holders:
                return 0
            self._view, self._memory = pages, pages.obj
            self._address = self._cache.address
            self._copier.pin(self._address, pages.nbytes)
        return self._address


class Mover:
    """Threads that copy. Loads take turns, so that a slow one never holds up a quick one.

    Thread-safe. Its owner closes it, and only then the cache and the copier.
    """

    def __init__(self, cache: Cache, planner: Planner, copier: Copier) -> None:
        """Threads start with the first job."""
        self._planner = planner
        self._copier = copier
        self._window = _Window(cache, copier)
        self._loading = ThreadPoolExecutor(LOAD_THREADS, thread_name_prefix="kvwise-load")
        self._storing = ThreadPoolExecutor(STORE_THREADS, thread_name_prefix="kvwise-store")
        self._changed = threading.Condition()
        self._stores: dict[int, bool] = {}  # lease on its way -> whether its result counts
        self._stored: list[Stored] = []
        self._turns = 0
        self._closing = False

    def close(self, timeout_s: float) -> bool:
        """End all loads, finish the copies under way; False when one is stuck."""
        with self._changed:
            self._closing = True
        self._loading.shutdown(wait=False, cancel_futures=True)
        self._storing.shutdown(wait=False, cancel_futures=True)
        with self._changed:
            return self._changed.wait_for(
                lambda: not self._stores and not self._turns, timeout=timeout_s
            )

    # --- loads ---

    def load(self, job: LoadJob, fence: Fence) -> Load:
        """Start a load that goes on as chunks become ready; over when `Load.ended` is set."""
        load = Load(job, now_ns())
        self._go_on(partial(self._advance, load, fence), [load], Gate())
        return load

    def load_layered(self, jobs: Sequence[LoadJob], fence: Fence) -> tuple[list[Load], Gate]:
        """Start loads that are copied together, layer by layer, once all their chunks are ready."""
        loads, gate = [Load(job, now_ns()) for job in jobs], Gate()
        self._go_on(partial(self._advance_layered, loads, fence, gate), loads, gate)
        return loads, gate

    def _go_on(self, turn: Callable[[], bool], loads: Sequence[Load], gate: Gate) -> None:
        """Queue one turn of these loads; the turn answers whether there must be another."""
        with self._changed:
            if not self._closing:
                self._turns += 1
                future = self._loading.submit(turn)
                future.add_done_callback(partial(self._turned, turn, loads, gate))
                return
        _end_all(loads, gate, "closed")

    def _turned(
        self, turn: Callable[[], bool], loads: Sequence[Load], gate: Gate, future: Future[bool]
    ) -> None:
        """After a turn: another one, or the end; a turn that broke is an end as well."""
        with self._changed:
            self._turns -= 1
            self._changed.notify_all()
        if future.cancelled():
            _end_all(loads, gate, "closed")
        elif (error := future.exception()) is not None:
            _log.error("a load broke", exc_info=error)
            _end_all(loads, gate, f"{type(error).__name__}: {error}")
        elif future.result():
            self._go_on(turn, loads, gate)
        else:
            gate.finish()

    def _advance(self, load: Load, fence: Fence) -> bool:
        """Copy what became ready since the last turn."""
        ready = self._ready(load)
        if not load.ended.is_set() and ready > load.good:
            self._copy([load], slice(load.good, ready), fence, None)
        elif not load.ended.is_set():
            time.sleep(POLL_S)
        return not load.ended.is_set()

    def _advance_layered(self, loads: Sequence[Load], fence: Fence, gate: Gate) -> bool:
        """Wait until all chunks of all loads are ready, then copy them in one go."""
        waiting = [load for load in loads if self._ready(load) < load.chunks]
        alive = [load for load in loads if not load.ended.is_set()]
        if alive and any(load in alive for load in waiting):
            time.sleep(POLL_S)
            return True
        if alive:
            self._copy(alive, slice(None), fence, gate.arrive)
        return False

    def _ready(self, load: Load) -> int:
        """How many chunks are in the arena; ends the load if it must not go on."""
        ready, failed = self._window.progress(load.job.lease)
        if load.cancelled:
            load.end("cancelled")
        elif failed:
            load.end("lease ended")
        elif ready < load.chunks and now_ns() > load.job.deadline_ns:
            load.end("deadline")
        return ready

    def _copy(
        self,
        loads: Sequence[Load],
        part: slice,
        fence: Fence,
        on_layer: Callable[[int], None] | None,
    ) -> None:
        """Copy a part of the chunks of each load, then believe only leases that are still good.

        Without `on_layer` nobody waits for layers, and they may come in any order.
        """
        chunks = Chunks(
            np.concatenate([load.job.chunks.pages[part] for load in loads]),
            np.concatenate([load.job.chunks.blocks[part] for load in loads]),
        )
        begin = now_ns()
        with self._window.hold(loads[0].job.lease) as address:
            plan = self._planner.plan(chunks, address, whole=on_layer is None)
            if address:
                self._copier.load(plan, fence, on_layer or _nobody)
            failed = [self._window.progress(load.job.lease)[1] for load in loads]
        copy_ns = now_ns() - begin
        for load, lost in zip(loads, failed, strict=True):
            count = len(load.job.chunks.pages[part])
            load.copied_bytes += plan.total_bytes * count // len(chunks.pages)
            load.copy_ns += copy_ns * count // len(chunks.pages)
            if lost or not address:
                load.end("lease lost during the copy")
            else:
                load.good += count
                if load.good == load.chunks:
                    load.end()

    # --- stores ---

    def store(self, job: StoreJob, fence: Fence) -> None:
        """Start a store; it ends in exactly one `Stored`."""
        with self._changed:
            self._stores[job.lease] = True
            if not self._closing:
                future = self._storing.submit(self._store, job, fence)
                future.add_done_callback(partial(self._store_over, job))
                return
        self._report(job, None)

    def wait_stores(self, leases: Iterable[int], timeout_s: float) -> bool:
        """Wait until these stores no longer read the device.

        False when time ran out: the late ones go on, but will report that nothing is good.
        """
        wanted = set(leases)
        with self._changed:
            done = self._changed.wait_for(
                lambda: not wanted & self._stores.keys(), timeout=timeout_s
            )
            for lease in wanted & self._stores.keys():
                self._stores[lease] = False
        return done

    def take_stored(self) -> list[Stored]:
        """The stores that ended since the last call."""
        with self._changed:
            stored, self._stored = self._stored, []
        return stored

    def _store(self, job: StoreJob, fence: Fence) -> Stored:
        """Copy to the arena; good only if the pages were ours all the while."""
        begin = now_ns()
        with self._window.hold(job.lease) as address:
            plan = self._planner.plan(job.chunks, address, whole=True)
            if address:
                self._copier.store(plan, fence)
            _, failed = self._window.progress(job.lease)
        good = 0 if failed or not address else len(job.chunks.pages)
        return Stored(job.lease, good, plan.total_bytes, now_ns() - begin)

    def _store_over(self, job: StoreJob, future: Future[Stored]) -> None:
        """After a store, whatever became of it."""
        if future.cancelled():
            self._report(job, None)
        elif (error := future.exception()) is not None:
            _log.error("a store broke", exc_info=error)
            self._report(job, None)
        else:
            self._report(job, future.result())

    def _report(self, job: StoreJob, stored: Stored | None) -> None:
        """Put a result where `take_stored` finds it."""
        with self._changed:
            counts = self._stores.pop(job.lease)
            if stored is None or not counts:
                stored = Stored(job.lease, 0, 0, 0)
            self._stored.append(stored)
            self._changed.notify_all()


def wait_loads(loads: Iterable[Load], timeout_s: float) -> bool:
    """Wait until these loads ended; False when time ran out."""
    deadline_ns = deadline_after(timeout_s)
    return all(load.ended.wait(seconds_until(deadline_ns)) for load in loads)


def _end_all(loads: Iterable[Load], gate: Gate, problem: str) -> None:
    """End what has not ended yet, and let go whoever waits for it."""
    for load in loads:
        load.end(problem)
    gate.finish()


def _nobody(_layer: int) -> None:
    """Nobody waits for layers of a load that runs beside the engine."""
