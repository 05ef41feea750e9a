"""Canaries: bugs to plant, in the brain or a client, one at a time. None may be missed.

Some of them were real once: the simulator found them, and they must never come back unseen.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from kvwise.core.blocks import Blocks
from kvwise.core.brain import Brain
from kvwise.core.govern import Governor
from kvwise.core.index import NONE
from kvwise.core.keep import Keep
from kvwise.core.layout import Layout
from kvwise.core.loads import LoadJob, LoadLease, Loads
from kvwise.core.ranked import Ranked
from kvwise.core.shelf import State
from kvwise.core.stores import StoreJob, Stores
from kvwise.core.words import (
    DRAM,
    Command,
    Done,
    Drop,
    Event,
    Failed,
    Progress,
    Released,
    Tick,
    Why,
)
from kvwise.errors import FailureKind
from kvwise.sim.scenario import LARGE
from kvwise.sim.transfer import StoreTransfer

Patch = pytest.MonkeyPatch


def evict_pinned(patch: Patch) -> None:
    """Eviction forgets to look at pins."""

    def evict(self: Blocks, tier: int, units: int) -> bool:
        shelf = self.shelves[tier]
        while (row := shelf.policy.propose()) != NONE:
            shelf.policy.accept()
            if shelf.state[row] == State.READY and not shelf.kids[row]:
                pins, self.index.pins[row] = self.index.pins[row], 0
                self._evict(tier, row, 1)
                self.index.pins[row] = pins
                return True
        return False

    patch.setattr(Blocks, "evict", evict)


def arriving_is_ready(patch: Patch) -> None:
    """A block that is still being read counts as arrived."""

    def advance(self: Loads, lease: LoadLease) -> None:
        lease.ready = len(lease.rows)
        self._world.out.append(Progress(lease.number, lease.ready, lease.failed))

    patch.setattr(Loads, "_advance", advance)


def leak_pages(patch: Patch) -> None:
    """A failed read keeps its pages."""

    def cancel(self: Blocks, tier: int, row: int, why: Why) -> None:
        pass

    patch.setattr(Blocks, "cancel", cancel)


def keep_pin(patch: Patch) -> None:
    """A failed read keeps the pin of its job."""
    real = Loads._arrived

    def arrived(self: Loads, job: LoadJob, item: int, *, failed: bool) -> None:
        if failed:
            self._world.blocks.pin(job.rows[item])
        real(self, job, item, failed=failed)

    patch.setattr(Loads, "_arrived", arrived)


def prefix_first(patch: Patch) -> None:
    """Eviction takes a prefix from under its suffix."""

    def evict(self: Blocks, tier: int, units: int) -> bool:
        shelf = self.shelves[tier]
        for row in range(self.index.capacity):
            if shelf.state[row] == State.READY and not self.index.pins[row]:
                self._clear(tier, (row,), Why.EVICTED)
                return True
        return False

    patch.setattr(Blocks, "evict", evict)


def keep_corrupt(patch: Patch) -> None:
    """A corrupt record stays in the index but its space is given back."""

    def lose(self: Blocks, tier: int, row: int, why: Why) -> None:
        if self.shelves[tier].state[row] == State.READY:
            self._clear(tier, (row,), why)
            self.shelves[tier].state[row] = State.READY

    patch.setattr(Blocks, "lose", lose)


def store_lease_expires(patch: Patch) -> None:
    """Pages of a writer that seems to sleep are taken from it."""
    real = Brain.handle

    def handle(self: Brain, event: Event) -> list[Command]:
        if isinstance(event, Tick):
            for lease in list(self._stores.leases.values()):
                self._stores._close(lease, 0)
        return real(self, event)

    patch.setattr(Brain, "handle", handle)


def dead_keep_leases(patch: Patch) -> None:
    """Nobody gives back what a dead client held."""

    def left(self: Loads, client: int) -> None:
        pass

    patch.setattr(Loads, "left", left)


def silent_end(patch: Patch) -> None:
    """A lease that expires is not told to end: its reader goes on in pages of others."""

    def expire(self: Loads) -> None:
        for lease in list(self.leases.values()):
            if lease.expires_ns <= self._world.now_ns:
                del self.leases[lease.number]
                self._lease_of.pop((lease.client, lease.request), None)
                for row in lease.rows:
                    self._world.blocks.unpin(row)

    patch.setattr(Loads, "expire", expire)


def second_record_stays(patch: Patch) -> None:
    """Of two records of one block that a restart finds, nobody gives the second back."""
    real = Brain.handle

    def handle(self: Brain, event: Event) -> list[Command]:
        commands = real(self, event)
        return [c for c in commands if not (isinstance(c, Drop) and c.why is Why.PRESENT)]

    patch.setattr(Brain, "handle", handle)


def budget_ignored(patch: Patch) -> None:
    """Writes are not charged to the drive's budget."""

    def spend(self: Governor, size_bytes: int) -> None:
        pass

    patch.setattr(Governor, "spend", spend)


def drops_come_last(patch: Patch) -> None:
    """Found by the simulator: a write is commanded before the drop that makes room for it."""
    real = Brain.handle

    def handle(self: Brain, event: Event) -> list[Command]:
        commands = real(self, event)
        return sorted(commands, key=lambda command: isinstance(command, Drop))

    patch.setattr(Brain, "handle", handle)


def doomed_never_fails(patch: Patch) -> None:
    """Found by the simulator: who waits for a block cleared meanwhile waits until its deadline."""
    real = Loads._arrived

    def done(self: Loads, job: LoadJob, event: Done) -> None:
        row = job.rows[event.item]
        self._world.blocks.finish(0, row)
        self._world.tally.read_bytes[self._world.name(job.tier)] += job.raw_bytes
        real(self, job, event.item, failed=False)

    patch.setattr(Loads, "done", done)


def whole_plan_is_hit(patch: Patch) -> None:
    """Found by the simulator: an engine that wants less than was promised hits all of it."""
    real = Loads._account

    def account(self: Loads, lease: LoadLease, event: Released) -> None:
        real(self, lease, event)
        decision = self.records.find(lease.client, lease.request)
        if decision is not None and lease.wanted and not event.failed:
            for name, tokens in decision.tiers.items():
                self._world.tally.hit_tokens[name] += tokens
            for name, tokens in self._tokens(
                lease.tiers, self._world.joined(lease.space.digest)[1], lease.skip_tokens
            ).items():
                self._world.tally.hit_tokens[name] -= tokens

    patch.setattr(Loads, "_account", account)


def full_is_forgotten(patch: Patch) -> None:
    """Found by the simulator: a tier that said it is full is asked again at once."""
    real = Stores.failed

    def failed(self: Stores, job: StoreJob, event: Failed) -> None:
        shelf = self._world.blocks.shelves[job.tier]
        real(self, job, event)
        if event.kind is FailureKind.FULL:
            shelf.free_hint_bytes = None

    patch.setattr(Stores, "failed", failed)


def hole_stays(patch: Patch) -> None:
    """Found by the simulator: a block whose write failed is held by those written after it."""

    def may_leave(self: Blocks, tier: int, row: int) -> bool:
        return not self.index.has_children(row) or self._elsewhere(tier, row)

    patch.setattr(Blocks, "_may_leave", may_leave)


def expected_size_stays(patch: Patch) -> None:
    """An object that shrank on its way down is still charged with what was set aside for it."""

    def resize(self: Blocks, tier: int, row: int, stored_bytes: int) -> None:
        pass

    patch.setattr(Blocks, "resize", resize)


def one_chunk_for_all(patch: Patch) -> None:
    """Tokens are counted in the chunks of one model, whatever model was asked about."""
    real = Loads._tokens

    def tokens(self: Loads, tiers: bytes, layout: Layout, skip_tokens: int) -> dict[str, int]:
        return real(self, tiers, LARGE.layout, skip_tokens)

    patch.setattr(Loads, "_tokens", tokens)


def first_rank_fills(patch: Patch) -> None:
    """A client says that an object is whole when the first of its ranks has written its part."""
    real = StoreTransfer._copied

    def copied(self: StoreTransfer, rank: int) -> None:
        self._left = 1
        real(self, rank)

    patch.setattr(StoreTransfer, "_copied", copied)


def kept_for_good(patch: Patch) -> None:
    """What a hint keeps for a while is never let go."""

    def let_go(self: Keep, now_ns: int) -> list[int]:
        return []

    patch.setattr(Keep, "let_go", let_go)


def hints_keep_all(patch: Patch) -> None:
    """Hints keep whatever callers like."""
    real = Keep.hold

    def hold(self: Keep, path: Iterable[int], size_bytes: int, until_ns: int) -> bool:
        self.limit_bytes = 1 << 60
        return real(self, path, size_bytes, until_ns)

    patch.setattr(Keep, "hold", hold)


def in_use_is_forgotten(patch: Patch) -> None:
    """A candidate that is in use when its turn comes is no candidate ever after."""
    patch.setattr(Ranked, "set_aside", Ranked.accept)


def moved_on_is_forgotten(patch: Patch) -> None:
    """Found by the simulator: a candidate that moved to another class is not looked at."""
    real = Ranked.propose
    first: dict[tuple[int, int], int] = {}

    def propose(self: Ranked) -> int:
        while (row := real(self)) != NONE:
            number = self._reuse.hazards(self._index.stamp[row]).number
            if first.setdefault((id(self), row), number) == number:
                return row
            self.accept()
        return NONE

    patch.setattr(Ranked, "propose", propose)


def read_again(patch: Patch) -> None:
    """Whoever wants what is being read has it read once more, into the same pages."""
    real = Loads._prepare

    def prepare(self: Loads, lease: LoadLease, row: int, reads: dict[int, list[int]]) -> bool:
        blocks = self._world.blocks
        if blocks.shelves[DRAM].state[row] == State.MOVING:
            reads.setdefault(blocks.tier_of(row), []).append(row)
            blocks.pin(row)
        return real(self, lease, row, reads)

    patch.setattr(Loads, "_prepare", prepare)


CANARIES = (
    evict_pinned,
    arriving_is_ready,
    leak_pages,
    keep_pin,
    prefix_first,
    keep_corrupt,
    store_lease_expires,
    dead_keep_leases,
    silent_end,
    second_record_stays,
    budget_ignored,
    drops_come_last,
    doomed_never_fails,
    whole_plan_is_hit,
    full_is_forgotten,
    hole_stays,
    expected_size_stays,
    one_chunk_for_all,
    first_rank_fills,
    kept_for_good,
    hints_keep_all,
    in_use_is_forgotten,
    moved_on_is_forgotten,
    read_again,
)
