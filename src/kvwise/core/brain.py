"""Brain: events in, commands out. The one policy that the live store and the simulator both run.

`handle` is the only way state changes; everything else asks. It never waits, never reads a clock
and never draws a random number, so feeding a recorded event log to a fresh brain gives the same
commands.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from kvwise.core.audit import Holding, check, holdings
from kvwise.core.balance import Balance
from kvwise.core.index import NONE
from kvwise.core.loads import Loads
from kvwise.core.records import Calibration
from kvwise.core.recovery import Recovery
from kvwise.core.shelf import State
from kvwise.core.stores import Stores
from kvwise.core.timing import Equipped, Timed
from kvwise.core.wishes import Wishes
from kvwise.core.words import (
    Asked,
    Budgeted,
    Cleared,
    Command,
    Decision,
    Done,
    Event,
    Failed,
    Filled,
    Joined,
    Left,
    Observed,
    Offered,
    Recovered,
    Released,
    Space,
    Tick,
    Wanted,
    Why,
)
from kvwise.core.world import BrainConfig, World

_STEP_TOKENS_MIN = 16
"""Steps that compute fewer tokens are decode steps and say little about prefill."""


class Brain:
    """Decides for one store: what to load, keep, write and drop."""

    def __init__(self, config: BrainConfig) -> None:
        """An empty cache."""
        self._world = World(config)
        self._loads = Loads(self._world)
        self._wishes = Wishes(self._world)
        self._stores = Stores(self._world, self._wishes, self._loads.records)
        self._recovery = Recovery(self._world)
        self._clients: set[int] = set()

    def handle(self, event: Event) -> list[Command]:
        """Take one event in, and return what is to be done about it, in order.

        What leaves a tier comes first: it makes the room that later commands count on.

        Raises:
            BugError: a caller broke the protocol; the state is unchanged by that event.
        """
        world = self._world
        world.now_ns = max(world.now_ns, event.now_ns)
        world.blocks.advance(world.now_ns)
        match event:
            case Asked():
                self._loads.asked(event, can_pin=self._wishes.asked(event))
            case Wanted():
                self._loads.wanted(event)
            case Offered():
                self._stores.offered(event)
            case Filled():
                self._stores.filled(event)
            case Released():
                self._stores.used(self._loads.released(event))
            case Done() | Failed():
                self._finish(event)
            case Timed():
                world.codings.timed(event)
            case Tick():
                self._loads.expire()
                self._wishes.pass_time()
                for governor in self._stores.governors.values():
                    governor.pass_time(world.now_ns)
            case Observed():
                self._observe(event)
            case _:
                self._housekeep(event)
        self._stores.drain()
        out, world.out = world.out, []
        return world.blocks.take_drops() + out

    def _housekeep(self, event: Event) -> None:
        """The rare events."""
        world = self._world
        match event:
            case Joined():
                world.join(event.namespace)
                self._clients.add(event.client)
            case Left():
                self._clients.discard(event.client)
                self._loads.left(event.client)
                self._stores.left(event.client)
            case Space():
                world.blocks.shelves[event.tier].free_hint_bytes = event.free_bytes
            case Recovered():
                self._recovery.recovered(event)
            case Budgeted():
                governor = self._stores.governors[event.tier]
                governor.restore(world.now_ns, event.balance, event.away_s)
            case Cleared():
                self._clear(event.space)
            case Equipped():
                world.codings.equipped(event.codings)
            case _:
                raise TypeError(f"not an event: {event!r}")

    def _finish(self, event: Done | Failed) -> None:
        load, store = self._loads.jobs.get(event.job), self._stores.jobs.get(event.job)
        if load is not None and isinstance(event, Done):
            self._loads.done(load, event)
        elif load is not None and isinstance(event, Failed):
            self._loads.failed(load, event)
        elif store is not None and isinstance(event, Done):
            self._stores.done(store, event)
        elif store is not None and isinstance(event, Failed):
            self._stores.failed(store, event)

    def _observe(self, event: Observed) -> None:
        space, _ = self._world.joined(event.space)
        if event.tokens >= _STEP_TOKENS_MIN and event.seconds > 0:
            costs = self._world.costs.recompute[space.number]
            costs.learn(event.tokens, event.pairs, event.seconds, event.requests)

    def _clear(self, digest: bytes) -> None:
        blocks, spaces = self._world.blocks, self._world.spaces
        index = blocks.index
        roots = [
            row
            for row in range(index.capacity)
            if index.parent[row] == NONE
            and any(shelf.state[row] != State.ABSENT for shelf in blocks.shelves)
            and (not digest or spaces[index.space[row]].digest == digest)
        ]
        for row in roots:
            blocks.drop(row, Why.CLEARED)

    # --- questions ---

    def decisions(self, limit: int) -> list[Decision]:
        """The last decisions, newest last."""
        return self._loads.records.last(limit)

    def calibration(self) -> dict[str, Calibration]:
        """How good the estimates of loads were, by tier."""
        return self._loads.records.calibration

    def waiting_writes(self) -> int:
        """Objects that are queued for a lower tier or being written."""
        queued = sum(len(queue) for queue in self._stores.queues.values())
        return queued + sum(job.left for job in self._stores.jobs.values())

    def holdings(self) -> Iterator[Holding]:
        """Every block with its pins and the state of its copies."""
        return holdings(self._world.blocks)

    def snapshot(self) -> dict[str, Any]:
        """Counters and levels as plain dictionaries."""
        world, tally = self._world, self._world.tally
        return {
            "counters": {
                "asked_tokens": tally.asked_tokens,
                "storing_tokens": tally.storing_tokens,
                "decisions": dict(tally.decisions),
                "hit_tokens": dict(tally.hit_tokens),
                "seconds_saved": dict(tally.seconds_saved),
                "seconds_lost": dict(tally.seconds_lost),
                "read_bytes": dict(tally.read_bytes),
                "written_bytes": dict(tally.written_bytes),
                "refused": dict(tally.refused),
                "failures": dict(tally.failures),
                "dropped": dict(world.blocks.dropped),
                "leases_expired": tally.leases_expired,
                "hints_refused": world.blocks.keep.refused,
            },
            "levels": {
                "blocks": world.blocks.index.rows,
                "index_bytes": world.blocks.index.size_bytes()
                + sum(shelf.size_bytes() for shelf in world.blocks.shelves),
                "clients": len(self._clients),
                "leases": {"load": len(self._loads.leases), "store": len(self._stores.leases)},
                "jobs": {"load": len(self._loads.jobs), "store": len(self._stores.jobs)},
                "pins": world.blocks.pins,
                "hint_pinned_bytes": world.blocks.keep.kept_bytes,
                "pages_free": world.blocks.pages.free_count,
                "tiers": self._tiers(),
            },
            "endurance": {
                self._world.name(tier): {
                    "written_bytes": governor.written_bytes,
                    "written_per_day_bytes": governor.recent_per_day(),
                    "mean_per_day_bytes": governor.mean_per_day(),
                    "budget_per_day_bytes": governor.per_day,
                    "budget_left_bytes": governor.level_bytes,
                    "price_s_per_byte": governor.price,
                }
                for tier, governor in self._stores.governors.items()
            },
            "costs": self._costs(),
            "coding": world.codings.told(enumerate(world.labels())),
            "estimates": {
                tier: {"loads": one.loads, "error": one.mean_error, "bias": one.mean_bias}
                for tier, one in self.calibration().items()
            },
        }

    def balances(self) -> dict[int, Balance]:
        """What the write budget of each tier should remember over a restart."""
        return {tier: one.balance() for tier, one in self._stores.governors.items()}

    def _tiers(self) -> dict[str, dict[str, int]]:
        tiers = {}
        for tier, shelf in enumerate(self._world.blocks.shelves):
            queue = self._stores.queues.get(tier)
            tiers[shelf.spec.name] = {
                "used_bytes": shelf.used_bytes,
                "capacity_bytes": shelf.spec.capacity_bytes,
                "objects": shelf.ready,
                "queued_objects": len(queue) if queue is not None else 0,
                "queued_bytes": queue.waiting_bytes if queue is not None else 0,
            }
        return tiers

    def _costs(self) -> dict[str, Any]:
        costs, spaces = self._world.costs, {}
        for space, label in zip(self._world.spaces, self._world.labels(), strict=True):
            if space.number in costs.recompute:
                fit, device = costs.recompute[space.number], costs.device[space.number]
                fixed_s, token_s, pair_s = fit.weights
                spaces[label] = {
                    "step_s": fixed_s,
                    "token_s": token_s,
                    "pair_s": pair_s,
                    "samples": fit.samples,
                    "device_bytes_per_s": device.rate_bytes_per_s,
                }
        reads = {
            self._world.name(tier): pipe.rate_bytes_per_s
            for tier, pipe in enumerate(costs.tiers)
            if pipe is not None
        }
        return {"namespaces": spaces, "read_bytes_per_s": reads}

    def check(self) -> None:
        """Verify every invariant: block states, and that each pin has an owner.

        Raises:
            AssertionError: one is broken.
        """
        check(self._world.blocks)
        owners = Counter(self._stores.pinned())
        owners.update(self._loads.pinned())
        shelves = self._world.blocks.shelves
        for row in self._world.blocks.keep.rows():
            assert any(shelf.state[row] for shelf in shelves)
        for job in self._loads.jobs.values():
            assert 0 < job.left <= len(job.rows)
        pins = self._world.blocks.index.pins
        for row in range(len(pins)):
            assert pins[row] == owners[row]
