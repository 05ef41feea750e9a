"""Owns KV caches in every memory layout, with torch's own indexing as the judge of copies.

Needs torch, on any device. It copies nothing itself and knows neither kernels nor streams.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kvwise.core.layout import Group, GroupKind, Layout
from kvwise.engines.copying import SKIP, Chunks, CopyPlan, Planner
from kvwise.engines.pieces import KvTensor, device_layer

if TYPE_CHECKING:
    import torch

AXES = "LBHNC"
"""Layer, block, head, token, content: the logical order of a cache."""
FILL = -1
"""What blocks hold before a load: it must survive in all that are not loaded."""


@dataclass(frozen=True, slots=True)
class CacheShape:
    """A cache of one group.

    Attributes:
        order: the axes as they lie in memory, far ones first; the content is last.
        content: 16-bit elements of one head and token.
        chunk_blocks: blocks in one object.
        page_bytes: bytes of one arena page.
    """

    order: str
    layers: int
    blocks: int
    heads: int
    tokens: int
    content: int
    chunk_blocks: int
    page_bytes: int


def random_shape(seed: int) -> CacheShape:
    """A small cache in a random layout; one in three has content of odd length."""
    rng = random.Random(seed)
    outer = list(AXES[:-1])
    rng.shuffle(outer)
    return CacheShape(
        order="".join(outer) + AXES[-1],
        layers=rng.randint(1, 4),
        blocks=rng.randint(5, 12),
        heads=rng.randint(1, 3),
        tokens=rng.choice([1, 4, 16]),
        content=rng.choice([8, 16, rng.randint(1, 40)]),
        chunk_blocks=rng.randint(1, 3),
        page_bytes=rng.choice([64, 256, 4096]),
    )


class PagedCase:
    """One cache on a device, chunks of its blocks, and the plan that copies them."""

    def __init__(self, shape: CacheShape, device: str, seed: int, *, skip: float = 0.2) -> None:
        """Fill the cache with random elements and choose blocks; `skip` of them are left out."""
        import torch

        self._torch = torch
        rng = np.random.default_rng(seed)
        sizes = (shape.layers, shape.blocks, shape.heads, shape.tokens, shape.content)
        values = torch.from_numpy(rng.integers(0, 1 << 15, sizes).astype(np.int16))
        memory = values.permute([AXES.index(a) for a in shape.order]).contiguous().to(device)
        cache = memory.permute([shape.order.index(a) for a in AXES])
        self.tensors = list(cache.unbind(0))
        self.original = [tensor.clone() for tensor in self.tensors]
        self._layers = [
            device_layer(_described(f"layer {i}", t), group=0, blocks=shape.blocks)
            for i, t in enumerate(self.tensors)
        ]
        layout = Layout(
            shape.tokens,
            shape.tokens * shape.chunk_blocks,
            (Group(GroupKind.FULL, tuple(layer.page_bytes for layer in self._layers)),),
        )
        chunks = shape.blocks // shape.chunk_blocks
        used = chunks * shape.chunk_blocks
        blocks = rng.permutation(shape.blocks)[:used].reshape(chunks, shape.chunk_blocks)
        blocks[rng.random(blocks.shape) < skip] = SKIP
        pages_each = -(-layout.object_bytes // shape.page_bytes)
        pages = rng.permutation(chunks * pages_each).reshape(chunks, pages_each)
        self.chunks = Chunks(pages=pages, blocks=blocks)
        self.arena_bytes = chunks * pages_each * shape.page_bytes
        self._page_bytes = shape.page_bytes
        self._planner = Planner(layout, self._layers, rank=0, page_bytes=shape.page_bytes)

    def plan(self, arena_address: int) -> CopyPlan:
        """The copies between the cache and an arena at this address."""
        return self._planner.plan(self.chunks, arena_address)

    def clear(self) -> None:
        """Overwrite the cache."""
        for tensor in self.tensors:
            tensor.fill_(FILL)

    def stored_wrong(self, arena: NDArray[np.uint8]) -> int:
        """Blocks whose bytes in the arena are not what indexing finds in the cache."""
        pages = arena.reshape(-1, self._page_bytes)
        wrong = 0
        for numbers, blocks in zip(self.chunks.pages, self.chunks.blocks, strict=True):
            payload, offset = pages[numbers].tobytes(), 0
            for layer, tensor in zip(self._layers, self.original, strict=True):
                for block in blocks.tolist():
                    found = payload[offset : offset + layer.page_bytes]
                    wrong += block != SKIP and found != _block_bytes(tensor, block)
                    offset += layer.page_bytes
        return wrong

    def loaded_wrong(self) -> int:
        """Layers that, after `clear` and a load, differ from what indexing puts together."""
        kept = self.chunks.blocks[self.chunks.blocks != SKIP].tolist()
        wrong = 0
        for tensor, original in zip(self.tensors, self.original, strict=True):
            expected = self._torch.full_like(original, FILL)
            expected[kept] = original[kept]
            wrong += not self._torch.equal(tensor, expected)
        return wrong


def _described(name: str, tensor: torch.Tensor) -> KvTensor:
    """What an engine adapter says of this tensor."""
    return KvTensor(
        name,
        int(tensor.data_ptr()),
        tuple(tensor.shape),
        tuple(tensor.stride()),
        int(tensor.element_size()),
    )


def _block_bytes(tensor: torch.Tensor, block: int) -> bytes:
    """One block's elements in the order of memory."""
    part = tensor[block]
    axes = sorted(range(part.dim()), key=lambda i: -part.stride(i))
    return bytes(part.permute(axes).contiguous().cpu().numpy().tobytes())
