"""Workers: the threads that carry out jobs on tiers. They decide the order and nothing else.

Reads go before drops, drops before writes. Of writes only so many are in flight, none starts while
a read waits, and none starts while space is being given back, so that a tier is never asked to
write into room that it does not have yet.

Here is the one place that catches every exception: whatever a tier raises becomes a `Failed` for
each item concerned, and a traceback in the log. Others have `attempt` for what may do the same.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from kvwise.core.timing import Timed
from kvwise.core.words import Done, Drop, Failed, Item, Load, Store
from kvwise.errors import FailureKind, TierError
from kvwise.live.clock import deadline_after, now_ns, seconds_until
from kvwise.live.refrain import Refrain
from kvwise.tiers.base import Placed, Record, Tier, Want
from kvwise.tiers.dram import Arena
from kvwise.units import MIB

ITEMS_WAITING_MAX = 1 << 17
"""Items that may wait for a thread; more fail at once. The arena's pages bound them long before."""

READ_BATCH_BYTES = 32 * MIB
WRITE_BATCH_BYTES = 8 * MIB
"""Bytes of one call to a tier: enough for large transfers, and soon over when a read waits."""

WAIT_S = 1.0
"""How long an idle thread sleeps before it looks again although nobody woke it."""

Outcome = Done | Failed
Report = Outcome | Timed
"""What a worker tells: what became of an item, or what the tier took for it all."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Batch:
    """Neighbouring items of one job; `first` is the number of the first of them."""

    job: Load | Store
    first: int
    items: tuple[Item, ...]


class Workers:
    """A fixed number of threads and the batches that wait for them.

    `report` is called from these threads with what became of items, never while a lock is held.
    """

    def __init__(
        self,
        tiers: Mapping[int, Tier],
        arena: Arena,
        report: Callable[[Load | Store, Sequence[Report]], None],
        *,
        threads: int,
    ) -> None:
        """Start `threads` threads; half of them, at least one, may write at a time."""
        self._tiers = tiers
        self._arena = arena
        self._report = report
        self._refrain = Refrain(_log)
        self._writing_max = max(1, threads // 2)
        self._wake = threading.Condition()
        self._reads: deque[_Batch] = deque()
        self._drops: deque[Drop] = deque()
        self._writes: deque[_Batch] = deque()
        self._items_waiting = 0
        self._writing = 0
        self._dropping = 0
        self._changes = 0
        self._unseen = 0
        self._closing = False
        self._threads = [
            threading.Thread(target=self._run, name=f"kvwise-worker-{n}", daemon=True)
            for n in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, command: Load | Store | Drop) -> list[Failed]:
        """Queue a command without waiting; the answer is what failed at once for lack of room.

        Work starts at the next `wake`, or when a thread comes by anyway.
        """
        with self._wake:
            self._changes += not isinstance(command, Load)
            if isinstance(command, Drop):
                self._drops.append(command)
                self._unseen += 1
                return []
            if self._closing or self._items_waiting + len(command.items) > ITEMS_WAITING_MAX:
                kind = FailureKind.CLOSED if self._closing else FailureKind.FULL
                return _failed(command, range(len(command.items)), kind)
            queue = self._reads if isinstance(command, Load) else self._writes
            batches = list(_batches(command))
            queue.extend(batches)
            self._items_waiting += len(command.items)
            self._unseen += len(batches)
        return []

    def wake(self) -> None:
        """Let threads look at what was submitted.

        Apart from `submit`, because a thread that wakes takes the interpreter: whoever asked for
        the work gets an answer first.
        """
        if self._unseen:
            with self._wake:
                self._wake.notify(self._unseen)
                self._unseen = 0

    def expire(self) -> list[Failed]:
        """Give up reads that waited beyond their deadline; the answer is what failed thereby."""
        now = now_ns()
        self._refrain.look()
        with self._wake:
            late = [batch for batch in self._reads if _is_late(batch, now)]
            if late:
                self._reads = deque(batch for batch in self._reads if not _is_late(batch, now))
                self._items_waiting -= sum(len(batch.items) for batch in late)
        return [outcome for batch in late for outcome in _all_failed(batch, FailureKind.TIMEOUT)]

    def settled(self) -> int | None:
        """A mark that changes with every write or drop; None while one waits or is under way.

        What a tier says of its room agrees with the brain's account only between two equal marks.
        """
        with self._wake:
            busy = self._writes or self._drops or self._writing or self._dropping
            return None if busy else self._changes

    @property
    def is_writing(self) -> bool:
        """Whether a tier is being written to."""
        return self._writing > 0

    def close(self, timeout_s: float) -> bool:
        """Finish what is in flight and every drop, fail what waits; False when a thread is stuck.

        A thread that hangs in a tier is left behind: it is a daemon thread.
        """
        with self._wake:
            self._closing = True
            left = [*self._reads, *self._writes]
            self._reads.clear()
            self._writes.clear()
            self._items_waiting = 0
            self._wake.notify_all()
        for batch in left:
            self._report(batch.job, _all_failed(batch, FailureKind.CLOSED))
        deadline_ns = deadline_after(timeout_s)
        for thread in self._threads:
            thread.join(seconds_until(deadline_ns))
        self._refrain.close()
        return not any(thread.is_alive() for thread in self._threads)

    # --- on the threads ---

    def _run(self) -> None:
        """Carry out one thing after another until closed; each item is reported exactly once."""
        while (work := self._next()) is not None:
            answered: set[int] = set()
            kind = FailureKind.IO
            error = attempt(partial(self._carry_out, work, answered))
            if isinstance(error, TierError):
                kind = error.kind
                text = f"a job on tier {_tier(work)} failed: {error}"
                self._refrain.warn((_tier(work), type(work), kind), text)
            elif error is not None:
                _log.error("a job on tier %d failed", _tier(work), exc_info=error)
            self._finished(work)
            if isinstance(work, _Batch) and len(answered) < len(work.items):
                lost = [failed for failed in _all_failed(work, kind) if failed.item not in answered]
                self._report(work.job, lost)

    def _carry_out(self, work: _Batch | Drop, answered: set[int]) -> None:
        """Do it and report; the numbers of items that were reported go into `answered`."""
        for job, outcomes in self._steps(work):
            answered.update(outcome.item for outcome in outcomes)
            self._report(job, outcomes)
        self._tell(work)

    def _tell(self, work: _Batch | Drop) -> None:
        """Report what the tier took for what it did."""
        if isinstance(work, _Batch):
            tier, now = work.job.tier, now_ns()
            timed = [
                Timed(now, tier, one.work, one.coding, one.size_bytes, one.elapsed_ns)
                for one in self._tiers[tier].spent()
            ]
            if timed:
                self._report(work.job, timed)

    def _next(self) -> _Batch | Drop | None:
        """What to do now; None when there will be nothing more."""
        with self._wake:
            while True:
                if self._reads:
                    return self._taken(self._reads.popleft())
                if self._drops:
                    self._dropping += 1
                    return self._drops.popleft()
                if self._writes and not self._dropping and self._writing < self._writing_max:
                    self._writing += 1
                    return self._taken(self._writes.popleft())
                if self._closing:
                    return None
                self._wake.wait(WAIT_S)

    def _taken(self, batch: _Batch) -> _Batch:
        """Count a batch as no longer waiting."""
        self._items_waiting -= len(batch.items)
        return batch

    def _finished(self, work: _Batch | Drop) -> None:
        """Let what had to wait for this start."""
        with self._wake:
            if isinstance(work, Drop):
                self._dropping -= 1
            elif isinstance(work.job, Store):
                self._writing -= 1
            self._wake.notify_all()

    def _steps(self, work: _Batch | Drop) -> Iterator[tuple[Load | Store, Sequence[Outcome]]]:
        """Do it; what became of items comes out as it is known."""
        if isinstance(work, Drop):
            pairs = zip(work.locations, work.stored_bytes, strict=True)
            self._tiers[work.tier].free([Placed(at, size) for at, size in pairs])
        elif isinstance(work.job, Store):
            yield work.job, self._store(work.job, work)
        elif _is_late(work, now_ns()):
            yield work.job, _all_failed(work, FailureKind.TIMEOUT)
        else:
            for outcome in self._load(work.job, work):
                yield work.job, [outcome]

    def _load(self, job: Load, batch: _Batch) -> Iterator[Outcome]:
        """Read a batch into the arena; one answer at a time, as they come."""
        wants = [
            Want(
                item.key,
                job.space,
                job.raw_bytes,
                item.location,
                item.stored_bytes,
                self._arena.buffers(item.pages, job.raw_bytes),
            )
            for item in batch.items
        ]
        before = now_ns()
        for index, error in self._tiers[job.tier].get(wants):
            after = now_ns()
            item = batch.first + index
            if error is None:
                yield Done(after, job.job, item, elapsed_ns=after - before)
            else:
                yield Failed(after, job.job, item, error.kind)
            before = after

    def _store(self, job: Store, batch: _Batch) -> list[Outcome]:
        """Write a batch from the arena."""
        objects = [
            (
                Record(item.key, item.parent, job.space, job.layout, job.raw_bytes, job.form),
                self._arena.buffers(item.pages, job.raw_bytes),
            )
            for item in batch.items
        ]
        before = now_ns()
        answers = self._tiers[job.tier].put(objects)
        after = now_ns()
        share = (after - before) // max(1, len(answers))
        outcomes: list[Outcome] = []
        for item, answer in enumerate(answers, batch.first):
            if isinstance(answer, Placed):
                done = Done(after, job.job, item, answer.location, answer.stored_bytes, share)
                outcomes.append(done)
            else:
                outcomes.append(Failed(after, job.job, item, answer.kind))
        return outcomes


def attempt(work: Callable[[], object]) -> Exception | None:
    """Do work that may fail in any way; what it failed with, if it did."""
    try:
        work()
    except Exception as error:
        return error
    return None


def _batches(job: Load | Store) -> Iterator[_Batch]:
    """Cut a job into batches of neighbouring items."""
    most_bytes = READ_BATCH_BYTES if isinstance(job, Load) else WRITE_BATCH_BYTES
    count = max(1, most_bytes // max(1, job.raw_bytes))
    for first in range(0, len(job.items), count):
        yield _Batch(job, first, job.items[first : first + count])


def _tier(work: _Batch | Drop) -> int:
    """The tier that work is for."""
    return work.tier if isinstance(work, Drop) else work.job.tier


def _is_late(batch: _Batch, now: int) -> bool:
    """Whether nobody waits for this read any more."""
    return isinstance(batch.job, Load) and now >= batch.job.deadline_ns


def _failed(job: Load | Store, items: Sequence[int], kind: FailureKind) -> list[Failed]:
    """A failure for each of these items."""
    now = now_ns()
    return [Failed(now, job.job, item, kind) for item in items]


def _all_failed(batch: _Batch, kind: FailureKind) -> list[Failed]:
    """A failure for each item of a batch."""
    return _failed(batch.job, range(batch.first, batch.first + len(batch.items)), kind)
