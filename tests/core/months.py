"""A month of requests in virtual time against a real brain, and what its disk was good for.

Prompts come by day and night, five times as many as the budget can pay for, in classes that return
with different probabilities. It measures; it asserts nothing.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field

from kvwise.core.brain import Brain
from kvwise.core.govern import DAY_NS, Governor
from kvwise.core.hints import Hints
from kvwise.core.keys import KEY_BYTES, ROOT, chain_keys
from kvwise.core.offers import Offer
from kvwise.core.stores import Stores
from kvwise.core.words import (
    Asked,
    Command,
    Done,
    Event,
    Filled,
    Granted,
    Joined,
    Offered,
    Planned,
    Released,
    Store,
    TierSpec,
)
from kvwise.core.world import BrainConfig
from kvwise.core.worth import Worth
from kvwise.sim.dice import Dice
from tests.core.tiny import CHUNK, PAGE, SPACE, pick

CHANCES = (0.9, 0.5, 0.2, 0.08, 0.03)
SHARES = (0.1, 0.1, 0.2, 0.2, 0.4)
"""Prompts of each class; four in ten hardly ever return."""

OBJECT = 12288
DAYS = 30
PROMPTS_A_DAY = 140
CHUNKS_MAX = 6
OVERLOAD = 5.0
BUDGET = int(PROMPTS_A_DAY * (1 + CHUNKS_MAX) / 2 * OBJECT / OVERLOAD)


class Foreknown(Worth):
    """Knows the class of every prompt, as a perfect learner would."""

    def __init__(self, brain: Brain) -> None:
        """No prompts yet."""
        super().__init__(brain._world)
        self._index = brain._world.blocks.index
        self.of_key: dict[bytes, float] = {}

    def expect(self, tier: int, row: int, horizon_ns: int) -> tuple[float, float]:
        """Its class's, for each prompt returns once at most."""
        chance = self.of_key[self._index.key(row)]
        return chance, chance

    def may_enter(self, stamp: int, hints: Hints) -> bool:
        """Everything, for it is the disk that has the budget."""
        return True


class Lottery(Governor):
    """The same budget, spent on what comes out of a hat."""

    def __init__(self, per_day: int, dice: Dice) -> None:
        """The hat."""
        super().__init__(per_day)
        self._dice = dice

    def offer(self, now_ns: int, offer: Offer, *, is_early: bool = False) -> int:
        """One of five."""
        return offer.count if self._dice.chance(1 / OVERLOAD) else 0


@dataclass(slots=True)
class Month:
    """What came of it.

    Attributes:
        written_bytes: to the disk.
        first_day_bytes, worst_day_bytes: of those.
        hit_chunks: loaded from disk when a prompt returned, by chance of its class.
        asked_chunks: that could have been, if all were written.
    """

    written_bytes: int = 0
    worst_day_bytes: int = 0
    hit_chunks: dict[float, int] = field(default_factory=dict)
    asked_chunks: dict[float, int] = field(default_factory=dict)

    @property
    def hits(self) -> int:
        """Of all classes."""
        return sum(self.hit_chunks.values())


@dataclass(slots=True)
class _World:
    """A brain and its drive, which takes no time."""

    brain: Brain
    written_bytes: int = 0
    location: int = 0

    def say(self, event: Event) -> list[Command]:
        """Tell the brain, and write whatever it wants written then."""
        commands = self.brain.handle(event)
        queue = [c for c in commands if isinstance(c, Store)]
        while queue:
            job = queue.pop()
            for item in range(len(job.items)):
                self.location += 1
                self.written_bytes += OBJECT
                done = Done(event.now_ns, job.job, item, self.location, OBJECT, 1000)
                queue += [c for c in self.brain.handle(done) if isinstance(c, Store)]
        return commands

    def offer(self, keys: bytes, now_ns: int) -> None:
        """A prompt was computed."""
        offered = Offered(now_ns, 1, "r", SPACE.digest, ROOT, keys)
        granted = pick(self.say(offered), Granted)
        self.say(Filled(now_ns, 1, granted.lease, len(granted.chunks)))

    def ask(self, keys: bytes, now_ns: int) -> int:
        """A prompt is asked for again; chunks that come from the disk."""
        tokens = len(keys) // KEY_BYTES * CHUNK
        planned = pick(self.say(Asked(now_ns, 1, "r", SPACE.digest, keys, 0, tokens + 1)), Planned)
        self.say(Released(now_ns, 1, planned.lease))
        return planned.decision.tiers.get("disk", 0) // CHUNK


def month(*, lottery: bool = False, seed: int = 1) -> Month:
    """Live through it, with a governor or with a lottery of the same budget."""
    brain = _brain()
    known = Foreknown(brain)
    stores: Stores = brain._stores
    stores._worth = known
    dice, found = Dice(seed), Month()
    if lottery:
        stores.governors[1] = Lottery(BUDGET, dice.named("hat"))
    world, returns, now_ns, day, day_bytes = _World(brain), list[tuple[int, bytes]](), 0, 0, 0
    number = 0
    while now_ns < DAYS * DAY_NS:
        swing = 1 + 0.8 * math.sin(2 * math.pi * now_ns / DAY_NS)
        now_ns += int(dice.wait(DAY_NS / (PROMPTS_A_DAY * swing)))
        while returns and returns[0][0] <= now_ns:
            at_ns, keys = heapq.heappop(returns)
            chance = known.of_key[keys[:KEY_BYTES]]
            hits, asked = found.hit_chunks, found.asked_chunks
            hits[chance] = hits.get(chance, 0) + world.ask(keys, at_ns)
            asked[chance] = asked.get(chance, 0) + len(keys) // KEY_BYTES
        number += 1
        keys = chain_keys(SPACE.digest, [number] * (CHUNK * dice.between(1, CHUNKS_MAX)), CHUNK)
        chance = _class(dice.unit())
        known.of_key |= dict.fromkeys(
            (keys[at : at + KEY_BYTES] for at in range(0, len(keys), KEY_BYTES)), chance
        )
        if dice.chance(chance):
            heapq.heappush(returns, (now_ns + int(dice.wait(DAY_NS)) + DAY_NS // 4, keys))
        world.offer(keys, now_ns)
        if now_ns // DAY_NS > day:
            found.worst_day_bytes = max(found.worst_day_bytes, world.written_bytes - day_bytes)
            day, day_bytes = now_ns // DAY_NS, world.written_bytes
    found.written_bytes = world.written_bytes
    return found


def _class(unit: float) -> float:
    """The chance of a prompt's class."""
    for chance, share in zip(CHANCES, SHARES, strict=True):
        if unit < share:
            return chance
        unit -= share
    return CHANCES[-1]


def _brain() -> Brain:
    """A brain whose arena soon forgets and whose disk never does."""
    tiers = (
        TierSpec("dram", 24 * PAGE, PAGE, 0, 1e10, 0.0),
        TierSpec("disk", 10**6 * OBJECT, 4096, 4096, 1e9, 1e-4),
    )
    brain = Brain(BrainConfig(PAGE, tiers, "load", write_bytes_per_day=BUDGET, chance_min=0.0))
    brain.handle(Joined(0, 1, SPACE))
    return brain
