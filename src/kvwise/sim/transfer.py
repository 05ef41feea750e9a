"""Transfer: one load or one store of one request, as the worker side of a connector does it.

Each rank copies its part between arena and device in virtual time, and keeps the client's duties:
never wait past the deadline, look at the lease again after the copy, write into no page that is not
granted. It checks each byte that a request would go on with, and decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from kvwise.core.layout import Layout
from kvwise.core.words import Filled, Granted, Planned, Released
from kvwise.sim.faults import Fault, Injector
from kvwise.sim.machines import Link
from kvwise.sim.node import Node, Slot
from kvwise.sim.rules import require
from kvwise.sim.timeline import Act
from kvwise.units import NS_PER_MS

POLL_NS = NS_PER_MS // 10
"""How late a worker notices that the word of its lease changed."""

LAG_MS = 150.0
"""Mean time that a rank lags, when it does."""

Later = Callable[[int, Act], None]


@dataclass(frozen=True, slots=True)
class Lane:
    """Both directions of the link between the host and the device of one rank."""

    inbound: Link
    outbound: Link


@dataclass(frozen=True, slots=True)
class Desk:
    """What a transfer needs of its engine.

    Attributes:
        later: has something happen after a delay, unless the engine dies; later if it is frozen.
        now_ns: time of the world.
        thaws_ns: when the engine thaws, or last thawed.
        lanes: one for each rank.
        begun: told of a copy of some key that will take a time.
    """

    node: Node
    client: int
    generation: int
    later: Later
    now_ns: Callable[[], int]
    thaws_ns: Callable[[], int]
    injector: Injector
    lanes: tuple[Lane, ...]
    layout: Layout
    begun: Callable[[bytes, int], None]

    @property
    def attached(self) -> bool:
        """Whether the daemon that this client talked to is still there."""
        return self.node.is_up and self.node.generation == self.generation

    def lag_ns(self, rank: int, key: bytes) -> int:
        """How much later than the first rank another one begins: as a rule not at all."""
        name = key + bytes([rank])
        if not rank or not self.injector.strikes(Fault.RANK_LAGS, name):
            return 0
        return int(self.injector.dice(Fault.RANK_LAGS, name).wait(LAG_MS) * NS_PER_MS)


class _Reader:
    """One rank's part of a load. `ended` is called once."""

    def __init__(
        self, desk: Desk, rank: int, planned: Planned, granted: Granted, keys: list[bytes]
    ) -> None:
        """Be ready; `keys` are those that were granted."""
        self.copied = self.copy_ns = 0
        self.failed = self.over = False
        self.ended: Act = lambda: None
        self._desk = desk
        self._rank = rank
        self._lease = planned.lease
        self._keys = keys
        self._pages = granted.pages
        self._copying = self._given_up = False
        self._longest_ns = 0
        self._deadline_ns = desk.now_ns() + planned.deadline_ns
        desk.later(POLL_NS + desk.lag_ns(rank, keys[0]), self._look)
        desk.later(planned.deadline_ns, self._overdue)

    def cancel(self) -> None:
        """The request is gone: end as soon as nothing is being copied."""
        self._given_up = True
        if not self._copying:
            self._finish(failed=True)

    def _slot(self) -> Slot | None:
        """The word of this lease; None when it can no longer be believed."""
        if not self._desk.attached:
            return None
        slot = self._desk.node.slots.get(self._lease)
        return None if slot is None or slot.ended else slot

    def _look(self) -> None:
        """See how far the load is, and copy what is new."""
        if self.over or self._copying:
            return
        slot = self._slot()
        if slot is None:
            self._finish(failed=True)
        elif slot.ready > self.copied and not self._given_up:
            self._copy(slot.ready)
        elif self.copied == len(self._keys):
            self._finish(failed=False)
        elif slot.failed or self._given_up or self._desk.now_ns() >= self._deadline_ns:
            self._finish(failed=True)
        else:
            self._desk.node.watch(self._lease, lambda: self._desk.later(POLL_NS, self._look))

    def _overdue(self) -> None:
        """The deadline passed; a copy under way is finished first."""
        if not self.over and not self._copying:
            self._look()

    def _copy(self, ready: int) -> None:
        """Copy chunks from the arena to the device."""
        desk, arena = self._desk, self._desk.node.arena
        self._copying = True
        each = len(self._pages) // len(self._keys)
        pages = self._pages[self.copied * each : ready * each]
        before, begin_ns = arena.changes(pages), desk.now_ns()
        size_bytes = (ready - self.copied) * desk.layout.rank_bytes
        link = desk.lanes[self._rank].inbound
        finish_ns = link.finish_ns(size_bytes)

        def copied() -> None:
            self._copying = False
            took_ns = desk.now_ns() - begin_ns
            self.copy_ns += link.took_ns(size_bytes)
            self._longest_ns = max(self._longest_ns, took_ns)
            if self._slot() is None:
                self._finish(failed=True)
                return
            for place in range(self.copied, ready):
                mine = self._pages[place * each : place * each + each]
                right = arena.holds(mine, self._keys[place])
                require("every byte read is the right one", (self._lease, place), held=right)
            same = arena.changes(pages) == before
            require("nobody writes what is being read", (self._lease, pages), held=same)
            self.copied = ready
            self._look()

        desk.later(finish_ns - begin_ns, copied)
        desk.begun(self._keys[self.copied], finish_ns - begin_ns)

    def _finish(self, *, failed: bool) -> None:
        """This rank has what it gets."""
        if self.over:
            return
        self.over, self.failed = True, failed
        desk = self._desk
        late_ns = desk.now_ns() - max(self._deadline_ns, desk.thaws_ns()) - self._longest_ns
        require("waits are bounded", (self._lease, late_ns), held=late_ns <= 2 * POLL_NS)
        self.ended()


class LoadTransfer:
    """A load lease that is being read by every rank.

    `ended` is called once, when the last rank has ended and the lease is given back.
    """

    def __init__(
        self, desk: Desk, planned: Planned, granted: Granted, keys: list[bytes], ended: Act
    ) -> None:
        """Start; `keys` are those that were granted."""
        self._desk = desk
        self._lease = planned.lease
        self._ended = ended
        self._began_ns = desk.now_ns()
        ranks = range(len(desk.lanes))
        self._readers = [_Reader(desk, rank, planned, granted, keys) for rank in ranks]
        for reader in self._readers:
            reader.ended = self._rank_ended

    @property
    def copied(self) -> int:
        """Leading chunks that are on the device and true: of every rank's part."""
        return min(reader.copied for reader in self._readers)

    def cancel(self) -> None:
        """The request is gone: give the lease back as soon as nothing is being copied."""
        for reader in self._readers:
            reader.cancel()

    def _rank_ended(self) -> None:
        """When it was the last one: give the lease back and say how it went."""
        if not all(reader.over for reader in self._readers):
            return
        desk = self._desk
        if desk.attached:
            desk.node.handle(
                Released(
                    desk.node.clock_ns(),
                    desk.client,
                    self._lease,
                    copied_bytes=self.copied * desk.layout.object_bytes,
                    copy_ns=max(reader.copy_ns for reader in self._readers),
                    waited_ns=desk.now_ns() - self._began_ns,
                    failed=any(reader.failed for reader in self._readers),
                )
            )
        self._ended()


class StoreTransfer:
    """A store lease that is being written: every rank fills its part of every object."""

    def __init__(self, desk: Desk, granted: Granted, keys: list[bytes]) -> None:
        """Start to copy; `keys` are those that were granted."""
        self._desk = desk
        self._lease = granted.lease
        self._keys = keys
        self._pages = granted.pages
        self._arena = desk.node.arena
        self._good = len(keys)
        self._left = len(desk.lanes)
        for rank in range(len(desk.lanes)):
            lag_ns = desk.lag_ns(rank, keys[0])
            if lag_ns:
                desk.later(lag_ns, partial(self._begin, rank))
            else:
                self._begin(rank)

    def _begin(self, rank: int) -> None:
        """A rank starts to write its part."""
        desk = self._desk
        if not desk.attached:
            return
        self._require_pages()
        self._arena.begin(self._pages)
        size_bytes = len(self._keys) * desk.layout.rank_bytes
        took_ns = desk.lanes[rank].outbound.finish_ns(size_bytes) - desk.now_ns()
        desk.later(took_ns, partial(self._copied, rank))
        desk.begun(self._keys[0], took_ns)

    def _require_pages(self) -> None:
        """A writer owns what it writes to, however long it slept."""
        mine = self._desk.node.ledger.may_write(self._lease, self._desk.client)
        require("a writer owns its pages", self._lease, held=mine)

    def _copied(self, rank: int) -> None:
        """A rank wrote its part; after the last one say how many chunks are whole."""
        desk = self._desk
        if not desk.attached:
            return
        self._require_pages()
        name = self._keys[0] + bytes([rank])
        if desk.injector.strikes(Fault.PARTIAL_FILL, name):
            whole = desk.injector.dice(Fault.PARTIAL_FILL, name).below(len(self._keys))
            self._good = min(self._good, whole)
        self._left -= 1
        if self._left:
            return
        each = len(self._pages) // len(self._keys)
        for place, key in enumerate(self._keys[: self._good]):
            self._arena.complete(self._pages[place * each : place * each + each], key)
        filled = Filled(desk.node.clock_ns(), desk.client, self._lease, self._good)
        desk.node.handle(filled)
        if desk.injector.strikes(Fault.STRAY_WORD, name):
            desk.node.handle(filled)
