"""Audit: every block as people and checkers see it, and whether the rules of `blocks` hold.

It changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from kvwise.core.blocks import Blocks
from kvwise.core.index import NONE
from kvwise.core.keys import ROOT
from kvwise.core.shelf import State
from kvwise.core.words import DRAM


@dataclass(frozen=True, slots=True)
class Holding:
    """What is known of one block: for people and checkers.

    Attributes:
        parent: `keys.ROOT` for the first block of a chain.
        states, locations: of its copies, by tier.
    """

    key: bytes
    parent: bytes
    pins: int
    states: tuple[State, ...]
    locations: tuple[int, ...]


def holdings(blocks: Blocks) -> Iterator[Holding]:
    """Every block."""
    index, shelves = blocks.index, blocks.shelves
    for row in range(index.capacity):
        states = tuple(State(shelf.state[row]) for shelf in shelves)
        if any(states):
            parent = index.parent[row]
            yield Holding(
                key=index.key(row),
                parent=ROOT if parent == NONE else index.key(parent),
                pins=index.pins[row],
                states=states,
                locations=tuple(shelf.location[row] for shelf in shelves),
            )


def check(blocks: Blocks) -> None:
    """Verify the rules of the docstring of `blocks`.

    Raises:
        AssertionError: one is broken.
    """
    blocks.index.check()
    blocks.keep.check()
    held = 0
    assert blocks.doomed == {
        row
        for row in range(blocks.index.capacity)
        if any(shelf.state[row] == State.EVICTING for shelf in blocks.shelves)
    }
    assert blocks.index.rows == sum(
        any(shelf.state[row] for shelf in blocks.shelves) for row in range(blocks.index.capacity)
    )
    for tier, shelf in enumerate(blocks.shelves):
        used = ready = 0
        kids: Counter[int] = Counter()
        for row in range(blocks.index.capacity):
            if shelf.state[row] == State.ABSENT:
                continue
            used += shelf.stored[row] * shelf.spec.unit_bytes
            ready += shelf.state[row] == State.READY
            kids[blocks.index.parent[row]] += 1
            if tier == DRAM and shelf.stored[row]:
                held += len(blocks.pages_of(row))
        assert used == shelf.used_bytes <= shelf.spec.capacity_bytes
        assert ready == shelf.ready
        for row in range(blocks.index.capacity):
            assert shelf.kids[row] == kids[row]
    assert held + blocks.pages.free_count == blocks.pages.count
    assert blocks.pins == sum(blocks.index.pins)
