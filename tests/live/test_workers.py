"""The workers: order, bounds, and that every item ends exactly once whatever a tier does."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pytest

from kvwise.core.timing import Timed
from kvwise.core.words import Done, Drop, Failed, Item, Load, Store, Why
from kvwise.errors import FailureKind, TierError
from kvwise.live import workers
from kvwise.live.clock import deadline_after
from kvwise.live.workers import Outcome, Report, Workers
from kvwise.tiers.base import Buffers, Found, Placed, Record, Spent, Want
from kvwise.tiers.dram import Arena, ArenaShape
from tests.live.support import PAGE, eventually

FAR_NS = 1 << 62


@dataclass
class StubTier:
    """A tier that notes its calls, does what it is told, and waits at a gate."""

    name: str = "stub"
    calls: list[str] = field(default_factory=list)
    gate: threading.Event = field(default_factory=threading.Event)
    fault: Callable[[str], None] | None = None
    forget: bool = False
    under_way: int = 0
    most_writes: int = 0
    used_bytes: int = 0
    free_bytes: int = 1 << 40
    down: Sequence[str] = ()
    timings: list[Spent] = field(default_factory=list)

    def _enter(self, call: str) -> None:
        self.calls.append(call)
        assert self.gate.wait(10)
        self._fail(call)

    def _fail(self, call: str) -> None:
        if self.fault is not None:
            self.fault(call)

    def put(self, objects: Sequence[tuple[Record, Buffers]]) -> list[Placed | TierError]:
        """Take objects; a key that begins with F is refused as full."""
        self.under_way += 1
        self.most_writes = max(self.most_writes, self.under_way)
        try:
            self._enter(f"put {len(objects)}")
        finally:
            self.under_way -= 1
        return [
            TierError(FailureKind.FULL, "full")
            if record.key.startswith(b"F")
            else Placed(number + 1, len(record.key))
            for number, (record, _) in enumerate(objects)
        ]

    def get(self, wants: Sequence[Want]) -> Iterator[tuple[int, TierError | None]]:
        """Give objects in turn; a key that begins with C is corrupt."""
        self._enter(f"get {len(wants)}")
        for index, want in enumerate(wants):
            if self.forget:
                return
            self._fail(f"item {index}")
            bad = want.key.startswith(b"C")
            yield index, TierError(FailureKind.CORRUPT, "bad") if bad else None

    def free(self, placed: Sequence[Placed]) -> None:
        """Note what was freed."""
        self._enter(f"free {len(placed)}")

    def scan(self) -> Iterator[Found]:
        """Nothing was here before."""
        return iter(())

    def spent(self) -> Sequence[Spent]:
        """What the test laid ready, told once."""
        told, self.timings = self.timings, []
        return told

    def close(self) -> None:
        """Nothing to give up."""


class Bench:
    """Workers over one stub tier, and everything they reported."""

    def __init__(self, *, threads: int = 1) -> None:
        self.tier = StubTier()
        self.outcomes: list[Outcome] = []
        self.timed: list[Timed] = []
        self.arena = Arena.create(ArenaShape.of(64, PAGE), huge_pages=False)
        self.workers = Workers({1: self.tier}, self.arena, self._report, threads=threads)

    def _report(self, _job: Load | Store, outcomes: Sequence[Report]) -> None:
        for outcome in outcomes:
            if isinstance(outcome, Timed):
                self.timed.append(outcome)
            else:
                self.outcomes.append(outcome)

    def submit(self, command: Load | Store | Drop) -> list[Failed]:
        """Submit and wake."""
        refused = self.workers.submit(command)
        self.workers.wake()
        return refused

    def ended(self, count: int) -> bool:
        """Whether so many items end in time."""
        return eventually(lambda: len(self.outcomes) >= count)

    def close(self) -> None:
        """Let everything through and stop."""
        self.tier.gate.set()
        self.workers.close(10)
        self.arena.close()


@pytest.fixture
def bench() -> Iterator[Bench]:
    """One thread over a stub tier whose gate is shut."""
    bench = Bench()
    yield bench
    bench.close()


def items(keys: str) -> tuple[Item, ...]:
    """One item for each letter, each with its own page."""
    return tuple(
        Item(letter.encode() * 16, b"\0" * 16, 1, 100, (page,)) for page, letter in enumerate(keys)
    )


def load(job: int, keys: str, deadline_ns: int = FAR_NS) -> Load:
    """A read."""
    return Load(job, 1, b"s" * 16, 1000, items(keys), deadline_ns)


def store(job: int, keys: str) -> Store:
    """A write."""
    return Store(job, 1, b"s" * 16, b"l" * 16, 1000, items(keys))


def drop(count: int) -> Drop:
    """Space to give back."""
    return Drop(1, b"k" * 16 * count, (7,) * count, (100,) * count, Why.EVICTED)


def busy(bench: Bench) -> None:
    """Give the thread something that it hangs on, so that what follows queues up."""
    bench.submit(load(0, "a"))
    assert eventually(lambda: bench.tier.calls == ["get 1"])


def test_reads_go_before_drops_before_writes(bench: Bench) -> None:
    """Whatever the order of arrival."""
    busy(bench)
    bench.submit(store(1, "a"))
    bench.submit(drop(3))
    bench.submit(load(2, "ab"))

    bench.tier.gate.set()

    assert bench.ended(4)
    assert bench.tier.calls[1:] == ["get 2", "free 3", "put 1"]


def test_no_more_writes_than_allowed() -> None:
    """Half of the threads write at a time, the others stay free for reads."""
    bench = Bench(threads=4)
    for job in range(8):
        bench.submit(store(job, "a"))
    assert eventually(lambda: len(bench.tier.calls) == 2)
    bench.submit(load(100, "a"))
    assert eventually(lambda: "get 1" in bench.tier.calls)

    bench.tier.gate.set()

    assert bench.ended(9)
    assert bench.tier.most_writes == 2
    bench.close()


def test_no_write_starts_while_space_is_given_back() -> None:
    """A write into room that is not free yet would be refused by the tier."""
    bench = Bench(threads=4)
    bench.submit(drop(1))
    assert eventually(lambda: bench.tier.calls == ["free 1"])
    bench.submit(store(1, "a"))
    assert not eventually(lambda: len(bench.tier.calls) > 1, 0.1)

    bench.tier.gate.set()

    assert bench.ended(1)
    bench.close()


def test_a_job_is_cut_into_batches(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long write leaves gaps for reads; items keep their numbers."""
    monkeypatch.setattr(workers, "WRITE_BATCH_BYTES", 2000)
    bench.submit(store(1, "abcde"))
    bench.tier.gate.set()

    assert bench.ended(5)
    assert bench.tier.calls == ["put 2", "put 2", "put 1"]
    assert sorted(outcome.item for outcome in bench.outcomes) == [0, 1, 2, 3, 4]


def test_answers_become_outcomes(bench: Bench) -> None:
    """What a tier says of each item is told of that item, failures with their kind."""
    bench.tier.gate.set()
    bench.submit(load(1, "aCb"))
    bench.submit(store(2, "Fa"))
    assert bench.ended(5)

    kinds = {
        (outcome.job, outcome.item): outcome.kind if isinstance(outcome, Failed) else "done"
        for outcome in bench.outcomes
    }
    assert kinds == {
        (1, 0): "done",
        (1, 1): FailureKind.CORRUPT,
        (1, 2): "done",
        (2, 0): FailureKind.FULL,
        (2, 1): "done",
    }
    stored = next(o for o in bench.outcomes if isinstance(o, Done) and o.job == 2)
    assert (stored.location, stored.stored_bytes) == (2, 16)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RuntimeError("bug"), FailureKind.IO),
        (OSError(5, "gone"), FailureKind.IO),
        (TierError(FailureKind.CLOSED, "closed"), FailureKind.CLOSED),
    ],
)
def test_whatever_a_tier_raises_becomes_a_failure(
    bench: Bench, error: Exception, kind: FailureKind, caplog: pytest.LogCaptureFixture
) -> None:
    """Items that ended stay ended, the others fail, a bug leaves a traceback, the thread lives."""
    bench.tier.gate.set()

    def fail(call: str) -> None:
        if call in {"item 2", "put 2"}:
            raise error

    bench.tier.fault = fail
    with caplog.at_level(logging.WARNING):
        bench.submit(load(1, "abcd"))
        bench.submit(store(2, "ab"))
        assert bench.ended(6)

    failed = {(o.job, o.item, o.kind) for o in bench.outcomes if isinstance(o, Failed)}
    assert failed == {(1, 2, kind), (1, 3, kind), (2, 0, kind), (2, 1, kind)}
    assert ("Traceback" in caplog.text) == (not isinstance(error, TierError))
    bench.tier.fault = None
    bench.submit(load(3, "a"))
    assert bench.ended(7)


def test_a_failed_drop_does_not_stop_the_thread(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """Space that cannot be given back is logged in a line; work goes on."""
    bench.tier.gate.set()

    def fail(call: str) -> None:
        if call.startswith("free"):
            raise TierError(FailureKind.IO, "no")

    bench.tier.fault = fail
    bench.submit(drop(1))
    bench.submit(store(1, "a"))

    assert bench.ended(1)
    assert "a job on tier 1 failed: no" in caplog.messages
    assert "Traceback" not in caplog.text


def test_many_failed_drops_are_two_lines(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """A line for each of a million records would fill a disk: the first, then a count."""
    bench.tier.gate.set()

    def fail(call: str) -> None:
        raise TierError(FailureKind.IO, f"no {call}")

    bench.tier.fault = fail
    for number in range(1, 41):
        bench.submit(drop(number))
    bench.close()

    assert caplog.messages == [
        "a job on tier 1 failed: no free 1",
        "a job on tier 1 failed: no free 40 (the last of 39 like it)",
    ]


def test_items_that_a_tier_forgets_fail(bench: Bench) -> None:
    """A tier that does not answer for an item has lost it."""
    bench.tier.forget = True
    bench.tier.gate.set()
    bench.submit(load(1, "ab"))

    assert bench.ended(2)
    assert all(isinstance(outcome, Failed) for outcome in bench.outcomes)


def test_reads_past_their_deadline_are_given_up(bench: Bench) -> None:
    """A read that waited too long fails with a timeout, queued or just taken, and never starts."""
    busy(bench)
    bench.submit(load(1, "ab", deadline_after(0.02)))
    bench.submit(load(2, "a"))
    late: list[Failed] = []

    def expires() -> bool:
        late.extend(bench.workers.expire())
        return bool(late)

    assert eventually(expires)
    bench.submit(load(3, "a", deadline_ns=0))
    bench.tier.gate.set()

    assert [(f.job, f.item, f.kind) for f in late] == [
        (1, 0, FailureKind.TIMEOUT),
        (1, 1, FailureKind.TIMEOUT),
    ]
    assert bench.ended(3)
    assert Failed in {type(o) for o in bench.outcomes if o.job == 3}
    assert bench.tier.calls == ["get 1", "get 1"]


def test_the_queue_is_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the bound items fail at once; drops are never refused."""
    monkeypatch.setattr(workers, "ITEMS_WAITING_MAX", 3)
    busy(bench)
    assert bench.submit(load(1, "abc")) == []

    refused = bench.submit(store(2, "ab"))

    assert [(f.item, f.kind) for f in refused] == [(0, FailureKind.FULL), (1, FailureKind.FULL)]
    assert bench.submit(drop(100)) == []


def test_closing_fails_what_waits_and_finishes_what_runs() -> None:
    """Every item ends; what comes later is refused; drops are carried out."""
    bench = Bench()
    busy(bench)
    bench.submit(load(1, "ab"))
    bench.submit(store(2, "a"))
    bench.submit(drop(2))
    closer = threading.Thread(target=bench.workers.close, args=(10,))
    closer.start()
    assert bench.ended(3)
    assert all(o.kind is FailureKind.CLOSED for o in bench.outcomes if isinstance(o, Failed))

    bench.tier.gate.set()
    closer.join()

    assert bench.ended(4)
    assert bench.tier.calls == ["get 1", "free 2"]
    assert [f.kind for f in bench.submit(load(3, "a"))] == [FailureKind.CLOSED]
    bench.close()


def test_a_stuck_thread_does_not_hold_up_closing(bench: Bench) -> None:
    """Closing waits as long as it was told and says that somebody was left behind."""
    busy(bench)

    assert not bench.workers.close(0.05)
