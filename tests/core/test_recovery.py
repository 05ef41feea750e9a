"""Recovery: whatever is told in whatever order, what is kept is what a slow model would keep."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwise.core.brain import Brain
from kvwise.core.index import MANY, NONE
from kvwise.core.keys import ROOT, chain_keys, split_keys
from kvwise.core.shelf import State
from kvwise.core.words import Command, Drop, Recovered, Why
from kvwise.errors import BugError
from tests.core.tiny import (
    CHUNK,
    KEYS,
    PAGE,
    SPACE,
    brain,
    config,
    finish,
    recovered,
    store,
)

Told = tuple[int, int | None]
"""A record: its number, and that of its parent; None for the first of a chain."""


def key_of(number: int) -> bytes:
    """Keys of few shards."""
    return struct.pack("<QQ", number % 3, number // 3 * 1024 + 1)


def tell(made: Brain, records: list[Told], at_once: int) -> list[Command]:
    """Tell the brain of records, so many in one event, and that these were all."""
    commands = []
    for first in range(0, len(records), at_once):
        few = records[first : first + at_once]
        keys = b"".join(key_of(number) for number, _ in few)
        parents = b"".join(ROOT if above is None else key_of(above) for _, above in few)
        commands += made.handle(recovered(keys, parents, tuple(range(first, first + len(few)))))
    return commands + made.handle(recovered(b"", b"", ()))


def kept_of(records: list[Told]) -> dict[int, int]:
    """The model: numbers that are kept and the first record of each, from the roots down."""
    first: dict[int, int] = {}
    for place, (number, _) in enumerate(records):
        first.setdefault(number, place)
    kept: dict[int, int] = {}
    growing = True
    while growing:
        more = {
            number: place
            for number, place in first.items()
            if number not in kept and (records[place][1] is None or records[place][1] in kept)
        }
        kept |= more
        growing = bool(more)
    return kept


def told_of(parents: list[int | None], order: list[int]) -> list[Told]:
    """Records in an order that may repeat and leave out; a number has one parent."""
    return [(number % len(parents), parents[number % len(parents)]) for number in order]


TREES = st.lists(st.one_of(st.none(), st.integers(0, 50)), min_size=1, max_size=50)
"""Parents by number: trees, rings, and parents that nobody has."""


@given(TREES, st.lists(st.integers(0, 49), max_size=120), st.integers(1, 40))
def test_what_is_kept_has_its_prefix(
    parents: list[int | None], order: list[int], at_once: int
) -> None:
    """In any order, with doubles, orphans and rings, the brain keeps what the model keeps."""
    made = Brain(config(disk_objects=200))
    records = told_of(parents, order)
    drops = [command for command in tell(made, records, at_once) if isinstance(command, Drop)]
    made.check()
    kept = kept_of(records)
    held = {holding.key: holding for holding in made.holdings()}
    assert {key: holding.locations[1] for key, holding in held.items()} == {
        key_of(number): place for number, place in kept.items()
    }
    for number in kept:
        above = parents[number]
        assert held[key_of(number)].parent == (ROOT if above is None else key_of(above))
    dropped = {
        (location, drop.why, key, size)
        for drop in drops
        for location, key, size in zip(
            drop.locations, split_keys(drop.keys), drop.stored_bytes, strict=True
        )
    }
    assert dropped == {
        (place, Why.PRESENT if number in kept else Why.ORPHANED, key_of(number), 12288)
        for place, (number, _) in enumerate(records)
        if kept.get(number) != place
    }


def test_a_long_chain_backwards_is_whole() -> None:
    """Children that all come before their parents are kept."""
    count = 3 * MANY
    made = Brain(config(disk_objects=count))
    records: list[Told] = [(number, number - 1 if number else None) for number in range(count)]
    assert tell(made, records[::-1], 100) == []
    made.check()
    assert made.snapshot()["levels"]["tiers"]["disk"]["objects"] == count


def test_a_block_of_this_life_gets_its_copy_back() -> None:
    """A record of a block in the arena becomes its copy on the disk, if its own parent is there."""
    made = brain()
    finish(made, store(made), first=100)
    other = chain_keys(SPACE.digest, [7] * (2 * CHUNK), CHUNK)
    for key in split_keys(other):
        rows = made._world.blocks.add_chain(key, NONE, 0, 1)
        assert made._world.blocks.reserve_chain(rows, PAGE)
        made._world.blocks.finish_all(0, rows)
        made._world.blocks.unpin_all(rows)
    parents = ROOT + KEYS[:16] + ROOT + b"nobody's parent."
    made.handle(recovered(KEYS[:32] + other, parents, (1, 2, 3, 4)))
    drops = [c for c in made.handle(recovered(b"", b"", ())) if isinstance(c, Drop)]
    made.check()
    assert [(drop.locations, drop.why) for drop in drops] == [
        ((1, 2), Why.PRESENT),
        ((4,), Why.ORPHANED),
    ]
    held = {holding.key: holding.states for holding in made.holdings()}
    assert held[other[:16]] == (State.READY, State.READY)
    assert held[other[16:]] == (State.READY, State.ABSENT)


@pytest.mark.parametrize("short", ["keys", "parents", "locations", "stored_bytes"])
def test_columns_of_different_lengths_are_refused(short: str) -> None:
    """An event whose columns do not fit together changes nothing."""
    made = brain()
    whole = recovered(KEYS[:32], ROOT + KEYS[:16], (1, 2))
    columns = {
        name: getattr(whole, name) for name in ("keys", "parents", "locations", "stored_bytes")
    }
    columns[short] = columns[short][:-1]
    with pytest.raises(BugError, match="columns"):
        made.handle(Recovered(1, 1, SPACE.digest, raw_bytes=whole.raw_bytes, **columns))
    made.handle(recovered(b"", b"", ()))
    made.check()
    assert made.snapshot()["levels"]["blocks"] == 0
