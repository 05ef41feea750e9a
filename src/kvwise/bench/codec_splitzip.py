"""Owns what BF16 KV would take in the format of SplitZip (arXiv 2605.01708).

It encodes nothing: the size follows from how many exponents that format has no code for. There an
element takes sign and mantissa, 8 bits, and a code of 4 bits for one of 16 exponents. One that is
none of them is listed beside that: 32 bits for a chunk, 16 for a place in it, 8 for the exponent.
"""

from __future__ import annotations

import numpy as np

from kvwise.bench.codec_data import Bytes

CODES = 16
"""Exponents that have a code."""

BF16_BITS, ELEMENT_BITS, ESCAPE_BITS = 16, 12, 56


def share_beyond(data: Bytes) -> float:
    """The part of BF16 elements whose exponent is none of the 16 that occur most in these data.

    The paper takes its 16 from other texts beforehand, so its part is this one or more.
    """
    exponents = data.view(np.uint16) >> 7 & 255
    counts = np.sort(np.bincount(exponents, minlength=256))
    return float(counts[:-CODES].sum() / max(exponents.size, 1))


def ratio_at(share: float) -> float:
    """How many times smaller elements become of which that share is listed; below 1 is larger."""
    return BF16_BITS / (ELEMENT_BITS + ESCAPE_BITS * share)
