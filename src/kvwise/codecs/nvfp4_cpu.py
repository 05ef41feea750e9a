"""The hot loops of the NVFP4 codec, compiled with Numba. They check sizes and never allocate.

What the bytes mean is said in `nvfp4`. All loops over elements take two neighbours at a time, as
one word of twice their size, because two neighbours share a byte. Importing this module needs
Numba; compiling happens at the first call of each loop, for one kind of element.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from kvwise.codecs.elements import Kind
from kvwise.codecs.exponent_cpu import compiled
from kvwise.codecs.floats_cpu import (
    E2M1,
    E4M3,
    LEAST_SCALE,
    bits_of,
    element,
    narrower,
    scale_of,
    widener,
)
from kvwise.codecs.scaled import DAMAGED, Loops

BLOCK_ELEMENTS = 16
PAIRS = BLOCK_ELEMENTS // 2
"""Pairs of elements in a block; their codes take as many bytes."""

_ONE, _ZERO, _GREATEST = np.float32(1), np.float32(0), np.float32(E2M1.greatest)
_PEAK = np.float32(E2M1.greatest * E4M3.greatest)
_GREATEST_SCALE = np.float32(np.finfo(np.float32).max / (E2M1.greatest * E4M3.greatest))
_LOW, _HIGH_SHIFT, _GREATEST_CODE = np.uint8(0x0F), np.uint8(4), np.uint8(E4M3.greatest_code)


@cache
def loops(kind: Kind) -> Loops:
    """The loops between elements of a kind and codes of four bits."""
    return Loops(element(kind).pair, _encode(kind), _decode(kind))


def _encode(kind: Kind) -> Any:
    """The loop that writes tensors down."""
    of, narrow, narrow_scale, widen_scale = (
        element(kind),
        narrower(E2M1),
        narrower(E4M3),
        widener(E4M3),
    )
    widen, word, shift, pair_bytes = of.widen, of.word, of.pair(kind.bits), 2 * kind.bytes
    magnitude, limit = of.word(of.magnitude), of.word(of.limit)

    @compiled
    def peak_of(pairs: Any) -> Any:
        """The greatest magnitude."""
        peak = word(0)
        for at in range(pairs.size):
            pair = pairs[at]
            peak = max(peak, word(pair & magnitude), word(word(pair >> shift) & magnitude))
        return peak

    @compiled
    def find_scales(pairs: Any, inverse: Any, scales: Any) -> None:
        """The code of each block's scale."""
        for block in range(scales.size):
            peak = peak_of(pairs[block * PAIRS : (block + 1) * PAIRS])
            scales[block] = narrow_scale(bits_of(widen(peak) * inverse))

    @compiled
    def write(pairs: Any, inverse: Any, codes: Any) -> None:
        """Codes of a block, the first of two neighbours in the lower half of a byte."""
        for at in range(PAIRS):
            pair = pairs[at]
            low = narrow(bits_of(widen(word(pair)) * inverse))
            high = narrow(bits_of(widen(word(pair >> shift)) * inverse))
            codes[at] = np.uint8(low | (high << _HIGH_SHIFT))

    @compiled
    def write_tensor(pairs: Any, scale: Any, scales: Any, codes: Any) -> None:
        """Scales and codes of all blocks of a tensor."""
        find_scales(pairs, _ONE / (_GREATEST * scale), scales)
        for block in range(scales.size):
            own = widen_scale(scales[block]) * scale
            inverse = _ONE / own if own > _ZERO else _ZERO
            begin, end = block * PAIRS, (block + 1) * PAIRS
            write(pairs[begin:end], inverse, codes[begin:end])

    @compiled
    def encode(raw: Any, pairs: Any, shape: Any, scales: Any, data: Any) -> Any:
        """Write all tensors down; bytes of data used."""
        tensor, end = shape[0] // 2, 0
        blocks, tensor_bytes = tensor // PAIRS, tensor * pair_bytes
        for number in range(pairs.size // tensor):
            part = pairs[number * tensor : (number + 1) * tensor]
            peak = peak_of(part)
            if peak > limit:
                scales[number] = _ZERO
                data[end : end + tensor_bytes] = raw[
                    number * tensor_bytes : (number + 1) * tensor_bytes
                ]
                end += tensor_bytes
            else:
                scale = scale_of(widen(peak), _PEAK)
                scales[number] = scale
                own = data[end : end + blocks + tensor]
                write_tensor(part, scale, own[:blocks], own[blocks:])
                end += blocks + tensor
        return end

    return encode


def _decode(kind: Kind) -> Any:
    """The loop that restores tensors."""
    of, widen, widen_scale = element(kind), widener(E2M1), widener(E4M3)
    narrow, pair, shift, pair_bytes = of.narrow, of.pair, of.pair(kind.bits), 2 * kind.bytes

    @compiled
    def are_scales(codes: Any) -> Any:
        """Whether all codes are of finite numbers without a sign."""
        peak = np.uint8(0)
        for at in range(codes.size):
            peak = max(peak, codes[at])
        return peak <= _GREATEST_CODE

    @compiled
    def read(codes: Any, scale: Any, pairs: Any) -> None:
        """Elements of a block."""
        for at in range(PAIRS):
            low = narrow(bits_of(widen(codes[at] & _LOW) * scale))
            high = narrow(bits_of(widen(codes[at] >> _HIGH_SHIFT) * scale))
            pairs[at] = pair(pair(low) | (pair(high) << shift))

    @compiled
    def restore(own: Any, scale: Any, blocks: Any, pairs: Any) -> Any:
        """Elements of a tensor; whether it is whole."""
        if not LEAST_SCALE <= scale <= _GREATEST_SCALE or not are_scales(own[:blocks]):
            return False
        codes = own[blocks:]
        for block in range(blocks):
            begin, end = block * PAIRS, (block + 1) * PAIRS
            read(codes[begin:end], widen_scale(own[block]) * scale, pairs[begin:end])
        return True

    @compiled
    def decode(data: Any, scales: Any, shape: Any, raw: Any, pairs: Any) -> Any:
        """Restore all tensors; 0, or DAMAGED."""
        tensor, begin = shape[0] // 2, 0
        blocks, tensor_bytes = tensor // PAIRS, tensor * pair_bytes
        for number in range(pairs.size // tensor):
            left = data.size - begin
            if scales[number] == _ZERO:
                if left < tensor_bytes:
                    return DAMAGED
                raw[number * tensor_bytes : (number + 1) * tensor_bytes] = data[
                    begin : begin + tensor_bytes
                ]
                begin += tensor_bytes
            else:
                size = blocks + tensor
                if left < size:
                    return DAMAGED
                own = data[begin : begin + size]
                part = pairs[number * tensor : (number + 1) * tensor]
                if not restore(own, scales[number], blocks, part):
                    return DAMAGED
                begin += size
        return 0 if begin == data.size else DAMAGED

    return decode
