"""Worth: the seconds that a block on a lower tier would save. It decides nothing.

Worth of a block = uses to come while it stays x (seconds to compute it - seconds to load it); what
may as well wait for its next use counts fewer of them.
A block is of no use without its prefix, so blocks of one chain are looked at together: a bundle is
a piece of the chain that is worth more per byte than what comes after it, and pays for blocks in it
that alone would not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvwise.core.admit import ALL, WORTH
from kvwise.core.hints import Hints
from kvwise.core.index import NONE
from kvwise.core.offers import Kin, Standing
from kvwise.core.outlook import Outlook
from kvwise.core.reuse import FOREVER_S
from kvwise.core.world import Space, World

PRIORITY_BASE = 4.0
"""A request of priority 1 counts four times, one of priority -1 a quarter."""

USUAL_TOKENS = 8_192
"""The depth by whose seconds blocks are priced."""

RULE_VALUE_S = 1.0
"""What a rule that knows no worth takes every chain to be worth."""

ROUNDING = 1e-9
"""Sums that differ by so small a part are equal."""


@dataclass(slots=True)
class Bundle:
    """Neighbours in a chain that are written together or not at all."""

    rows: list[int]
    value_s: float
    size_bytes: int

    def is_no_worse(self, other: Bundle) -> bool:
        """Whether a byte of it is worth as much as one of another, or more."""
        mine, others = self.value_s * other.size_bytes, other.value_s * self.size_bytes
        return mine >= others - ROUNDING * abs(others)


class Worth:
    """Values of blocks, from measured speeds and what is known of their reuse."""

    def __init__(self, world: World) -> None:
        """Values come from what `world` has measured and learned."""
        self._world = world
        self._outlooks = [Outlook() for _ in world.config.tiers]
        self._expected: dict[int, tuple[float, float]] = {}
        """By stamp, for the chain that is looked at."""

    def may_enter(self, stamp: int, hints: Hints) -> bool:
        """Whether blocks of a use may come into the arena, which takes time but wears nothing.

        How long they would stay is not asked: those that are worth more than others stay longer.
        """
        if _is_wanted(hints):
            return True
        world, chance_min = self._world, self._world.config.chance_min
        return not chance_min or world.blocks.reuse.chance(stamp, FOREVER_S) >= chance_min

    def is_modest(self, hints: Hints) -> bool:
        """Whether new blocks may make nothing leave the arena that is worth more than they are.

        With a tier below, what leaves is not lost, and what is refused never gets there.
        """
        config = self._world.config
        return len(config.tiers) == 1 and config.chance_min > 0 and not _is_wanted(hints)

    def bundles(
        self, tier: int, rows: Sequence[int], hints: Hints, horizon_ns: int
    ) -> tuple[list[Bundle], int]:
        """Bundles of a chain, from its beginning, and how many rows have too small a chance.

        Nothing is said of what comes below a row that has.
        """
        world, found = self._world, list[Bundle]()
        if world.config.admission != WORTH:
            return self._by_rule(tier, rows)
        space = world.spaces[world.blocks.index.space[rows[0]]]
        size_bytes = world.expected_bytes(tier, space)
        factor = PRIORITY_BASE**hints.priority
        self._look(tier, horizon_ns)
        if hints.ttl_s:
            horizon_ns = min(horizon_ns, int(hints.ttl_s * 1e9))
        depth, above = self._depth(rows[0]), rows[0]
        for place, row in enumerate(rows):
            chance, uses = self.expect(tier, row, horizon_ns)
            if chance < world.config.chance_min:
                return found, len(rows) - place
            if place:
                linked = world.blocks.index.parent[row] == above
                depth = depth + 1 if linked else self._depth(row)
            above = row
            value_s = uses * factor * self.saved_s(tier, space, depth)
            found.append(Bundle([row], value_s, size_bytes))
            while len(found) > 1 and found[-1].is_no_worse(found[-2]):
                last = found.pop()
                found[-1].rows += last.rows
                found[-1].value_s += last.value_s
                found[-1].size_bytes += last.size_bytes
        return found, 0

    def _by_rule(self, tier: int, rows: Sequence[int]) -> tuple[list[Bundle], int]:
        """What a rule that knows no worth takes of a chain: all, or what was seen before."""
        world, count = self._world, len(rows)
        blocks = world.blocks
        if world.config.admission != ALL:
            seen, stamp = blocks.reuse.uses.is_seen, blocks.index.stamp
            count = next((n for n, row in enumerate(rows) if not seen(stamp[row])), count)
        space = world.spaces[blocks.index.space[rows[0]]]
        size_bytes = count * world.expected_bytes(tier, space)
        return [Bundle([*rows[:count]], RULE_VALUE_S, size_bytes)] * bool(count), len(rows) - count

    def expect(self, tier: int, row: int, horizon_ns: int) -> tuple[float, float]:
        """Probability that a block is used within a horizon from now on, and uses to come then.

        They are the same for all blocks of one use.
        """
        reuse, stamp = self._world.blocks.reuse, self._world.blocks.index.stamp[row]
        if stamp in self._expected:
            return self._expected[stamp]
        hazards, age_s, horizon_s = reuse.hazards(stamp), reuse.uses.age_s(stamp), horizon_ns / 1e9
        uses = self._outlooks[tier].worth(hazards, age_s, reuse.kind(stamp), horizon_s)
        self._expected[stamp] = found = hazards.chance(age_s, horizon_s), uses
        return found

    def kin(self, rows: Sequence[int]) -> Kin:
        """What the worth of neighbours in a chain follows from, but for their place and the time.

        It is told by the first and the last of them.
        """
        reuse, stamp = self._world.blocks.reuse, self._world.blocks.index.stamp
        ends = dict.fromkeys((stamp[rows[0]], stamp[rows[-1]]))
        return tuple((reuse.hazards(one), reuse.kind(one)) for one in ends)

    def standing(self, tier: int) -> Standing:
        """What tells how often blocks of a kin are expected to be used, beside all others."""
        reuse, outlook = self._world.blocks.reuse, self._outlooks[tier]

        def standing(kin: Kin) -> float:
            usual = outlook.fresh(reuse.known[0], reuse.sessions.known[0])
            own = sum(outlook.fresh(hazards, kind) for hazards, kind in kin) / len(kin)
            return own / usual if usual > 0 else 0.0

        return standing

    def _look(self, tier: int, stay_ns: int) -> None:
        """A chain is looked at while blocks stay in memory and on a tier as they do at present."""
        self._expected.clear()
        blocks = self._world.blocks
        known, memory_s = blocks.reuse.sessions.known, blocks.memory_s()
        self._outlooks[tier].look(known, memory_s if memory_s < FOREVER_S else 0.0, stay_ns / 1e9)

    def saved_s(self, tier: int, space: Space, depth: int) -> float:
        """Seconds that a use of a block saves, as its write is priced; negative if it does not.

        It is the same at all depths where loading saves at all. Deep blocks save more, but there
        are none before a session is long and has little before it; priced by their own seconds
        they crowd out beginnings, and of a budget less is saved, in seconds too.
        """
        own_s = self.gain_s(tier, space, depth)
        chunk_tokens = space.layout.chunk_tokens if space.layout is not None else USUAL_TOKENS
        usual_s = self.gain_s(tier, space, USUAL_TOKENS // chunk_tokens)
        return usual_s if own_s > 0 < usual_s else own_s

    def gain_s(self, tier: int, space: Space, depth: int) -> float:
        """Seconds that loading the block at a depth of its chain saves; negative if it does not.

        Whoever has set that everything is loaded saves all of the computing.
        """
        costs, layout = self._world.costs, space.layout
        pipe = costs.tiers[tier]
        if layout is None or pipe is None or space.number not in costs.recompute:
            return 0.0
        chunk = layout.chunk_tokens
        gain_s = costs.recompute[space.number].seconds(chunk, depth * chunk)
        if self._world.config.policy == "load":
            return gain_s
        link = costs.device[space.number]
        return gain_s - space.raw_bytes * (1 / pipe.rate_bytes_per_s + 1 / link.rate_bytes_per_s)

    def _depth(self, row: int) -> int:
        """How many blocks are above a block."""
        parents, depth = self._world.blocks.index.parent, 0
        while (row := parents[row]) != NONE:
            depth += 1
        return depth


def _is_wanted(hints: Hints) -> bool:
    """Whether a caller asks for more than what was learned would give."""
    return bool(hints.pin_s) or hints.priority > 0
