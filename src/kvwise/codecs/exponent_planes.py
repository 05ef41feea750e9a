"""Planes of the exponent codec: loops over words of four 16-bit lanes, compiled with Numba.

A word holds four numbers in the form of BF16: sign, 8 bits of exponent, 7 bits beside it. All loops
work on 64-bit words, so that nothing is widened or narrowed on the way: an element stays in its
lane, and elements that share a plane's word lie a half, a quarter or a sixteenth of a segment
apart. Shifts leave bits of neighbours in a lane, which the mask after them takes away. No loop here
allocates, and none checks sizes.

Importing this module needs Numba; compiling happens at the first call of each loop.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvwise.codecs.machine_code import compiled

EXPONENT, BIT = np.uint64(0x00FF_00FF_00FF_00FF), np.uint64(0x0001_0001_0001_0001)
CARRY = np.uint64(0x0100_0100_0100_0100)
S1, S2, S3, S4, S5, S7, S8, S9, S12, S16 = (
    np.uint64(shift) for shift in (1, 2, 3, 4, 5, 7, 8, 9, 12, 16)
)
_SIGN, _MANTISSA = np.uint64(0x0080_0080_0080_0080), np.uint64(0x007F_007F_007F_007F)
_HIGH_SIGN, _NIBBLE = np.uint64(0x8000_8000_8000_8000), np.uint64(0x000F_000F_000F_000F)
_REACH = np.uint64(0x01F9_01F9_01F9_01F9)
"""Added to a distance, it reaches bit 9 where that is 7 or more."""

_BEYOND, _FOUR = np.uint64(0x01F0_01F0_01F0_01F0), np.uint64(0x0780_0780_0780_0780)
_FIRST, _SECOND = np.uint64(0x0080_0080_0080_0080), np.uint64(0x0100_0100_0100_0100)
_THIRD = np.uint64(0x0200_0200_0200_0200)
_ZERO = np.uint64(0)


@compiled
def split(words: Any, rest: Any) -> None:
    """Sign and mantissa of all elements: two lanes' bytes from elements half a segment apart."""
    half = rest.size
    for at in range(half):
        low, high = words[at], words[half + at]
        rest[at] = (
            (low >> S8 & _SIGN) | (low & _MANTISSA) | (high & _HIGH_SIGN) | (high & _MANTISSA) << S8
        )


@compiled
def pack_fixed(words: Any, codes: Any, flags: Any, base: Any) -> None:
    """Four bits for each exponent: its distance from the base, wrong where that is over 15.

    A flag is not 0 where that is so for a lane of the four words with codes at the same place.
    """
    quarter, bases = codes.size, base * BIT
    for at in range(quarter):
        first = (words[at] >> S7 & EXPONENT | CARRY) - bases
        second = (words[quarter + at] >> S7 & EXPONENT | CARRY) - bases
        third = (words[2 * quarter + at] >> S7 & EXPONENT | CARRY) - bases
        fourth = (words[3 * quarter + at] >> S7 & EXPONENT | CARRY) - bases
        codes[at] = (
            first & _NIBBLE
            | (second & _NIBBLE) << S4
            | (third & _NIBBLE) << S8
            | (fourth & _NIBBLE) << S12
        )
        far = first ^ CARRY | second ^ CARRY | third ^ CARRY | fourth ^ CARRY
        flags[at] = far & _BEYOND


@compiled
def unpack_fixed(codes: Any, rest: Any, words: Any, base: Any) -> None:
    """Undo `split` and `pack_fixed`, but for what was beyond."""
    quarter, bases = codes.size, base * BIT << S7
    for at in range(quarter):
        code, low, high = codes[at], rest[at], rest[quarter + at]
        words[at] = (low & _SIGN) << S8 | low & _MANTISSA | (code << S7 & _FOUR) + bases
        words[quarter + at] = (high & _SIGN) << S8 | high & _MANTISSA | (code << S3 & _FOUR) + bases
        words[2 * quarter + at] = (
            low & _HIGH_SIGN | low >> S8 & _MANTISSA | (code >> S1 & _FOUR) + bases
        )
        words[3 * quarter + at] = (
            high & _HIGH_SIGN | high >> S8 & _MANTISSA | (code >> S5 & _FOUR) + bases
        )


@compiled
def pack_dense(words: Any, planes: Any, base: Any) -> None:
    """Three planes of one bit for each exponent: its distance from the base, all ones beyond."""
    step, bases = planes.size // 3, base * BIT
    planes[:] = _ZERO
    first, second, third = planes[:step], planes[step : 2 * step], planes[2 * step :]
    for place in range(0, 16, 2):
        shift, part = np.uint64(place), words[place * step : (place + 1) * step]
        next_part = words[(place + 1) * step : (place + 2) * step]
        for at in range(step):
            code = ((part[at] >> S7 & EXPONENT | CARRY) - bases) ^ CARRY
            far = code + _REACH >> S9
            other = ((next_part[at] >> S7 & EXPONENT | CARRY) - bases) ^ CARRY
            further = other + _REACH >> S9
            first[at] |= ((code | far) & BIT | ((other | further) & BIT) << S1) << shift
            second[at] |= (
                (code >> S1 | far) & BIT | ((other >> S1 | further) & BIT) << S1
            ) << shift
            third[at] |= ((code >> S2 | far) & BIT | ((other >> S2 | further) & BIT) << S1) << shift


@compiled
def unpack_dense(planes: Any, rest: Any, words: Any, base: Any) -> None:
    """Undo `split` and `pack_dense`, but for what was beyond."""
    step, bases = planes.size // 3, base * BIT << S7
    first, second, third = planes[:step], planes[step : 2 * step], planes[2 * step :]
    for place in range(8):
        pair = rest[place * step : (place + 1) * step]
        left, right = np.uint64(7 - place), np.uint64(place + 1)
        low = words[place * step : (place + 1) * step]
        high = words[(place + 8) * step : (place + 9) * step]
        for at in range(step):
            both, one, two, four = pair[at], first[at], second[at], third[at]
            code = one << left & _FIRST | two << left << S1 & _SECOND | four << left << S2 & _THIRD
            low[at] = (both & _SIGN) << S8 | both & _MANTISSA | code + bases
            one, two, four = one >> right, two >> right, four >> right
            code = one & _FIRST | two << S1 & _SECOND | four << S2 & _THIRD
            high[at] = both & _HIGH_SIGN | both >> S8 & _MANTISSA | code + bases
