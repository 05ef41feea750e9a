"""The exponent codec: lossless, for floats. It writes the bits that say little in fewer bits.

Sign and mantissa of KV are noise, but exponents are not: nearly all of a tensor's lie within a
factor of 2**16, and most within 2**7. So both are stored apart, in one of two ways:

    fixed   4 bits for each exponent, its distance from a base. Those beyond are listed.
    dense   3 bits for each exponent; those beyond a window of 7 have 3 more, which name one of 7
            exponents of a palette or say that a whole byte follows.

A payload is cut into segments, each with a base and palette of its own, found by looking at it: so
K and V and layers need no calibration, and nothing of them needs to be known but the kind of their
elements. A segment that would not shrink is stored as it is. Stored bytes are:

    0    version u8, kind u8 (0 bf16, 1 fp16, 2 fp32, 3 e4m3, 4 e5m2), log2 of elements in a
         segment u8, zero u8, zeros u32
    8    payload bytes u64
    16   records, 16 bytes for each segment:
         mode u8 (0 as it is, 1 fixed, 2 dense), base u8, escapes u16, bytes among them u16,
         palette 7 bytes, 3 zeros
         data of each segment of n elements, in words of 8 bytes:
           as it is  the elements
           fixed     lows, codes n/2, rest, places of escapes (u16 each), exponents of them
           dense     lows, three planes of n/8, rest, codes of escapes (21 to a word), bytes
                     among them
         what is left of the payload beyond whole words of elements, as it is

`exponent_words` says how an element of each kind becomes one in the form of BF16, and what of it is
left for `lows`: nothing of BF16 itself. `rest` takes n bytes, and none for kinds of 8 bits.

Words have four lanes of 16 bits. In the codes of `fixed`, lane l of word w has the codes of
elements l + 4w + (0, 1, 2, 3) n/4, lowest first. In `rest`, each lane has (sign << 7 | mantissa) of
elements l + 4w + (0, 1) n/2. In a plane, bit b of a lane belongs to element l + 4w + b n/16. Dense
codes of all ones are escapes, which are in the order of the planes' words, lowest bit first, as
are their codes, 3 bits each.

Numba does the work (`exponent_cpu`), outside of the GIL.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from kvwise.codecs.base import BLOCK_BYTES, Buffers, total_bytes
from kvwise.codecs.elements import KINDS, Kind
from kvwise.codecs.memory import Bytes, Rooms, cut, fill, joined, merged, scatter, spans
from kvwise.errors import FrameError

if TYPE_CHECKING:
    from types import ModuleType

Mode = Literal["fixed", "dense"]

VERSION = 1

SEGMENT_BITS = 14
"""Log2 of elements in a segment: 32 KiB of BF16, which stay in the nearest cache."""

HEADER = struct.Struct("<BBBBIQ")
_SEGMENT_BITS_MIN, _SEGMENT_BITS_MAX = 10, 16


class Exponent:
    """Exponents in fixed or in different lengths; all modes and kinds are read."""

    id = 1
    lossless = True

    def __init__(self, mode: Mode, kind: Kind) -> None:
        """`mode` is how payloads are written, `kind` what they are.

        Raises:
            ImportError: Numba is not installed, or does not go with what is.
        """
        self._loops = _loops()
        self._mode = self._loops.DENSE if mode == "dense" else self._loops.FIXED
        self._kind = kind
        self._rooms = Rooms()
        self.name = f"exponent-{mode}"

    def encode(self, payload: Buffers) -> Buffers:
        """Write a payload down; the payload itself unless that saves a block."""
        loops, size_bytes = self._loops, total_bytes(payload)
        shape = _shape(self._kind, 1 << SEGMENT_BITS, size_bytes, loops)
        if not shape.segments:
            return payload
        head, tail = cut(merged(payload), shape.head_bytes)
        room = self._rooms.take(shape.begin + size_bytes + shape.segment_bytes)
        record, end = HEADER.size, shape.begin
        how = (KINDS.index(self._kind), self._mode)
        for block, parts in spans(head, shape.segment_bytes):
            fill(block, parts)
            records = room[record : record + shape.record_bytes(block)]
            end += loops.encode(how, shape.segment, block, records, room[end:])
            record += records.size
        size = end + sum(part.size for part in tail)
        if size + BLOCK_BYTES > size_bytes:
            return payload
        fill(room[end:size], tail)
        header = (VERSION, how[0], SEGMENT_BITS, 0, 0, size_bytes)
        HEADER.pack_into(room.data, 0, *header)
        return [room[:size].data]

    def decode(self, stored: Buffers, payload: Buffers) -> None:
        """Restore a payload.

        Raises:
            FrameError: these bytes were not made by `encode` from a payload of that size.
        """
        loops, room = self._loops, joined(stored)
        shape = shape_of(room, total_bytes(payload), loops)
        head, tail = cut(merged(payload), shape.head_bytes)
        end = room.size - sum(part.size for part in tail)
        if end < shape.begin:
            raise FrameError(f"{room.size} bytes cannot hold so many segments")
        number, record, at = KINDS.index(shape.kind), HEADER.size, shape.begin
        for block, parts in spans(head, shape.segment_bytes):
            records = room[record : record + shape.record_bytes(block)]
            used = loops.decode(number, shape.segment, records, room[at:end], block)
            if used == loops.DAMAGED:
                raise FrameError("a segment of exponents is damaged")
            scatter(block, parts)
            record += records.size
            at += used
        if at != end:
            raise FrameError("segments of exponents are followed by something else: damaged")
        scatter(room[end:], tail)


class Shape:
    """How a payload is cut: what is in segments, and where their data begins."""

    def __init__(self, kind: Kind, segment: int, size_bytes: int, loops: ModuleType) -> None:
        """`segment` is in elements."""
        self.kind, self.segment = kind, segment
        self.segment_bytes = segment * kind.bytes
        grain_bytes = kind.bytes * loops.GRAIN
        self.head_bytes = size_bytes // grain_bytes * grain_bytes
        self.segments = -(-self.head_bytes // self.segment_bytes)
        self._record: int = loops.RECORD_BYTES
        self.begin = HEADER.size + self.segments * self._record

    def record_bytes(self, block: Bytes) -> int:
        """Bytes of the records of these elements, which begin with a segment."""
        return -(-block.size // self.segment_bytes) * self._record


@lru_cache(maxsize=64)
def _shape(kind: Kind, segment: int, size_bytes: int, loops: ModuleType) -> Shape:
    """A shape, made once: objects of a tier have the same few sizes."""
    return Shape(kind, segment, size_bytes, loops)


def _loops() -> ModuleType:
    """The compiled loops."""
    from kvwise.codecs import exponent_cpu

    return exponent_cpu


def shape_of(room: Bytes, size_bytes: int, loops: ModuleType) -> Shape:
    """What the header says.

    Raises:
        FrameError: it is no header, or one for another payload.
    """
    if room.size < HEADER.size:
        raise FrameError(f"{room.size} bytes are too few for a header")
    version, kind, bits, *zeros, size = HEADER.unpack_from(room.data)
    known = version == VERSION and kind < len(KINDS) and not any(zeros)
    if not known or not _SEGMENT_BITS_MIN <= bits <= _SEGMENT_BITS_MAX:
        raise FrameError("no header of the exponent codec, or one of a version to come")
    if size != size_bytes:
        raise FrameError(f"{size} bytes were written for a payload of {size_bytes}")
    return _shape(KINDS[kind], 1 << bits, size_bytes, loops)


def mode_of(stored: Buffers) -> Mode | None:
    """How the first segment that shrank was written; None if none did, or no codec of ours."""
    loops, room = _loops(), joined(stored)
    if room.size < HEADER.size:
        return None
    size_bytes = HEADER.unpack_from(room.data)[-1]
    try:
        shape = shape_of(room, size_bytes, loops)
    except FrameError:
        return None
    modes = room[HEADER.size : min(shape.begin, room.size) : loops.RECORD_BYTES]
    shrunk = modes[modes != 0]
    if not shrunk.size:
        return None
    return "dense" if shrunk[0] == loops.DENSE else "fixed"
