"""Parts of the exponent codec's kernels: elements as words and back, as `exponent_words` has them.

A word is an element in the form of BF16, in a 32-bit integer; kinds are numbered as in `KINDS`.
What finds no room in a word is its low, of which a segment's data have a plane in front.
"""

from __future__ import annotations

import triton
import triton.language as tl

_BF16, _FP16, _FP32 = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
_E4M3 = tl.constexpr(3)


@triton.jit  # type: ignore[untyped-decorator]
def whole_words(size_bytes: tl.tensor) -> tl.tensor:
    """Bytes of whole words of 64 bits that hold so many."""
    return (size_bytes + 7) // 8 * 8


@triton.jit  # type: ignore[untyped-decorator]
def length_of(count: tl.tensor, number: tl.tensor, segment: tl.constexpr) -> tl.tensor:
    """Elements of a segment, the last of which is shorter."""
    return tl.minimum(count - number * segment, segment).to(tl.int32)


@triton.jit  # type: ignore[untyped-decorator]
def record_of(records: tl.tensor, number: tl.tensor) -> tuple[tl.tensor, ...]:
    """Mode, base, escapes and bytes among them of a segment."""
    low = tl.load(records + 2 * number)
    mode, base = (low & 255).to(tl.int32), (low >> 8 & 255).to(tl.int32)
    return mode, base, (low >> 16 & 0xFFFF).to(tl.int32), (low >> 32 & 0xFFFF).to(tl.int32)


@triton.jit  # type: ignore[untyped-decorator]
def palette_of(records: tl.tensor, number: tl.tensor, place: tl.constexpr) -> tl.tensor:
    """One exponent of a segment's palette."""
    if place < 2:
        bits = tl.load(records + 2 * number) >> (48 + 8 * place)
    else:
        bits = tl.load(records + 2 * number + 1) >> (8 * place - 16)
    return (bits & 255).to(tl.int32)


@triton.jit  # type: ignore[untyped-decorator]
def low_lanes(length: tl.tensor, kind: tl.constexpr) -> tl.tensor:
    """Words of 16 bits that the lows of a segment take."""
    if kind == _BF16:
        lanes = length * 0
    elif kind == _FP32:
        lanes = length
    elif kind == _E4M3:
        lanes = length // 4
    else:
        lanes = length // 16 * 3
    return lanes


@triton.jit  # type: ignore[untyped-decorator]
def rest_lanes(length: tl.tensor, kind: tl.constexpr) -> tl.tensor:
    """Words of 16 bits that signs and mantissas of a segment take."""
    return length * 0 if kind >= _E4M3 else length // 2


@triton.jit  # type: ignore[untyped-decorator]
def element_at(place: tl.tensor, length: tl.tensor, kind: tl.constexpr) -> tl.tensor:
    """Which element becomes the word at a place."""
    if kind <= _FP16:
        at = place
    elif kind == _FP32:
        at = (place & 1) * (length // 2) + (place >> 1)
    else:
        at = tl.where(place < length // 2, 2 * place, 2 * place - length + 1)
    return at


@triton.jit  # type: ignore[untyped-decorator]
def word_of(element: tl.tensor, kind: tl.constexpr) -> tl.tensor:
    """An element as a word."""
    if kind == _BF16:
        word = element & 0xFFFF
    elif kind == _FP16:
        word = (element & 0x8000) | (element >> 3 & 0x0FFF)
    elif kind == _FP32:
        word = element >> 16 & 0xFFFF
    elif kind == _E4M3:
        word = (element & 0x78) << 4 | (element >> 4 & 8) | (element & 7)
    else:
        word = (element & 0x7C) << 5 | (element >> 5 & 4) | (element & 3)
    return word


@triton.jit  # type: ignore[untyped-decorator]
def low_of(element: tl.tensor, kind: tl.constexpr) -> tl.tensor:
    """What of an element finds no room in its word."""
    if kind == _BF16:
        low = element * 0
    elif kind == _FP16:
        low = element & 7
    elif kind == _FP32:
        low = element & 0xFFFF
    elif kind == _E4M3:
        low = word_of(element, kind) & 15
    else:
        low = word_of(element, kind) & 7
    return low


@triton.jit  # type: ignore[untyped-decorator]
def element_of(word: tl.tensor, low: tl.tensor, kind: tl.constexpr) -> tl.tensor:
    """Undo `word_of` and `low_of`."""
    both = word | low
    if kind == _BF16:
        element = word.to(tl.int16)
    elif kind == _FP16:
        element = ((word & 0x8000) | (word & 0x0FFF) << 3 | low).to(tl.int16)
    elif kind == _FP32:
        element = word << 16 | low
    elif kind == _E4M3:
        element = ((both >> 4 & 0x78) | (both & 8) << 4 | (both & 7)).to(tl.uint8)
    else:
        element = ((both >> 5 & 0x7C) | (both & 4) << 5 | (both & 3)).to(tl.uint8)
    return element


@triton.jit  # type: ignore[untyped-decorator]
def load_elements(
    source: tl.tensor, place: tl.tensor, length: tl.tensor, inside: tl.tensor, kind: tl.constexpr
) -> tl.tensor:
    """The elements whose words are at some places, 0 outside."""
    at = element_at(place, length, kind)
    return tl.load(source + at, mask=inside, other=0).to(tl.int32)


@triton.jit  # type: ignore[untyped-decorator]
def load_words(
    source: tl.tensor, place: tl.tensor, length: tl.tensor, inside: tl.tensor, kind: tl.constexpr
) -> tl.tensor:
    """The words at some places, 0 outside."""
    return word_of(load_elements(source, place, length, inside, kind), kind)


@triton.jit  # type: ignore[untyped-decorator]
def load_lows(
    data: tl.tensor, place: tl.tensor, length: tl.tensor, inside: tl.tensor, kind: tl.constexpr
) -> tl.tensor:
    """Lows at some places, from the plane of a segment's data that has them."""
    if kind == _BF16:
        low = place * 0
    elif kind == _FP32:
        low = tl.load(data + place, mask=inside, other=0).to(tl.int32) & 0xFFFF
    elif kind == _E4M3:
        quarter = length // 4
        four = tl.load(data + place % quarter, mask=inside, other=0).to(tl.int32)
        low = four >> (place // quarter * 4) & 15
    else:
        step = length // 16
        low = place * 0
        for plane in tl.static_range(3):
            bits = tl.load(data + plane * step + place % step, mask=inside, other=0)
            low |= (bits.to(tl.int32) >> (place // step) & 1) << plane
    return low


@triton.jit  # type: ignore[untyped-decorator]
def rest_of(words: tl.tensor) -> tl.tensor:
    """Sign and mantissa in one byte."""
    return (words >> 8 & 0x80) | (words & 0x7F)


@triton.jit  # type: ignore[untyped-decorator]
def word_from(rest: tl.tensor, exponent: tl.tensor) -> tl.tensor:
    """A word from what `rest_of` gave of it and its exponent."""
    return (rest & 0x80) << 8 | (rest & 0x7F) | exponent << 7
