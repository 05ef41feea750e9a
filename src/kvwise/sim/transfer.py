"""Transfer: one load or one store of one request, as the worker side of a connector does it.

It copies between arena and device in virtual time, and keeps the client's duties: never wait past
the deadline, look at the lease again after the copy, write into no page that is not granted. It
checks each byte that a request would go on with, and decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kvwise.core.words import Filled, Granted, Planned, Released
from kvwise.sim.faults import Fault, Injector
from kvwise.sim.machines import Link
from kvwise.sim.node import Node, Slot
from kvwise.sim.rules import require
from kvwise.sim.timeline import Act
from kvwise.units import NS_PER_MS

POLL_NS = NS_PER_MS // 10
"""How late a worker notices that the word of its lease changed."""

Later = Callable[[int, Act], None]


@dataclass(frozen=True, slots=True)
class Desk:
    """What a transfer needs of its engine.

    Attributes:
        later: has something happen after a delay, unless the engine dies; later if it is frozen.
        now_ns: time of the world.
        thaws_ns: when the engine thaws, or last thawed.
        inbound, outbound: the two directions of the host link.
        begun: told of a copy of some key that will take a time.
    """

    node: Node
    client: int
    generation: int
    later: Later
    now_ns: Callable[[], int]
    thaws_ns: Callable[[], int]
    injector: Injector
    inbound: Link
    outbound: Link
    raw_bytes: int
    begun: Callable[[bytes, int], None]

    @property
    def attached(self) -> bool:
        """Whether the daemon that this client talked to is still there."""
        return self.node.is_up and self.node.generation == self.generation


class LoadTransfer:
    """A load lease that is being read.

    `ended` is called once with the number of leading chunks that are on the device and true.
    """

    def __init__(
        self, desk: Desk, planned: Planned, granted: Granted, keys: list[bytes], ended: Act
    ) -> None:
        """Start; `keys` are those that were granted."""
        self.copied = 0
        self._desk = desk
        self._lease = planned.lease
        self._keys = keys
        self._pages = granted.pages
        self._ended = ended
        self._copying = self._over = self._given_up = False
        self._copy_ns = self._longest_ns = 0
        self._began_ns = desk.now_ns()
        self._deadline_ns = self._began_ns + planned.deadline_ns
        desk.later(POLL_NS, self._look)
        desk.later(planned.deadline_ns, self._overdue)

    def cancel(self) -> None:
        """The request is gone: give the lease back as soon as nothing is being copied."""
        self._given_up = True
        if not self._copying:
            self._finish(failed=True)

    # --- inside ---

    def _slot(self) -> Slot | None:
        """The word of this lease; None when it can no longer be believed."""
        if not self._desk.attached:
            return None
        slot = self._desk.node.slots.get(self._lease)
        return None if slot is None or slot.ended else slot

    def _look(self) -> None:
        """See how far the load is, and copy what is new."""
        if self._over or self._copying:
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
        if not self._over and not self._copying:
            self._look()

    def _copy(self, ready: int) -> None:
        """Copy chunks from the arena to the device."""
        desk, arena = self._desk, self._desk.node.arena
        self._copying = True
        each = len(self._pages) // len(self._keys)
        pages = self._pages[self.copied * each : ready * each]
        before, begin_ns = arena.changes(pages), desk.now_ns()
        finish_ns = desk.inbound.finish_ns((ready - self.copied) * desk.raw_bytes)

        def copied() -> None:
            self._copying = False
            took_ns = desk.now_ns() - begin_ns
            self._copy_ns += took_ns
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
        """Give the lease back and say how it went."""
        if self._over:
            return
        self._over = True
        desk, now_ns = self._desk, self._desk.now_ns()
        late_ns = now_ns - max(self._deadline_ns, desk.thaws_ns()) - self._longest_ns
        require("waits are bounded", (self._lease, late_ns), held=late_ns <= 2 * POLL_NS)
        if desk.attached:
            desk.node.handle(
                Released(
                    desk.node.clock_ns(),
                    desk.client,
                    self._lease,
                    copied_bytes=self.copied * desk.raw_bytes,
                    copy_ns=self._copy_ns,
                    waited_ns=now_ns - self._began_ns,
                    failed=failed,
                )
            )
        self._ended()


class StoreTransfer:
    """A store lease that is being written."""

    def __init__(self, desk: Desk, granted: Granted, keys: list[bytes]) -> None:
        """Start to copy; `keys` are those that were granted."""
        self._desk = desk
        self._lease = granted.lease
        self._keys = keys
        self._pages = granted.pages
        self._arena = desk.node.arena
        self._require_pages()
        self._arena.begin(self._pages)
        finish_ns = desk.outbound.finish_ns(len(keys) * desk.raw_bytes)
        desk.later(finish_ns - desk.now_ns(), self._copied)
        desk.begun(keys[0], finish_ns - desk.now_ns())

    def _require_pages(self) -> None:
        """A writer owns what it writes to, however long it slept."""
        mine = self._desk.node.ledger.may_write(self._lease, self._desk.client)
        require("a writer owns its pages", self._lease, held=mine)

    def _copied(self) -> None:
        """Say how many chunks are whole."""
        desk = self._desk
        if not desk.attached:
            return
        self._require_pages()
        good, name = len(self._keys), self._keys[0]
        if desk.injector.strikes(Fault.PARTIAL_FILL, name):
            good = desk.injector.dice(Fault.PARTIAL_FILL, name).below(good)
        each = len(self._pages) // len(self._keys)
        for place, key in enumerate(self._keys[:good]):
            self._arena.complete(self._pages[place * each : place * each + each], key)
        filled = Filled(desk.node.clock_ns(), desk.client, self._lease, good)
        desk.node.handle(filled)
        if desk.injector.strikes(Fault.STRAY_WORD, name):
            desk.node.handle(filled)
