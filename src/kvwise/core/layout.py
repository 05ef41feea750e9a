"""Layout: the shape of one cached object, and how tokens, chunks and bytes relate. Pure arithmetic.

An object holds one chunk (`chunk_tokens` tokens) of the KV of every layer group and every rank that
stores its own part, laid out rank by rank, layer by layer, block by block:

    object = [rank 0: [layer 0: [block 0 page][block 1 page]...][layer 1: ...]...][rank 1: ...]

One object is stored, evicted and loaded as a unit, so a hit is whole or is no hit.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from enum import Enum

OBJECT_BYTES_MIN = 512 * 1024
CHUNK_TOKENS_MIN = 16
CHUNK_TOKENS_MAX = 256
NUMBER_MAX = (1 << 31) - 1
BYTES_MAX = 1 << 31  # with what a tier adds, the bytes of an object are numbers of 32 bits


class GroupKind(Enum):
    """How a layer group's KV grows with the sequence."""

    FULL = "full"
    WINDOW = "window"
    LATENT = "latent"
    STATE = "state"


@dataclass(frozen=True, slots=True)
class Group:
    """Layers that share one block table.

    Attributes:
        kind: how its KV grows.
        pages_bytes: bytes of one engine block in each of its layers, in layer order, on one rank.
        window_tokens: for WINDOW, how many last tokens are needed; 0 otherwise.
    """

    kind: GroupKind
    pages_bytes: tuple[int, ...]
    window_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Layout:
    """The shape of every object of a namespace.

    Attributes:
        block_tokens: tokens in one block of the engine.
        chunk_tokens: tokens in one object, a multiple of `block_tokens`.
        groups: layer groups in the engine's order.
        ranks: how many ranks store a part of their own (1 when all ranks hold identical KV).
    """

    block_tokens: int
    chunk_tokens: int
    groups: tuple[Group, ...]
    ranks: int = 1

    def __post_init__(self) -> None:
        if self.block_tokens <= 0 or self.chunk_tokens % self.block_tokens:
            raise ValueError(
                f"chunk_tokens {self.chunk_tokens} is not a multiple of the "
                f"engine's block of {self.block_tokens} tokens"
            )
        if not self.groups or self.ranks < 1 or self.rank_bytes <= 0:
            raise ValueError("a layout needs at least one group with pages, and one rank")
        pages = [page_bytes for group in self.groups for page_bytes in group.pages_bytes]
        if max(self.chunk_tokens, self.ranks) > NUMBER_MAX or min(pages) < 0:
            raise ValueError("a layout has numbers that cannot be, or pages of negative size")
        if self.object_bytes > BYTES_MAX:
            raise ValueError(
                f"an object of {self.object_bytes} bytes exceeds {BYTES_MAX}; "
                "hint: lower the tokens of a chunk"
            )

    @property
    def blocks_per_chunk(self) -> int:
        """Engine blocks in one object."""
        return self.chunk_tokens // self.block_tokens

    @property
    def rank_bytes(self) -> int:
        """Bytes of one rank's part of an object."""
        return self.blocks_per_chunk * sum(sum(g.pages_bytes) for g in self.groups)

    @property
    def object_bytes(self) -> int:
        """Bytes of a whole object over all ranks that store a part."""
        return self.rank_bytes * self.ranks

    @property
    def bytes_per_token(self) -> float:
        """KV bytes for one token over all ranks."""
        return self.object_bytes / self.chunk_tokens

    def layer_offsets(self, group: int) -> list[int]:
        """Offset in a rank's part of the first page of each layer of `group`, in layer order."""
        start = sum(sum(g.pages_bytes) for g in self.groups[:group])
        offsets = []
        for page_bytes in self.groups[group].pages_bytes:
            offsets.append(start * self.blocks_per_chunk)
            start += page_bytes
        return offsets

    def first_needed_token(self, group: int, end_token: int) -> int:
        """First token whose KV `group` needs for decoding to go on at `end_token`."""
        if self.groups[group].kind is not GroupKind.WINDOW:
            return 0
        return max(0, end_token - self.groups[group].window_tokens)

    def digest(self) -> bytes:
        """16 bytes that differ when the shape differs; part of every frame header."""
        hasher = hashlib.blake2b(digest_size=16, person=b"kvwise-layout-1")
        hasher.update(
            struct.pack("<4I", self.block_tokens, self.chunk_tokens, self.ranks, len(self.groups))
        )
        for group in self.groups:
            hasher.update(
                f"{group.kind.value}:{group.window_tokens}:{len(group.pages_bytes)}".encode()
            )
            hasher.update(struct.pack(f"<{len(group.pages_bytes)}Q", *group.pages_bytes))
        return hasher.digest()


def default_chunk_tokens(block_tokens: int, bytes_per_block: int) -> int:
    """The least multiple of the engine's block that gives an object of at least 512 KiB.

    Bounded to 16..256 tokens where the block size allows; see docs/decisions/0003.
    """
    blocks = max(1, -(-OBJECT_BYTES_MIN // bytes_per_block))
    most = max(1, CHUNK_TOKENS_MAX // block_tokens)
    least = -(-CHUNK_TOKENS_MIN // block_tokens)
    return block_tokens * max(least, min(blocks, most))
