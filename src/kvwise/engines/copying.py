"""Copies between the device's KV pages and the arena: what to copy, and who can copy it.

A plan is numpy arrays of addresses, computed once per job without a loop over blocks; a copier is
what moves the bytes of one kind of device. Nothing here decides what is worth copying, and nothing
here knows a host engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kvwise.core.layout import Layout
from kvwise.errors import EngineError

Addresses = NDArray[np.int64]
"""Addresses, sizes, block numbers; signed, since numpy turns signed with unsigned into floats."""

SKIP = -1
"""Block number that says: this block is not copied."""

Fence = object
"""What a copier returns from `fence`; only the copier that made it looks inside."""


@dataclass(frozen=True, slots=True)
class DeviceLayer:
    """Where one layer keeps its blocks: block b is at `address + b * stride`, `page_bytes` long.

    Attributes:
        group: index of the layer group in the layout.
        pieces: where the parts of a block begin within it, when it is not in one piece (K apart
            from V, heads apart); all parts are equally long.
    """

    group: int
    address: int
    stride: int
    page_bytes: int
    pieces: tuple[int, ...] = (0,)


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """One job: copy i moves `sizes[i]` bytes between `device[i]` and `arena[i]`.

    Copies are ordered layer by layer: those of layer k are `bounds[k]` up to `bounds[k + 1]`.
    Neighbours that continue each other on both sides are already joined within a layer.
    A plan made whole is one layer to whoever carries it out, in the order of the objects.
    """

    device: Addresses
    arena: Addresses
    sizes: Addresses
    bounds: tuple[int, ...]

    @property
    def total_bytes(self) -> int:
        """Bytes that the job moves."""
        return int(self.sizes.sum())


class Copier(Protocol):
    """Moves the bytes of plans. Calls block until the bytes are where they should be.

    The caller guarantees: `pin` came first, and again for another arena, never while a copy runs;
    both sides of a plan stay valid until the call returns; `fence` is called on the engine's own
    thread, `load` and `store` are called from copy threads, several at a time.
    The implementer guarantees: when a call returns, all bytes have arrived; device work that was
    submitted before the fence is over before the first byte moves; a copy that could not be made
    raises `EngineError`.
    """

    def pin(self, address: int, size_bytes: int) -> None:
        """Prepare the arena for fast copies; the arena prepared before, if any, is gone."""
        ...

    def fence(self) -> Fence:
        """Mark the device work that the calling thread has submitted so far."""
        ...

    def load(self, plan: CopyPlan, fence: Fence, on_layer: Callable[[int], None]) -> None:
        """Arena to device. Calls `on_layer(k)` as soon as every byte of layer k has arrived."""
        ...

    def store(self, plan: CopyPlan, fence: Fence) -> None:
        """Device to arena."""
        ...

    def close(self) -> None:
        """Undo `pin` and give up every resource; idempotent."""
        ...


@dataclass(frozen=True, slots=True)
class Chunks:
    """What one job copies, chunk by chunk.

    Attributes:
        pages: arena page numbers, one row for each chunk.
        blocks: device block numbers, one row for each chunk: first the blocks of group 0, then
            those of group 1, and so on, `layout.blocks_per_chunk` each; `SKIP` leaves one out.
    """

    pages: Addresses
    blocks: Addresses


class Planner:
    """Turns chunks into copy plans for one rank. The shape of an object is worked out only once."""

    def __init__(
        self, layout: Layout, layers: Sequence[DeviceLayer], *, rank: int, page_bytes: int
    ) -> None:
        """Work out the pieces of one object: borders of arena pages cut blocks, and so do gaps.

        Raises:
            EngineError: the device's layers do not fit the layout.
        """
        _check_layers(layout, layers)
        self._page_bytes = page_bytes
        self._layers = len(layers)
        self._groups = len(layout.groups)
        self._blocks_per_chunk = layout.blocks_per_chunk
        pieces = _pieces(layout, layers, rank * layout.rank_bytes, page_bytes)
        columns = np.array(pieces, dtype=np.int64).T
        self._layer, self._column, self._page, self._in_page, self._in_block, self._size = columns
        self._address = np.array([layer.address for layer in layers], dtype=np.int64)[self._layer]
        self._stride = np.array([layer.stride for layer in layers], dtype=np.int64)[self._layer]

    @property
    def block_columns(self) -> int:
        """Columns of `Chunks.blocks`."""
        return self._groups * self._blocks_per_chunk

    def plan(self, chunks: Chunks, arena_address: int, *, whole: bool = False) -> CopyPlan:
        """The copies of `chunks` between this device and the arena at `arena_address`.

        `whole` is for a job that nobody waits for layer by layer: object after object, which is
        the order of the arena.
        """
        blocks = chunks.blocks[:, self._column]
        arena = chunks.pages[:, self._page] * self._page_bytes + (self._in_page + arena_address)
        device = blocks * self._stride + (self._address + self._in_block)
        layer = np.broadcast_to(np.int64(0) if whole else self._layer, blocks.shape).ravel()
        size = np.broadcast_to(self._size, blocks.shape).ravel()
        columns: tuple[Addresses, ...] = (device.ravel(), arena.ravel(), size, layer)
        if not whole or int(chunks.blocks.min(initial=0)) == SKIP:
            kept = np.flatnonzero(blocks.ravel() != SKIP)
            order = kept if whole else kept[np.argsort(layer[kept], kind="stable")]
            columns = tuple(column[order] for column in columns)
        return _joined(*columns, layers=1 if whole else self._layers)


def _check_layers(layout: Layout, layers: Sequence[DeviceLayer]) -> None:
    """Refuse layers that do not come group by group with the page sizes of the layout."""
    have = [(layer.group, layer.page_bytes) for layer in layers]
    want = [(g, size) for g, group in enumerate(layout.groups) for size in group.pages_bytes]
    if have != want:
        raise EngineError(
            f"the device's KV layers do not match the layout: {len(have)} layers {have[:3]}..., "
            f"expected {len(want)} layers {want[:3]}... (group, bytes of one block)"
        )


def _pieces(
    layout: Layout, layers: Sequence[DeviceLayer], start: int, page_bytes: int
) -> list[tuple[int, int, int, int, int, int]]:
    """Each piece: layer, column of its block, arena page, place there, place in the block, size.

    `start` is where the rank's part begins in the object.
    """
    pieces = []
    offset = start
    for index, layer in enumerate(layers):
        for block in range(layout.blocks_per_chunk):
            column = layer.group * layout.blocks_per_chunk + block
            done = 0
            while done < layer.page_bytes:
                page, in_page = divmod(offset + done, page_bytes)
                piece, in_piece = divmod(done, layer.page_bytes // len(layer.pieces))
                left = layer.page_bytes // len(layer.pieces) - in_piece
                size = min(left, page_bytes - in_page)
                in_block = layer.pieces[piece] + in_piece
                pieces.append((index, column, page, in_page, in_block, size))
                done += size
            offset += layer.page_bytes
    return pieces


def _joined(
    device: Addresses, arena: Addresses, size: Addresses, layer: Addresses, *, layers: int
) -> CopyPlan:
    """Join copies that continue each other on both sides within a layer."""
    starts = np.ones(len(size), dtype=bool)
    starts[1:] = (
        (device[:-1] + size[:-1] != device[1:])
        | (arena[:-1] + size[:-1] != arena[1:])
        | (layer[:-1] != layer[1:])
    )
    first = np.flatnonzero(starts)
    sizes = np.add.reduceat(size, first) if len(first) else size
    bounds = np.searchsorted(layer[first], np.arange(layers + 1))
    return CopyPlan(device[first], arena[first], sizes, tuple(bounds.tolist()))
