"""Kinds of element as words in the form of BF16, and back, compiled with Numba.

The planes know one form: sign, 8 bits of exponent, 7 bits beside it, in lanes of 16 bits. Other
kinds are brought into it, and bits that find no room there, the lows, are stored as they are:

    bf16  is that form
    fp16  5 bits of exponent in the field of 8; lows are the last 3 bits of mantissa
    fp32  the upper half is that form; lows are the lower 16 bits
    e4m3  the exponent alone; lows are sign and mantissa, 4 bits
    e5m2  the exponent alone; lows are sign and mantissa, 3 bits

No lane changes its width, so elements change their order. Of n elements of FP32, element i is lane
2i, or for the second half lane 2i - n + 1; its low half is the same lane of the lows. Of FP8, even
elements come before odd ones. Lows of 4 bits are packed as the codes of `fixed` are, and those of
3 bits in three planes of one bit, as those of `dense`, lowest bit first.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvwise.codecs.elements import KINDS
from kvwise.codecs.exponent_planes import (
    BIT,
    S1,
    S2,
    S3,
    S4,
    S5,
    S8,
    S12,
    S16,
)
from kvwise.codecs.machine_code import compiled

BF16, FP16, FP32, E4M3, E5M2 = range(len(KINDS))
"""Kinds by their number in `KINDS`, which loops are told."""

BYTES = tuple(kind.bytes for kind in KINDS)
REST_BITS = (8, 8, 8, 0, 0)
"""Bits of an element that its word has beside the exponent."""

LOW_BITS = (0, 3, 16, 4, 3)
"""Bits of an element that find no room in its word."""

_HIGH_SIGN, _ALL_BUT_TOP = np.uint64(0x8000_8000_8000_8000), np.uint64(0x0FFF_0FFF_0FFF_0FFF)
_HALF, _UPPER = np.uint64(0x0000_FFFF_0000_FFFF), np.uint64(0xFFFF_0000_FFFF_0000)
_BYTE, _NIBBLE = np.uint64(0x00FF_00FF_00FF_00FF), np.uint64(0x000F_000F_000F_000F)
_E4, _E5 = np.uint64(0x0078_0078_0078_0078), np.uint64(0x007C_007C_007C_007C)
_BIT2, _BIT3 = np.uint64(0x0004_0004_0004_0004), np.uint64(0x0008_0008_0008_0008)
_LOW2, _LOW3 = np.uint64(0x0003_0003_0003_0003), np.uint64(0x0007_0007_0007_0007)
_ZERO = np.uint64(0)


@compiled
def spread(kind: int, source: Any, words: Any, lows: Any) -> None:
    """Elements, as u64, as words, and what finds no room there; of any kind but BF16."""
    if kind == FP16:
        _spread_fp16(source, words)
        _pack_three(source, lows)
    elif kind == FP32:
        _spread_fp32(source, words, lows)
    elif kind == E4M3:
        _spread_e4m3(source, words)
        _pack_four(words, lows)
    else:
        _spread_e5m2(source, words)
        _pack_three(words, lows)


@compiled
def gather(kind: int, words: Any, lows: Any, target: Any) -> None:
    """Undo `spread`; words of FP8 have exponents only, and are written to."""
    if kind == FP16:
        _gather_fp16(words, target)
        _unpack_three(lows, target)
    elif kind == FP32:
        _gather_fp32(words, lows, target)
    elif kind == E4M3:
        _unpack_four(lows, words)
        _gather_e4m3(words, target)
    else:
        _unpack_three(lows, words)
        _gather_e5m2(words, target)


# --- words ---


@compiled
def _spread_fp16(source: Any, words: Any) -> None:
    """Sign, exponent and the upper 7 bits of mantissa."""
    for at in range(words.size):
        words[at] = source[at] & _HIGH_SIGN | source[at] >> S3 & _ALL_BUT_TOP


@compiled
def _gather_fp16(words: Any, target: Any) -> None:
    """Undo `_spread_fp16`, the lowest 3 bits being 0."""
    for at in range(words.size):
        target[at] = words[at] & _HIGH_SIGN | (words[at] & _ALL_BUT_TOP) << S3


@compiled
def _spread_fp32(source: Any, words: Any, lows: Any) -> None:
    """Upper and lower halves: each word from two that lie half of them apart."""
    half = words.size
    for at in range(half):
        first, second = source[at], source[half + at]
        words[at] = first >> S16 & _HALF | second & _UPPER
        lows[at] = first & _HALF | second << S16 & _UPPER


@compiled
def _gather_fp32(words: Any, lows: Any, target: Any) -> None:
    """Undo `_spread_fp32`."""
    half = words.size
    for at in range(half):
        target[at] = (words[at] & _HALF) << S16 | lows[at] & _HALF
        target[half + at] = words[at] & _UPPER | lows[at] >> S16 & _HALF


@compiled
def _spread_e4m3(source: Any, words: Any) -> None:
    """Even bytes, then odd ones: exponent in its field, sign and mantissa as the lowest 4 bits."""
    half = source.size
    for at in range(half):
        byte = source[at] & _BYTE
        words[at] = (byte & _E4) << S4 | byte >> S4 & _BIT3 | byte & _LOW3
        byte = source[at] >> S8 & _BYTE
        words[half + at] = (byte & _E4) << S4 | byte >> S4 & _BIT3 | byte & _LOW3


@compiled
def _gather_e4m3(words: Any, target: Any) -> None:
    """Undo `_spread_e4m3`."""
    half = target.size
    for at in range(half):
        even, odd = words[at], words[half + at]
        low = even >> S4 & _E4 | (even & _BIT3) << S4 | even & _LOW3
        target[at] = low | (odd >> S4 & _E4 | (odd & _BIT3) << S4 | odd & _LOW3) << S8


@compiled
def _spread_e5m2(source: Any, words: Any) -> None:
    """Even bytes, then odd ones: exponent in its field, sign and mantissa as the lowest 3 bits."""
    half = source.size
    for at in range(half):
        byte = source[at] & _BYTE
        words[at] = (byte & _E5) << S5 | byte >> S5 & _BIT2 | byte & _LOW2
        byte = source[at] >> S8 & _BYTE
        words[half + at] = (byte & _E5) << S5 | byte >> S5 & _BIT2 | byte & _LOW2


@compiled
def _gather_e5m2(words: Any, target: Any) -> None:
    """Undo `_spread_e5m2`."""
    half = target.size
    for at in range(half):
        even, odd = words[at], words[half + at]
        low = even >> S5 & _E5 | (even & _BIT2) << S5 | even & _LOW2
        target[at] = low | (odd >> S5 & _E5 | (odd & _BIT2) << S5 | odd & _LOW2) << S8


# --- the lowest bits of words ---


@compiled
def _pack_four(words: Any, lows: Any) -> None:
    """The lowest 4 bits of each lane, those of lanes a quarter of the words apart together."""
    quarter = lows.size
    for at in range(quarter):
        lows[at] = (
            words[at] & _NIBBLE
            | (words[quarter + at] & _NIBBLE) << S4
            | (words[2 * quarter + at] & _NIBBLE) << S8
            | (words[3 * quarter + at] & _NIBBLE) << S12
        )


@compiled
def _unpack_four(lows: Any, words: Any) -> None:
    """Add what `_pack_four` took, where it is 0."""
    quarter = lows.size
    for at in range(quarter):
        low = lows[at]
        words[at] |= low & _NIBBLE
        words[quarter + at] |= low >> S4 & _NIBBLE
        words[2 * quarter + at] |= low >> S8 & _NIBBLE
        words[3 * quarter + at] |= low >> S12 & _NIBBLE


@compiled
def _pack_three(words: Any, lows: Any) -> None:
    """The lowest 3 bits of each lane, in three planes of one bit each."""
    step = lows.size // 3
    lows[:] = _ZERO
    first, second, third = lows[:step], lows[step : 2 * step], lows[2 * step :]
    for place in range(16):
        shift, part = np.uint64(place), words[place * step : (place + 1) * step]
        for at in range(step):
            first[at] |= (part[at] & BIT) << shift
            second[at] |= (part[at] >> S1 & BIT) << shift
            third[at] |= (part[at] >> S2 & BIT) << shift


@compiled
def _unpack_three(lows: Any, words: Any) -> None:
    """Add what `_pack_three` took, where it is 0."""
    step = lows.size // 3
    first, second, third = lows[:step], lows[step : 2 * step], lows[2 * step :]
    for place in range(16):
        shift, part = np.uint64(place), words[place * step : (place + 1) * step]
        for at in range(step):
            one, two, four = first[at] >> shift, second[at] >> shift, third[at] >> shift
            part[at] |= one & BIT | (two & BIT) << S1 | (four & BIT) << S2
