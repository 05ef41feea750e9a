"""Warming: the first pages get their memory ahead, and no more than that."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kvwise.errors import BugError
from kvwise.live import warm
from kvwise.live.warm import Warmer
from kvwise.tiers.dram import Arena, ArenaShape
from tests.live.support import PAGE, eventually

PAGES = 1000


@pytest.fixture
def arena() -> Iterator[Arena]:
    """An arena that nobody used yet."""
    arena = Arena.create(ArenaShape.of(PAGES, PAGE), huge_pages=False)
    yield arena
    arena.close()


def test_the_first_pages_are_provided(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory in use grows to the bound and stays there; what is written stays."""
    monkeypatch.setattr(warm, "WARM_BYTES", 100 * PAGE)
    monkeypatch.setattr(warm, "SLICE_BYTES", 16 * PAGE)
    arena.page(3)[:5] = b"hello"
    before = arena.resident_bytes
    warmer = Warmer(arena)

    assert eventually(lambda: arena.resident_bytes >= before + 99 * PAGE)

    warmer.close()
    assert arena.resident_bytes <= before + 100 * PAGE
    assert bytes(arena.page(3)[:5]) == b"hello"


def test_a_small_arena_is_provided_whole(arena: Arena) -> None:
    """The bound is no promise of more pages than there are."""
    warmer = Warmer(arena)

    assert eventually(lambda: arena.resident_bytes >= PAGES * PAGE)

    warmer.close()
    warmer.close()


def test_closing_does_not_wait_for_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that is closed at once does not first touch half a gigabyte."""
    monkeypatch.setattr(warm, "PAUSE_S", 10.0)
    arena = Arena.create(ArenaShape.of(PAGES, PAGE), huge_pages=False)
    warmer = Warmer(arena)

    warmer.close()

    assert arena.resident_bytes == 0
    arena.close()


def test_pages_outside_cannot_be_provided(arena: Arena) -> None:
    """A slice beyond the arena is our bug."""
    with pytest.raises(BugError):
        arena.populate(PAGES - 1, 2)
