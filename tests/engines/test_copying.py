"""Copy plans and the host copier, against a plain picture of what an object looks like."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwise.core.layout import Group, GroupKind, Layout
from kvwise.engines.copying import SKIP, Chunks, DeviceLayer, Planner
from kvwise.engines.host_copy import HostCopier
from kvwise.errors import EngineError

BLOCKS = 12
PAGES = 64
Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class Device:
    """A KV cache: each layer has blocks of its own size, with a gap between them."""

    def __init__(self, layout: Layout, seed: int, gap: int) -> None:
        random = np.random.default_rng(seed)
        self.layout = layout
        self.sizes = [size for group in layout.groups for size in group.pages_bytes]
        self.arrays = [
            random.integers(0, 256, (BLOCKS, size + gap), dtype=np.uint8) for size in self.sizes
        ]
        groups = [g for g, group in enumerate(layout.groups) for _ in group.pages_bytes]
        self.layers = [
            DeviceLayer(group, array.ctypes.data, array.strides[0], size)
            for group, array, size in zip(groups, self.arrays, self.sizes, strict=True)
        ]

    def part(self, blocks: list[int]) -> Bytes:
        """One rank's part of an object whose blocks, group after group, are these."""
        per = self.layout.blocks_per_chunk
        return np.concatenate(
            [
                array[number, :size]
                for layer, array, size in zip(self.layers, self.arrays, self.sizes, strict=True)
                for number in blocks[layer.group * per : (layer.group + 1) * per]
            ]
        )


def objects(arena: Bytes, pages: list[int], page_bytes: int, size: int) -> Bytes:
    """The payload that lies in these pages."""
    return np.concatenate([arena[p * page_bytes : (p + 1) * page_bytes] for p in pages])[:size]


layouts = st.builds(
    lambda per, sizes, ranks: Layout(
        4, 4 * per, tuple(Group(GroupKind.FULL, tuple(group)) for group in sizes), ranks
    ),
    st.integers(1, 3),
    st.lists(st.lists(st.integers(1, 90), min_size=1, max_size=3), min_size=1, max_size=2),
    st.integers(1, 2),
)


copiers = st.builds(HostCopier, compiled=st.booleans())
ways = st.tuples(copiers, st.booleans())
"""What moves the bytes, and whether plans are whole."""


@pytest.mark.pain("C2")
@given(layouts, st.integers(8, 64), st.integers(0, 5), ways, st.randoms(use_true_random=False))
def test_stored_bytes_lie_where_the_layout_says(
    layout: Layout, page_bytes: int, gap: int, way: tuple[HostCopier, bool], random: Any
) -> None:
    """Every rank writes its part of every object, in whatever order, and nothing else."""
    copier, whole = way
    per_object = -(-layout.object_bytes // page_bytes)
    columns = len(layout.groups) * layout.blocks_per_chunk
    chunks = min(3, 400 // per_object)
    arena = np.zeros(400 * page_bytes, dtype=np.uint8)
    pages = np.array(random.sample(range(400), chunks * per_object)).reshape(chunks, per_object)
    blocks = np.array([[random.randrange(BLOCKS) for _ in range(columns)] for _ in range(chunks)])
    devices = [Device(layout, rank, gap) for rank in range(layout.ranks)]
    for rank, device in enumerate(devices):
        planner = Planner(layout, device.layers, rank=rank, page_bytes=page_bytes)
        plan = planner.plan(Chunks(pages, blocks), arena.ctypes.data, whole=whole)
        assert plan.total_bytes == chunks * layout.rank_bytes
        copier.store(plan, None)
    for row, table in zip(pages.tolist(), blocks.tolist(), strict=True):
        parts = np.concatenate([device.part(table) for device in devices])
        assert np.array_equal(objects(arena, row, page_bytes, layout.object_bytes), parts)
    untouched = np.delete(arena.reshape(400, page_bytes), pages.ravel(), axis=0)
    assert not untouched.any()


@given(layouts, st.integers(8, 64), ways, st.randoms(use_true_random=False))
def test_loaded_blocks_are_the_stored_ones(
    layout: Layout, page_bytes: int, way: tuple[HostCopier, bool], random: Any
) -> None:
    """What one device stored another gets, into other blocks; skipped ones stay as they are."""
    copier, whole = way
    per_object = -(-layout.object_bytes // page_bytes)
    columns = len(layout.groups) * layout.blocks_per_chunk
    arena = np.zeros(400 * page_bytes, dtype=np.uint8)
    pages = np.array([random.sample(range(400), per_object)])
    source, target = Device(layout, 1, 0), Device(layout, 2, 3)
    before = [array.copy() for array in target.arrays]
    stored = np.array([random.sample(range(BLOCKS), columns)])
    loaded = np.array([random.sample(range(BLOCKS), columns)])
    loaded[0, random.randrange(columns)] = SKIP
    for device, blocks, verb in ((source, stored, "store"), (target, loaded, "load")):
        planner = Planner(layout, device.layers, rank=0, page_bytes=page_bytes)
        plan = planner.plan(Chunks(pages, blocks), arena.ctypes.data, whole=whole)
        layers: list[int] = []
        if verb == "store":
            copier.store(plan, None)
        else:
            copier.load(plan, None, layers.append)
            assert layers == list(range(1 if whole else len(device.layers)))
    per = layout.blocks_per_chunk
    for index, layer in enumerate(target.layers):
        expected = before[index]
        for column in range(layer.group * per, (layer.group + 1) * per):
            if loaded[0, column] != SKIP:
                size = layer.page_bytes
                expected[loaded[0, column], :size] = source.arrays[index][stored[0, column], :size]
        assert np.array_equal(target.arrays[index], expected)


def test_neighbours_are_copied_together() -> None:
    """Blocks that follow each other on both sides are one copy for each layer."""
    layout = Layout(4, 8, (Group(GroupKind.FULL, (32, 32)),))
    device = Device(layout, 0, 0)
    planner = Planner(layout, device.layers, rank=0, page_bytes=4096)
    plan = planner.plan(Chunks(np.array([[1]]), np.array([[3, 4]])), 0)
    assert plan.sizes.tolist() == [64, 64]
    assert plan.bounds == (0, 1, 2)


def test_a_whole_plan_joins_across_layers() -> None:
    """Layers that lie side by side on both sides are one copy when nobody waits for one."""
    layout = Layout(4, 4, (Group(GroupKind.FULL, (32, 32)),))
    layers = [DeviceLayer(0, 1000 + 32 * layer, 64, 32) for layer in range(2)]
    planner = Planner(layout, layers, rank=0, page_bytes=4096)
    plan = planner.plan(Chunks(np.array([[1]]), np.array([[3]])), 0, whole=True)
    assert (plan.device.tolist(), plan.sizes.tolist(), plan.bounds) == ([1192], [64], (0, 1))


@pytest.mark.pain("C5")
@pytest.mark.parametrize("compiled", [True, False])
def test_nothing_to_copy_is_a_plan_too(compiled: bool) -> None:
    """Chunks of skipped blocks give an empty plan that a copier carries out."""
    layout = Layout(4, 4, (Group(GroupKind.FULL, (32,)),))
    planner = Planner(layout, Device(layout, 0, 0).layers, rank=0, page_bytes=4096)
    plan = planner.plan(Chunks(np.array([[1]]), np.array([[SKIP]])), 0)
    assert (plan.total_bytes, plan.bounds) == (0, (0, 0))
    HostCopier(compiled=compiled).store(plan, None)


def test_layers_that_do_not_fit_are_refused() -> None:
    """A device whose blocks have another size than the layout says cannot be served."""
    layout = Layout(4, 4, (Group(GroupKind.FULL, (32, 32)),))
    with pytest.raises(EngineError, match="do not match the layout"):
        Planner(layout, [DeviceLayer(0, 0, 32, 32)], rank=0, page_bytes=4096)


def test_small_pieces_do_not_wait_for_a_busy_thread() -> None:
    """Beside a thread that never rests, 1000 pieces take milliseconds and not a turn each."""
    layout = Layout(4, 4, (Group(GroupKind.FULL, (8192,) * 500),))
    device = Device(layout, 0, 8)
    planner = Planner(layout, device.layers, rank=0, page_bytes=4096)
    arena = np.zeros(layout.object_bytes, dtype=np.uint8)
    plan = planner.plan(Chunks(np.arange(1000)[None, ::-1], np.array([[3]])), arena.ctypes.data)
    assert len(plan.sizes) == 1000
    over = threading.Event()

    def spin() -> None:
        while not over.is_set():
            pass

    busy = threading.Thread(target=spin)
    busy.start()
    took = []
    try:
        for _ in range(3):  # the machine may be busy with others once
            begin = time.perf_counter()
            HostCopier().store(plan, None)
            took.append(time.perf_counter() - begin)
    finally:
        over.set()
        busy.join()
    assert min(took) < 0.5
