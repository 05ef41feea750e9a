"""Stores that pass by the processor's cache, for elements that are done, compiled with Numba.

An ordinary store first reads the line that it overwrites, so a decoder that writes straight to its
target moves more bytes than memcpy does. This one writes to a buffer in the cache, and from there
whole lines are streamed. It decides nothing about what is written.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic

from kvwise.codecs.machine_code import compiled

LINE_BYTES = 64
_LINE_WORDS = LINE_BYTES // 8


@intrinsic  # type: ignore[untyped-decorator,unused-ignore]
def _stream_line(_: Any, _target: Any, _source: Any) -> Any:
    """Copy a line between two addresses; the target is on a border of lines."""
    from llvmlite import ir

    line = ir.VectorType(ir.IntType(32), LINE_BYTES // 4)

    def generate(_: Any, builder: Any, __: Any, values: Any) -> None:
        to, of = (builder.inttoptr(value, line.as_pointer()) for value in values)
        stored = builder.store(builder.load(of, align=8), to, align=LINE_BYTES)
        stored.set_metadata("nontemporal", builder.module.add_metadata([ir.IntType(32)(1)]))

    return types.void(types.intp, types.intp), generate


@intrinsic  # type: ignore[untyped-decorator,unused-ignore]
def _ask_for(_: Any, _address: Any) -> Any:
    """Have a line brought into the cache; any address will do."""
    from llvmlite import ir

    number = ir.IntType(32)

    def generate(_: Any, builder: Any, __: Any, values: Any) -> None:
        place = builder.inttoptr(values[0], ir.IntType(8).as_pointer())
        kind = ir.FunctionType(ir.VoidType(), [place.type, number, number, number])
        ask = builder.module.declare_intrinsic("llvm.prefetch", [place.type], kind)
        builder.call(ask, [place, number(0), number(3), number(1)])

    return types.void(types.intp), generate


@intrinsic  # type: ignore[untyped-decorator,unused-ignore]
def fence(_: Any) -> Any:
    """Have all that was streamed arrive: nothing else orders it for other threads."""
    return types.void(), lambda _, builder, __, ___: builder.fence("seq_cst")


@compiled
def stream(words: Any, target: Any, following: Any) -> None:
    """Copy words to a target of as many, and meanwhile have what is needed next brought in."""
    to, of = np.int64(target.ctypes.data), np.int64(words.ctypes.data)
    ahead = np.int64(following.ctypes.data)
    if to % LINE_BYTES:
        target[:] = words
        return
    lines = words.size // _LINE_WORDS
    for at in range(0, lines * LINE_BYTES, LINE_BYTES):
        _stream_line(to + at, of + at)
        _ask_for(ahead + at)
    for word in range(lines * _LINE_WORDS, words.size):
        target[word] = words[word]
