"""Owns the proof that blocks are found in tensors of any layout. It moves no bytes on a device."""

from __future__ import annotations

from itertools import permutations
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from kvwise.core.layout import Group, GroupKind, Layout
from kvwise.engines.copying import Chunks, Planner
from kvwise.engines.host_copy import HostCopier
from kvwise.engines.pieces import PIECES_MAX, KvTensor, device_layer
from kvwise.errors import EngineError

Tensor = NDArray[np.uint16]


def described(tensor: Tensor, name: str = "layer") -> KvTensor:
    """What an adapter would say of this tensor."""
    item = tensor.itemsize
    strides = tuple(stride // item for stride in tensor.strides)
    return KvTensor(name, int(tensor.ctypes.data), tensor.shape, strides, item)


def block_bytes(tensor: Tensor, axis: int, block: int) -> bytes:
    """The elements of one block in the order of memory."""
    part = tensor[(slice(None),) * axis + (block,)]
    axes = sorted(range(part.ndim), key=lambda i: -part.strides[i])
    return part.transpose(axes).tobytes()


def stored(tensor: Tensor, blocks: int, wanted: list[int]) -> list[bytes]:
    """Blocks as a store through planner and copier puts them into an arena."""
    layer = device_layer(described(tensor), group=0, blocks=blocks)
    layout = Layout(16, 16, (Group(GroupKind.FULL, (layer.page_bytes,)),))
    arena = np.zeros((len(wanted), layer.page_bytes), dtype=np.uint8)
    planner = Planner(layout, [layer], rank=0, page_bytes=layer.page_bytes)
    chunks = Chunks(
        pages=np.arange(len(wanted), dtype=np.int64).reshape(-1, 1),
        blocks=np.array(wanted, dtype=np.int64).reshape(-1, 1),
    )
    HostCopier().store(planner.plan(chunks, int(arena.ctypes.data)), object())
    return [row.tobytes() for row in arena]


ORDERS = list(permutations("LBHNC"))
"""Every order in which layers, blocks, heads, tokens and content can lie in memory."""


@pytest.mark.parametrize("order", [o for o in ORDERS if o[-1] == "C"], ids="".join)
def test_every_order_of_axes(order: tuple[str, ...]) -> None:
    """Whatever lies outside of what, each block's bytes are found in every layer."""
    sizes = {"L": 3, "B": 5, "H": 2, "N": 4, "C": 6}
    memory = np.arange(prod(sizes.values()), dtype=np.uint16).reshape([sizes[a] for a in order])
    layers = memory.transpose([order.index(axis) for axis in "LBHNC"])

    for layer in layers:
        wanted = [4, 0, 2]
        assert stored(layer, 5, wanted) == [block_bytes(layer, 0, b) for b in wanted]


def test_k_apart_from_v() -> None:
    """A tensor of shape [2, blocks, ...] has blocks of two pieces, K's and V's."""
    tensor = np.arange(2 * 7 * 4 * 3, dtype=np.uint16).reshape(2, 7, 4, 3)
    layer = device_layer(described(tensor), group=0, blocks=7)

    assert layer.pieces == (0, 7 * 4 * 3 * 2)
    assert stored(tensor, 7, [6, 1]) == [block_bytes(tensor, 1, 6), block_bytes(tensor, 1, 1)]


def test_kernel_blocks_that_are_parts_of_the_engines() -> None:
    """Two kernel blocks to an engine block are one piece where they touch."""
    tensor = np.arange(8 * 4 * 3, dtype=np.uint16).reshape(8, 4, 3)
    layer = device_layer(described(tensor), group=0, blocks=4)

    assert layer.pieces == (0,)
    assert stored(tensor, 4, [3]) == [tensor[6:8].tobytes()]


def test_padding_between_blocks_is_left_alone() -> None:
    """Only a block's elements are moved, not the gap behind them."""
    memory = np.arange(5 * 16, dtype=np.uint16).reshape(5, 16)
    tensor = memory[:, :12].reshape(5, 12)
    layer = device_layer(described(memory[:, :12]), group=0, blocks=5)

    assert (layer.page_bytes, layer.stride, layer.pieces) == (24, 32, (0,))
    assert stored(memory[:, :12], 5, [2]) == [tensor[2].tobytes()]


@given(
    st.lists(st.integers(1, 4), max_size=3).flatmap(
        lambda sizes: st.tuples(st.just(sizes), st.permutations(range(1 + len(sizes))))
    ),
    st.integers(3, 6),
    st.integers(1, 3),
    st.integers(2, 4),
)
def test_pieces_cover_a_block_and_nothing_else(
    outer: tuple[list[int], list[int]], blocks: int, parts: int, content: int
) -> None:
    """The pieces of all blocks together name every element exactly once, in any order of axes."""
    sizes, order = outer
    shape = [blocks * parts, *sizes]
    memory = np.zeros([*(shape[i] for i in order), content], dtype=np.uint16)
    tensor = memory.transpose([*np.argsort(order), len(order)])
    layer = device_layer(described(tensor), group=0, blocks=blocks)
    each = layer.page_bytes // len(layer.pieces)
    seen = np.zeros(memory.nbytes, dtype=np.uint8)
    for block in range(blocks):
        for piece in layer.pieces:
            start = block * layer.stride + piece
            seen[start : start + each] += 1

    assert (seen == 1).all()


@pytest.mark.parametrize(
    ("tensor", "blocks", "message"),
    [
        (np.zeros((5, 4), np.uint16), 3, "no axis"),
        (np.zeros((5, 4), np.uint16), 0, "no axis"),
        (np.zeros((), np.uint16), 1, "no axis"),
        (np.zeros((2, 2, 4), np.uint16), 2, "two axes"),
        (np.zeros((5, 8), np.uint16)[:, ::2], 5, "not contiguous"),
        (np.broadcast_to(np.zeros(4, np.uint16), (5, 4)), 5, "overlap"),
        (np.lib.stride_tricks.sliding_window_view(np.zeros(9, np.uint16), 5), 5, "overlap"),
        (np.zeros((PIECES_MAX + 1, 5, 2), np.uint16).transpose(1, 0, 2), 5, "pieces"),
    ],
)
def test_what_is_refused(tensor: Tensor, blocks: int, message: str) -> None:
    """Tensors whose blocks are not equal pieces at equal places are refused with the reason."""
    with pytest.raises(EngineError, match=message):
        device_layer(described(tensor), group=0, blocks=blocks)
