"""Loads: plans, load leases and reads from lower tiers into the arena. Part of the brain; pure."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass

from kvwise.core.coding import Took
from kvwise.core.cost import Lane
from kvwise.core.index import NONE
from kvwise.core.keys import KEY_BYTES, ROOT
from kvwise.core.layout import Layout
from kvwise.core.plan import NOTHING, Cut, runs
from kvwise.core.pricing import COMING, Found, Match, backlog_s, price
from kvwise.core.records import Records
from kvwise.core.reuse import About
from kvwise.core.shelf import State
from kvwise.core.words import (
    DRAM,
    Asked,
    Choice,
    Decision,
    Done,
    Ended,
    Ending,
    Failed,
    Granted,
    Item,
    Judged,
    Load,
    Planned,
    Progress,
    Released,
    Wanted,
    Why,
)
from kvwise.core.world import LEASES_MAX, Space, World
from kvwise.errors import FailureKind

_WAIT_NS_MIN = 250_000_000
_GONE = {FailureKind.MISSING, FailureKind.CORRUPT, FailureKind.IO}
"""After these the tier's copy is not worth asking for again."""


@dataclass(slots=True)
class LoadLease:
    """A promise to one request: these rows are pinned until it ends."""

    number: int
    client: int
    request: str
    space: Space
    rows: array[int]
    tiers: bytes
    skip_tokens: int
    expires_ns: int
    wait_ns: int
    ending: Ending = Ending.UNUSED
    wanted: bool = False
    failed: bool = False
    ready: int = 0
    actual_s: float = 0.0


@dataclass(slots=True)
class LoadJob:
    """A `Load` command under way. It pins its rows, apart from any lease; NONE once ended.

    Attributes:
        space: number of the namespace.
        started_ns: when it was commanded.
        sizes: what each of them takes on the tier.
        ahead_bytes: what the tier had still to read before it.
        whole: whether every object so far arrived.
    """

    number: int
    tier: int
    space: int
    rows: list[int]
    sizes: list[int]
    raw_bytes: int
    left: int
    started_ns: int
    ahead_bytes: float
    whole: bool = True


class Loads:
    """Everything about getting KV out of the cache."""

    def __init__(self, world: World) -> None:
        """No leases, no jobs."""
        self._world = world
        self.leases: dict[int, LoadLease] = {}
        self.jobs: dict[int, LoadJob] = {}
        self._lease_of: dict[tuple[int, str], int] = {}
        self._waiting: dict[int, list[int]] = {}
        self.records = Records()

    # --- planning ---

    def asked(self, event: Asked, *, can_pin: bool) -> None:
        """Answer with a plan, and pin what it promises; `can_pin`: what it wants kept is kept."""
        world = self._world
        space, layout = world.joined(event.space)
        asked_before = (event.client, event.request) in self.records
        self._end_of(event.client, event.request)
        found = self._find(event, space.number, layout)
        cut = self._cut(event, space, layout, found)
        lease = self._lease(event, space, found, cut, layout)
        decision = self._decide(event, space, layout, (found, cut), can_pin=can_pin)
        if not asked_before:
            world.tally.asked_tokens += event.total_tokens
            world.tally.storing_tokens += found.storing_tokens
            world.tally.decisions[f"{cut.choice.value}|{cut.why.value}"] += 1
        first = event.local_tokens // layout.chunk_tokens
        tiers = lease.tiers if lease else b""
        world.out.append(
            Planned(
                client=event.client,
                request=event.request,
                lease=lease.number if lease else 0,
                first_chunk=first,
                chunks=len(tiers),
                load_tokens=decision.load_tokens,
                ready=tiers == bytes(len(tiers)),
                deadline_ns=lease.wait_ns if lease else 0,
                decision=decision,
            )
        )
        if not lease and not asked_before:
            self._judge(event.client, event.request, Ending.COMPUTED, 0.0)

    def _judge(self, client: int, request: str, ending: Ending, actual_s: float) -> None:
        """It is known what became of a decision."""
        record = self.records.end(client, request, ending, actual_s)
        if record is not None:
            self._world.out.append(Judged(client, record))

    def _find(self, event: Asked, space: int, layout: Layout) -> Match:
        """The readable rows after the device's own, and how far the cache knows the prompt."""
        index, blocks = self._world.blocks.index, self._world.blocks
        chunk = layout.chunk_tokens
        first, last = event.local_tokens // chunk, (event.total_tokens - 1) // chunk
        length = index.length(event.keys, len(event.keys) // KEY_BYTES)
        rows = index.chain(event.keys[: length * KEY_BYTES]) if length else array("I")
        rows = rows[len(rows) - length :]
        about = About(space, event.total_tokens, event.hints.pause)
        stamp = blocks.reuse.meet((event.client, event.request), event.keys, rows, about)
        if stamp:
            blocks.touch(rows, stamp)
        rows = rows[first:last]
        if not rows:
            return Match(match_tokens=event.local_tokens)
        tiers = blocks.tiers_of(rows)  # a doomed block has no copy that can be read
        matched = max(event.local_tokens, (first + len(tiers)) * chunk)
        storing = 0
        for row in rows[len(tiers) :]:
            if blocks.shelves[DRAM].state[row] != State.STORING:
                break
            storing += 1
        return Match(rows[: len(tiers)], tiers, matched, storing * chunk)

    def _cut(self, event: Asked, space: Space, layout: Layout, found: Match) -> Cut:
        world = self._world
        why = self._refusal(event, space, found)
        if why is not None:
            return Cut(0, NOTHING, 0.0, 0.0, 0.0, 0.0, Choice.RECOMPUTE, why)
        return price(world, event, space, layout, Found(found.rows, self._coming(found)))

    def _refusal(self, event: Asked, space: Space, found: Match) -> Why | None:
        """Why nothing can be loaded, whatever it costs."""
        world = self._world
        pages_each = -(-space.raw_bytes // world.config.page_bytes)
        if not found.rows or found.match_tokens <= event.local_tokens:
            return Why.ON_DEVICE if event.local_tokens else Why.NO_MATCH
        if event.hints.no_load:
            return Why.DISABLED
        if event.total_tokens < world.config.tokens_min:
            return Why.TOO_SHORT
        if len(self.leases) >= LEASES_MAX:
            return Why.BUSY
        if pages_each * len(found.rows) > world.blocks.pages.count:
            return Why.NO_ROOM
        return None

    def _coming(self, found: Match) -> bytes:
        """Tiers of the rows, marked where a read is under way already."""
        if not self._waiting or not any(found.tiers):
            return found.tiers
        waiting = self._waiting
        return bytes(
            tier | COMING if tier and row in waiting else tier
            for row, tier in zip(found.rows, found.tiers, strict=True)
        )

    def _lease(
        self, event: Asked, space: Space, found: Match, cut: Cut, layout: Layout
    ) -> LoadLease | None:
        if not cut.chunks:
            return None
        world = self._world
        wait_ns = int(max(4 * cut.transfer.total_s, cut.recompute_s) * 1e9)
        lease = LoadLease(
            number=world.number(),
            client=event.client,
            request=event.request,
            space=space,
            rows=found.rows[: cut.chunks],
            tiers=found.tiers[: cut.chunks],
            skip_tokens=event.local_tokens % layout.chunk_tokens,
            expires_ns=world.now_ns + world.config.lease_ttl_ns,
            wait_ns=min(max(wait_ns, _WAIT_NS_MIN), world.config.load_timeout_ns),
        )
        world.blocks.pin_all(lease.rows)
        self.leases[lease.number] = lease
        self._lease_of[event.client, event.request] = lease.number
        return lease

    def _decide(
        self,
        event: Asked,
        space: Space,
        layout: Layout,
        outcome: tuple[Match, Cut],
        *,
        can_pin: bool,
    ) -> Decision:
        world, (found, cut) = self._world, outcome
        tiers = found.tiers[: cut.chunks]
        tokens = self._tokens(tiers, layout, event.local_tokens % layout.chunk_tokens)
        decision = Decision(
            now_ns=event.now_ns,
            request=event.request,
            namespace=space.label,
            total_tokens=event.total_tokens,
            local_tokens=event.local_tokens,
            match_tokens=found.match_tokens,
            load_tokens=sum(tokens.values()),
            tiers=tokens,
            load_s=cut.transfer.total_s,
            recompute_s=cut.recompute_s,
            margin=world.config.margin,
            choice=cut.choice,
            why=cut.why,
            own_s=cut.transfer.own_s,
            backlog_s=backlog_s(world, event, space),
            exposed_s=cut.exposed_s,
            relief_s=cut.relief_s,
            doubt_s=cut.doubt_s,
            pin_refused=not can_pin,
        )
        self.records.add(event.client, decision)
        return decision

    def _tokens(self, tiers: bytes, layout: Layout, skip_tokens: int) -> dict[str, int]:
        """Tokens that chunks provide, by tier; the first of them are on the device already."""
        name, tokens = self._world.name, dict[str, int]()
        for tier, count in runs(tiers):
            tokens[name(tier)] = tokens.get(name(tier), 0) + count * layout.chunk_tokens
        if tiers:
            tokens[name(tiers[0])] -= skip_tokens
        return tokens

    # --- loading ---

    def wanted(self, event: Wanted) -> None:
        """The engine has room: give pages, and read what is not in the arena yet."""
        world = self._world
        lease = self.leases.get(event.lease)
        if lease is None or lease.client != event.client or lease.wanted:
            world.out.append(Granted(event.client, event.lease, (), (), {}))
            return
        lease.wanted = True
        lease.expires_ns = world.now_ns + lease.wait_ns + world.config.lease_ttl_ns
        self._shorten(lease, max(0, event.chunks))
        reads: dict[int, list[int]] = {}
        ready = world.blocks.count_ready(DRAM, lease.rows, 0)
        for place, row in enumerate(lease.rows[ready:], ready):
            if not self._prepare(lease, row, reads):
                self._shorten(lease, place)
                world.tally.refused[f"dram|{Why.NO_ROOM.value}"] += 1
                break
        pages = world.blocks.pages_of_all(lease.rows)
        world.out.append(
            Granted(event.client, lease.number, tuple(range(len(lease.rows))), pages, {})
        )
        for tier, rows in sorted(reads.items()):
            self._read(lease, tier, rows)
        self._advance(lease)

    def _shorten(self, lease: LoadLease, chunks: int) -> None:
        self._world.blocks.unpin_all(lease.rows[chunks:])
        lease.rows, lease.tiers = lease.rows[:chunks], lease.tiers[:chunks]

    def _prepare(self, lease: LoadLease, row: int, reads: dict[int, list[int]]) -> bool:
        """See that a row is in the arena or on its way; False when neither is possible."""
        blocks = self._world.blocks
        state = blocks.shelves[DRAM].state[row]
        if state == State.ABSENT:
            tier = blocks.tier_of(row)
            if tier < 0 or blocks.reserve_pages(row, "load", lease.space.raw_bytes) is None:
                return False
            blocks.pin(row)
            reads.setdefault(tier, []).append(row)
        elif state not in (State.READY, State.MOVING):
            return False
        if blocks.shelves[DRAM].state[row] == State.MOVING:
            self._waiting.setdefault(row, []).append(lease.number)
        return True

    def _read(self, lease: LoadLease, tier: int, rows: list[int]) -> None:
        world, shelf = self._world, self._world.blocks.shelves[tier]
        index = world.blocks.index
        job = LoadJob(
            number=world.number(),
            tier=tier,
            space=lease.space.number,
            rows=rows,
            sizes=[shelf.stored[row] * shelf.spec.unit_bytes for row in rows],
            raw_bytes=lease.space.raw_bytes,
            left=len(rows),
            started_ns=world.now_ns,
            ahead_bytes=world.costs.ahead_bytes(tier, world.now_ns),
        )
        self.jobs[job.number] = job
        world.costs.reading[tier].add(sum(job.sizes), world.now_ns)
        world.codings.links[tier].loaded(len(rows) * job.raw_bytes)
        items = tuple(
            Item(
                key=index.key(row),
                parent=ROOT if index.parent[row] == NONE else index.key(index.parent[row]),
                location=shelf.location[row],
                stored_bytes=size_bytes,
                pages=world.blocks.pages_of(row),
            )
            for row, size_bytes in zip(rows, job.sizes, strict=True)
        )
        deadline_ns = world.now_ns + lease.wait_ns
        world.out.append(
            Load(job.number, tier, lease.space.digest, job.raw_bytes, items, deadline_ns)
        )

    def _advance(self, lease: LoadLease) -> None:
        world = self._world
        more = world.blocks.count_ready(DRAM, lease.rows, lease.ready)
        if more:
            lane = world.costs.copying.setdefault(lease.client, Lane())
            lane.add(more * lease.space.raw_bytes, world.now_ns)
            lease.ready += more
        world.out.append(Progress(lease.number, lease.ready, lease.failed))

    def done(self, job: LoadJob, event: Done) -> None:
        """One object arrived in the arena. One that was doomed meanwhile will never be READY."""
        world, row = self._world, job.rows[event.item]
        name = world.name(job.tier)
        world.blocks.finish(DRAM, row)
        world.tally.read_bytes[name] += job.raw_bytes
        self._arrived(job, event.item, failed=world.blocks.is_doomed(row))

    def failed(self, job: LoadJob, event: Failed) -> None:
        """One object did not arrive; whoever waits for it recomputes."""
        world, row = self._world, job.rows[event.item]
        world.tally.failures[f"{world.name(job.tier)}|{event.kind.value}"] += 1
        world.blocks.cancel(DRAM, row, Why.FAILED)
        if event.kind in _GONE:
            why = Why.CORRUPT if event.kind is FailureKind.CORRUPT else Why.FAILED
            world.blocks.lose(job.tier, row, why)
        self._arrived(job, event.item, failed=True)

    def _arrived(self, job: LoadJob, item: int, *, failed: bool) -> None:
        world = self._world
        row, job.rows[item] = job.rows[item], NONE
        world.costs.reading[job.tier].take(job.sizes[item], world.now_ns)
        job.left -= 1
        job.whole &= not failed
        if not job.left:
            del self.jobs[job.number]
            self._learn(job)
        for number in self._waiting.pop(row, []):
            lease = self.leases.get(number)
            if lease is not None:
                lease.failed |= failed
                self._advance(lease)
        world.blocks.unpin(row)

    def _learn(self, job: LoadJob) -> None:
        """A read is over: that is how long so many bytes take on this tier.

        The whole read counts, from its command on, together with what it had to wait for: that is
        what the next plan has to know, whether the tier reads objects one by one or side by side.
        """
        pipe = self._world.costs.tiers[job.tier]
        seconds = (self._world.now_ns - job.started_ns) / 1e9
        if pipe is not None and job.whole and seconds > 0:
            self._world.costs.explorer.measured(job.tier)
            read_bytes = sum(job.sizes)
            pipe.learn(read_bytes + job.ahead_bytes, seconds)
            if not job.ahead_bytes:
                took = Took(len(job.sizes) * job.raw_bytes, read_bytes, seconds)
                self._world.codings.took(job.tier, job.space, took)

    # --- ends ---

    def released(self, event: Released) -> array[int]:
        """The client is done with a lease; returns the rows it used."""
        lease = self.leases.get(event.lease)
        if lease is None or lease.client != event.client:
            return array("I")
        self._account(lease, event)
        rows = array("I") if event.failed else lease.rows
        self._end(lease)
        return rows

    def _account(self, lease: LoadLease, event: Released) -> None:
        """Compare what the load took with what recomputing would have taken."""
        tally, world = self._world.tally, self._world
        decision = self.records.find(lease.client, lease.request)
        if decision is None or not lease.wanted:
            return
        actual_s = event.waited_ns / 1e9
        lease.ending = Ending.FAILED if event.failed else Ending.LOADED
        lease.actual_s = actual_s
        _, layout = world.joined(lease.space.digest)
        tokens = self._tokens(lease.tiers, layout, lease.skip_tokens)
        loaded = sum(tokens.values())
        recompute_s = decision.recompute_s * loaded / decision.load_tokens
        for name, count in tokens.items():
            part = count / loaded
            if event.failed:
                tally.seconds_lost[name] += actual_s * part
                continue
            gain = (recompute_s - actual_s) * part
            (tally.seconds_saved if gain >= 0 else tally.seconds_lost)[name] += abs(gain)
            tally.hit_tokens[name] += count
        if event.copied_bytes:
            tally.read_bytes["dram"] += event.copied_bytes
            if event.copy_ns > 0:
                device = world.costs.device[lease.space.number]
                device.learn(event.copied_bytes, event.copy_ns / 1e9)
                world.costs.explorer.measured(DRAM)

    def _end_of(self, client: int, request: str) -> None:
        number = self._lease_of.get((client, request))
        if number is not None:
            self._end(self.leases[number])

    def _end(self, lease: LoadLease) -> None:
        del self.leases[lease.number]
        self._lease_of.pop((lease.client, lease.request), None)
        world = self._world
        world.blocks.unpin_all(lease.rows)
        if lease.ready:
            lane = world.costs.copying[lease.client]
            lane.take(lease.ready * lease.space.raw_bytes, world.now_ns)
        world.out.append(Ended(lease.number))
        self._judge(lease.client, lease.request, lease.ending, lease.actual_s)

    def left(self, client: int) -> None:
        """A client is gone: so are its leases."""
        for lease in [x for x in self.leases.values() if x.client == client]:
            self._end(lease)
        self._world.costs.copying.pop(client, None)

    def expire(self) -> None:
        """End every lease whose time is over."""
        now_ns = self._world.now_ns
        for lease in [x for x in self.leases.values() if x.expires_ns <= now_ns]:
            self._world.tally.leases_expired += 1
            self._end(lease)

    def pinned(self) -> Iterator[int]:
        """Every row once for each pin that leases and jobs here hold."""
        for lease in self.leases.values():
            yield from lease.rows
        for job in self.jobs.values():
            yield from (row for row in job.rows if row != NONE)
