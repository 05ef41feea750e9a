"""Stores: admission, store leases and writes to lower tiers. Part of the brain; pure."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from kvwise.core.admit import WORTH, Admit, Reject, admit_prompt
from kvwise.core.elements import AS_IS, Form
from kvwise.core.govern import Governor
from kvwise.core.hints import NO_HINTS, Hints
from kvwise.core.index import NONE
from kvwise.core.keys import KEY_BYTES, ROOT
from kvwise.core.offers import Offer
from kvwise.core.queue import DeferredWrites
from kvwise.core.records import RECORDS_MAX, Records
from kvwise.core.reuse import FOREVER_S, About
from kvwise.core.shelf import State
from kvwise.core.wishes import Wishes
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
from kvwise.core.worth import Worth
from kvwise.errors import BugError, FailureKind

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
    rows: array[int]
    request: str
    hints: Hints


@dataclass(slots=True)
class _Grant:
    """What is granted of an offer: places among its keys, rows and pages; and why not the rest.

    Attributes:
        present: rows that were there before.
        refused: whether any was refused.
    """

    chunks: list[int] = field(default_factory=list)
    rows: array[int] = field(default_factory=lambda: array("I"))
    pages: list[int] = field(default_factory=list)
    reasons: Counter[Why] = field(default_factory=Counter)
    present: list[int] = field(default_factory=list)
    refused: bool = False

    def add(self, chunk: int, rows: array[int], pages: tuple[int, ...]) -> None:
        """Neighbouring chunks, from this one on, got pages."""
        self.chunks.extend(range(chunk, chunk + len(rows)))
        self.rows.extend(rows)
        self.pages.extend(pages)

    def refuse(self, why: Why, count: int) -> None:
        """So many more chunks are refused: the very first for a reason, the others with it."""
        first = not self.refused
        self.refused = True
        if first:
            self.reasons[why] += 1
        self.reasons[Why.NO_PARENT] += count - first


@dataclass(slots=True)
class StoreJob:
    """A `Store` command under way. Its rows are pinned by it; rows that ended are NONE."""

    number: int
    tier: int
    rows: list[int]
    raw_bytes: int
    left: int
    form: Form = AS_IS


class Stores:
    """Everything about getting KV into the cache and down its tiers."""

    def __init__(self, world: World, wishes: Wishes, records: Records) -> None:
        """No leases, no jobs, nothing waiting."""
        self._world = world
        self._wishes = wishes
        self._records = records
        self.leases: dict[int, StoreLease] = {}
        self.jobs: dict[int, StoreJob] = {}
        lower = range(1, len(world.config.tiers))
        self.queues = {tier: DeferredWrites(world.config.queue_bytes) for tier in lower}
        is_priced, per_day = world.config.admission == WORTH, world.config.write_bytes_per_day
        self._worth = Worth(world)
        self.governors = {
            tier: Governor(per_day, is_priced=is_priced, standing=self._worth.standing(tier))
            for tier in lower
        }
        self._declined: dict[tuple[int, int, str], None] = {}

    # --- from the device into the arena ---

    def offered(self, event: Offered) -> None:
        """Answer with pages for the chunks that are worth keeping and fit.

        Raises:
            BugError: the keys are not whole.
        """
        if len(event.keys) % KEY_BYTES:
            raise BugError(f"{len(event.keys)} bytes are no keys of {KEY_BYTES} bytes each")
        world = self._world
        space, _ = world.joined(event.space)
        verdict = admit_prompt(event.total_tokens, world.config.tokens_min, event.hints)
        granted = _Grant()
        if isinstance(verdict, Reject):
            granted.reasons[verdict.why] += len(event.keys) // KEY_BYTES
        else:
            self._take_in(event, space, granted)
            if not self._wishes.used(granted.present, event.hints, space):
                self._records.refuse_pin(event.client, event.request)
        number = 0
        if granted.rows:
            number = world.number()
            self.leases[number] = StoreLease(
                number, event.client, space, granted.rows, event.request, event.hints
            )
        for why, count in granted.reasons.items():
            world.tally.refused[f"dram|{why.value}"] += count
        chunks, pages = tuple(granted.chunks), tuple(granted.pages)
        world.out.append(Granted(event.client, number, chunks, pages, dict(granted.reasons)))

    def _take_in(self, event: Offered, space: Space, granted: _Grant) -> None:
        """Take in new chunks until one may not enter; then nor may those after it."""
        blocks, keys = self._world.blocks, event.keys
        parent = blocks.index.find(event.parent) if event.parent != ROOT else NONE
        refusal = self._refuse(parent, event.parent)
        who, place = (event.client, event.request), 0
        modest = self._worth.is_modest(event.hints)
        about = About(space.number, event.total_tokens, event.hints.pause)
        for count, stamp in blocks.reuse.parts(who, keys, event.parent, about):
            end = place + count
            while refusal is None and place < end:
                at = place * KEY_BYTES
                row = blocks.index.find(keys[at : at + KEY_BYTES])
                if row == NONE:
                    if not self._worth.may_enter(stamp, event.hints):
                        refusal = Why.WORTH
                        break
                    rows, pages, refusal = self._admit(
                        keys[at : end * KEY_BYTES], parent, space, stamp, modest=modest
                    )
                    granted.add(place, rows, pages)
                    place += len(rows)
                    parent = rows[-1] if rows else parent
                elif blocks.is_doomed(row):
                    refusal = Why.BUSY
                else:
                    granted.reasons[Why.PRESENT] += 1
                    granted.present.append(row)
                    parent, place = row, place + 1
            if refusal is not None and place < end:
                granted.refuse(refusal, end - place)
                blocks.reuse.refused(keys[place * KEY_BYTES : end * KEY_BYTES], stamp)
            place = end

    def _refuse(self, parent: int, named: bytes) -> Why | None:
        """Why no chunk may enter below a parent, or None; `named` is the parent's key."""
        if len(self.leases) >= LEASES_MAX:
            return Why.BUSY
        if parent == NONE:
            return None if named == ROOT else Why.NO_PARENT
        return Why.BUSY if self._world.blocks.is_doomed(parent) else None

    def _admit(
        self, keys: bytes, parent: int, space: Space, stamp: int, *, modest: bool
    ) -> tuple[array[int], tuple[int, ...], Why | None]:
        """Rows and pages for new blocks up to one that is known, and why for none further."""
        blocks = self._world.blocks
        rows = blocks.add_chain(keys, parent, space.number, stamp)
        count = len(rows)
        if parent != NONE:
            blocks.pin(parent)
        pages = blocks.reserve_chain(rows, space.raw_bytes, modest=modest)
        if parent != NONE:
            blocks.unpin(parent)
        if len(rows) == count:
            return rows, pages, None
        spared = modest and not blocks.shelves[DRAM].policy.yields_to(stamp)
        return rows, pages, Why.WORTH if spared else Why.NO_ROOM

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
        blocks.finish_all(DRAM, whole)
        for row in reversed(lease.rows[good:]):
            doomed = blocks.is_doomed(row)
            blocks.unpin(row)
            if not doomed:
                blocks.drop(row, Why.FAILED)
        kept = whole.tolist()
        if blocks.doomed:
            kept = [row for row in kept if row not in blocks.doomed]
        blocks.unpin_all(whole)
        self._world.out.append(Ended(lease.number))
        if kept:
            if not self._wishes.stored(kept, lease.hints, lease.space):
                self._records.refuse_pin(lease.client, lease.request)
            self._consider(kept, lease.hints, (lease.client, lease.request))

    def left(self, client: int) -> None:
        """A client is gone: what it had not finished writing goes too."""
        for lease in [x for x in self.leases.values() if x.client == client]:
            self._close(lease, 0)

    # --- down the tiers ---

    def used(self, rows: Sequence[int]) -> None:
        """Blocks were used again: those that a lower tier lacks may be worth it now."""
        if rows:
            self._consider(rows, NO_HINTS, None)

    def _consider(self, rows: Sequence[int], hints: Hints, request: tuple[int, str] | None) -> None:
        """Queue blocks of a chain in the arena for every lower tier that lacks them, if worth it.

        Below a part of a chain that was declined a request's later parts are declined unseen.
        """
        key = self._world.blocks.index.key
        for tier, queue in self.queues.items():
            absent = [*self._world.blocks.absent_from(tier, rows)]
            if queue:
                absent = [row for row in absent if key(row) not in queue]
            if not absent:
                continue
            mark = (tier, *request) if request is not None else None
            above = self._above(tier, absent[0])
            if above is None or (above and mark in self._declined):
                self._refuse_write(tier, Why.NO_PARENT, len(absent))
            elif not self._weigh(tier, above + absent, hints) and mark is not None:
                self._declined[mark] = None
                if len(self._declined) > RECORDS_MAX:
                    del self._declined[next(iter(self._declined))]

    def _above(self, tier: int, row: int) -> list[int] | None:
        """The ancestors that have to be written first, from the root down; None if one cannot."""
        blocks, queue, found = self._world.blocks, self.queues[tier], list[int]()
        here, arena = blocks.shelves[tier].state, blocks.shelves[DRAM].state
        row = blocks.index.parent[row]
        while row != NONE and here[row] == State.ABSENT and blocks.index.key(row) not in queue:
            if arena[row] != State.READY:
                return None
            found.append(row)
            row = blocks.index.parent[row]
        found.reverse()
        return found

    def _weigh(self, tier: int, rows: list[int], hints: Hints) -> bool:
        """Queue as much of a chain as is worth its bytes; whether that was all of it."""
        world, governor = self._world, self.governors[tier]
        stay_ns = governor.stay_ns(world.config.tiers[tier].capacity_bytes)
        bundles, unlikely = self._worth.bundles(tier, rows, hints, stay_ns)
        left, is_early = len(rows) - unlikely, world.blocks.memory_s() >= FOREVER_S
        for bundle in bundles:
            count, why = len(bundle.rows), Why.WORTH
            passed = 0
            if bundle.value_s > 0:
                each_bytes, why = bundle.size_bytes // count, Why.BUDGET
                offer = Offer(bundle.value_s, each_bytes, count, self._worth.kin(bundle.rows))
                passed = governor.offer(world.now_ns, offer, is_early=is_early)
                waiting_bytes, wait_s = self.queues[tier].waiting_bytes, world.blocks.memory_s()
                most = governor.payable(world.now_ns, wait_s, waiting_bytes, each_bytes)
                passed = passed if most is None else min(passed, most)
            self._push(tier, bundle.rows[:passed])
            left -= passed
            if passed < count:
                self._refuse_write(tier, why, left)
                break
        self._refuse_write(tier, Why.WORTH, unlikely)
        return not left and not unlikely

    def _push(self, tier: int, rows: Sequence[int]) -> None:
        """Queue blocks for a tier."""
        index, queue = self._world.blocks.index, self.queues[tier]
        for row in rows:
            raw_bytes = self._world.spaces[index.space[row]].raw_bytes
            if not queue.push(index.key(row), raw_bytes):
                self._refuse_write(tier, Why.FULL, 1)

    def _refuse_write(self, tier: int, why: Why, count: int) -> None:
        """Count blocks that are not written to a tier."""
        if count:
            self._world.tally.refused[f"{self._world.name(tier)}|{why.value}"] += count

    def drain(self) -> None:
        """Start deferred writes while nothing is being read; reads go before writes."""
        for tier, queue in self.queues.items():
            reading = self._world.costs.reading[tier]
            while queue and len(self.jobs) < JOBS_MAX and not reading.size_bytes:
                if not self._start(tier, queue):
                    break

    def _start(self, tier: int, queue: DeferredWrites) -> bool:
        """Start one job from the front of the queue; False when nothing may start now."""
        world, blocks = self._world, self._world.blocks
        rows: list[int] = []
        size_bytes = 0
        space: Space | None = None
        form = AS_IS
        while queue and size_bytes < JOB_BYTES_MAX and not form.trial:
            row = blocks.index.find(queue.front())
            if row == NONE or blocks.shelves[DRAM].state[row] != State.READY:
                queue.pop()
                continue
            here = world.spaces[blocks.index.space[row]]
            if space is not None and here is not space:
                break
            need_bytes = world.stored_bytes(tier, here.raw_bytes)
            if not isinstance(self.governors[tier].ask(world.now_ns, need_bytes), Admit):
                break
            queue.pop()
            refusal = self._place(tier, row, need_bytes)
            if refusal is not None:
                world.tally.refused[f"{world.name(tier)}|{refusal.value}"] += 1
                continue
            if space is None:
                space, form = here, world.codings.form(tier, here.subject)
            rows.append(row)
            size_bytes += need_bytes
        if space is not None:
            world.codings.counted(tier, space.number, len(rows) - 1)
            self._write(tier, space, rows, form)
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
        self.governors[tier].spend(need_bytes)
        return None

    def _write(self, tier: int, space: Space, rows: list[int], form: Form) -> None:
        world, index = self._world, self._world.blocks.index
        job = StoreJob(world.number(), tier, rows, space.raw_bytes, len(rows), form)
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
        world.out.append(
            Store(job.number, tier, space.digest, layout, space.raw_bytes, items, form)
        )

    def done(self, job: StoreJob, event: Done) -> None:
        """One object is on its tier."""
        world, row = self._world, job.rows[event.item]
        shelf = world.blocks.shelves[job.tier]
        whole_bytes = shelf.stored[row] * shelf.spec.unit_bytes
        world.codings.wrote(
            world.blocks.index.space[row], job.form.coding, event.stored_bytes / whole_bytes
        )
        self.governors[job.tier].spend(event.stored_bytes - whole_bytes)
        world.blocks.resize(job.tier, row, event.stored_bytes)
        world.blocks.finish(job.tier, row, location=event.location)
        world.tally.written_bytes[world.name(job.tier)] += event.stored_bytes
        self.governors[job.tier].wrote(event.stored_bytes)
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
