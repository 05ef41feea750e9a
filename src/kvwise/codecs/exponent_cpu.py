"""Segments of the exponent codec, compiled with Numba. They check sizes and allocate little.

What the bytes mean is said in `exponent`. A segment is brought into words (`exponent_words`), its
exponents are coded in planes (`exponent_planes`), and those beyond are listed (`exponent_escapes`).
`fixed` of BF16 is restored past the cache (`exponent_stream`) where that is of use.

Importing this module needs Numba; compiling happens at the first call of each loop.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvwise.codecs.exponent_escapes import (
    DAMAGED,
    FAR_IN_WORD,
    PALETTE,
    SPARE,
    best_base,
    choose_palette,
    count_exponents,
    find_dense,
    fix_dense,
    fix_fixed,
    note_dense,
    note_fixed,
    pack_far,
)
from kvwise.codecs.exponent_planes import (
    pack_dense,
    pack_fixed,
    split,
    unpack_dense,
    unpack_fixed,
)
from kvwise.codecs.exponent_stream import arrived, can_stream, stream_fixed
from kvwise.codecs.exponent_words import BF16, BYTES, LOW_BITS, REST_BITS, gather, spread
from kvwise.codecs.machine_code import compiled

RAW, FIXED, DENSE = 0, 1, 2
RECORD_BYTES = 16
"""Of a segment: mode, base, escapes (u16), escapes of escapes (u16), palette (7), zeros (3)."""

GRAIN = 64
"""Elements of a segment are a multiple of this, so that every plane is whole words."""

_PALETTE_AT = 6
BASE_MAX = (0, 240, 248)
"""By mode."""


# --- sizes ---


@compiled
def _words(size_bytes: int) -> int:
    """Bytes of whole words that hold so many."""
    return (size_bytes + 7) // 8 * 8


@compiled
def _far_bytes(far: int) -> int:
    """What codes of that many escapes take in `dense`."""
    return (far + FAR_IN_WORD - 1) // FAR_IN_WORD * 8


@compiled
def data_bytes(mode: int, kind: int, count: int, far: int, rare: int) -> int:
    """What a segment of so many elements takes beside its record."""
    eighth = count // 8
    beside = eighth * (REST_BITS[kind] + LOW_BITS[kind])
    if mode == FIXED:
        return 4 * eighth + beside + _words(2 * far) + _words(far)
    if mode == DENSE:
        return 3 * eighth + beside + _far_bytes(far) + _words(rare)
    whole: int = BYTES[kind] * count
    return whole


@compiled
def _lows(data: Any, kind: int, count: int) -> Any:
    """Where a segment's data has what its words have no room for, as words."""
    return data[: count // 8 * LOW_BITS[kind]].view(np.uint64)


@compiled
def _parts(data: Any, mode: int, kind: int, count: int) -> Any:
    """Lows, codes and rest of a segment's data, as words, and where its escapes begin."""
    eighth = count // 8
    first = eighth * LOW_BITS[kind]
    second = first + eighth * (4 if mode == FIXED else 3)
    end = second + eighth * REST_BITS[kind]
    return (
        data[:first].view(np.uint64),
        data[first:second].view(np.uint64),
        data[second:end].view(np.uint64),
        end,
    )


# --- records ---


@compiled
def _note_record(record: Any, mode: int, far: int, rare: int) -> None:
    """What a segment's record says; base and palette are there already."""
    record[0] = mode
    record[2], record[3] = far & 255, far >> 8
    record[4], record[5] = rare & 255, rare >> 8


@compiled
def _read_record(record: Any) -> Any:
    """Mode, base, escapes and bytes among them, as signed numbers."""
    far = np.int64(record[2]) | np.int64(record[3]) << 8
    rare = np.int64(record[4]) | np.int64(record[5]) << 8
    return np.int64(record[0]), np.int64(record[1]), far, rare


# --- to write ---


@compiled
def _encode_dense(kind: int, words: Any, data: Any, record: Any, work: Any) -> int:
    """Write words down densely; bytes of the segment's data, or DAMAGED if none is saved.

    The record has the base already.
    """
    count, base = 4 * words.size, record[1]
    places, exponents, rare, _, _ = work
    _, planes, rest, begin = _parts(data, DENSE, kind, count)
    pack_dense(words, planes, np.uint64(base))
    far = find_dense(planes, places)
    if far == DAMAGED or far > count // 4:
        return DAMAGED
    note_dense(words.view(np.uint16), count // 64, places[:far], exponents)
    palette = record[_PALETTE_AT : _PALETTE_AT + PALETTE]
    choose_palette(exponents[:far], palette)
    end: int = begin + _far_bytes(far)
    left = pack_far(exponents[:far], palette, data[begin:end].view(np.uint64), rare)
    if left == DAMAGED or data_bytes(DENSE, kind, count, far, left) >= BYTES[kind] * count:
        return DAMAGED
    if rest.size:
        split(words, rest)
    data[end : end + _words(left)] = 0
    data[end : end + left] = rare[:left]
    _note_record(record, DENSE, far, left)
    return end + _words(left)


@compiled
def _encode_fixed(kind: int, words: Any, data: Any, record: Any, work: Any) -> int:
    """Write words down in fixed lengths; bytes of the segment's data, or DAMAGED.

    The record has the base already.
    """
    count, base = 4 * words.size, record[1]
    if data_bytes(FIXED, kind, count, 0, 0) >= BYTES[kind] * count:
        return DAMAGED
    places, exponents, _, flags, spots = work
    _, codes, rest, begin = _parts(data, FIXED, kind, count)
    pack_fixed(words, codes, flags[: codes.size], np.uint64(base))
    room = (exponents, spots)
    elements, most = words.view(np.uint16), places[: count // 16]
    far = note_fixed(elements, flags[: codes.size], np.int64(base), most, room)
    if far == DAMAGED or data_bytes(FIXED, kind, count, far, 0) >= BYTES[kind] * count:
        return DAMAGED
    if rest.size:
        split(words, rest)
    end: int = begin + _words(2 * far)
    data[begin : end + _words(far)] = 0
    data[begin : begin + 2 * far] = places[:far].view(np.uint8)
    data[end : end + far] = exponents[:far]
    _note_record(record, FIXED, far, 0)
    return end + _words(far)


@compiled
def _encode_words(how: Any, words: Any, data: Any, record: Any, work: Any) -> int:
    """Write words down in the best way that is allowed; bytes of data, or DAMAGED."""
    kind, mode = how
    counts = np.empty(256, np.int64)
    looked = count_exponents(words.view(np.uint16), counts)
    if mode == DENSE:
        base, held = best_base(counts, 7)
        if 5 * (looked - held) < looked:
            record[1] = base
            size = _encode_dense(kind, words, data, record, work)
            if size != DAMAGED:
                return size
            record[:] = 0
    base, held = best_base(counts, 16)
    if 16 * (looked - held) < looked:
        record[1] = base
        return _encode_fixed(kind, words, data, record, work)
    return DAMAGED


@compiled
def encode(how: Any, segment: int, elements: Any, records: Any, data: Any) -> int:
    """Write segments down, one behind the other; bytes of all their data.

    Args:
        how: kind of elements, see `exponent_words`, and mode: DENSE, or FIXED for exponents in no
            other way.
        segment: elements of each segment but the last.
        elements: bytes of a multiple of GRAIN elements.
        records: RECORD_BYTES for each segment.
        data: at least as many bytes as the elements have, and a segment more.
    """
    kind, _ = how
    places, exponents = np.empty(segment + SPARE, np.uint16), np.empty(segment + SPARE, np.uint8)
    flags, spots = np.empty(segment // 16, np.uint64), np.empty(segment // 16, np.uint16)
    work = (places, exponents, np.empty(segment // 4, np.uint8), flags, spots)
    room = np.empty(0 if kind == BF16 else segment // 4, np.uint64)
    size, end = BYTES[kind] * segment, 0
    for number in range(records.size // RECORD_BYTES):
        part = elements[number * size : (number + 1) * size]
        record = records[number * RECORD_BYTES : (number + 1) * RECORD_BYTES]
        count, target, words = part.size // BYTES[kind], data[end:], part.view(np.uint64)
        record[:] = 0
        if kind != BF16:
            words = room[: count // 4]
            spread(kind, part.view(np.uint64), words, _lows(target, kind, count))
        used = _encode_words(how, words, target, record, work)
        if used == DAMAGED:
            record[:] = 0
            used = part.size
            target[:used] = part
        end += used
    return end


# --- to read ---


@compiled
def _decode_dense(data: Any, parts: Any, record: Any, words: Any, work: Any) -> int:
    """Undo `_encode_dense`."""
    _, places, spots, zeros = work
    _, base, far, rare = _read_record(record)
    _, planes, rest, begin = parts
    if find_dense(planes, places) != far:
        return DAMAGED
    unpack_dense(planes, rest if rest.size else zeros[: words.size // 2], words, np.uint64(base))
    end, beyond = begin + _far_bytes(far), np.uint16(base + PALETTE)
    codes, left = data[begin:end].view(np.uint64), np.empty(PALETTE + 1 + rare, np.uint16)
    left[:PALETTE] = record[_PALETTE_AT : _PALETTE_AT + PALETTE]
    left[PALETTE] = beyond
    left[PALETTE + 1 :] = data[end : end + rare]
    left[:] = (left ^ beyond) << np.uint16(7)
    turns = (left[: PALETTE + 1], left[PALETTE + 1 :])
    return fix_dense(words.view(np.uint16), codes, places[:far], turns, spots)


@compiled
def _decode_fixed(data: Any, parts: Any, record: Any, words: Any, work: Any) -> int:
    """Undo `_encode_fixed`."""
    room, _, _, zeros = work
    _, base, far, _ = _read_record(record)
    _, codes, rest, begin = parts
    end = begin + _words(2 * far)
    if not room.size and can_stream(codes, words, far):
        stream_fixed(codes, rest, words, np.uint64(base), data[end + _words(far) :])
    else:
        beside = rest if rest.size else zeros[: words.size // 2]
        unpack_fixed(codes, beside, words, np.uint64(base))
    places = data[begin : begin + 2 * far].view(np.uint16)
    return fix_fixed(places, data[end : end + far], words.view(np.uint16))


@compiled
def _decode_segment(kind: int, data: Any, record: Any, elements: Any, work: Any) -> int:
    """Restore a segment, as words; bytes of data used, or DAMAGED, with anything in it."""
    count = elements.size * 8 // BYTES[kind]
    mode, base, far, rare = _read_record(record)
    if mode > DENSE or far > count // 4 or rare > far:
        return DAMAGED
    size: int = data_bytes(mode, kind, count, far, rare)
    if size > data.size or base > BASE_MAX[mode]:
        return DAMAGED
    if mode == RAW:
        elements[:] = data[:size].view(np.uint64)
        return size
    words = elements if kind == BF16 else work[0][: count // 4]
    parts = _parts(data, mode, kind, count)
    if mode == FIXED:
        failed = _decode_fixed(data, parts, record, words, work)
    else:
        failed = _decode_dense(data, parts, record, words, work)
    if failed:
        return DAMAGED
    if kind != BF16:
        gather(kind, words, parts[0], elements)
    return size


@compiled
def decode(kind: int, segment: int, records: Any, data: Any, elements: Any) -> int:
    """Undo `encode`; bytes of data used, or DAMAGED."""
    places, spots = np.empty(segment + SPARE, np.uint16), np.empty(segment + SPARE, np.uint16)
    zeros = np.zeros(0 if kind == BF16 else segment // 8, np.uint64)
    room = np.empty(0 if kind == BF16 else segment // 4, np.uint64)
    work = (room, places, spots, zeros)
    target, size, begin = elements.view(np.uint64), BYTES[kind] * segment // 8, 0
    for number in range(records.size // RECORD_BYTES):
        part = target[number * size : (number + 1) * size]
        record = records[number * RECORD_BYTES : (number + 1) * RECORD_BYTES]
        used = _decode_segment(kind, data[begin:], record, part, work)
        if used == DAMAGED:
            return DAMAGED
        begin += used
    arrived()
    return begin
