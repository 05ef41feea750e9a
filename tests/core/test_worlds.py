"""Random worlds: a brain under any order of requests and faults, checked after every event."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from kvwise.core import loads as loads_module
from kvwise.core.blocks import Blocks, State
from kvwise.core.brain import Brain
from kvwise.core.index import NONE
from kvwise.core.words import DRAM, Drop, Progress, Why
from kvwise.errors import BugError, FailureKind
from tests.core.worlds import SmallWorld, config

SEEDS = range(60)


@pytest.mark.parametrize("seed", SEEDS)
def test_random_worlds(seed: int) -> None:
    """In any order of requests, faults and deaths, rules hold, bytes are right, nothing leaks."""
    world = SmallWorld(seed)
    for _ in range(250):
        world.step()
        world.brain.check()
    world.settle()
    world.brain.check()
    levels = world.brain.snapshot()["levels"]
    assert levels["leases"] == {"load": 0, "store": 0}
    assert levels["jobs"] == {"load": 0, "store": 0}
    assert len(world.disk) == levels["tiers"]["disk"]["objects"]


def test_random_worlds_reach_every_fault() -> None:
    """The worlds above are no idle run: all failures, evictions and choices do occur in them."""
    seen: Counter[str] = Counter()
    for seed in SEEDS:
        world = SmallWorld(seed)
        for _ in range(120):
            world.step()
        counters = world.brain.snapshot()["counters"]
        for name in ("failures", "dropped", "decisions", "refused"):
            seen.update(counters[name])
    assert {f"disk|{kind.value}" for kind in FailureKind} <= set(seen)
    assert {"dram|evicted", "disk|evicted", "load|faster", "recompute|no_match"} <= set(seen)


def test_replay_gives_the_same_commands() -> None:
    """A fresh brain fed the log of another gives the same commands, event by event."""
    for seed in range(10):
        world = SmallWorld(seed)
        for _ in range(200):
            world.step()
        fresh = Brain(config())
        for event, commands in world.log:
            assert fresh.handle(event) == commands


def plant_evict_pinned(patch: pytest.MonkeyPatch) -> None:
    """Eviction forgets to look at pins."""

    def evict_one(self: Blocks, tier: int) -> bool:
        shelf = self.shelves[tier]
        while (row := shelf.policy.propose()) != NONE:
            shelf.policy.accept()
            if shelf.state[row] == State.READY and not shelf.kids[row]:
                pins, self.index.pins[row] = self.index.pins[row], 0
                self._evict(tier, row)
                self.index.pins[row] = pins
                return True
        return False

    patch.setattr(Blocks, "evict_one", evict_one)


def plant_arriving_is_ready(patch: pytest.MonkeyPatch) -> None:
    """A block that is still being read counts as arrived."""

    def advance(self: loads_module.Loads, lease: loads_module.LoadLease) -> None:
        lease.ready = len(lease.rows)
        self._world.out.append(Progress(lease.number, lease.ready, lease.failed))

    patch.setattr(loads_module.Loads, "_advance", advance)


def plant_leak_pages(patch: pytest.MonkeyPatch) -> None:
    """A failed read keeps its pages."""

    def cancel(self: Blocks, tier: int, row: int, why: Why) -> None:
        pass

    patch.setattr(Blocks, "cancel", cancel)


def plant_keep_pin(patch: pytest.MonkeyPatch) -> None:
    """A failed read keeps the pin of its job."""
    real = loads_module.Loads._arrived

    def arrived(
        self: loads_module.Loads, job: loads_module.LoadJob, item: int, *, failed: bool
    ) -> None:
        if failed:
            self._world.blocks.pin(job.rows[item])
        real(self, job, item, failed=failed)

    patch.setattr(loads_module.Loads, "_arrived", arrived)


def plant_prefix_first(patch: pytest.MonkeyPatch) -> None:
    """Eviction takes a prefix from under its suffix."""

    def evict_one(self: Blocks, tier: int) -> bool:
        shelf = self.shelves[tier]
        for row in range(self.index.capacity):
            if shelf.state[row] == State.READY and not self.index.pins[row]:
                self._clear(tier, row, Why.EVICTED)
                return True
        return False

    patch.setattr(Blocks, "evict_one", evict_one)


def plant_keep_corrupt(patch: pytest.MonkeyPatch) -> None:
    """A corrupt record stays in the index but its space is given back."""

    def lose(self: Blocks, tier: int, row: int, why: Why) -> None:
        if self.shelves[tier].state[row] == State.READY:
            self._clear(tier, row, why)
            self.shelves[tier].state[row] = State.READY

    patch.setattr(Blocks, "lose", lose)


@pytest.mark.parametrize(
    "plant",
    [
        plant_evict_pinned,
        plant_arriving_is_ready,
        plant_leak_pages,
        plant_keep_pin,
        plant_prefix_first,
        plant_keep_corrupt,
    ],
)
def test_planted_bugs_are_caught(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A canary that must fail: with a bug planted, some seed trips a check."""
    plant(monkeypatch)

    def run() -> None:
        for seed in SEEDS:
            world = SmallWorld(seed)
            for _ in range(250):
                world.step()
                world.brain.check()
            world.settle()
            world.brain.check()

    with pytest.raises((AssertionError, BugError, ValueError, KeyError, IndexError)):
        run()


def test_every_dram_drop_is_told() -> None:
    """R4: whatever leaves the arena is named in a command, so that an event feed can follow."""
    world = SmallWorld(3, faults=False)
    for _ in range(300):
        world.step()
    told = sum(
        len(c.locations)
        for _, commands in world.log
        for c in commands
        if isinstance(c, Drop) and c.tier == DRAM
    )
    counted = world.brain.snapshot()["counters"]["dropped"]
    assert told == sum(n for why, n in counted.items() if why.startswith("dram|"))
