"""Ledger: the simulator's own account of copies, pins and leases, kept from words alone.

It hears every event and every command, never looks inside the brain, and refuses a command that
contradicts what it knows: pages granted twice, a promise of bytes that are not there, a pinned
block dropped. It carries out nothing.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Mapping, Sequence

from kvwise.core.explore import REQUESTS_MIN
from kvwise.core.govern import BURST_DAYS, DAY_NS, FIRST_DAYS
from kvwise.core.keys import split_keys
from kvwise.core.layout import Layout
from kvwise.core.words import (
    DRAM,
    Asked,
    Budgeted,
    Command,
    Done,
    Drop,
    Ended,
    Event,
    Failed,
    Filled,
    Granted,
    Left,
    Load,
    Offered,
    Planned,
    Progress,
    Recovered,
    Released,
    Space,
    Store,
    Tick,
    Wanted,
    Why,
)
from kvwise.core.world import BrainConfig
from kvwise.errors import FailureKind
from kvwise.sim.accounts import Copy, Grant, Job, Life, Promise
from kvwise.sim.machines import Arena
from kvwise.sim.rules import require
from kvwise.sim.tallies import Tallies
from kvwise.units import round_up


class Ledger:
    """Everything that must be so, if what was said is true."""

    def __init__(self, config: BrainConfig, arena: Arena, layouts: Mapping[bytes, Layout]) -> None:
        """Nothing was said yet. `layouts` are those of the namespaces, by digest."""
        self.config = config
        self.arena = arena
        self.tiers: list[dict[bytes, Copy]] = [{} for _ in config.tiers]
        self.used_bytes = [0] * len(config.tiers)
        self.parents: dict[bytes, bytes] = {}
        self.promises: dict[int, Promise] = {}
        self.grants: dict[int, Grant] = {}
        self.jobs: dict[int, Job] = {}
        self.pins: Counter[bytes] = Counter()
        self.loading: Counter[bytes] = Counter()
        self.recovering: dict[tuple[int, int], tuple[bytes, int]] = {}
        self.tallies = Tallies()
        self._full: set[int] = set()
        self._budgets: dict[int, tuple[int, float]] = {}
        self._first_ns = -1
        self._now_ns = 0
        self._layouts = layouts
        self._owner: dict[int, bytes] = {}

    def note(self, event: Event, commands: Sequence[Command]) -> None:
        """Hear an event and what was answered.

        Raises:
            RuleBroken: that cannot be right.
        """
        self._now_ns = max(self._now_ns, event.now_ns)
        if self._first_ns < 0:
            self._first_ns = self._now_ns
        self._hear(event, commands)
        for command in commands:
            if isinstance(command, Ended):
                self._ended(event, command)
        if isinstance(event, Left):
            clients = [lease.client for lease in self.promises.values()]
            clients += [lease.client for lease in self.grants.values()]
            left = event.client not in clients
            require("who left holds nothing", event, held=left)
        for command in commands:
            if isinstance(command, Drop):
                self._drop(command)
        for command in commands:
            self._answer(event, command)
        if isinstance(event, Recovered) and not event.keys:
            self._recovered(event.tier)
        self._no_vain_wait()

    # --- what happened ---

    def _hear(self, event: Event, commands: Sequence[Command]) -> None:
        """Take in what the event itself changes."""
        match event:
            case Done() | Failed():
                self._item_ended(event)
            case Filled():
                self._filled(event)
            case Wanted():
                self._wanted(event, commands)
            case Released():
                promise = self.promises.get(event.lease)
                if promise is not None and promise.client == event.client:
                    self.tallies.released(event, self._tokens(promise), wanted=promise.wanted)
            case Space():
                self._full.discard(event.tier)
            case Budgeted():
                self._budgets[event.tier] = self._now_ns, event.balance.level_bytes
            case Recovered() if event.keys:
                keys = split_keys(event.keys)
                locations = struct.unpack(f"<{len(keys)}Q", event.locations)
                sizes = struct.unpack(f"<{len(keys)}I", event.stored_bytes)
                self.parents.update(zip(keys, split_keys(event.parents), strict=True))
                for key, location, size in zip(keys, locations, sizes, strict=True):
                    self.recovering[event.tier, location] = key, size
            case _:
                pass

    def _item_ended(self, event: Done | Failed) -> None:
        job = self.jobs.get(event.job)
        if job is None:
            return
        command = job.command
        require("each item ends once", event, held=event.item in job.left)
        job.left.discard(event.item)
        if not job.left:
            del self.jobs[event.job]
        item, done = command.items[event.item], isinstance(event, Done)
        self._unpin(item.key)
        tier = self.config.tiers[command.tier].name
        if isinstance(event, Failed):
            self.tallies.failures[f"{tier}|{event.kind.value}"] += 1
        if isinstance(command, Load):
            self.loading[item.key] -= 1
            if done:
                self.tallies.read_bytes[tier] += command.raw_bytes
                self._whole(item.key, item.pages)
        elif isinstance(event, Done):
            self.tallies.written_bytes[tier] += event.stored_bytes
            copy = self.tiers[command.tier][item.key]
            if event.stored_bytes < copy.stored_bytes:
                self._full.discard(command.tier)
            self._give_back(command.tier, copy.stored_bytes - event.stored_bytes)
            self.used_bytes[command.tier] += event.stored_bytes - copy.stored_bytes
            copy.life, copy.location = Life.WHOLE, event.location
            copy.stored_bytes = event.stored_bytes
        else:
            self._forget(command.tier, item.key)
            full = event.kind is FailureKind.FULL
            (self._full.add if full else self._full.discard)(command.tier)

    def _whole(self, key: bytes, pages: tuple[int, ...]) -> None:
        """The bytes of an arena copy are complete."""
        copy = self.tiers[DRAM].get(key)
        require("a block under way keeps its pages", key.hex(), held=copy is not None)
        if copy is not None:
            require("a block under way keeps its pages", key.hex(), held=copy.pages == pages)
            held = self.arena.holds(pages, key)
            require("whoever says done has written", key.hex(), held=held)
            copy.life = Life.WHOLE

    def _filled(self, event: Filled) -> None:
        grant = self.grants.get(event.lease)
        if grant is None or grant.client != event.client:
            return
        good = grant.keys[: max(0, event.good)]
        for key in good:
            copy = self.tiers[DRAM][key]
            self.tallies.written_bytes["dram"] += grant.raw_bytes
            self._whole(key, copy.pages)

    def _wanted(self, event: Wanted, commands: Sequence[Command]) -> None:
        """A lease becomes as short as what was granted."""
        promise = self.promises.get(event.lease)
        (granted,) = [c for c in commands if isinstance(c, Granted)]
        mine = promise is not None and promise.client == event.client and not promise.wanted
        if promise is None or not mine:
            require("only a lease's owner gets its pages", event, held=not granted.chunks)
            return
        promise.wanted = True
        count = min(max(0, event.chunks), len(promise.keys))
        require("no more than was wanted", event, held=len(granted.chunks) <= count)
        if len(granted.chunks) < count:
            self.tallies.refused[f"dram|{Why.NO_ROOM.value}"] += 1
        for key in promise.keys[len(granted.chunks) :]:
            self._unpin(key)
        del promise.keys[len(granted.chunks) :]

    # --- what was answered ---

    def _ended(self, event: Event, command: Ended) -> None:
        promise = self.promises.pop(command.lease, None)
        if promise is not None:
            fair = isinstance(event, Released | Asked | Left | Tick)
            require("a load lease ends for a reason", event, held=fair)
            self.tallies.leases_expired += isinstance(event, Tick)
            for key in promise.keys:
                self._unpin(key)
            return
        grant = self.grants.pop(command.lease, None)
        require("only a living lease ends", command, held=grant is not None)
        if grant is not None:
            fair = isinstance(event, Filled | Left) and event.client == grant.client
            require("a store lease lasts as long as its client", event, held=fair)
            for key in grant.keys:
                self._unpin(key)

    def _drop(self, command: Drop) -> None:
        keys = split_keys(command.keys)
        name = self.config.tiers[command.tier].name
        self._full.discard(command.tier)
        why = f"{name}|{command.why.value}"
        for key, location, stored_bytes in zip(
            keys, command.locations, command.stored_bytes, strict=True
        ):
            found = self.recovering.pop((command.tier, location), None)
            if found is not None:
                same = found == (key, stored_bytes)
                require("a drop names what it drops", command, held=same)
                self.tallies.dropped[why] += command.why is Why.EVICTED
                continue
            self.tallies.dropped[why] += 1
            copy = self.tiers[command.tier].get(key)
            require("only what is there is dropped", (name, key.hex()), held=copy is not None)
            if copy is None:
                continue
            here = copy.pages[0] if copy.pages else copy.location
            same = (here, copy.stored_bytes) == (location, stored_bytes)
            require("a drop names what it drops", (command, copy), held=same)
            lost = command.why in (Why.CORRUPT, Why.FAILED)
            pinned = self.pins[key] > 0 and not (
                lost and (command.tier or copy.life is Life.COMING)
            )
            require(
                "what is pinned is not dropped", (name, key.hex(), command.why), held=not pinned
            )
            self._forget(command.tier, key)

    def _answer(self, event: Event, command: Command) -> None:
        match command:
            case Planned() if isinstance(event, Asked):
                self._planned(event, command)
            case Granted() if isinstance(event, Offered):
                self._granted(event, command)
            case Granted() if isinstance(event, Wanted) and command.chunks:
                self._given(command)
            case Progress():
                self._progress(command)
            case Load():
                self._load(command)
            case Store():
                self._store(command)
            case _:
                pass

    def _planned(self, event: Asked, command: Planned) -> None:
        self.tallies.asked(event, command.decision)
        if not command.lease:
            return
        decision = command.decision
        gain_s = decision.recompute_s + decision.relief_s - decision.exposed_s
        policy, least_s = self.config.policy, decision.margin * decision.own_s + decision.doubt_s
        wins = policy == "load" or (policy == "auto" and gain_s > least_s)
        if policy == "auto" and decision.why is Why.EXPLORE:
            self.tallies.explored += 1
            least = REQUESTS_MIN * self.tallies.explored
            wins = least <= len(self.tallies.requests) * len(self.config.tiers)
        require("a load is chosen only when it wins", decision, held=wins)
        hidden_s = decision.load_s - decision.exposed_s
        fair = -1e-9 <= hidden_s <= decision.backlog_s + 1e-9 or event.layers > 0
        require("a load hides behind earlier prompts only", decision, held=fair)
        bounded = 0 < command.deadline_ns <= self.config.load_timeout_ns
        require("waits are bounded", command, held=bounded)
        first, keys = command.first_chunk, split_keys(event.keys)
        mine = keys[first : first + command.chunks]
        tiers = [self._fastest(key) for key in mine]
        missing = "" in tiers or len(mine) < command.chunks
        require("a plan promises only what is there", command, held=not missing)
        chunk_tokens = self._layouts[event.space].chunk_tokens
        covered = (first + command.chunks) * chunk_tokens
        require("one token is left to compute", command, held=covered < event.total_tokens)
        skip_tokens = event.local_tokens % chunk_tokens
        lease = Promise(event.client, event.request, mine, tiers, chunk_tokens, skip_tokens)
        said, seen = decision.tiers, self._tokens(lease)
        require("a plan names its tiers", (said, seen), held=Counter(said) == seen)
        self.promises[command.lease] = lease
        for key in mine:
            self.pins[key] += 1

    def _fastest(self, key: bytes) -> str:
        """Name of the fastest tier that has a block; empty if none has."""
        for spec, copies in zip(self.config.tiers, self.tiers, strict=True):
            copy = copies.get(key)
            if copy is not None and copy.life is Life.WHOLE:
                return spec.name
        return ""

    def _tokens(self, promise: Promise) -> Counter[str]:
        """Tokens that a lease loads, by tier."""
        tokens: Counter[str] = Counter()
        for place in range(len(promise.keys)):
            skip_tokens = 0 if place else promise.skip_tokens
            tokens[promise.tiers[place]] += promise.chunk_tokens - skip_tokens
        return tokens

    def _granted(self, event: Offered, command: Granted) -> None:
        """Pages to be filled."""
        self.tallies.refused.update(
            {f"dram|{why.value}": count for why, count in command.reasons.items()}
        )
        keys = split_keys(event.keys)
        answered = len(command.chunks) + sum(command.reasons.values())
        require("each chunk is granted or refused", command, held=answered == len(keys))
        if not command.chunks:
            return
        each = len(command.pages) // len(command.chunks)
        mine = [keys[chunk] for chunk in command.chunks]
        for place, (chunk, key) in enumerate(zip(command.chunks, mine, strict=True)):
            self.parents[key] = keys[chunk - 1] if chunk else event.parent
            self._take(key, command.pages[place * each : place * each + each])
            self.pins[key] += 1
        raw_bytes = self._layouts[event.space].object_bytes
        self.grants[command.lease] = Grant(event.client, mine, raw_bytes)

    def _take(self, key: bytes, pages: tuple[int, ...]) -> None:
        """A block gets pages of the arena, which must be nobody else's."""
        fresh = not any(page in self._owner for page in pages) and len(set(pages)) == len(pages)
        require("pages are given once", (key.hex(), pages), held=fresh)
        require("one copy on each tier", key.hex(), held=key not in self.tiers[DRAM])
        stored_bytes = len(pages) * self.config.page_bytes
        self.tiers[DRAM][key] = Copy(Life.COMING, stored_bytes, pages)
        self.used_bytes[DRAM] += stored_bytes
        for page in pages:
            self._owner[page] = key

    def _given(self, command: Granted) -> None:
        """Pages to be read; those that a load fills are in its own command."""
        promise, at = self.promises[command.lease], 0
        for key in promise.keys:
            copy = self.tiers[DRAM].get(key)
            if copy is not None:
                here = command.pages[at : at + len(copy.pages)]
                require("a grant names the block's pages", key.hex(), held=here == copy.pages)
            at += len(command.pages) // len(promise.keys)

    def _progress(self, command: Progress) -> None:
        promise = self.promises.get(command.lease)
        if promise is None:
            return
        forward = promise.ready <= command.ready <= len(promise.keys)
        require("progress goes forward", command, held=forward)
        for key in promise.keys[promise.ready : command.ready]:
            copy = self.tiers[DRAM].get(key)
            whole = copy is not None and copy.life is Life.WHOLE
            held = whole and copy is not None and self.arena.holds(copy.pages, key)
            require("what is ready has its bytes", (command, key.hex()), held=held)
        promise.ready, promise.failed = command.ready, command.failed

    def _load(self, command: Load) -> None:
        for item in command.items:
            copy = self.tiers[command.tier].get(item.key)
            held = copy is not None and copy.life is Life.WHOLE
            require("only what is there is loaded", (command, item.key.hex()), held=held)
            if copy is not None:
                same = (copy.location, copy.stored_bytes) == (item.location, item.stored_bytes)
                require("a load names the right place", (command, copy), held=same)
            self._parent(item.key, item.parent)
            once = not self.loading[item.key]
            require("what is being read is not read again", item.key.hex(), held=once)
            self._take(item.key, item.pages)
            self.loading[item.key] += 1
        self._job(command)

    def _store(self, command: Store) -> None:
        spec = self.config.tiers[command.tier]
        stored_bytes = round_up(command.raw_bytes + spec.overhead_bytes, spec.unit_bytes)
        reading = any(
            isinstance(job.command, Load) and job.command.tier == command.tier
            for job in self.jobs.values()
        )
        require("reads go before writes", command, held=not reading)
        told = command.tier in self._full
        require("who said full is not asked again before room was made", command, held=not told)
        self._spend(command.tier, stored_bytes * len(command.items))
        for item in command.items:
            copy = self.tiers[DRAM].get(item.key)
            held = copy is not None and copy.life is Life.WHOLE and copy.pages == item.pages
            require("only whole blocks are written", (command, item.key.hex()), held=held)
            fresh = item.key not in self.tiers[command.tier]
            require("one copy on each tier", item.key.hex(), held=fresh)
            self._parent(item.key, item.parent)
            self.tiers[command.tier][item.key] = Copy(Life.COMING, stored_bytes)
            self.used_bytes[command.tier] += stored_bytes
        self._job(command)

    def _spend(self, tier: int, size_bytes: int) -> None:
        """Writes keep to the budget: what was there, what came since, and one object on credit."""
        per_day = self.config.write_bytes_per_day
        if per_day:
            first = self._first_ns, per_day * FIRST_DAYS
            since_ns, left_bytes = self._budgets.get(tier, first)
            left_bytes += (self._now_ns - since_ns) * per_day / DAY_NS
            left_bytes = min(left_bytes, per_day * BURST_DAYS)
            self._budgets[tier] = self._now_ns, left_bytes - size_bytes
            thrifty = left_bytes >= 0
            require("writes keep to the budget", (tier, size_bytes, left_bytes), held=thrifty)

    def _give_back(self, tier: int, size_bytes: int) -> None:
        """An object took less than was set aside for it: the budget has that again."""
        if tier in self._budgets:
            since_ns, left_bytes = self._budgets[tier]
            self._budgets[tier] = since_ns, left_bytes + size_bytes

    def _parent(self, key: bytes, parent: bytes) -> None:
        same = self.parents.get(key) == parent
        require("a job names the right parent", key.hex(), held=same)

    def _job(self, command: Load | Store) -> None:
        self.jobs[command.job] = Job(command, set(range(len(command.items))))
        for item in command.items:
            self.pins[item.key] += 1

    # --- bookkeeping ---

    def _unpin(self, key: bytes) -> None:
        self.pins[key] -= 1
        require("pins balance", key.hex(), held=self.pins[key] >= 0)
        if not self.pins[key]:
            del self.pins[key]

    def _forget(self, tier: int, key: bytes) -> None:
        """A copy is gone."""
        copy = self.tiers[tier].pop(key)
        self.used_bytes[tier] -= copy.stored_bytes
        for page in copy.pages:
            del self._owner[page]

    def _recovered(self, tier: int) -> None:
        """The records that were not dropped are the tier's copies now."""
        for (where, location), (key, stored_bytes) in self.recovering.items():
            require("recovery ends tier by tier", where, held=where == tier)
            fresh = key not in self.tiers[tier]
            require("one copy on each tier", key.hex(), held=fresh)
            self.tiers[tier][key] = Copy(Life.WHOLE, stored_bytes, location=location)
            self.used_bytes[tier] += stored_bytes
        self.recovering.clear()

    def _no_vain_wait(self) -> None:
        """Whoever waits for a block waits for a load that is under way."""
        for number, promise in self.promises.items():
            waits = promise.wanted and not promise.failed and promise.ready < len(promise.keys)
            if waits:
                key = promise.keys[promise.ready]
                coming = self.loading[key] > 0
                require("nobody waits for nothing", (number, key.hex()), held=coming)

    # --- questions ---

    def may_write(self, lease: int, client: int) -> bool:
        """Whether a client may write into the pages of a store lease now."""
        grant = self.grants.get(lease)
        return grant is not None and grant.client == client
