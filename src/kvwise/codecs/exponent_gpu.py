"""The exponent codec on a GPU: what `exponent` writes, byte for byte, without leaving the device.

It needs Triton; import it only where a GPU, Triton's interpreter or its compiler is at hand. It
launches kernels (`exponent_write_gpu`, `exponent_read_gpu`) on the current stream, and copies
nothing between host and device but header, records and sizes.

Writing is a look at each segment (base, mode, palette and size go to its record), a prefix sum over
the sizes, and the writing itself. Reading begins on the host: header and records are held against
the sizes of both tensors before any kernel runs, so that whatever the bytes say, no kernel reads or
writes beyond a tensor. What only the data can tell, kernels check where they use it. A program has
a segment to itself, so a payload should have some hundreds of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from kvwise.codecs import exponent_cpu
from kvwise.codecs.base import BLOCK_BYTES
from kvwise.codecs.elements import KINDS, Kind
from kvwise.codecs.exponent import HEADER, SEGMENT_BITS, VERSION, Mode, Shape, shape_of
from kvwise.codecs.exponent_read_gpu import (
    read_dense_kernel,
    read_far_kernel,
    read_kernel,
    read_list_kernel,
)
from kvwise.codecs.exponent_words import LOW_BITS, REST_BITS
from kvwise.codecs.exponent_write_gpu import (
    look_kernel,
    write_dense_kernel,
    write_far_kernel,
    write_kernel,
    write_lows_kernel,
)
from kvwise.codecs.tensors_gpu import aligned, fetched, is_aligned, launching, sent
from kvwise.errors import FrameError

TILE = 2048
"""Words, or lanes of codes, that a program works on at a time."""
COLUMNS = 256
"""Lanes of a plane that a program works on at a time, of 16 words each."""
WARPS = 8

_TORCH = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


@dataclass(frozen=True, slots=True)
class _Parts:
    """A payload's segments on the device, as they are and as stored.

    Attributes:
        shape: how it is cut.
        elements: the payload's elements, as integers.
        records: two words of 64 bits for each segment.
        begins: where the data of each begins.
        data: all of it, as bytes.
    """

    shape: Shape
    elements: torch.Tensor
    records: torch.Tensor
    begins: torch.Tensor
    data: torch.Tensor

    @property
    def halves(self) -> torch.Tensor:
        """The data as words of 16 bits."""
        return self.data[: self.data.numel() // 2 * 2].view(torch.int16)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Elements, elements of a segment and kind, as kernels take them."""
        return self.elements.numel(), self.shape.segment, KINDS.index(self.shape.kind)

    def room_for_far(self) -> torch.Tensor:
        """Memory for the exponents of all escapes of dense segments."""
        return self.data.new_empty(self.shape.segments * (self.shape.segment // 4))


def encode(payload: torch.Tensor, mode: Mode, kind: Kind) -> torch.Tensor:
    """Write a payload down; the payload itself unless that saves a block.

    It waits for the device once, to learn the size.

    Args:
        payload: bytes on the device, contiguous.
        mode: as in `Exponent`.
        kind: what its elements are.

    Raises:
        EngineError: a kernel could not be compiled or launched on this device.
    """
    size_bytes = payload.numel()
    shape = Shape(kind, 1 << SEGMENT_BITS, size_bytes, exponent_cpu)
    if not shape.segments:
        return payload
    begin, left = shape.begin, size_bytes - shape.head_bytes
    room = payload.new_empty(begin + size_bytes)
    elements = aligned(payload)[: shape.head_bytes].view(_TORCH[kind.bytes])
    records = room[HEADER.size : begin].view(torch.int64)
    sizes = payload.new_empty(shape.segments, dtype=torch.int64)
    parts = _Parts(shape, elements, records, sizes, room[begin:])
    with launching(payload):
        look_kernel[shape.segments,](
            elements,
            records,
            sizes,
            *parts.sizes,
            kind.bytes,
            mode == "dense",
            TILE,
            num_warps=WARPS,
        )
        ends = torch.cumsum(sizes, 0)
        end = begin + int(ends[-1])
        if end + left + BLOCK_BYTES > size_bytes:
            return payload
        _write(_Parts(shape, elements, records, ends - sizes, room[begin:]), mode)
    header = HEADER.pack(VERSION, KINDS.index(kind), SEGMENT_BITS, 0, 0, size_bytes)
    room[: HEADER.size] = sent(header, payload)
    room[end : end + left] = payload[size_bytes - left :]
    return room[: end + left]


def _write(parts: _Parts, mode: Mode) -> None:
    """Write all segments as their records say."""
    kind, grid, sizes = parts.shape.kind, (parts.shape.segments,), parts.sizes
    tensors = (parts.elements, parts.records, parts.begins, parts.halves)
    write_kernel[grid](*tensors, *sizes, kind.bytes, TILE, num_warps=WARPS)
    if kind is not Kind.BF16:
        write_lows_kernel[grid](*tensors, *sizes, COLUMNS, num_warps=WARPS)
    if mode == "dense":
        far = parts.room_for_far()
        write_dense_kernel[grid](*tensors, far, *sizes, COLUMNS, num_warps=WARPS)
        table = (parts.records, parts.begins, parts.data)
        write_far_kernel[grid](*table, far, *sizes, COLUMNS, num_warps=WARPS)


def decode(stored: torch.Tensor, payload: torch.Tensor) -> None:
    """Restore a payload.

    It waits for the device three times: for header, records, and what kernels found damaged.

    Args:
        stored: what `encode` or `Exponent` wrote, on the device, contiguous.
        payload: as many bytes as there were, on the same device, contiguous.

    Raises:
        FrameError: these bytes were not made from a payload of that size; what is in `payload`
            then is nothing to rely on. Places of escapes that do not ascend are refused too.
        EngineError: a kernel could not be compiled or launched on this device.
    """
    size_bytes = payload.numel()
    shape = shape_of(fetched(stored[: HEADER.size]), size_bytes, exponent_cpu)
    begin, end = shape.begin, stored.numel() - (size_bytes - shape.head_bytes)
    if end < begin:
        raise FrameError(f"{stored.numel()} bytes cannot hold so many segments")
    records = fetched(stored[HEADER.size : begin]).reshape(-1, exponent_cpu.RECORD_BYTES)
    begins = checked_begins(records, shape, end - begin)
    whole = payload if is_aligned(payload) else torch.empty_like(payload)
    if shape.segments:
        room = aligned(stored)
        elements = whole[: shape.head_bytes].view(_TORCH[shape.kind.bytes])
        table = room[HEADER.size : begin].view(torch.int64)
        parts = _Parts(shape, elements, table, sent(begins, stored), room[begin:end])
        damaged = payload.new_zeros(1, dtype=torch.int32)
        with launching(payload):
            _read(parts, records[:, 0], damaged)
        if int(damaged):
            raise FrameError("a segment of exponents is damaged")
    whole[shape.head_bytes :] = stored[end:]
    if whole is not payload:
        payload.copy_(whole)


def _read(parts: _Parts, modes: NDArray[np.uint8], damaged: torch.Tensor) -> None:
    """Read all segments, in whatever modes they are written."""
    shape, grid, sizes = parts.shape, (parts.shape.segments,), parts.sizes
    table, elements = (parts.records, parts.begins), parts.elements
    if (modes < exponent_cpu.DENSE).any():
        lanes = max(shape.segment // 4, shape.segment_bytes // 8)
        read_kernel[*grid, -(-lanes // TILE)](
            *table, parts.halves, elements, *sizes, shape.kind.bytes, TILE, num_warps=WARPS
        )
    if (modes == exponent_cpu.FIXED).any():
        tensors = (*table, parts.halves, elements, damaged)
        read_list_kernel[grid](*tensors, *sizes, TILE, num_warps=WARPS)
    if (modes == exponent_cpu.DENSE).any():
        far = parts.room_for_far()
        read_far_kernel[grid](*table, parts.data, far, damaged, *sizes, TILE, num_warps=WARPS)
        read_dense_kernel[grid](
            *table, parts.halves, far, elements, damaged, *sizes, COLUMNS, num_warps=WARPS
        )


def checked_begins(records: NDArray[np.uint8], shape: Shape, size_bytes: int) -> NDArray[np.int64]:
    """Where the data of each segment begins, of which there are `size_bytes`.

    Raises:
        FrameError: a record that no encoder writes, or data of another size than records say.
    """
    mode, base = records[:, 0].astype(np.int64), records[:, 1].astype(np.int64)
    far = records[:, 2].astype(np.int64) | records[:, 3].astype(np.int64) << 8
    rare = records[:, 4].astype(np.int64) | records[:, 5].astype(np.int64) << 8
    kind, count = KINDS.index(shape.kind), shape.head_bytes // shape.kind.bytes
    length = np.minimum(count - np.arange(len(records)) * shape.segment, shape.segment)
    beside = length // 8 * (LOW_BITS[kind] + REST_BITS[kind])
    fixed = length // 2 + beside + _padded(2 * far) + _padded(far)
    dense = length // 8 * 3 + beside + (far + 20) // 21 * 8 + _padded(rare)
    known = np.minimum(mode, exponent_cpu.DENSE)
    sizes = np.choose(known, (shape.kind.bytes * length, fixed, dense))
    wrong = (mode > exponent_cpu.DENSE) | (far > length // 4) | (rare > far)
    wrong |= base > np.choose(known, exponent_cpu.BASE_MAX)
    if wrong.any() or int(sizes.sum()) != size_bytes:
        raise FrameError("a segment of exponents is damaged")
    begins: NDArray[np.int64] = np.cumsum(sizes) - sizes
    return begins


def _padded(size_bytes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Bytes of whole words that hold so many."""
    return (size_bytes + 7) // 8 * 8
