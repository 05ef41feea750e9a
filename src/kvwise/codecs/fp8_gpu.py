"""The FP8 codec on a GPU: what `fp8` writes, byte for byte, without leaving the device.

It needs Triton; import it only where a GPU, Triton's interpreter or its compiler is at hand. It
owns kernels between elements and codes; scales, layout and checks are in `scaled_gpu`.
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
from kvwise.codecs.scaled import Shape
from kvwise.codecs.scaled_gpu import TILE, WARPS, Kernels, Work
from kvwise.errors import FrameError

FORMS = {0: floats_cpu.E4M3, 1: floats_cpu.E5M2}


@triton.jit  # type: ignore[untyped-decorator]
def write_kernel(
    words: tl.tensor,
    scales: tl.tensor,
    begins: tl.tensor,
    data: tl.tensor,
    tensor: tl.tensor,
    heads: tl.tensor,
    run: tl.tensor,
    kind: tl.constexpr,
    form: tl.constexpr,
    tile: tl.constexpr,
) -> None:
    """Codes of one tile of a tensor, or its bytes as they are."""
    number = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * tile + tl.arange(0, tile)
    inside, own = at < tensor, scales + number * heads
    target = data + tl.load(begins + number)
    word = tl.load(words + number * tensor + at, mask=inside, other=0).to(tl.int32)
    if tl.load(own) == 0:
        size: tl.constexpr = 4 if kind == 2 else 2
        for byte in tl.static_range(size):
            place = at.to(tl.int64) * size + byte
            tl.store(target + place, (word >> (8 * byte)).to(tl.uint8), mask=inside)
    else:
        scale = tl.load(own + at // run % heads, mask=inside, other=1.0)
        value = float_of(widen_element(word, kind)) * tl.div_rn(1.0, scale)
        tl.store(target + at, narrow(bits_of(value), form).to(tl.uint8), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def read_kernel(
    words: tl.tensor,
    scales: tl.tensor,
    begins: tl.tensor,
    data: tl.tensor,
    damaged: tl.tensor,
    tensor: tl.tensor,
    heads: tl.tensor,
    run: tl.tensor,
    kind: tl.constexpr,
    form: tl.constexpr,
    greatest_code: tl.constexpr,
    tile: tl.constexpr,
) -> None:
    """Undo `write_kernel`; no code may be of a number that is not finite."""
    number = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * tile + tl.arange(0, tile)
    inside, own = at < tensor, scales + number * heads
    source, target = data + tl.load(begins + number), words + number * tensor + at
    if tl.load(own) == 0:
        size: tl.constexpr = 4 if kind == 2 else 2
        word = at * 0
        for byte in tl.static_range(size):
            place = at.to(tl.int64) * size + byte
            word |= tl.load(source + place, mask=inside, other=0).to(tl.int32) << (8 * byte)
        tl.store(target, word.to(words.dtype.element_ty), mask=inside)
    else:
        code = tl.load(source + at, mask=inside, other=0).to(tl.int32)
        scale = tl.load(own + at // run % heads, mask=inside, other=1.0)
        value = float_of(widen(code, form)) * scale
        tl.store(target, narrow_element(bits_of(value), kind), mask=inside)
        if tl.max(code & 0x7F, 0) > greatest_code:
            tl.store(damaged, 1)


def encode(payload: torch.Tensor, shape: Shape) -> torch.Tensor:
    """Write a payload of that shape down; the payload itself unless that saves a block."""
    return scaled_gpu.encode(payload, shape, _kernels(shape))


def decode(stored: torch.Tensor, payload: torch.Tensor) -> None:
    """Restore a payload, as nearly as the form can.

    Raises:
        FrameError: these bytes were not made by `encode` or `Fp8` from a payload of that size.
    """
    scaled_gpu.decode(stored, payload, _kernels)


def _kernels(shape: Shape) -> Kernels:
    """The kernels for a shape's form."""
    if shape.form not in FORMS:
        raise FrameError(f"form {shape.form} is none of FP8")
    form = FORMS[shape.form]

    def write(work: Work) -> None:
        write_kernel[work.grid(TILE)](
            work.words,
            work.scales,
            work.begins,
            work.data,
            *shape.numbers,
            work.kind,
            narrowing(form),
            TILE,
            num_warps=WARPS,
        )

    def read(work: Work, damaged: torch.Tensor) -> None:
        read_kernel[work.grid(TILE)](
            work.words,
            work.scales,
            work.begins,
            work.data,
            damaged,
            *shape.numbers,
            work.kind,
            widening(form),
            form.greatest_code,
            TILE,
            num_warps=WARPS,
        )

    return Kernels(form.greatest, lambda tensor: tensor, write, read)
