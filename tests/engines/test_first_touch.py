"""The host copier and memory that its process has not touched: provided at once, no more of it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from kvwise.engines.copying import CopyPlan
from kvwise.engines.first_touch import GRANULE_BYTES
from kvwise.engines.host_copy import HostCopier
from kvwise.tiers.dram import Arena, ArenaShape
from kvwise.units import KIB, MIB

PAGE_BYTES = 128 * KIB
PAGES = 256


@pytest.fixture
def arena() -> Iterator[Arena]:
    """An arena that nobody has touched."""
    made = Arena.create(ArenaShape.of(PAGES, PAGE_BYTES), huge_pages=False)
    yield made
    made.close()


@pytest.fixture
def device() -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """Memory of the device, all of it touched."""
    return np.arange(8 * MIB, dtype=np.uint32).view(np.uint8)


def _plan(device_at: int, arena_at: int, sizes: list[int], step: int) -> CopyPlan:
    """Copies of these sizes; they begin `step` bytes apart in the arena."""
    lengths = np.asarray(sizes, dtype=np.int64)
    places = arena_at + step * np.arange(len(sizes), dtype=np.int64)
    sources = device_at + np.cumsum(lengths) - lengths
    return CopyPlan(sources, places, lengths, (0, len(sizes)))


@pytest.mark.parametrize(
    ("sizes", "step", "granules"),
    [
        ([1], GRANULE_BYTES, {0}),
        ([24 * KIB] * 3, 3 * GRANULE_BYTES, {0, 3, 6}),
        ([2 * GRANULE_BYTES + 1], GRANULE_BYTES, {0, 1, 2}),
        ([3 * GRANULE_BYTES, 1], 7 * GRANULE_BYTES, {0, 1, 2, 7}),
    ],
)
def test_memory_is_asked_for_in_parts_that_are_used(
    arena: Arena,
    device: np.ndarray[tuple[int, ...], np.dtype[np.uint8]],
    sizes: list[int],
    step: int,
    granules: set[int],
) -> None:
    """The parts that a copy reaches, each as a whole; the rest of an arena stays free."""
    if not arena.populate(PAGES - 1, 1):
        pytest.skip("this kernel has no MADV_POPULATE_WRITE")
    before = arena.resident_bytes
    copier = HostCopier()
    copier.pin(arena.address, arena.pages.nbytes)
    plan = _plan(device.ctypes.data, arena.address, sizes, step)
    copier.store(plan, copier.fence())
    copier.store(plan, copier.fence())

    assert arena.resident_bytes - before == len(granules) * GRANULE_BYTES


def test_another_arena_is_mapped_anew(
    device: np.ndarray[tuple[int, ...], np.dtype[np.uint8]],
) -> None:
    """A daemon that was replaced brings a new one, of another size."""
    copier = HostCopier()
    for pages in (64, 16, 128):
        arena = Arena.create(ArenaShape.of(pages, PAGE_BYTES), huge_pages=False)
        copier.pin(arena.address, arena.pages.nbytes)
        last = arena.address + arena.pages.nbytes - 4 * KIB
        copier.store(_plan(device.ctypes.data, last, [4 * KIB], 1), copier.fence())
        copier.load(
            _plan(device.ctypes.data + MIB, last, [4 * KIB], 1), copier.fence(), lambda _: None
        )

        assert bytes(arena.pages[-4 * KIB :]) == device[: 4 * KIB].tobytes()
        assert device[MIB : MIB + 4 * KIB].tobytes() == device[: 4 * KIB].tobytes()
        arena.close()
