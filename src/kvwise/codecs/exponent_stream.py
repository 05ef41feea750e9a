"""`fixed` restored past the processor's cache, compiled with Numba. It owns no format.

Ordinary stores first read each line that they overwrite, and the four quarters of a segment are so
many places at a time that the processor's guess at what comes next hardly begins before they end.
Here one quarter comes after the other, so that all that is written is one row of whole lines, each
stored by itself (non-temporal), and the next segment's data are asked for meanwhile.

What was streamed must be waited for (`arrived`) before anybody is told of it. Sizes are the
caller's business.

Importing this module needs Numba; compiling happens at the first call of each loop.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from kvwise.codecs.exponent_planes import BIT, S7
from kvwise.codecs.machine_code import compiled

LINE = 64
"""Bytes of one streaming store, which must lie on such a border."""

TURN = 256
"""Bytes of one turn of the loop; what it reads takes three lines."""

ELEMENTS_PER_ESCAPE = 256
"""Where more are beyond the window, putting them back costs more than streaming gains."""

_WORDS = LINE // 8
_SIGN, _MANTISSA, _FOUR = 0x8000, 0x007F, 0x0780


@compiled
def can_stream(codes: Any, words: Any, far: int) -> bool:
    """Whether a segment can and should be restored by `stream_fixed`."""
    whole: bool = words.ctypes.data % LINE == 0 and 8 * codes.size % TURN == 0
    few: bool = far * ELEMENTS_PER_ESCAPE <= 4 * words.size
    return whole and few


@compiled
def stream_fixed(codes: Any, rest: Any, words: Any, base: Any, following: Any) -> None:
    """What `unpack_fixed` does, past the cache; `following` is what will be read next."""
    size, bases = 8 * codes.size, base * BIT << S7
    first, target, ahead = codes.ctypes.data, words.ctypes.data, following.ctypes.data
    for quarter in range(4):
        turn, shift = np.uint64((7 - 4 * quarter) & 63), np.uint64(quarter // 2 * 8)
        beside = rest.ctypes.data + quarter % 2 * size
        for begin in range(0, size, TURN):
            for line in range(0, 3 * LINE, LINE):
                _ask(ahead + line)
            ahead += 3 * LINE
            for at in range(begin, begin + TURN, LINE):
                _stream(first + at, beside + at, target + at, bases, turn, shift)
        target += size


def _splat(builder: Any, vector: Any, number: Any) -> Any:
    """A number in every word of a vector."""
    nothing, index = ir.Constant(vector, ir.Undefined), ir.IntType(32)
    one = builder.insert_element(nothing, number, ir.Constant(index, 0))
    places = ir.Constant(ir.VectorType(index, vector.count), [0] * vector.count)
    return builder.shuffle_vector(one, nothing, places)


@intrinsic  # type: ignore[untyped-decorator,unused-ignore]
def _stream(
    _: Any, _codes: Any, _rest: Any, _target: Any, _bases: Any, _turn: Any, _shift: Any
) -> Any:
    """A line of a quarter: codes turned into their place, and the byte beside them shifted so."""
    word = ir.IntType(64)
    vector = ir.VectorType(word, _WORDS)

    def generate(_: Any, builder: Any, __: Any, values: Any) -> None:
        places = [builder.inttoptr(value, vector.as_pointer()) for value in values[:3]]
        codes, rest = (builder.load(place, align=8) for place in places[:2])
        bases, turn, shift = (_splat(builder, vector, value) for value in values[3:])
        sign, mantissa, four = (
            ir.Constant(vector, [lane * int(BIT)] * _WORDS) for lane in (_SIGN, _MANTISSA, _FOUR)
        )
        back = builder.sub(ir.Constant(vector, [64] * _WORDS), turn)
        turned = builder.or_(builder.shl(codes, turn), builder.lshr(codes, back))
        exponent = builder.and_(turned, four)
        byte = builder.lshr(rest, shift)
        high = builder.and_(builder.shl(byte, ir.Constant(vector, [8] * _WORDS)), sign)
        beside = builder.or_(high, builder.and_(byte, mantissa))
        whole = builder.or_(beside, builder.add(exponent, bases))
        stored = builder.store(whole, places[2], align=LINE)
        hint = builder.module.add_metadata([ir.IntType(32)(1)])
        stored.set_metadata("nontemporal", hint)

    number, bits = types.intp, types.uint64
    return types.void(number, number, number, bits, bits, bits), generate


@intrinsic  # type: ignore[untyped-decorator,unused-ignore]
def _ask(_: Any, _address: Any) -> Any:
    """Have a line come to the second cache; an address where nothing is does no harm."""

    def generate(_: Any, builder: Any, __: Any, values: Any) -> None:
        number = ir.IntType(32)
        place = builder.inttoptr(values[0], ir.IntType(8).as_pointer())
        kind = ir.FunctionType(ir.VoidType(), [place.type, number, number, number])
        ask = builder.module.declare_intrinsic("llvm.prefetch", [place.type], kind)
        builder.call(ask, [place, number(0), number(2), number(1)])

    return types.void(types.intp), generate


@intrinsic  # type: ignore[untyped-decorator,unused-ignore]
def arrived(_: Any) -> Any:
    """Return once all that was streamed is seen by everybody."""
    return types.void(), lambda _, builder, __, ___: builder.fence("seq_cst")
