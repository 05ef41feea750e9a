"""What codecs with scales have in common: a header, scales, tensors one after another, and a rest.

It owns that layout and judges it. What a code means is its codec's. Stored bytes are:

    0    version u8, kind of element u8, form of code u8, zero u8
    4    heads u32: how many scales a tensor has
    8    payload bytes u64
    16   elements of a tensor u64
    24   elements of a run u64: neighbours that share a scale before the next head's begin
    32   scales, f32 for each head of each tensor; 0 for a tensor that is stored as it is
         data of each tensor: what the codec makes of it, or the elements as they are
         what is left of the payload beyond whole tensors, as it is

A tensor is stored as it is when one of its elements is not finite or beyond 2**127: a scale made
of it would destroy the others. A payload that would not save a block is stored as it is too.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvwise.codecs.base import BLOCK_BYTES, Buffers, total_bytes
from kvwise.codecs.elements import Elements, Kind
from kvwise.codecs.memory import Bytes, Rooms, cut, fill, joined, merged, scatter, spans
from kvwise.errors import ConfigError, FrameError

VERSION = 1
KINDS = {0: Kind.BF16, 1: Kind.FP16, 2: Kind.FP32}
"""Kinds of element that have scales, by their numbers in headers."""

DAMAGED = -1
"""What a loop answers to bytes that no encoder made."""

_HEADER = struct.Struct("<BBBBIQQQ")
_SCALE_BYTES = 4


@dataclass(frozen=True, slots=True)
class Loops:
    """Compiled loops for one kind of element and one form of code.

    Attributes:
        word: numpy's type of what the loops read and write of a payload.
        encode: (payload, the same in words, shape, scales, data) to the bytes of data used.
        decode: (data, scales, shape, payload, the same in words) to the bytes of data used, or
            `DAMAGED`.
    """

    word: Any
    encode: Callable[..., int]
    decode: Callable[..., int]


@dataclass(frozen=True, slots=True)
class Shape:
    """What a header says of its payload, besides its size."""

    form: int
    elements: Elements

    @property
    def tensor_bytes(self) -> int:
        """Bytes of a tensor in the payload."""
        return self.elements.tensor_elements * self.elements.kind.bytes

    @property
    def numbers(self) -> tuple[int, int, int]:
        """The shape as loops take it."""
        elements = self.elements
        return elements.tensor_elements, elements.heads, elements.run_elements

    def scales_bytes(self, tensors: Bytes) -> int:
        """Bytes of the scales of some whole tensors."""
        return tensors.size // self.tensor_bytes * self.elements.heads * _SCALE_BYTES


class Scaled:
    """The part of a codec that knows the layout; its loops know what a code is."""

    lossless = False

    def __init__(self, shape: Shape, loops: Callable[[Shape], Loops]) -> None:
        """`loops` gives those of a shape; it raises FrameError where there are none."""
        self._shape = shape
        self._loops = loops
        self._rooms = Rooms()

    @staticmethod
    def require(elements: Elements) -> None:
        """See that elements can have scales.

        Raises:
            ConfigError: they have none, or tensors are not whole runs.
        """
        if elements.kind not in KINDS.values():
            wanted = ", ".join(one.value for one in KINDS.values())
            raise ConfigError(
                f"KV in {elements.kind.value} is as small as it gets; hint: this codec takes "
                f"{wanted}, so leave client.lossy off"
            )
        if not _fits(elements):
            raise ConfigError(
                f"a tensor of {elements.tensor_elements} elements is no whole number of "
                f"{elements.heads} heads in runs of {elements.run_elements}"
            )

    def encode(self, payload: Buffers) -> Buffers:
        """Write a payload down; the payload itself unless that saves a block."""
        shape, size_bytes = self._shape, total_bytes(payload)
        count = size_bytes // shape.tensor_bytes
        if not count:
            return payload
        loops, kind = self._loops(shape), shape.elements.kind
        head, tail = cut(merged(payload), count * shape.tensor_bytes)
        end = begin = _data_begin(shape, count)
        room, scale_at = self._rooms.take(begin + size_bytes), _HEADER.size
        for tensors, parts in spans(head, shape.tensor_bytes):
            fill(tensors, parts)
            own = room[scale_at : scale_at + shape.scales_bytes(tensors)].view(np.float32)
            words = tensors.view(loops.word)
            end += loops.encode(tensors, words, shape.numbers, own, room[end:])
            scale_at += own.nbytes
        size = end + sum(part.size for part in tail)
        if size + BLOCK_BYTES > size_bytes:
            return payload
        fill(room[end:size], tail)
        number = next(number for number, one in KINDS.items() if one is kind)
        tensor, heads, run = shape.numbers
        header = VERSION, number, shape.form, 0, heads, size_bytes, tensor, run
        _HEADER.pack_into(room.data, 0, *header)
        return [room[:size].data]

    def decode(self, stored: Buffers, payload: Buffers) -> None:
        """Restore a payload, as nearly as the form can; any codec of the class reads any shape.

        Raises:
            FrameError: these bytes were not made by `encode` from a payload of that size.
        """
        room, size_bytes = joined(stored), total_bytes(payload)
        shape = _read_header(room, size_bytes)
        loops, count = self._loops(shape), size_bytes // shape.tensor_bytes
        head, tail = cut(merged(payload), count * shape.tensor_bytes)
        begin, end = _data_begin(shape, count), room.size - sum(part.size for part in tail)
        if end < begin:
            raise FrameError(f"{room.size} bytes cannot hold {size_bytes} in {count} tensors")
        scale_at = _HEADER.size
        for tensors, parts in spans(head, shape.tensor_bytes):
            own = room[scale_at : scale_at + shape.scales_bytes(tensors)].view(np.float32)
            words = tensors.view(loops.word)
            used = loops.decode(room[begin:end], own, shape.numbers, tensors, words)
            if used == DAMAGED:
                raise FrameError("a tensor with scales is damaged")
            scatter(tensors, parts)
            scale_at += own.nbytes
            begin += used
        if begin != end:
            raise FrameError("tensors with scales are followed by something else: damaged")
        scatter(room[end:], tail)


def kind_of(stored: Buffers) -> Kind | None:
    """The kind of element that stored bytes name, if it is one; a look, not a check."""
    return KINDS.get(stored[0][1]) if stored and stored[0].nbytes > 1 else None


def _data_begin(shape: Shape, count: int) -> int:
    """Where the data of so many tensors begin."""
    return _HEADER.size + _SCALE_BYTES * shape.elements.heads * count


def _fits(elements: Elements) -> bool:
    """Whether a tensor is a whole number of runs of all heads."""
    round_elements = elements.heads * elements.run_elements
    return (
        elements.tensor_elements > 0
        and round_elements > 0
        and elements.tensor_elements % round_elements == 0
    )


def _read_header(room: Bytes, size_bytes: int) -> Shape:
    """What a header says.

    Raises:
        FrameError: it is no header, or one for another payload.
    """
    if room.size < _HEADER.size:
        raise FrameError(f"{room.size} bytes are too few for a header")
    header = room[: _HEADER.size].tobytes()
    version, number, form, zero, heads, size, tensor, run = _HEADER.unpack(header)
    kind = KINDS.get(number)
    if version != VERSION or kind is None or zero:
        raise FrameError("no header of a codec with scales, or one of a version to come")
    if size != size_bytes:
        raise FrameError(f"{size} bytes were written for a payload of {size_bytes}")
    elements = Elements(kind, tensor, heads, run)
    shape = Shape(form, elements)
    if not _fits(elements) or shape.tensor_bytes > size_bytes:
        raise FrameError(f"{elements} in {size_bytes} bytes cannot be")
    return shape
