"""What the numbers in vLLM's blocks are said to be, for the layouts that are known."""

from __future__ import annotations

import pytest

from kvwise.core.elements import Elements, Kind
from kvwise.engines.vllm.elements import Block, elements_of

CPU = ((1, 3), (2, 32), (3, 128))
"""Heads, tokens, K and V: SmolLM2 on a CPU, far axes first."""

APART = ((0, 2), (2, 16), (3, 8), (4, 128))
"""K and V, tokens, heads, width: as flash attention keeps them."""


LATENT = ((1, 16), (2, 576))
"""Tokens, and what MLA keeps of each."""


@pytest.mark.parametrize(
    ("dtype", "cache", "layout", "axes", "heads", "expected"),
    [
        ("torch.bfloat16", "auto", "LBHNC", CPU, 3, Elements(Kind.BF16, 12288, 6, 2048)),
        ("torch.float32", "auto", "LBHNC", CPU, 3, Elements(Kind.FP32, 12288, 6, 2048)),
        ("torch.float16", "auto", "NHD", APART, 8, Elements(Kind.FP16, 16384, 8, 128)),
        ("torch.uint8", "fp8_e5m2", "NHD", APART, 8, Elements(Kind.E5M2, 16384, 8, 128)),
        ("torch.uint8", "fp8", "NHD", APART, 0, Elements(Kind.E4M3, 32768, 1, 32768)),
        ("torch.bfloat16", "auto", "NHD", LATENT, 1, Elements(Kind.BF16, 9216, 1, 9216)),
        ("torch.uint8", "fp8_ds_mla", "NHD", LATENT, 1, None),
        ("torch.int8", "auto", "NHD", APART, 8, None),
    ],
)  # fmt: skip
def test_layouts_are_read(  # noqa: PLR0917  one parameter for each column
    dtype: str,
    cache: str,
    layout: str,
    axes: tuple[tuple[int, int], ...],
    heads: int,
    expected: Elements | None,
) -> None:
    """Kind, tensor and head of each number; what is not a number of a known kind is unknown."""
    assert elements_of([Block(dtype, axes, heads)] * 2, cache, layout) == expected


def test_layers_that_differ_have_a_kind_in_common() -> None:
    """Blocks of two sizes are cut into what divides both; blocks of two kinds are unknown."""
    small, large = Block("torch.bfloat16", ((1, 32),), 0), Block("torch.bfloat16", ((1, 48),), 0)
    assert elements_of([small, large], "auto", "NHD") == Elements(Kind.BF16, 16, 1, 16)
    assert elements_of([small, Block("torch.float32", ((1, 32),), 0)], "auto", "NHD") is None
