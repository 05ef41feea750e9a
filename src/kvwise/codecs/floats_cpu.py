"""Floats of few bits: to the nearest one and back, compiled with Numba. It knows no scale.

A form is a sign, an exponent with a bias and a mantissa, with denormals, as IEEE 754 has them.
Rounding is to the nearest, ties to the even code; what is beyond the greatest becomes the greatest.
Everything happens in the bits of 32-bit floats, but for two additions that are exact or rounded as
the standard says. So each processor gives the same codes, also one that takes denormal floats for
zeros, and the compiler makes vector code of it.

Importing this module needs Numba; compiling happens at the first call of each function.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic

from kvwise.codecs.elements import Kind
from kvwise.codecs.machine_code import compiled

_MAGNITUDE = np.uint32(0x7FFF_FFFF)
_SIGN = np.uint32(0x8000_0000)
_ODD = np.uint32(1)
_MANTISSA_BITS, _BIAS = 23, 127


@dataclass(frozen=True, slots=True)
class Form:
    """How a float of few bits is written.

    Attributes:
        bits: of the whole, sign included.
        mantissa_bits: of them, the last ones.
        bias: what is added to an exponent.
        greatest_code: code of the greatest finite number, sign left out.
    """

    bits: int
    mantissa_bits: int
    bias: int
    greatest_code: int

    @property
    def greatest(self) -> float:
        """The greatest finite number."""
        exponent, mantissa = divmod(self.greatest_code, 1 << self.mantissa_bits)
        return float(2.0 ** (exponent - self.bias) * (1 + mantissa / (1 << self.mantissa_bits)))

    @property
    def least(self) -> float:
        """The least number above zero."""
        return float(2.0 ** (1 - self.bias - self.mantissa_bits))


E4M3 = Form(bits=8, mantissa_bits=3, bias=7, greatest_code=0x7E)
"""As in OCP's FP8: no infinities, so that it reaches 448."""
E5M2 = Form(bits=8, mantissa_bits=2, bias=15, greatest_code=0x7B)
E2M1 = Form(bits=4, mantissa_bits=1, bias=1, greatest_code=0x7)
FP16 = Form(bits=16, mantissa_bits=10, bias=15, greatest_code=0x7BFF)


# --- one float -----------------------------------------------------------------------------------


@intrinsic  # type: ignore[untyped-decorator,unused-ignore]
def float_of(_: Any, _bits: Any) -> Any:
    """The 32-bit float that has these bits."""
    from llvmlite import ir

    def generate(_: Any, builder: Any, __: Any, values: Any) -> Any:
        return builder.bitcast(values[0], ir.FloatType())

    return types.float32(types.uint32), generate


@intrinsic  # type: ignore[untyped-decorator,unused-ignore]
def bits_of(_: Any, _value: Any) -> Any:
    """The bits of a 32-bit float."""
    from llvmlite import ir

    def generate(_: Any, builder: Any, __: Any, values: Any) -> Any:
        return builder.bitcast(values[0], ir.IntType(32))

    return types.uint32(types.float32), generate


@cache
def narrower(form: Form) -> Callable[[Any], Any]:
    """A compiled function from the bits of a 32-bit float to the code of the nearest in a form."""
    cut = _MANTISSA_BITS - form.mantissa_bits
    shift, sign_shift = np.uint32(cut), np.uint32(32 - form.bits)
    # Carries into what stays: just below a half, one more where what stays is odd.
    rounds = np.uint32(((1 << (cut - 1)) - 1 - (_BIAS - form.bias << _MANTISSA_BITS)) % (1 << 32))
    normal = np.uint32(_BIAS - form.bias + 1 << _MANTISSA_BITS)
    # The last bit of this float is worth the least denormal: adding it rounds to a multiple.
    ruler = np.float32(form.least * 2.0**_MANTISSA_BITS)
    ruler_bits, greatest = np.uint32(ruler.view(np.uint32)), np.uint32(form.greatest_code)

    @compiled
    def narrow(bits: Any) -> Any:
        magnitude = np.uint32(bits & _MAGNITUDE)
        odd = np.uint32((magnitude >> shift) & _ODD)
        code = np.uint32(np.uint32(magnitude + rounds + odd) >> shift)
        small = np.uint32(bits_of(float_of(magnitude) + ruler) - ruler_bits)
        code = small if magnitude < normal else code
        code = min(code, greatest)
        return np.uint32(np.uint32((bits & _SIGN) >> sign_shift) | code)

    return narrow


@cache
def widener(form: Form) -> Callable[[Any], Any]:
    """A compiled function from a code of a form to the 32-bit float, which is exact."""
    shift, sign_shift = np.uint32(_MANTISSA_BITS - form.mantissa_bits), np.uint32(32 - form.bits)
    offset = np.uint32(_BIAS - form.bias << _MANTISSA_BITS)
    step, first = np.uint32(1 << _MANTISSA_BITS), np.uint32(1 << form.mantissa_bits)
    magnitudes = np.uint32((1 << (form.bits - 1)) - 1)
    signs, least_normal = np.uint32(1 << (form.bits - 1)), np.float32(2.0 ** (1 - form.bias))

    @compiled
    def widen(code: Any) -> Any:
        magnitude = np.uint32(code & magnitudes)
        bits = np.uint32(np.uint32(magnitude << shift) + offset)
        small = bits_of(float_of(np.uint32(bits + step)) - least_normal)
        bits = small if magnitude < first else bits
        return float_of(np.uint32(np.uint32((code & signs) << sign_shift) | bits))

    return widen


# --- one element ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Element:
    """How loops read and write an element of some kind.

    Attributes:
        word, pair: numpy's unsigned integers of one element's bits and of two.
        magnitude: the bits of an element without its sign.
        limit: the greatest magnitude that has a scale; what is beyond is not finite, or nearly so.
        widen: compiled, from an element's bits to a 32-bit float.
        narrow: compiled, from the bits of a 32-bit float to those of the nearest element.
    """

    word: Any
    pair: Any
    magnitude: int
    limit: int
    widen: Callable[[Any], Any]
    narrow: Callable[[Any], Any]


@compiled
def _widen_bf16(code: Any) -> Any:
    return float_of(np.uint32(np.uint32(code) << np.uint32(16)))


@compiled
def _narrow_bf16(bits: Any) -> Any:
    odd = np.uint32((bits >> np.uint32(16)) & _ODD)
    return np.uint32(np.uint32(bits + np.uint32(0x7FFF) + odd) >> np.uint32(16))


@compiled
def _widen_fp32(code: Any) -> Any:
    return float_of(np.uint32(code))


@compiled
def _narrow_fp32(bits: Any) -> Any:
    return bits


@cache
def element(kind: Kind) -> Element:
    """How loops read and write elements of a kind of 16 or 32 bits."""
    if kind is Kind.BF16:
        return Element(np.uint16, np.uint32, 0x7FFF, 0x7F00, _widen_bf16, _narrow_bf16)
    if kind is Kind.FP16:
        widen, narrow = widener(FP16), narrower(FP16)
        return Element(np.uint16, np.uint32, 0x7FFF, FP16.greatest_code, widen, narrow)
    return Element(np.uint32, np.uint64, 0x7FFF_FFFF, 0x7F00_0000, _widen_fp32, _narrow_fp32)


# --- scales --------------------------------------------------------------------------------------

SCALE_BITS = 16
"""Significant bits of a scale. A code times a scale is then exact in 32 bits, in any order."""

LEAST_SCALE = np.float32(2.0**-100)
"""No scale is smaller, so that no product with a code is a denormal float."""

_LOW = np.uint32((1 << (_MANTISSA_BITS + 1 - SCALE_BITS)) - 1)


@compiled
def scale_of(peak: Any, greatest: Any) -> Any:
    """The scale that brings a peak to the greatest code: their quotient, rounded up to few bits."""
    bits = np.uint32(bits_of(peak / greatest) + _LOW)
    return max(float_of(np.uint32(bits & ~_LOW)), LEAST_SCALE)
