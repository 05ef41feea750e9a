"""Where a block lies in a KV tensor of any layout, worked out from its shape and strides alone.

It knows no layout by name and looks at no byte. What it cannot describe as equal contiguous pieces
at the same places in every block, it refuses.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from kvwise.engines.copying import DeviceLayer
from kvwise.errors import EngineError

PIECES_MAX = 1024
"""More pieces in one block would be copies of a few bytes each."""


@dataclass(frozen=True, slots=True)
class KvTensor:
    """The memory of one layer's KV tensor.

    Attributes:
        name: what it is, for messages.
        address: address of element zero.
        shape: as the engine made it, in any order of axes.
        strides: elements between neighbours of each axis.
        item_bytes: bytes of one element.
    """

    name: str
    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    item_bytes: int


def device_layer(tensor: KvTensor, *, group: int, blocks: int) -> DeviceLayer:
    """How to find the `blocks` blocks of `tensor`.

    The axis of blocks is the first one, or the second after an axis of two (K and V apart); it may
    be longer by a whole factor, when the kernel's blocks are parts of the engine's. The other axes
    are taken in the order of memory and joined where they continue each other; what stays apart
    makes the pieces.

    Raises:
        EngineError: no such axis, elements apart, overlapping blocks, or too many pieces.
    """
    axis = _block_axis(tensor, blocks)
    parts = tensor.shape[axis] // blocks
    inner = [
        (stride, size)
        for i, (stride, size) in enumerate(zip(tensor.strides, tensor.shape, strict=True))
        if i != axis
    ]
    inner.append((tensor.strides[axis], parts))
    stride = tensor.strides[axis] * parts
    _require_apart(tensor, [*inner, (stride, blocks)])
    run, outer = _joined(inner)
    if not run:
        raise EngineError(f"{tensor.name}: its elements are not contiguous")
    pieces = [
        sum(step * nth for (step, _), nth in zip(outer, place, strict=True)) * tensor.item_bytes
        for place in product(*(range(size) for _, size in outer))
    ]
    if len(pieces) > PIECES_MAX:
        raise EngineError(
            f"{tensor.name}: a block is in {len(pieces)} pieces of {run * tensor.item_bytes} "
            f"bytes; choose a KV layout that keeps more of a block together"
        )
    return DeviceLayer(
        group=group,
        address=tensor.address,
        stride=stride * tensor.item_bytes,
        page_bytes=len(pieces) * run * tensor.item_bytes,
        pieces=tuple(pieces),
    )


def inner_axes(tensor: KvTensor, blocks: int) -> list[tuple[int, int]]:
    """(axis, size) of all axes within a block, far ones first: the order of a block's bytes.

    It does not depend on how many blocks there are.

    Raises:
        EngineError: no axis counts blocks.
    """
    counting = _block_axis(tensor, blocks)
    far_first = sorted(range(len(tensor.shape)), key=lambda axis: -tensor.strides[axis])
    parts = tensor.shape[counting] // blocks
    return [
        (axis, parts if axis == counting else tensor.shape[axis])
        for axis in far_first
        if axis != counting or parts > 1
    ]


def _block_axis(tensor: KvTensor, blocks: int) -> int:
    """Which axis counts blocks.

    Raises:
        EngineError: none does, or two could.
    """
    shape = tensor.shape
    first = bool(shape) and shape[0] >= blocks > 0 and shape[0] % blocks == 0
    second = len(shape) > 1 and shape[0] == 2 and shape[1] >= blocks > 0 and shape[1] % blocks == 0
    if first == second:
        what = "two axes" if first else "no axis"
        raise EngineError(f"{tensor.name}: {what} of {shape} can be that of {blocks} blocks")
    return 0 if first else 1


def _require_apart(tensor: KvTensor, axes: list[tuple[int, int]]) -> None:
    """Refuse tensors in which two elements share memory.

    Raises:
        EngineError: some do.
    """
    reach = 1
    for stride, size in sorted(axis for axis in axes if axis[1] > 1):
        if stride < reach:
            raise EngineError(
                f"{tensor.name}: its elements overlap, shape {tensor.shape}, "
                f"strides {tensor.strides}"
            )
        reach += stride * (size - 1)


def _joined(axes: list[tuple[int, int]]) -> tuple[int, list[tuple[int, int]]]:
    """Elements of one piece, and the axes that count pieces, far ones first.

    No elements when neighbours in memory are not neighbours in the tensor.
    """
    near_first = sorted(axis for axis in axes if axis[1] > 1)
    run = 1
    outer: list[tuple[int, int]] = []
    for stride, size in near_first:
        if not outer and stride == run:
            run *= size
        else:
            outer.append((stride, size))
    if near_first and near_first[0][0] != 1:
        return 0, []
    return run, outer[::-1]
