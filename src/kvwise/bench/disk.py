"""Owns the measurement of the way to and from the disk tier, as the daemon's workers go it.

The arena, the worker threads and the tier are the product's, with checksums and the page cache
bypassed where the directory allows it. There is no brain: everything is written, then read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Self

import numpy as np
from numpy.typing import NDArray

from kvwise.bench.places import SetupError
from kvwise.bench.yardstick import Fio, gbps, pattern
from kvwise.codecs import frame
from kvwise.config import Disk
from kvwise.core.timing import Timed
from kvwise.core.words import Done, Failed, Item, Load, Store
from kvwise.live.clock import deadline_after, now_ns
from kvwise.live.workers import Workers
from kvwise.tiers.base import Placed
from kvwise.tiers.directio import Io
from kvwise.tiers.disk import READ_RUN_BYTES, WRITE_RUN_BYTES, DiskConfig, DiskTier
from kvwise.tiers.dram import Arena, ArenaShape
from kvwise.units import KIB, MIB

PAGE_BYTES = 128 * KIB
JOB_BYTES = 16 * MIB
"""What the brain has written under one command."""

ANSWER_S = 120.0
"""How long all answers of a pass may take before the bench gives up."""

_TIER = 1
_SPACE = b"bench".ljust(16, b"-")
Outcome = Done | Failed | Timed


class DiskPath:
    """Objects of one size in an arena of this process, a disk tier, and workers between them.

    A context manager; it leaves nothing in the folder.
    """

    def __init__(self, folder: Path, object_bytes: int, total_bytes: int) -> None:
        """Fill an arena with objects that differ in every word; `folder` becomes the tier's."""
        settings = Disk()
        self.object_bytes = object_bytes
        self.count = max(1, total_bytes // object_bytes)
        self.threads = settings.threads
        self._pages = -(-object_bytes // PAGE_BYTES)
        self._arena = Arena.create(ArenaShape.of(self.count * self._pages, PAGE_BYTES))
        self._arena.populate(0, self._arena.shape.page_count)  # as a node does, ahead of use
        self._words = np.frombuffer(self._arena.pages, np.uint64)
        self._words[:] = pattern(len(self._words), object_bytes // KIB)
        config = DiskConfig(
            (folder,),
            capacity_bytes=2 * self.count * frame.frame_bytes(object_bytes),
            min_free_bytes=0,
            segment_bytes=settings.segment,
            io=Io(settings.io),
            readers=settings.threads,
        )
        self._tier = DiskTier(config, clock_ns=now_ns)
        self._answers: SimpleQueue[Sequence[Outcome]] = SimpleQueue()
        self._workers = Workers(
            {_TIER: self._tier}, self._arena, self._report, threads=settings.threads
        )
        self._placed: dict[int, Placed] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._workers.close(ANSWER_S)
        self.free()
        self._tier.close()
        del self._words
        self._arena.close()

    @property
    def total_bytes(self) -> int:
        """Payload of all objects."""
        return self.count * self.object_bytes

    @property
    def io(self) -> Io:
        """How the folder's files are accessed."""
        return self._tier.io[0]

    @property
    def memory(self) -> str:
        """What kind of pages the arena has."""
        return self._arena.backing.value

    def writer(self, folder: Path) -> Fio:
        """The yardstick of `put`: one writer, as a segment has one at a time."""
        return self._fio(folder, 1, WRITE_RUN_BYTES)

    def reader(self, folder: Path) -> Fio:
        """The yardstick of `get`: as many readers as the workers."""
        return self._fio(folder, self.threads, READ_RUN_BYTES)

    def _fio(self, folder: Path, jobs: int, run_bytes: int) -> Fio:
        """Calls as long as the tier's runs of neighbours, and as many bytes."""
        framed = frame.frame_bytes(self.object_bytes)
        block_bytes = framed * -(-run_bytes // framed)
        blocks = max(1, self.total_bytes // jobs // block_bytes)
        return Fio(folder, block_bytes, jobs, blocks * block_bytes, direct=self.io is Io.DIRECT)

    def put(self) -> float:
        """GB/s from the arena into new segments."""
        self.free()
        took_s, done = self._carry_out(self._store, JOB_BYTES)
        self._placed = {n: Placed(one.location, one.stored_bytes) for n, one in done.items()}
        return gbps(self.total_bytes, took_s)

    def get(self) -> float:
        """GB/s from the segments into the arena, checksums verified."""
        took_s, _ = self._carry_out(self._load, self.total_bytes)
        return gbps(self.total_bytes, took_s)

    def verify(self) -> None:
        """Read everything into an empty arena and compare every word.

        Raises:
            SetupError: the tier gave back other bytes than it was given.
        """
        self._words[:] = 0
        self.get()
        used, expected = (
            self._objects(self._words),
            pattern(len(self._words), self.object_bytes // KIB),
        )
        if not np.array_equal(used, self._objects(expected)):
            raise SetupError("the disk tier gave back other bytes than it was given")

    def free(self) -> None:
        """Give up what the last pass wrote."""
        placed, self._placed = list(self._placed.values()), {}
        self._tier.free(placed)

    def _objects(self, words: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """The words of all objects, without what fills up their last pages."""
        return words.reshape(self.count, -1)[:, : self.object_bytes // 8]

    def _carry_out(
        self, command: Callable[[int, range], Load | Store], job_bytes: int
    ) -> tuple[float, dict[int, Done]]:
        """Submit commands for all objects and wait for every answer: seconds, and the answers."""
        each = max(1, job_bytes // self.object_bytes)
        firsts = range(0, self.count, each)
        commands = [
            command(job, range(first, min(first + each, self.count)))
            for job, first in enumerate(firsts)
        ]
        done: dict[int, Done] = {}
        started = time.perf_counter()
        for one in commands:
            self._workers.submit(one)
        self._workers.wake()
        while len(done) < self.count:
            try:
                outcomes = self._answers.get(timeout=ANSWER_S)
            except Empty:
                raise SetupError(f"the disk did not answer within {ANSWER_S:.0f} s") from None
            for outcome in outcomes:
                if isinstance(outcome, Timed):
                    continue
                if isinstance(outcome, Failed):
                    raise SetupError(f"the disk tier failed: {outcome.kind.value}")
                done[outcome.job * each + outcome.item] = outcome
        return time.perf_counter() - started, done

    def _report(self, job: Load | Store, outcomes: Sequence[Outcome]) -> None:
        """Called by worker threads."""
        del job
        self._answers.put(outcomes)

    def _item(self, number: int) -> Item:
        """One object, as a command names it."""
        placed = self._placed.get(number, Placed(0, 0))
        pages = tuple(range(number * self._pages, (number + 1) * self._pages))
        key = number.to_bytes(16, "little")
        return Item(key, bytes(16), placed.location, placed.stored_bytes, pages)

    def _store(self, job: int, numbers: range) -> Store:
        """Write these objects."""
        items = tuple(self._item(number) for number in numbers)
        return Store(job, _TIER, _SPACE, _SPACE, self.object_bytes, items)

    def _load(self, job: int, numbers: range) -> Load:
        """Read these objects."""
        items = tuple(self._item(number) for number in numbers)
        return Load(job, _TIER, _SPACE, self.object_bytes, items, deadline_after(ANSWER_S))
