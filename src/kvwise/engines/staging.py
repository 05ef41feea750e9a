"""How a copy plan passes through a bounded staging buffer: its waves, batches, rows and runs.

The arena's side wants few long transfers, the device's side scattered blocks. Staging holds bytes
in the order of the arena, so that the link moves runs and a kernel sorts rows. This module plans
with numpy and moves nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from kvwise.engines.copying import Addresses, CopyPlan

RUN_BYTES_AIM = 128 * 1024
"""A transfer of this size keeps the link busy for longer than the host needs to start the next."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Copies made together: row i moves `sizes[i]` bytes from `sources[i]` to `targets[i]`."""

    sources: Addresses
    targets: Addresses
    sizes: Addresses

    @property
    def total_bytes(self) -> int:
        """Bytes that all rows move."""
        return int(self.sizes.sum())

    def turned(self) -> Rows:
        """The same copies the other way."""
        return Rows(self.targets, self.sources, self.sizes)


@dataclass(frozen=True, slots=True)
class Batch:
    """What is in staging at one time, given as copies into it; a load turns one, a store the other.

    Attributes:
        blocks: device to staging, one row for each piece of a block.
        runs: arena to staging, one row for each stretch without a gap.
    """

    blocks: Rows
    runs: Rows


@dataclass(frozen=True, slots=True)
class Staging:
    """The buffer, and where its copies are cut.

    Attributes:
        address: where it begins on the device.
        size_bytes: how much it holds.
        arena: address of the arena's first page.
        slice_bytes: no run crosses a multiple of this, counted from `arena`.
    """

    address: int
    size_bytes: int
    arena: int
    slice_bytes: int

    def __post_init__(self) -> None:
        if self.slice_bytes % self.size_bytes:
            raise ValueError(
                f"slices of {self.slice_bytes} bytes are not whole stagings of {self.size_bytes}"
            )


def waves(plan: CopyPlan) -> list[range]:
    """Layers that travel together: as few as give runs of `RUN_BYTES_AIM`, in order.

    Waiting for one layer is waiting for its wave. An object keeps the blocks of one layer together,
    so a layer alone has runs of one chunk's blocks; each further layer makes them longer.
    """
    layers = len(plan.bounds) - 1
    filled = (rows for rows in zip(plan.bounds, plan.bounds[1:], strict=False) if rows[0] < rows[1])
    first, last = next(filled, (0, 0))
    arena, sizes = plan.arena[first:last], plan.sizes[first:last]
    order = np.argsort(arena, kind="stable")
    runs = int(_breaks(arena[order], sizes[order]).sum())
    run_bytes = int(sizes.sum()) // max(1, runs)
    step = -(-RUN_BYTES_AIM // max(1, run_bytes))
    return [range(layer, min(layer + step, layers)) for layer in range(0, layers, step)]


def load_batches(plan: CopyPlan, layers: range, staging: Staging) -> Iterator[Batch]:
    """Batches that bring these layers to the device, in an order that keeps the plan's meaning."""
    rows = _cut(_rows(plan, layers), staging)
    return _batches(rows, staging, together=_distinct(rows.sources, rows.sizes))


def store_batches(plan: CopyPlan, staging: Staging) -> Iterator[Batch]:
    """Batches that bring the whole plan to the arena, in an order that keeps the plan's meaning."""
    rows = _cut(_rows(plan, range(len(plan.bounds) - 1)), staging)
    return _batches(rows, staging, together=_distinct(rows.targets, rows.sizes))


def _rows(plan: CopyPlan, layers: range) -> Rows:
    """Device to arena, as planned; empty copies are left out, since drivers refuse them."""
    part = slice(plan.bounds[layers.start], plan.bounds[layers.stop])
    kept = plan.sizes[part] > 0
    return Rows(plan.device[part][kept], plan.arena[part][kept], plan.sizes[part][kept])


def _cut(rows: Rows, staging: Staging) -> Rows:
    """Cut rows at multiples of the staging's size in the arena: each then fits it and one slice."""
    start = rows.targets - staging.arena
    first = start // staging.size_bytes
    pieces = (start + rows.sizes - 1) // staging.size_bytes - first + 1
    row = np.repeat(np.arange(len(pieces)), pieces)
    nth = np.arange(len(row)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    border = (first[row] + nth) * staging.size_bytes
    begin = np.maximum(start[row], border)
    end = np.minimum((start + rows.sizes)[row], border + staging.size_bytes)
    return Rows(rows.sources[row] + begin - start[row], staging.arena + begin, end - begin)


def _distinct(targets: Addresses, sizes: Addresses) -> bool:
    """Whether no byte is written twice."""
    order = np.argsort(targets, kind="stable")
    return bool(np.all(targets[order][:-1] + sizes[order][:-1] <= targets[order][1:]))


def _breaks(address: Addresses, sizes: Addresses) -> Addresses:
    """1 where a copy does not continue the one before it, 0 where it does."""
    breaks = np.ones(len(sizes), dtype=np.int64)
    breaks[1:] = address[:-1] + sizes[:-1] != address[1:]
    return breaks


def _batches(rows: Rows, staging: Staging, *, together: bool) -> Iterator[Batch]:
    """Fill staging again and again, in the arena's order.

    Rows that write a byte twice keep the plan's order instead, one at a time: within a batch there
    is none, and the last writer must win as it does in a loop.
    """
    if together:
        order = np.argsort(rows.targets, kind="stable")
        rows = Rows(rows.sources[order], rows.targets[order], rows.sizes[order])
    ends = np.cumsum(rows.sizes)
    first = 0
    while first < len(ends):
        done = int(ends[first - 1]) if first else 0
        last = int(np.searchsorted(ends, done + staging.size_bytes, side="right"))
        last = last if together else first + 1
        part = slice(first, last)
        yield _batch(Rows(rows.sources[part], rows.targets[part], rows.sizes[part]), staging)
        first = last


def _batch(rows: Rows, staging: Staging) -> Batch:
    """Lay rows one after the other into staging and join those that continue each other."""
    places = staging.address + np.cumsum(rows.sizes) - rows.sizes
    slices = (rows.targets - staging.arena) // staging.slice_bytes
    breaks = _breaks(rows.targets, rows.sizes)
    breaks[1:] |= slices[:-1] != slices[1:]
    first = np.flatnonzero(breaks)
    runs = Rows(rows.targets[first], places[first], np.add.reduceat(rows.sizes, first))
    return Batch(blocks=Rows(rows.sources, places, rows.sizes), runs=runs)
