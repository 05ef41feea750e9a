"""Owns slow and plain oracles for codes of few bits, straight from their definitions. No Numba.

A form is a list of its numbers, in the order of their codes; rounding is a search in it.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from functools import cache

import numpy as np

LEAST_SCALE = 2.0**-100


@cache
def numbers(exponent_bits: int, mantissa_bits: int, bias: int, greatest: float) -> list[float]:
    """All numbers of a form that are not negative, up to its greatest."""
    steps, found = 1 << mantissa_bits, []
    for code in range(1 << (exponent_bits + mantissa_bits)):
        exponent, mantissa = divmod(code, steps)
        if exponent:
            found.append(math.ldexp(1 + mantissa / steps, exponent - bias))
        else:
            found.append(math.ldexp(mantissa / steps, 1 - bias))
    return [number for number in found if number <= greatest]


E4M3 = numbers(4, 3, 7, 448.0)
E5M2 = numbers(5, 2, 15, 57_344.0)
E2M1 = numbers(2, 1, 1, 6.0)
BF16 = numbers(8, 7, 127, float.fromhex("0x1.fep127"))


def nearest(form: list[float], value: float) -> int:
    """The code of the nearest number, the even one of two; the greatest for all beyond."""
    size = abs(value)
    if size >= form[-1]:
        return len(form) - 1
    above = bisect_left(form, size)
    if form[above] == size:
        return above
    below = above - 1
    middle = (form[below] + form[above]) / 2
    if size == middle:
        return below if below % 2 == 0 else above
    return below if size < middle else above


def scale(peak: float, greatest: float) -> float:
    """The quotient in 32 bits, rounded up to 16 significant bits, and not too small."""
    mantissa, exponent = math.frexp(float(np.float32(peak) / np.float32(greatest)))
    return max(math.ldexp(math.ceil(mantissa * 2**16) / 2**16, exponent), LEAST_SCALE)


def divided(value: float, by: float) -> float:
    """A number times the inverse of another, each rounded to 32 bits."""
    inverse = np.float32(1) / np.float32(by) if by else np.float32(0)
    return float(np.float32(value) * inverse)


def bf16(value: float) -> int:
    """The bits of the nearest BF16."""
    return nearest(BF16, value) | (0x8000 if math.copysign(1, value) < 0 else 0)
