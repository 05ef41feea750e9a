"""Owns made-up copy jobs on host memory for the tests of the GPU copy path. It checks nothing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from kvwise.core.layout import Group, GroupKind, Layout
from kvwise.engines.copying import SKIP, Chunks, CopyPlan, DeviceLayer, Planner

Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class Shape:
    """One job's shape: page sizes of the layers of each group, and how much of what."""

    groups: tuple[tuple[int, ...], ...]
    blocks_per_chunk: int
    chunks: int
    page_bytes: int
    ranks: int


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    """Small jobs with every odd size."""
    sizes = st.one_of(st.integers(1, 12).map(lambda n: 16 * n), st.integers(1, 200))
    groups = draw(st.lists(st.lists(sizes, min_size=1, max_size=3), min_size=1, max_size=2))
    return Shape(
        groups=tuple(tuple(group) for group in groups),
        blocks_per_chunk=draw(st.integers(1, 4)),
        chunks=draw(st.integers(0, 4)),
        page_bytes=draw(st.sampled_from([16, 48, 64, 128, 256, 1024])),
        ranks=draw(st.integers(1, 2)),
    )


class Job:
    """A shape with memory: KV tensors of every layer, an arena, and a plan between them."""

    def __init__(self, shape: Shape, seed: int, *, whole: bool = False) -> None:
        rng = np.random.default_rng(seed)
        blocks = 1 + shape.chunks * shape.blocks_per_chunk
        flat = [(g, size) for g, group in enumerate(shape.groups) for size in group]
        self.tensors: list[Bytes] = [
            rng.integers(0, 256, (blocks, size), dtype=np.uint8) for _, size in flat
        ]
        layers = [
            DeviceLayer(group, int(tensor.ctypes.data), size, size)
            for (group, size), tensor in zip(flat, self.tensors, strict=True)
        ]
        layout = Layout(
            16,
            16 * shape.blocks_per_chunk,
            tuple(Group(GroupKind.FULL, group) for group in shape.groups),
            shape.ranks,
        )
        pages_each = -(-layout.object_bytes // shape.page_bytes)
        pages = shape.chunks * pages_each
        self.arena: Bytes = rng.integers(0, 256, max(1, 2 * pages) * shape.page_bytes, np.uint8)
        numbers = rng.permutation(2 * pages)[:pages]
        if rng.random() < 0.5:
            numbers.sort()
        columns = len(shape.groups) * shape.blocks_per_chunk
        table = np.full((shape.chunks, columns), SKIP, dtype=np.int64)
        for group in range(len(shape.groups)):
            part = slice(group * shape.blocks_per_chunk, (group + 1) * shape.blocks_per_chunk)
            numbered = rng.permutation(blocks - 1) + 1
            table[:, part] = numbered.reshape(shape.chunks, shape.blocks_per_chunk)
        table[rng.random(table.shape) < rng.choice([0, 0.3])] = SKIP
        planner = Planner(layout, layers, rank=shape.ranks - 1, page_bytes=shape.page_bytes)
        chunks = Chunks(pages=numbers.reshape(shape.chunks, pages_each), blocks=table)
        self.plan: CopyPlan = planner.plan(chunks, self.arena_address, whole=whole)

    @property
    def arena_address(self) -> int:
        """Where the arena's memory is."""
        return int(self.arena.ctypes.data)

    def device(self) -> list[bytes]:
        """The bytes of all tensors."""
        return [tensor.tobytes() for tensor in self.tensors]

    def scramble(self, seed: int) -> None:
        """Give every byte on both sides a new value."""
        rng = np.random.default_rng(seed)
        for memory in (self.arena, *self.tensors):
            memory[...] = rng.integers(0, 256, memory.shape, dtype=np.uint8)
