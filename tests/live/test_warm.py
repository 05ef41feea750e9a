"""Warming: the next pages get their memory ahead, and no more than that."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

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
    warmer = Warmer(arena, lambda: 0)

    assert eventually(lambda: arena.resident_bytes >= before + 99 * PAGE)

    warmer.close()
    assert arena.resident_bytes <= before + 100 * PAGE
    assert bytes(arena.page(3)[:5]) == b"hello"


def test_it_stays_ahead_of_what_is_in_use(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    """More is provided when more is used, nothing is taken back when less is."""
    monkeypatch.setattr(warm, "WARM_BYTES", 100 * PAGE)
    monkeypatch.setattr(warm, "SLICE_BYTES", 16 * PAGE)
    monkeypatch.setattr(warm, "LOOK_S", 0.01)
    used = [0]
    before = arena.resident_bytes
    warmer = Warmer(arena, lambda: used[0])
    for pages, provided in ((250, 350), (20, 350), (990, PAGES)):
        used[0] = pages
        assert eventually(partial(_reaches, arena, before + provided * PAGE))

        assert arena.resident_bytes <= before + provided * PAGE
    warmer.close()


def _reaches(arena: Arena, resident_bytes: int) -> bool:
    """Whether so much memory is in use."""
    return arena.resident_bytes >= resident_bytes


def test_a_small_arena_is_provided_whole(arena: Arena) -> None:
    """The bound is no promise of more pages than there are."""
    warmer = Warmer(arena, lambda: 0)

    assert eventually(lambda: arena.resident_bytes >= PAGES * PAGE)

    warmer.close()
    warmer.close()


def test_closing_does_not_wait_for_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that is closed at once does not first touch half a gigabyte."""
    monkeypatch.setattr(warm, "PAUSE_S", 10.0)
    arena = Arena.create(ArenaShape.of(PAGES, PAGE), huge_pages=False)
    warmer = Warmer(arena, lambda: 0)

    warmer.close()

    assert arena.resident_bytes == 0
    arena.close()


def test_pages_outside_cannot_be_provided(arena: Arena) -> None:
    """A slice beyond the arena is our bug."""
    with pytest.raises(BugError):
        arena.populate(PAGES - 1, 2)
