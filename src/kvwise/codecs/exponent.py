"""The exponent codec: lossless, for BF16. It writes the bits that say little in fewer bits.

Sign and mantissa of KV are noise, but exponents are not: nearly all of a tensor's lie within a
factor of 2**16, and most within 2**7. So both are stored apart, in one of two ways:

    fixed   4 bits for each exponent, its distance from a base. Those beyond are listed.
    dense   3 bits for each exponent; those beyond a window of 7 have 3 more, which name one of 7
            exponents of a palette or say that a whole byte follows.

A payload is cut into segments, each with a base and palette of its own, found by looking at it: so
K and V and layers need no calibration, and nothing of them needs to be known. A segment that would
not shrink is stored as it is. Stored bytes are:

    0    version u8, kind u8, log2 of elements in a segment u8, zero u8, zeros u32
    8    payload bytes u64
    16   records, 16 bytes for each segment:
         mode u8 (0 as it is, 1 fixed, 2 dense), base u8, escapes u16, bytes among them u16,
         palette 7 bytes, 3 zeros
         data of each segment of n elements, in words of 8 bytes:
           as it is  the elements, 2n
           fixed     codes n/2, rest n, places of escapes (u16 each), exponents of them
           dense     three planes of n/8, rest n, codes of escapes (3 bits each), bytes among them
         what is left of the payload beyond whole words of elements, as it is

Words have four lanes of 16 bits. In the codes of `fixed`, lane l of word w has the codes of
elements l + 4w + (0, 1, 2, 3) n/4, lowest first. In `rest`, each lane has (sign << 7 | mantissa) of
elements l + 4w + (0, 1) n/2. In a plane, bit b of a lane belongs to element l + 4w + b n/16. Dense
codes of all ones are escapes, which are in the order of the planes' words, lowest bit first.

Numba does the work (`exponent_cpu`), outside of the GIL.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from kvwise.codecs.base import BLOCK_BYTES, Buffers, scratch, total_bytes
from kvwise.codecs.elements import Kind
from kvwise.errors import FrameError

if TYPE_CHECKING:
    from types import ModuleType

Mode = Literal["fixed", "dense"]

VERSION = 1
NUMBERS = {Kind.BF16: 0}
"""Number of each kind in headers."""

SEGMENT_BITS = 14
"""Log2 of elements in a segment: 32 KiB of BF16, which stay in the nearest cache."""

_HEADER = struct.Struct("<BBBBIQ")
_ELEMENT_BYTES = 2
_ALIGNED_BYTES = 8
_SEGMENT_BITS_MIN, _SEGMENT_BITS_MAX = 10, 16


class Exponent:
    """Exponents in fixed or in different lengths; both are read whatever is written."""

    id = 1
    lossless = True

    def __init__(self, mode: Mode) -> None:
        """`mode` is how payloads are written.

        Raises:
            ImportError: Numba is not installed, or does not go with what is.
        """
        self._loops = _loops()
        self._mode = self._loops.DENSE if mode == "dense" else self._loops.FIXED
        self.name = f"exponent-{mode}"

    def encode(self, payload: Buffers) -> Buffers:
        """Write a payload down; the payload itself unless that saves a block."""
        loops, size_bytes = self._loops, total_bytes(payload)
        count = _elements(size_bytes, loops.GRAIN)
        if not count:
            return payload
        segment = 1 << SEGMENT_BITS
        raw = _joined(payload)
        begin = _HEADER.size + _segments(count, segment) * loops.RECORD_BYTES
        room = np.frombuffer(scratch(begin + size_bytes + 4 * segment), dtype=np.uint8)
        records, data = room[_HEADER.size : begin], room[begin:]
        elements = raw[: count * _ELEMENT_BYTES].view(np.uint16)
        end = begin + loops.encode(elements, segment, records, data, self._mode)
        left = raw[count * _ELEMENT_BYTES :]
        if end + left.size + BLOCK_BYTES > size_bytes:
            return payload
        room[end : end + left.size] = left
        header = _HEADER.pack(VERSION, NUMBERS[Kind.BF16], SEGMENT_BITS, 0, 0, size_bytes)
        room[: _HEADER.size] = np.frombuffer(header, dtype=np.uint8)
        return [room[: end + left.size].data]

    def decode(self, stored: Buffers, payload: Buffers) -> None:
        """Restore a payload.

        Raises:
            FrameError: these bytes were not made by `encode` from a payload of that size.
        """
        loops, size_bytes = self._loops, total_bytes(payload)
        room = _joined(stored)
        segment = _segment_of(room, size_bytes)
        count = _elements(size_bytes, loops.GRAIN)
        begin = _HEADER.size + _segments(count, segment) * loops.RECORD_BYTES
        left = size_bytes - count * _ELEMENT_BYTES
        if room.size < begin + left:
            raise FrameError(f"{room.size} bytes cannot hold {size_bytes} in segments")
        records, data = room[_HEADER.size : begin], room[begin : room.size - left]
        whole = _whole(payload)
        raw = np.empty(size_bytes, np.uint8) if whole is None else whole
        elements = raw[: count * _ELEMENT_BYTES].view(np.uint16)
        if loops.decode(records, data, segment, elements) == loops.DAMAGED:
            raise FrameError("a segment of exponents is damaged")
        raw[count * _ELEMENT_BYTES :] = room[room.size - left :]
        if whole is None:
            _scatter(raw, payload)


def _loops() -> ModuleType:
    """The compiled loops."""
    from kvwise.codecs import exponent_cpu

    return exponent_cpu


def _elements(size_bytes: int, grain: int) -> int:
    """Elements of a payload that segments hold; what is left is stored as it is."""
    return size_bytes // _ELEMENT_BYTES // grain * grain


def _segments(count: int, segment: int) -> int:
    return -(-count // segment)


def _segment_of(room: NDArray[np.uint8], size_bytes: int) -> int:
    """Elements in a segment, as the header says.

    Raises:
        FrameError: it is no header, or one for another payload.
    """
    if room.size < _HEADER.size:
        raise FrameError(f"{room.size} bytes are too few for a header")
    version, kind, bits, *zeros, size = _HEADER.unpack(room[: _HEADER.size].tobytes())
    known = (version, kind) == (VERSION, NUMBERS[Kind.BF16]) and not any(zeros)
    if not known or not _SEGMENT_BITS_MIN <= bits <= _SEGMENT_BITS_MAX:
        raise FrameError("no header of the exponent codec, or one of a version to come")
    if size != size_bytes:
        raise FrameError(f"{size} bytes were written for a payload of {size_bytes}")
    return 1 << int(bits)


def _whole(buffers: Buffers) -> NDArray[np.uint8] | None:
    """The pieces as one array of whole words, if they lie like that."""
    if not buffers:
        return np.empty(0, np.uint8)
    pieces = [np.frombuffer(piece, dtype=np.uint8) for piece in buffers]
    if len(pieces) == 1 and pieces[0].ctypes.data % _ALIGNED_BYTES == 0:
        return pieces[0]
    return None


def _joined(buffers: Buffers) -> NDArray[np.uint8]:
    """The pieces as one array of whole words, copied unless they lie like that."""
    whole = _whole(buffers)
    if whole is not None:
        return whole
    return np.concatenate([np.frombuffer(piece, dtype=np.uint8) for piece in buffers])


def _scatter(raw: NDArray[np.uint8], pieces: Buffers) -> None:
    """Spread bytes over pieces of memory that hold just as many."""
    start = 0
    for piece in pieces:
        np.frombuffer(piece, dtype=np.uint8)[:] = raw[start : start + piece.nbytes]
        start += piece.nbytes


def mode_of(stored: Buffers) -> Mode | None:
    """How the first segment that shrank was written; None if none did, or no codec of ours."""
    room = _joined(stored)
    if room.size < _HEADER.size:
        return None
    size_bytes = int.from_bytes(room[_HEADER.size - 8 : _HEADER.size].tobytes(), "little")
    loops = _loops()
    segments = min(_segments(_elements(size_bytes, loops.GRAIN), 1 << SEGMENT_BITS), room.size)
    end = _HEADER.size + segments * loops.RECORD_BYTES
    modes = room[_HEADER.size : end : loops.RECORD_BYTES]
    shrunk = modes[modes != 0]
    if not shrunk.size:
        return None
    return "dense" if shrunk[0] == loops.DENSE else "fixed"
