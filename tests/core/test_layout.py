"""Layout: offsets tile an object exactly, and shapes that make no sense are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwise.core.layout import BYTES_MAX, Group, GroupKind, Layout, default_chunk_tokens

FULL = Group(GroupKind.FULL, (4096, 8192))
WINDOW = Group(GroupKind.WINDOW, (2048,), 128)

groups = st.lists(
    st.builds(
        Group,
        st.sampled_from(list(GroupKind)),
        st.lists(st.integers(1, 9000), min_size=1, max_size=5).map(tuple),
    ),
    min_size=1,
    max_size=3,
).map(tuple)


def test_golden_digest() -> None:
    """The layout digest is in every frame header; it must not change between releases."""
    layout = Layout(32, 64, (FULL, WINDOW), 2)
    assert layout.digest().hex() == "5627f19760dd284dc8ea83e43fcdd4cb"


@given(groups, st.integers(1, 5), st.integers(1, 4))
def test_layers_tile_a_ranks_part(shape: tuple[Group, ...], blocks: int, ranks: int) -> None:
    """Layer after layer, group after group, without a gap or an overlap."""
    layout = Layout(16, 16 * blocks, shape, ranks)
    here = 0
    for number, group in enumerate(shape):
        for offset, page_bytes in zip(layout.layer_offsets(number), group.pages_bytes, strict=True):
            assert offset == here
            here += page_bytes * blocks
    assert here == layout.rank_bytes
    assert layout.object_bytes == here * ranks


def test_window_needs_only_its_tail() -> None:
    """A sliding window needs its last tokens, full attention needs all."""
    layout = Layout(32, 64, (FULL, WINDOW))
    assert layout.first_needed_token(0, 1000) == 0
    assert layout.first_needed_token(1, 1000) == 872
    assert layout.first_needed_token(1, 100) == 0


@pytest.mark.parametrize(
    ("block", "chunk", "shape", "ranks"),
    [
        (32, 48, (FULL,), 1),
        (0, 32, (FULL,), 1),
        (32, 32, (), 1),
        (32, 32, (FULL,), 0),
        (1, -1, (Group(GroupKind.FULL, (-8,)),), 1),
        (1, 1, (Group(GroupKind.FULL, (-8, 16)),), 1),
        (1, 1 << 40, (Group(GroupKind.FULL, (1,)),), 1),
        (1, 1, (Group(GroupKind.FULL, (1,)),), 1 << 40),
        (1, 1, (Group(GroupKind.FULL, (1 << 62,)),), 1),
        (1, 1, (Group(GroupKind.FULL, (BYTES_MAX + 1,)),), 1),
    ],
)
def test_nonsense_is_refused(block: int, chunk: int, shape: tuple[Group, ...], ranks: int) -> None:
    """A chunk that is no multiple of the block, no groups, no ranks, what is no object."""
    with pytest.raises(ValueError, match=r"multiple|at least one|cannot be|hint: lower"):
        Layout(block, chunk, shape, ranks)


@pytest.mark.parametrize(
    ("block_tokens", "bytes_per_block", "expected"),
    [(32, 737_280, 32), (16, 2_097_152, 16), (32, 131_072, 128), (16, 1024, 256), (8, 1 << 20, 16)],
)
def test_default_chunk(block_tokens: int, bytes_per_block: int, expected: int) -> None:
    """The least multiple of a block that gives 512 KiB, within 16..256 tokens."""
    assert default_chunk_tokens(block_tokens, bytes_per_block) == expected
