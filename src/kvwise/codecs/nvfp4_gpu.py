"""The NVFP4 codec on a GPU: what `nvfp4` writes, byte for byte, without leaving the device.

It needs Triton; import it only where a GPU, Triton's interpreter or its compiler is at hand. It
owns kernels between elements and codes; a tensor's scale, layout and checks are in `scaled_gpu`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kvwise.codecs import floats_cpu, scaled_gpu
from kvwise.codecs.floats_gpu import (
    bits_of,
    float_of,
    narrow,
    narrow_element,
    narrowing,
    widen,
    widen_element,
    widening,
)
from kvwise.codecs.nvfp4 import BLOCK_ELEMENTS, E2M1_FORM
from kvwise.codecs.scaled import Shape
from kvwise.codecs.scaled_gpu import TILE, WARPS, Kernels, Work
from kvwise.errors import FrameError

_NARROW_E2M1, _NARROW_E4M3 = (
    tl.constexpr(narrowing(form)) for form in (floats_cpu.E2M1, floats_cpu.E4M3)
)
_WIDEN_E2M1, _WIDEN_E4M3 = (
    tl.constexpr(widening(form)) for form in (floats_cpu.E2M1, floats_cpu.E4M3)
)
_GREATEST_CODE = tl.constexpr(floats_cpu.E4M3.greatest_code)
_GREATEST = tl.constexpr(floats_cpu.E2M1.greatest)
BLOCKS = TILE // BLOCK_ELEMENTS


@triton.jit  # type: ignore[untyped-decorator]
def write_kernel(
    words: tl.tensor,
    scales: tl.tensor,
    begins: tl.tensor,
    data: tl.tensor,
    tensor: tl.tensor,
    kind: tl.constexpr,
    magnitude: tl.constexpr,
    tile: tl.constexpr,
) -> None:
    """Scales and codes of some blocks of a tensor, or their bytes as they are."""
    number, blocks = tl.program_id(0).to(tl.int64), tensor // 16
    block = tl.program_id(1) * tile + tl.arange(0, tile)
    at = block[:, None] * 16 + tl.arange(0, 16)[None, :]
    inside, scale = at < tensor, tl.load(scales + number)
    target = data + tl.load(begins + number)
    word = tl.load(words + number * tensor + at, mask=inside, other=0).to(tl.int32)
    if scale == 0:
        size: tl.constexpr = 4 if kind == 2 else 2
        for byte in tl.static_range(size):
            place = at.to(tl.int64) * size + byte
            tl.store(target + place, (word >> (8 * byte)).to(tl.uint8), mask=inside)
    else:
        peak = float_of(widen_element(tl.max(word & magnitude, 1), kind))
        own_code = narrow(bits_of(peak * tl.div_rn(1.0, scale * _GREATEST)), _NARROW_E4M3)
        tl.store(target + block, own_code.to(tl.uint8), mask=block < blocks)
        own = float_of(widen(own_code, _WIDEN_E4M3)) * scale
        inverse = tl.where(own > 0, tl.div_rn(1.0, tl.where(own > 0, own, 1.0)), 0.0)
        code = narrow(bits_of(float_of(widen_element(word, kind)) * inverse[:, None]), _NARROW_E2M1)
        pair = tl.reshape(code, (tile, 8, 2)) << (4 * tl.arange(0, 2))[None, None, :]
        byte_at = block[:, None] * 8 + tl.arange(0, 8)[None, :]
        codes = tl.sum(pair, 2).to(tl.uint8)
        written = (block < blocks)[:, None] & (byte_at >= 0)
        tl.store(target + blocks + byte_at, codes, mask=written)


@triton.jit  # type: ignore[untyped-decorator]
def read_kernel(
    words: tl.tensor,
    scales: tl.tensor,
    begins: tl.tensor,
    data: tl.tensor,
    damaged: tl.tensor,
    tensor: tl.tensor,
    kind: tl.constexpr,
    tile: tl.constexpr,
) -> None:
    """Undo `write_kernel`; no block's scale may have a sign or not be finite."""
    number, blocks = tl.program_id(0).to(tl.int64), tensor // 16
    block = tl.program_id(1) * tile + tl.arange(0, tile)
    at = block[:, None] * 16 + tl.arange(0, 16)[None, :]
    inside, scale = at < tensor, tl.load(scales + number)
    source, target = data + tl.load(begins + number), words + number * tensor + at
    if scale == 0:
        size: tl.constexpr = 4 if kind == 2 else 2
        word = at * 0
        for byte in tl.static_range(size):
            place = at.to(tl.int64) * size + byte
            word |= tl.load(source + place, mask=inside, other=0).to(tl.int32) << (8 * byte)
        tl.store(target, word.to(words.dtype.element_ty), mask=inside)
    else:
        own_code = tl.load(source + block, mask=block < blocks, other=0).to(tl.int32)
        own = float_of(widen(own_code & 0x7F, _WIDEN_E4M3)) * scale
        codes = tl.load(source + blocks + at // 2, mask=inside, other=0).to(tl.int32)
        value = float_of(widen(codes >> (at % 2 * 4) & 15, _WIDEN_E2M1)) * own[:, None]
        tl.store(target, narrow_element(bits_of(value), kind), mask=inside)
        if tl.max(own_code, 0) > _GREATEST_CODE:
            tl.store(damaged, 1)


def encode(payload: torch.Tensor, shape: Shape) -> torch.Tensor:
    """Write a payload of that shape down; the payload itself unless that saves a block."""
    return scaled_gpu.encode(payload, shape, _kernels(shape))


def decode(stored: torch.Tensor, payload: torch.Tensor) -> None:
    """Restore a payload, as nearly as the form can.

    Raises:
        FrameError: these bytes were not made by `encode` or `Nvfp4` from a payload of that size.
    """
    scaled_gpu.decode(stored, payload, _kernels)


def _kernels(shape: Shape) -> Kernels:
    """The kernels for a shape of whole blocks."""
    tensor, heads, run = shape.numbers
    if shape.form != E2M1_FORM or heads != 1 or run != BLOCK_ELEMENTS:
        raise FrameError(f"form {shape.form} with {heads} scales in runs of {run} is not NVFP4's")

    def write(work: Work) -> None:
        magnitude = floats_cpu.element(shape.elements.kind).magnitude
        write_kernel[work.grid(TILE)](
            work.words,
            work.scales,
            work.begins,
            work.data,
            tensor,
            work.kind,
            magnitude,
            BLOCKS,
            num_warps=WARPS,
        )

    def read(work: Work, damaged: torch.Tensor) -> None:
        read_kernel[work.grid(TILE)](
            work.words,
            work.scales,
            work.begins,
            work.data,
            damaged,
            tensor,
            work.kind,
            BLOCKS,
            num_warps=WARPS,
        )

    return Kernels(
        floats_cpu.E2M1.greatest * floats_cpu.E4M3.greatest,
        lambda elements: elements // BLOCK_ELEMENTS * (BLOCK_ELEMENTS // 2 + 1),
        write,
        read,
    )
