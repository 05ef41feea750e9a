"""What codecs with scales have in common on a GPU: the layout of `scaled`, and scales themselves.

It needs Triton. It finds scales, and holds a header and its scales against both tensors before a
kernel reads by them. What codes mean is the codec's, whose kernels it is given.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray

from kvwise.codecs.base import BLOCK_BYTES
from kvwise.codecs.elements import Kind
from kvwise.codecs.floats_cpu import LEAST_SCALE, element
from kvwise.codecs.floats_gpu import float_of, scale_of, widen_element
from kvwise.codecs.scaled import _HEADER as HEADER
from kvwise.codecs.scaled import KINDS, VERSION, Shape
from kvwise.codecs.scaled import _data_begin as data_begin
from kvwise.codecs.scaled import _read_header as read_header
from kvwise.codecs.tensors_gpu import aligned, fetched, is_aligned, launching, sent
from kvwise.errors import FrameError

TILE = 4096
"""Elements that a program works on at a time."""
TENSOR_ELEMENTS_MAX = 1 << 30
"""Kernels count elements of a tensor in 32 bits."""
WARPS = 8


@dataclass(frozen=True, slots=True)
class Work:
    """Tensors on the device, as payload and as stored.

    Attributes:
        shape: what a header says of them.
        words: their elements, as integers of 16 or 32 bits.
        scales: of shape [tensors, heads], 0 in those that are stored as they are.
        begins: where the data of each begins.
        data: all of it, as bytes.
    """

    shape: Shape
    words: torch.Tensor
    scales: torch.Tensor
    begins: torch.Tensor
    data: torch.Tensor

    @property
    def kind(self) -> int:
        """The kind of element as kernels number it."""
        return number_of(self.shape.elements.kind)

    def grid(self, tile: int) -> tuple[int, int]:
        """A program for each tile of each tensor."""
        tiles = -(-self.shape.elements.tensor_elements // tile)
        return self.begins.numel(), tiles


@dataclass(frozen=True, slots=True)
class Kernels:
    """What a codec is, besides layout and scales.

    Attributes:
        greatest: the greatest number that a code and what it is scaled by can be, before the scale.
        coded_bytes: what a tensor of so many elements takes.
        write: starts the kernel from words to data.
        read: starts the kernel from data to words, with a number to set where it finds damage.
    """

    greatest: float
    coded_bytes: Callable[[int], int]
    write: Callable[[Work], None]
    read: Callable[[Work, torch.Tensor], None]


@triton.jit  # type: ignore[untyped-decorator]
def scale_kernel(
    words: tl.tensor,
    scales: tl.tensor,
    tensor: tl.tensor,
    heads: tl.tensor,
    run: tl.tensor,
    kind: tl.constexpr,
    magnitude: tl.constexpr,
    limit: tl.constexpr,
    greatest: tl.constexpr,
    tile: tl.constexpr,
) -> None:
    """The scale of one head of one tensor, 0 where an element is not finite or near that."""
    number, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    own, peak = tensor // heads, 0
    for start in range(0, own, tile):
        at = start + tl.arange(0, tile)
        place = (at // run * heads + head) * run + at % run
        word = tl.load(words + number * tensor + place, mask=at < own, other=0)
        peak = tl.maximum(peak, tl.max(word.to(tl.int32) & magnitude, 0))
    scale = scale_of(float_of(widen_element(peak, kind)), greatest)
    tl.store(scales + number * heads + head, tl.where(peak > limit, 0.0, scale))


def number_of(kind: Kind) -> int:
    """The number of a kind in headers and kernels."""
    return next(number for number, one in KINDS.items() if one is kind)


def encode(payload: torch.Tensor, shape: Shape, kernels: Kernels) -> torch.Tensor:
    """Write a payload down; the payload itself unless that saves a block.

    It waits for the device once, to learn the size.

    Raises:
        EngineError: a kernel could not be compiled or launched on this device.
    """
    size_bytes, (tensor, heads, run) = payload.numel(), shape.numbers
    count = size_bytes // shape.tensor_bytes
    if not count or tensor > TENSOR_ELEMENTS_MAX:
        return payload
    begin, left = data_begin(shape, count), size_bytes - count * shape.tensor_bytes
    words = words_of(aligned(payload)[: size_bytes - left], shape)
    kind, of = shape.elements.kind, element(shape.elements.kind)
    scales = payload.new_empty((count, heads), dtype=torch.float32)
    with launching(payload):
        scale_kernel[count, heads](
            words,
            scales,
            *shape.numbers,
            number_of(kind),
            of.magnitude,
            of.limit,
            kernels.greatest,
            TILE,
            num_warps=WARPS,
        )
        coded = (scales > 0).all(1)
        scales *= coded[:, None]
        sizes = torch.where(coded, kernels.coded_bytes(tensor), shape.tensor_bytes)
        ends = torch.cumsum(sizes, 0)
        end = begin + int(ends[-1])
        if end + left + BLOCK_BYTES > size_bytes:
            return payload
        room = payload.new_empty(end + left)
        room[HEADER.size : begin] = scales.flatten().view(torch.uint8)
        kernels.write(Work(shape, words, scales, ends - sizes, room[begin:end]))
    header = HEADER.pack(VERSION, number_of(kind), shape.form, 0, heads, size_bytes, tensor, run)
    room[: HEADER.size] = sent(header, payload)
    room[end:] = payload[size_bytes - left :]
    return room


def decode(
    stored: torch.Tensor, payload: torch.Tensor, kernels_of: Callable[[Shape], Kernels]
) -> None:
    """Restore a payload, as nearly as the form can.

    It waits for the device three times: for header, scales, and what kernels found damaged.

    Args:
        stored: what an encoder on either side wrote, on the device, contiguous.
        payload: as many bytes as there were, on the same device, contiguous.
        kernels_of: the kernels for a shape, or FrameError.

    Raises:
        FrameError: these bytes were not made from a payload of that size; what is in `payload`
            then is nothing to rely on.
        EngineError: a kernel could not be compiled or launched on this device.
    """
    size_bytes = payload.numel()
    shape = read_header(fetched(stored[: HEADER.size]), size_bytes)
    kernels, count = kernels_of(shape), size_bytes // shape.tensor_bytes
    begin, left = data_begin(shape, count), size_bytes % shape.tensor_bytes
    end = stored.numel() - left
    if end < begin or (count and shape.elements.tensor_elements > TENSOR_ELEMENTS_MAX):
        raise FrameError(f"{stored.numel()} bytes cannot hold {size_bytes} in {count} tensors")
    raw_scales = fetched(stored[HEADER.size : begin]).view(np.float32)
    begins = checked_begins(raw_scales.reshape(count, -1), shape, kernels, end - begin)
    whole = payload if is_aligned(payload) else torch.empty_like(payload)
    if count:
        room = aligned(stored)
        scales = room[HEADER.size : begin].view(torch.float32).view(count, -1)
        words, damaged = words_of(whole[: size_bytes - left], shape), payload.new_zeros(1).int()
        with launching(payload):
            kernels.read(Work(shape, words, scales, sent(begins, stored), room[begin:end]), damaged)
        if int(damaged):
            raise FrameError("a tensor with scales is damaged")
    whole[size_bytes - left :] = stored[end:]
    if whole is not payload:
        payload.copy_(whole)


def words_of(tensors: torch.Tensor, shape: Shape) -> torch.Tensor:
    """Elements as integers."""
    return tensors.view(torch.int16 if shape.elements.kind.bytes == 2 else torch.int32)


def checked_begins(
    scales: NDArray[np.float32], shape: Shape, kernels: Kernels, size_bytes: int
) -> NDArray[np.int64]:
    """Where the data of each tensor begins, of which there are `size_bytes`.

    Raises:
        FrameError: a scale that no encoder writes, or data of another size than scales say.
    """
    kept = scales[:, :1] == 0
    greatest = np.float32(np.finfo(np.float32).max / kernels.greatest)
    good = np.where(kept, scales == 0, (scales >= LEAST_SCALE) & (scales <= greatest))
    coded_bytes = kernels.coded_bytes(shape.elements.tensor_elements)
    sizes = np.where(kept[:, 0], shape.tensor_bytes, coded_bytes).astype(np.int64)
    if not good.all() or int(sizes.sum()) != size_bytes:
        raise FrameError("a tensor with scales is damaged")
    begins: NDArray[np.int64] = np.cumsum(sizes) - sizes
    return begins
