"""Streams: a compiled loop that moves many pieces past the processor's cache, where Numba is.

It chooses nothing: which jobs are moved this way is the copier's business. Ordinary stores first
read each line that they overwrite; streaming (non-temporal) stores do not, and on a machine whose
memory is the limit a copy is faster by that share.
"""

from __future__ import annotations

import ctypes
import logging
import threading
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np

from kvwise.engines.copying import Addresses
from kvwise.units import KIB, MIB

CALL_BYTES = 32 * MIB
"""So many bytes, 5 ms or so, are moved by one call, give or take a piece; nothing ends it early."""

KEEP_CALL_BYTES = 1 * MIB
"""The same for a call that keeps the GIL."""

STREAM_MIN_BYTES = 4 * KIB
"""Shorter pieces are moved with ordinary stores: the next piece needs what streams gain."""

AHEAD_BYTES = 2 * KIB
"""How far ahead of the copy memory is asked for; the processor's own guess ends with a piece."""

STRIDE = 256
"""Bytes of one turn of the loop."""

LINE = 64
"""Bytes of one streaming store, which must lie on such a border."""

WORD = 8
"""Bytes of one address or size."""

_Call = Callable[[int, int, int, int], None]
"""Addresses of three arrays (targets, sources, sizes), and how many pieces there are."""

_NO_NUMBA = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    OSError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
)
"""What a Numba says that is missing, switched off (NUMBA_DISABLE_JIT) or of no use here."""

_compiling = threading.Lock()
_log = logging.getLogger(__name__)


class Streams:
    """The compiled loop, once for callers that keep the GIL and once for those that let go of it.

    Thread-safe. Pieces must not overlap their targets; they are moved in order.
    """

    def __init__(self, kernel: Any) -> None:
        """The loop as Numba gives it, which owns the machine code and is therefore kept."""
        self._kernel = kernel
        self._keeping = _function(ctypes.PYFUNCTYPE, kernel.address)
        self._letting_go = _function(ctypes.CFUNCTYPE, kernel.address)

    def move(
        self, targets: Addresses, sources: Addresses, sizes: Addresses, *, keep_gil: bool
    ) -> None:
        """Move all pieces, some MiB with each call."""
        call, most = (
            (self._keeping, KEEP_CALL_BYTES) if keep_gil else (self._letting_go, CALL_BYTES)
        )
        arrays = _cut(targets, sources, sizes, most)
        to, of, lengths = (int(array.ctypes.data) for array in arrays)
        turns = (np.cumsum(arrays[2]) - 1) // most
        ends = (np.flatnonzero(turns[1:] != turns[:-1]) + 1).tolist()
        for first, last in pairwise([0, *ends, len(turns)]):
            at = first * WORD
            call(to + at, of + at, lengths + at, last - first)


def compiled_streams() -> Streams | None:
    """The loop, compiled on the first call, which takes a second; None where Numba cannot."""
    with _compiling:
        return _compiled_once()


@cache
def _compiled_once() -> Streams | None:
    """One caller at a time: a thread that comes upon a half-imported Numba finds it broken."""
    try:
        kernel = _compile()
    except _NO_NUMBA as error:
        _log.info("numpy moves KV within this host's memory: %s: %s", type(error).__name__, error)
        return None
    _log.info("a compiled loop moves KV within this host's memory")
    return Streams(kernel)


def _function(kind: Any, address: int) -> _Call:
    """The C function at `address`; its kind says whether a call lets go of the GIL."""
    call: _Call = kind(None, *[ctypes.c_void_p] * 3, ctypes.c_int64)(address)
    return call


def _cut(
    targets: Addresses, sources: Addresses, sizes: Addresses, most: int
) -> tuple[Addresses, Addresses, Addresses]:
    """The same bytes in pieces of at most so many, as the loop reads them: 8 bytes an entry."""
    if int(sizes.max(initial=0)) > most:
        parts = -(-sizes // most)
        first = np.repeat(np.cumsum(parts) - parts, parts)
        done = (np.arange(len(first)) - first) * most
        targets, sources = np.repeat(targets, parts) + done, np.repeat(sources, parts) + done
        sizes = np.minimum(np.repeat(sizes, parts) - done, most)
    targets, sources, sizes = (
        np.ascontiguousarray(array, dtype=np.int64) for array in (targets, sources, sizes)
    )
    return targets, sources, sizes


def _compile() -> Any:
    """The loop as a C function.

    Its stores are ordered by nothing: a thread that is told of the copy could see memory as it was
    before. The fence at the end has all of them arrive before the function returns.

    Raises:
        ImportError: Numba is missing, does not go with the numpy that is here, or cannot compile.
    """
    from numba import carray, cfunc, types
    from numba.core.errors import NumbaError

    move, stream, prefetch, fence = _instructions()
    pointer = types.CPointer(types.int64)

    def kernel(targets_at: Any, sources_at: Any, sizes_at: Any, count: Any) -> None:
        targets, sources = carray(targets_at, count), carray(sources_at, count)
        sizes = carray(sizes_at, count)
        for piece in range(count):
            target, source, size = targets[piece], sources[piece], sizes[piece]
            if size < STREAM_MIN_BYTES:
                move(target, source, size)
                continue
            lead = -target & (LINE - 1)
            move(target, source, lead)
            end = lead + (size - lead) // STRIDE * STRIDE
            turn = max(lead, end - AHEAD_BYTES)
            for at in range(lead, turn, STRIDE):
                for line in range(0, STRIDE, LINE):
                    prefetch(source + at + line + AHEAD_BYTES)
                for line in range(0, STRIDE, LINE):
                    stream(target + at + line, source + at + line)
            following = sources[min(piece + 1, count - 1)] - turn
            for at in range(turn, end, STRIDE):
                for line in range(0, STRIDE, LINE):
                    prefetch(following + at + line)
                for line in range(0, STRIDE, LINE):
                    stream(target + at + line, source + at + line)
            move(target + end, source + end, size - end)
        fence()

    try:
        return cfunc(types.void(pointer, pointer, pointer, types.int64))(kernel)
    except NumbaError as error:
        raise ImportError(f"Numba cannot compile it: {error}") from error


def _instructions() -> tuple[Any, Any, Any, Any]:
    """What Numba has no words for: a move, a streamed line, a prefetch and a fence."""
    from llvmlite import ir
    from numba.core.cgutils import raw_memcpy
    from numba.extending import intrinsic
    from numba.types import intp, void

    byte, number, line = ir.IntType(8), ir.IntType(32), ir.VectorType(ir.IntType(32), LINE // 4)

    @intrinsic  # type: ignore[untyped-decorator,unused-ignore]
    def move(_: Any, _target: Any, _source: Any, _size: Any) -> Any:
        def generate(_: Any, builder: Any, __: Any, values: Any) -> None:
            to, of = (builder.inttoptr(value, byte.as_pointer()) for value in values[:2])
            raw_memcpy(builder, to, of, values[2], 1)

        return void(intp, intp, intp), generate

    @intrinsic  # type: ignore[untyped-decorator,unused-ignore]
    def stream(_: Any, _target: Any, _source: Any) -> Any:
        def generate(_: Any, builder: Any, __: Any, values: Any) -> None:
            to, of = (builder.inttoptr(value, line.as_pointer()) for value in values)
            stored = builder.store(builder.load(of, align=1), to, align=LINE)
            stored.set_metadata("nontemporal", builder.module.add_metadata([number(1)]))

        return void(intp, intp), generate

    @intrinsic  # type: ignore[untyped-decorator,unused-ignore]
    def prefetch(_: Any, _address: Any) -> Any:
        def generate(_: Any, builder: Any, __: Any, values: Any) -> None:
            place = builder.inttoptr(values[0], byte.as_pointer())
            kind = ir.FunctionType(ir.VoidType(), [place.type, number, number, number])
            ask = builder.module.declare_intrinsic("llvm.prefetch", [place.type], kind)
            builder.call(ask, [place, number(0), number(3), number(1)])

        return void(intp), generate

    @intrinsic  # type: ignore[untyped-decorator,unused-ignore]
    def fence(_: Any) -> Any:
        return void(), lambda _, builder, __, ___: builder.fence("seq_cst")

    return move, stream, prefetch, fence
