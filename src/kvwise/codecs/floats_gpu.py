"""Floats of few bits on a GPU: the steps of `floats_cpu`, in the same order, so the same codes.

Functions here are parts of kernels. Floats travel as their bits, in 32-bit integers; what is known
of a form is computed before a kernel is compiled. Divisions are those of IEEE 754, which a GPU does
only when told to; nothing here is rounded otherwise if a product and a sum are fused, or if
denormal floats are taken for zeros.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kvwise.codecs.floats_cpu import FP16, LEAST_SCALE, SCALE_BITS, Form

_LOW = tl.constexpr((1 << (24 - SCALE_BITS)) - 1)
_ALL_BUT_LOW = tl.constexpr(-(1 << (24 - SCALE_BITS)))
_LEAST_SCALE = tl.constexpr(float(LEAST_SCALE))


def narrowing(form: Form) -> tuple[int | float, ...]:
    """What `narrow` has to know of a form."""
    cut, above = 23 - form.mantissa_bits, 127 - form.bias
    carry = (1 << (cut - 1)) - 1 - (above << 23)
    # The last bit of this float is worth the least denormal: adding it rounds to a multiple.
    ruler_exponent = 1 - form.bias + cut
    ruler, ruler_bits = 2.0**ruler_exponent, (127 + ruler_exponent) << 23
    greatest, sign_shift, sign = form.greatest_code, 32 - form.bits, 1 << (form.bits - 1)
    return cut, carry, (above + 1) << 23, ruler, ruler_bits, greatest, sign_shift, sign


def widening(form: Form) -> tuple[int | float, ...]:
    """What `widen` has to know of a form."""
    cut, offset, sign = 23 - form.mantissa_bits, (127 - form.bias) << 23, 1 << (form.bits - 1)
    return (
        cut,
        offset,
        1 << form.mantissa_bits,
        2.0 ** (1 - form.bias),
        32 - form.bits,
        sign,
        sign - 1,
    )


_NARROW_FP16, _WIDEN_FP16 = tl.constexpr(narrowing(FP16)), tl.constexpr(widening(FP16))


@triton.jit  # type: ignore[untyped-decorator]
def float_of(bits: tl.tensor) -> tl.tensor:
    """The 32-bit floats that have these bits."""
    return bits.to(tl.float32, bitcast=True)


@triton.jit  # type: ignore[untyped-decorator]
def bits_of(values: tl.tensor) -> tl.tensor:
    """The bits of 32-bit floats."""
    return values.to(tl.int32, bitcast=True)


@triton.jit  # type: ignore[untyped-decorator]
def narrow(bits: tl.tensor, form: tl.constexpr) -> tl.tensor:
    """Codes of the nearest numbers of a form, of which `narrowing` told."""
    magnitude = bits & 0x7FFFFFFF
    code = (magnitude + form[1] + (magnitude >> form[0] & 1)) >> form[0]
    small = bits_of(float_of(magnitude) + form[3]) - form[4]
    code = tl.minimum(tl.where(magnitude < form[2], small, code), form[5])
    return code | (bits >> form[6] & form[7])


@triton.jit  # type: ignore[untyped-decorator]
def widen(code: tl.tensor, form: tl.constexpr) -> tl.tensor:
    """Bits of the floats that codes of a form are, exactly; `widening` told of it."""
    magnitude = code & form[6]
    bits = (magnitude << form[0]) + form[1]
    small = bits_of(float_of(bits + 0x800000) - form[3])
    return tl.where(magnitude < form[2], small, bits) | (code & form[5]) << form[4]


@triton.jit  # type: ignore[untyped-decorator]
def widen_element(words: tl.tensor, kind: tl.constexpr) -> tl.tensor:
    """Bits of the floats that elements are; kinds are numbered as in `scaled`."""
    if kind == 0:
        bits = words << 16
    elif kind == 1:
        bits = widen(words, _WIDEN_FP16)
    else:
        bits = words
    return bits


@triton.jit  # type: ignore[untyped-decorator]
def narrow_element(bits: tl.tensor, kind: tl.constexpr) -> tl.tensor:
    """The nearest elements, of 16 or 32 bits."""
    if kind == 0:
        words = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).to(tl.int16)
    elif kind == 1:
        words = narrow(bits, _NARROW_FP16).to(tl.int16)
    else:
        words = bits
    return words


@triton.jit  # type: ignore[untyped-decorator]
def scale_of(peak: tl.tensor, greatest: tl.constexpr) -> tl.tensor:
    """The scale that brings a peak to the greatest code."""
    bits = bits_of(tl.div_rn(peak, greatest)) + _LOW
    return tl.maximum(float_of(bits & _ALL_BUT_LOW), _LEAST_SCALE)
