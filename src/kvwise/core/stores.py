"""Stores: admission, store leases and writes to lower tiers. Part of the brain; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kvwise.core.admit import Admit, Budget, Reject, admit_prompt
from kvwise.core.index import NONE
from kvwise.core.keys import ROOT, split_keys
from kvwise.core.queue import DeferredWrites
from kvwise.core.shelf import State
from kvwise.core.words import (
    DRAM,
    Done,
    Ended,
    Failed,
    Filled,
    Granted,
    Item,
    Offered,
    Store,
    Why,
)
from kvwise.core.world import LEASES_MAX, Space, World
from kvwise.errors import FailureKind

JOBS_MAX = 2
JOB_BYTES_MAX = 16 * 1024 * 1024


@dataclass(slots=True)
class StoreLease:
    """Pages that a client is filling.

    It never expires while the client lives: a client that was frozen and wakes up must not write
    into pages that meanwhile belong to somebody else.
    """

    number: int
    client: int
    space: Space
    rows: list[int]


@dataclass(slots=True)
class StoreJob:
    """A `Store` command under way. Its rows are pinned by it; rows that ended are NONE."""

    number: int
    tier: int
    rows: list[int]
    raw_bytes: int
    left: int


class Stores:
    """Everything about getting KV into the cache and down its tiers."""

    def __init__(self, world: World) -> None:
        """No leases, no jobs, nothing waiting."""
        self._world = world
        self.leases: dict[int, StoreLease] = {}
        self.jobs: dict[int, StoreJob] = {}
        lower = range(1, len(world.config.tiers))
        self.queues = {tier: DeferredWrites(world.config.queue_bytes) for tier in lower}
        self._budgets = {tier: Budget(world.config.write_bytes_per_day) for tier in lower}

    # --- from the device into the arena ---

    def offered(self, event: Offered) -> None:
        """Answer with pages for the chunks that are worth keeping and fit."""
        world = self._world
        space, _ = world.joined(event.space)
        reasons: Counter[Why] = Counter()
        keys = split_keys(event.keys)
        verdict = admit_prompt(
            event.total_tokens, world.config.tokens_min, no_store=event.hints.no_store
        )
        granted: list[int] = []
        rows: list[int] = []
        pages: list[int] = []
        if isinstance(verdict, Reject):
            reasons[verdict.why] += len(keys)
            keys = []
        parent = world.blocks.index.find(event.parent) if event.parent != ROOT else NONE
        for place, key in enumerate(keys):
            refusal = self._refuse(key, parent, event.parent if not place else b"")
            row = world.blocks.index.find(key)
            if refusal is None:
                row, got = self._admit(key, parent, space)
                refusal = None if got else Why.NO_ROOM
                if got:
                    granted.append(place)
                    rows.append(row)
                    pages.extend(got)
            if refusal is not None:
                reasons[refusal] += 1
                if refusal is not Why.PRESENT:
                    reasons[Why.NO_PARENT] += len(keys) - place - 1
                    break
            parent = row
        lease = self._lease(event.client, space, rows) if rows else 0
        for why, count in reasons.items():
            world.tally.refused[f"dram|{why.value}"] += count
        world.out.append(Granted(event.client, lease, tuple(granted), tuple(pages), dict(reasons)))

    def _refuse(self, key: bytes, parent: int, named: bytes) -> Why | None:
        """Why a chunk may not enter, or None. `named` is the parent's key where one was given."""
        blocks = self._world.blocks
        if len(self.leases) >= LEASES_MAX:
            return Why.BUSY
        if parent == NONE and named not in (ROOT, b""):
            return Why.NO_PARENT
        if parent != NONE and blocks.is_doomed(parent):
            return Why.BUSY
        row = blocks.index.find(key)
        if row == NONE:
            return None
        return Why.BUSY if blocks.is_doomed(row) else Why.PRESENT

    def _admit(self, key: bytes, parent: int, space: Space) -> tuple[int, tuple[int, ...]]:
        """A row with pages for a new block; no pages when there is no room, and then no row."""
        blocks = self._world.blocks
        if parent != NONE:
            blocks.pin(parent)
        row = blocks.add(key, parent, space.number)
        blocks.pin(row)
        pages = blocks.reserve_pages(row, "store", space.raw_bytes)
        if parent != NONE:
            blocks.unpin(parent)
        if pages is None:
            blocks.unpin(row)
            blocks.index.remove(row)
            return NONE, ()
        return row, pages

    def _lease(self, client: int, space: Space, rows: list[int]) -> int:
        lease = StoreLease(self._world.number(), client, space, rows)
        self.leases[lease.number] = lease
        return lease.number

    def filled(self, event: Filled) -> None:
        """The client wrote its pages: whole chunks become READY, the others go."""
        lease = self.leases.get(event.lease)
        if lease is None or lease.client != event.client:
            return
        self._close(lease, max(0, event.good))

    def _close(self, lease: StoreLease, good: int) -> None:
        del self.leases[lease.number]
        blocks, whole = self._world.blocks, lease.rows[:good]
        self._world.tally.written_bytes["dram"] += len(whole) * lease.space.raw_bytes
        for row in whole:
            blocks.finish(DRAM, row)
        for row in reversed(lease.rows[good:]):
            doomed = blocks.is_doomed(row)
            blocks.unpin(row)
            if not doomed:
                blocks.drop(row, Why.FAILED)
        kept = [row for row in whole if not blocks.is_doomed(row)]
        for row in whole:
            blocks.unpin(row)
        self._world.out.append(Ended(lease.number))
        self.consider(kept)

    def left(self, client: int) -> None:
        """A client is gone: what it had not finished writing goes too."""
        for lease in [x for x in self.leases.values() if x.client == client]:
            self._close(lease, 0)

    # --- down the tiers ---

    def consider(self, rows: Sequence[int]) -> None:
        """Queue blocks in the arena for every lower tier that lacks them."""
        world = self._world
        for tier, queue in self.queues.items():
            for row in world.blocks.absent_from(tier, rows):
                raw_bytes = world.spaces[world.blocks.index.space[row]].raw_bytes
                if not queue.push(world.blocks.index.key(row), raw_bytes):
                    world.tally.refused[f"{world.name(tier)}|{Why.FULL.value}"] += 1

    def drain(self) -> None:
        """Start deferred writes while nothing is being read; reads go before writes."""
        for tier, queue in self.queues.items():
            while queue and len(self.jobs) < JOBS_MAX and not self._world.costs.queued_bytes[tier]:
                if not self._start(tier, queue):
                    break

    def _start(self, tier: int, queue: DeferredWrites) -> bool:
        """Start one job from the front of the queue; False when nothing may start now."""
        world, blocks = self._world, self._world.blocks
        rows: list[int] = []
        size_bytes = 0
        space: Space | None = None
        while queue and size_bytes < JOB_BYTES_MAX:
            row = blocks.index.find(queue.front())
            if row == NONE or blocks.shelves[DRAM].state[row] != State.READY:
                queue.pop()
                continue
            here = world.spaces[blocks.index.space[row]]
            if space is not None and here is not space:
                break
            need_bytes = world.stored_bytes(tier, here.raw_bytes)
            if not isinstance(self._budgets[tier].ask(world.now_ns, need_bytes), Admit):
                break
            queue.pop()
            refusal = self._place(tier, row, need_bytes)
            if refusal is not None:
                world.tally.refused[f"{world.name(tier)}|{refusal.value}"] += 1
                continue
            space = here
            rows.append(row)
            size_bytes += need_bytes
        if space is not None:
            self._write(tier, space, rows)
        return space is not None

    def _place(self, tier: int, row: int, need_bytes: int) -> Why | None:
        """Set a tier's bytes aside for a block and pin it, or say why not."""
        blocks = self._world.blocks
        shelf, parent = blocks.shelves[tier], blocks.index.parent[row]
        if shelf.state[row] != State.ABSENT:
            return Why.PRESENT
        if parent != NONE and shelf.state[parent] not in (State.READY, State.STORING):
            return Why.NO_PARENT
        held = [row] if parent == NONE else [row, parent]
        for member in held:
            blocks.pin(member)
        fits = blocks.make_room(tier, need_bytes)
        for member in held:
            blocks.unpin(member)
        if not fits:
            return Why.NO_ROOM
        blocks.enter(tier, row, "store", need_bytes)
        blocks.pin(row)
        self._budgets[tier].spend(need_bytes)
        return None

    def _write(self, tier: int, space: Space, rows: list[int]) -> None:
        world, index = self._world, self._world.blocks.index
        job = StoreJob(world.number(), tier, rows, space.raw_bytes, len(rows))
        self.jobs[job.number] = job
        items = tuple(
            Item(
                key=index.key(row),
                parent=ROOT if index.parent[row] == NONE else index.key(index.parent[row]),
                location=0,
                stored_bytes=0,
                pages=world.blocks.pages_of(row),
            )
            for row in rows
        )
        layout = space.layout.digest() if space.layout else bytes(16)
        world.out.append(Store(job.number, tier, space.digest, layout, space.raw_bytes, items))

    def done(self, job: StoreJob, event: Done) -> None:
        """One object is on its tier."""
        world, row = self._world, job.rows[event.item]
        world.blocks.resize(job.tier, row, event.stored_bytes)
        world.blocks.finish(job.tier, row, location=event.location)
        world.tally.written_bytes[world.name(job.tier)] += event.stored_bytes
        self._ended(job, event.item)

    def failed(self, job: StoreJob, event: Failed) -> None:
        """One object could not be written: a lost chance, nothing else."""
        world, row = self._world, job.rows[event.item]
        world.tally.failures[f"{world.name(job.tier)}|{event.kind.value}"] += 1
        shelf = world.blocks.shelves[job.tier]
        if shelf.state[row] == State.EVICTING:
            world.blocks.resize(job.tier, row, 0)
        else:
            world.blocks.cancel(job.tier, row, Why.FAILED)
        if event.kind is FailureKind.FULL:
            shelf.free_hint_bytes = 0  # only now: what was set aside for the block was not there
        self._ended(job, event.item)

    def _ended(self, job: StoreJob, item: int) -> None:
        row, job.rows[item] = job.rows[item], NONE
        job.left -= 1
        if not job.left:
            del self.jobs[job.number]
        self._world.blocks.unpin(row)

    def pinned(self) -> Iterator[int]:
        """Every row once for each pin that leases and jobs here hold."""
        for lease in self.leases.values():
            yield from lease.rows
        for job in self.jobs.values():
            yield from (row for row in job.rows if row != NONE)
