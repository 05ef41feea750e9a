"""The hot loops of the NVFP4 codec, compiled with Numba. They check sizes before they touch bytes.

What the bytes mean is said in `nvfp4`. A tensor is worked off in parts that stay in the nearest
cache, and a part in loops that each do one thing to all of it: so the compiler makes vector code
of every one. Where two neighbours meet, in peaks and in bytes of codes, they are one word of twice
their size, so that nothing has to be gathered. Importing this module needs Numba; compiling
happens at the first call of each loop, for one kind of element.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from kvwise.codecs.elements import Kind
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
from kvwise.codecs.machine_code import compiled
from kvwise.codecs.nvfp4 import BLOCK_ELEMENTS
from kvwise.codecs.scaled import DAMAGED, Loops

PAIRS = BLOCK_ELEMENTS // 2
"""Pairs of elements in a block; their codes take as many bytes."""

PART_BLOCKS = 256
"""Blocks of a part: 8 KiB of 16-bit elements, and what becomes of them."""

_ONE, _ZERO, _GREATEST = np.float32(1), np.float32(0), np.float32(E2M1.greatest)
_PEAK = np.float32(E2M1.greatest * E4M3.greatest)
_GREATEST_SCALE = np.float32(np.finfo(np.float32).max / (E2M1.greatest * E4M3.greatest))
_GREATEST_CODE = np.uint8(E4M3.greatest_code)
_LOW_CODE, _HIGH_CODE, _CODE_BITS = np.uint16(0x0F), np.uint16(0xF0), np.uint16(4)

_narrow_scale, _widen_scale = narrower(E4M3), widener(E4M3)


@cache
def loops(kind: Kind) -> Loops:
    """The loops between elements of a kind and codes of four bits."""
    return Loops(element(kind).word, _encode(kind), _decode(kind))


@compiled
def _pack(neighbours: Any, codes: Any) -> None:
    """Two codes of a byte each as one byte, the first in its lower half."""
    for at in range(codes.size):
        both = neighbours[at]
        codes[at] = np.uint8((both & _LOW_CODE) | ((both >> _CODE_BITS) & _HIGH_CODE))


@compiled
def _find_inverses(scales: Any, scale: Any, inverses: Any) -> None:
    """What elements of each block are multiplied by; 0 where the block's scale is."""
    for block in range(scales.size):
        own = _widen_scale(scales[block]) * scale
        inverses[block] = _ONE / own if own > _ZERO else _ZERO


@compiled
def _spread_scales(scales: Any, scale: Any, products: Any) -> None:
    """What codes are multiplied by, for each pair of a block."""
    for block in range(scales.size):
        own = _widen_scale(scales[block]) * scale
        for at in range(PAIRS):
            products[block * PAIRS + at] = own


@compiled
def _are_scales(codes: Any) -> Any:
    """Whether all codes are of finite numbers without a sign."""
    peak = np.uint8(0)
    for at in range(codes.size):
        peak = max(peak, codes[at])
    return peak <= _GREATEST_CODE


def _find_peaks(kind: Kind) -> Any:
    """The loop that finds the greatest magnitude of each block, and of all."""
    of = element(kind)
    word, pair, shift = of.word, of.pair, of.pair(kind.bits)
    magnitude, limit = of.pair(of.magnitude), of.word(of.limit)

    @compiled
    def halve(pairs: Any, greater: Any) -> None:
        """The greater magnitude of each two."""
        for at in range(greater.size):
            both = pairs[at]
            greater[at] = word(max(pair(both & magnitude), pair((both >> shift) & magnitude)))

    @compiled
    def find_peaks(words: Any, work: Any, peaks: Any) -> Any:
        """Peaks of blocks, and of all; part after part, halving four times."""
        for begin in range(0, peaks.size, PART_BLOCKS):
            blocks = min(PART_BLOCKS, peaks.size - begin)
            part = words[begin * BLOCK_ELEMENTS : (begin + blocks) * BLOCK_ELEMENTS]
            halves, quarters = work[: 8 * blocks], work[8 * blocks : 12 * blocks]
            eighths = work[: 2 * blocks]
            halve(part.view(pair), halves)
            halve(halves.view(pair), quarters)
            halve(quarters.view(pair), eighths)
            halve(eighths.view(pair), peaks[begin : begin + blocks])
        greatest = word(0)
        for block in range(peaks.size):
            greatest = max(greatest, peaks[block])
        return greatest

    return find_peaks, limit


def _encode(kind: Kind) -> Any:
    """The loop that writes tensors down."""
    of, narrow = element(kind), narrower(E2M1)
    widen, word, word_bytes = of.widen, of.word, kind.bytes
    find_peaks, limit = _find_peaks(kind)

    @compiled
    def find_scales(peaks: Any, inverse: Any, scales: Any) -> None:
        """The code of each block's scale."""
        for block in range(peaks.size):
            scales[block] = _narrow_scale(bits_of(widen(peaks[block]) * inverse))

    @compiled
    def find_codes(words: Any, inverses: Any, codes: Any) -> None:
        """Codes of elements, a byte each."""
        for block in range(inverses.size):
            inverse = inverses[block]
            for at in range(BLOCK_ELEMENTS):
                place = block * BLOCK_ELEMENTS + at
                codes[place] = narrow(bits_of(widen(words[place]) * inverse))

    @compiled
    def write(words: Any, scale: Any, scales: Any, codes: Any) -> None:
        """Codes of a tensor, part after part."""
        inverses = np.empty(PART_BLOCKS, np.float32)
        apart = np.empty(PART_BLOCKS * BLOCK_ELEMENTS, np.uint8)
        for begin in range(0, scales.size, PART_BLOCKS):
            blocks = min(PART_BLOCKS, scales.size - begin)
            part = words[begin * BLOCK_ELEMENTS : (begin + blocks) * BLOCK_ELEMENTS]
            own = apart[: blocks * BLOCK_ELEMENTS]
            _find_inverses(scales[begin : begin + blocks], scale, inverses[:blocks])
            find_codes(part, inverses[:blocks], own)
            _pack(own.view(np.uint16), codes[begin * PAIRS : (begin + blocks) * PAIRS])

    @compiled
    def encode(raw: Any, words: Any, shape: Any, scales: Any, data: Any) -> Any:
        """Write all tensors down; bytes of data used."""
        tensor, end = shape[0], 0
        blocks, tensor_bytes = tensor // BLOCK_ELEMENTS, tensor * word_bytes
        work, peaks = np.empty(12 * PART_BLOCKS, word), np.empty(blocks, word)
        for number in range(words.size // tensor):
            part = words[number * tensor : (number + 1) * tensor]
            peak = find_peaks(part, work, peaks)
            if peak > limit:
                scales[number] = _ZERO
                data[end : end + tensor_bytes] = raw[
                    number * tensor_bytes : (number + 1) * tensor_bytes
                ]
                end += tensor_bytes
            else:
                scale = scale_of(widen(peak), _PEAK)
                scales[number] = scale
                own = data[end : end + blocks + blocks * PAIRS]
                find_scales(peaks, _ONE / (_GREATEST * scale), own[:blocks])
                write(part, scale, own[:blocks], own[blocks:])
                end += own.size
        return end

    return encode


def _decode(kind: Kind) -> Any:
    """The loop that restores tensors."""
    of, widen, pair_shift = element(kind), widener(E2M1), element(kind).pair(kind.bits)
    narrow, pair, word_bytes = of.narrow, of.pair, kind.bytes
    low_code, high_shift = np.uint8(_LOW_CODE), np.uint8(_CODE_BITS)

    @compiled
    def read(codes: Any, products: Any, pairs: Any) -> None:
        """Elements of a part, two at a time."""
        for at in range(codes.size):
            low = narrow(bits_of(widen(codes[at] & low_code) * products[at]))
            high = narrow(bits_of(widen(codes[at] >> high_shift) * products[at]))
            pairs[at] = pair(pair(low) | (pair(high) << pair_shift))

    @compiled
    def restore(own: Any, scale: Any, blocks: Any, pairs: Any) -> Any:
        """Elements of a tensor, part after part; whether it is whole."""
        if not LEAST_SCALE <= scale <= _GREATEST_SCALE or not _are_scales(own[:blocks]):
            return False
        scales, codes = own[:blocks], own[blocks:]
        products = np.empty(PART_BLOCKS * PAIRS, np.float32)
        for begin in range(0, blocks, PART_BLOCKS):
            end = min(begin + PART_BLOCKS, blocks)
            own_products = products[: (end - begin) * PAIRS]
            _spread_scales(scales[begin:end], scale, own_products)
            read(
                codes[begin * PAIRS : end * PAIRS], own_products, pairs[begin * PAIRS : end * PAIRS]
            )
        return True

    @compiled
    def decode(data: Any, scales: Any, shape: Any, raw: Any, words: Any) -> Any:
        """Restore all tensors; bytes of data used, or DAMAGED."""
        tensor, begin = shape[0], 0
        blocks, tensor_bytes = tensor // BLOCK_ELEMENTS, tensor * word_bytes
        stored_bytes = blocks + blocks * PAIRS
        for number in range(words.size // tensor):
            left = data.size - begin
            if scales[number] == _ZERO:
                if left < tensor_bytes:
                    return DAMAGED
                raw[number * tensor_bytes : (number + 1) * tensor_bytes] = data[
                    begin : begin + tensor_bytes
                ]
                begin += tensor_bytes
            else:
                part = words[number * tensor : (number + 1) * tensor].view(pair)
                if left < stored_bytes:
                    return DAMAGED
                if not restore(data[begin : begin + stored_bytes], scales[number], blocks, part):
                    return DAMAGED
                begin += stored_bytes
        return begin

    return decode
