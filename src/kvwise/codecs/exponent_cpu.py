"""The hot loops of the exponent codec, compiled with Numba. They check sizes and never allocate.

What the bytes mean is said in `exponent`. All loops work on 64-bit words that hold four 16-bit
lanes each, so that nothing is widened or narrowed on the way: an element stays in its lane, and
elements that share a plane's word lie a half, a quarter or a sixteenth of a segment apart. Shifts
leave bits of neighbours in a lane, which the mask after them takes away.

Importing this module needs Numba; compiling happens at the first call of each loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit, types
from numba.extending import intrinsic

Loop = TypeVar("Loop", bound=Callable[..., Any])

RAW, FIXED, DENSE = 0, 1, 2
RECORD_BYTES = 16
"""Of a segment: mode, base, escapes (u16), escapes of escapes (u16), palette (7), zeros (3)."""

PALETTE_AT = 6
PALETTE = 7
WINDOW = {FIXED: 16, DENSE: 7}
GRAIN = 64
"""Elements of a segment are a multiple of this, so that every plane is whole words."""

DAMAGED = -1

_STRIDE = 7
"""One in so many exponents is looked at to choose a base: coprime to all sizes of heads."""

_SIGN, _MANTISSA = np.uint64(0x0080_0080_0080_0080), np.uint64(0x007F_007F_007F_007F)
_HIGH_SIGN, _EXPONENT = np.uint64(0x8000_8000_8000_8000), np.uint64(0x00FF_00FF_00FF_00FF)
_NIBBLE, _ONE = np.uint64(0x000F_000F_000F_000F), np.uint64(0x0001_0001_0001_0001)
_CARRY, _BEYOND = np.uint64(0x0100_0100_0100_0100), np.uint64(0x01F0_01F0_01F0_01F0)
_ZERO, _LAST = np.uint64(0), np.uint64(1)
_1, _2, _3, _4, _5, _6, _7, _8, _12 = (np.uint64(shift) for shift in (1, 2, 3, 4, 5, 6, 7, 8, 12))
_REST = np.uint16(0x807F)
"""All bits of an element but its exponent."""


def compiled(function: Loop) -> Loop:
    """A loop as machine code that lets other threads run while it does."""
    return cast(
        "Loop", njit(nogil=True, boundscheck=False, error_model="numpy", cache=True)(function)
    )


@intrinsic  # type: ignore[untyped-decorator,unused-ignore]
def _lowest(_: Any, _word: Any) -> Any:
    """The place of the lowest bit that is set in a word that is not 0."""
    from llvmlite import ir

    def generate(_: Any, builder: Any, __: Any, values: Any) -> Any:
        word, flag = ir.IntType(64), ir.IntType(1)
        kind = ir.FunctionType(word, [word, flag])
        count = builder.module.declare_intrinsic("llvm.cttz", [word], kind)
        return builder.call(count, [values[0], ir.Constant(flag, 1)])

    return types.int64(types.uint64), generate


# --- planes ---


@compiled
def _split(words: Any, rest: Any) -> None:
    """Sign and mantissa of all elements: two lanes' bytes from elements half a segment apart."""
    half = rest.size
    for at in range(half):
        low, high = words[at], words[half + at]
        rest[at] = (
            (low >> _8 & _SIGN) | (low & _MANTISSA) | (high & _HIGH_SIGN) | (high & _MANTISSA) << _8
        )


@compiled
def _pack_fixed(words: Any, codes: Any, base: Any) -> None:
    """Four bits for each exponent: its distance from the base, wrong where that is over 15."""
    quarter, bases = codes.size, base * _ONE
    for at in range(quarter):
        code = _ZERO
        code |= ((words[at] >> _7 & _EXPONENT | _CARRY) - bases) & _NIBBLE
        code |= (((words[quarter + at] >> _7 & _EXPONENT | _CARRY) - bases) & _NIBBLE) << _4
        code |= (((words[2 * quarter + at] >> _7 & _EXPONENT | _CARRY) - bases) & _NIBBLE) << _8
        code |= (((words[3 * quarter + at] >> _7 & _EXPONENT | _CARRY) - bases) & _NIBBLE) << _12
        codes[at] = code


@compiled
def _unpack_fixed(codes: Any, rest: Any, words: Any, base: Any) -> None:
    """Undo `_split` and `_pack_fixed`."""
    quarter, bases = codes.size, base * _ONE
    for at in range(quarter):
        code, low, high = codes[at], rest[at], rest[quarter + at]
        words[at] = (low & _SIGN) << _8 | (low & _MANTISSA) | ((code & _NIBBLE) + bases) << _7
        words[quarter + at] = (
            (high & _SIGN) << _8 | (high & _MANTISSA) | ((code >> _4 & _NIBBLE) + bases) << _7
        )
        low >>= _8
        high >>= _8
        words[2 * quarter + at] = (
            (low & _SIGN) << _8 | (low & _MANTISSA) | ((code >> _8 & _NIBBLE) + bases) << _7
        )
        words[3 * quarter + at] = (
            (high & _SIGN) << _8 | (high & _MANTISSA) | ((code >> _12 & _NIBBLE) + bases) << _7
        )


@compiled
def _pack_dense(words: Any, planes: Any, base: Any) -> None:
    """Three planes of one bit for each exponent: its distance from the base, all ones beyond."""
    step, bases = planes.size // 3, base * _ONE
    planes[:] = _ZERO
    first, second, third = planes[:step], planes[step : 2 * step], planes[2 * step :]
    for place in range(16):
        shift, part = np.uint64(place), words[place * step : (place + 1) * step]
        for at in range(step):
            code = ((part[at] >> _7 & _EXPONENT | _CARRY) - bases) ^ _CARRY
            far = code >> _3 | code >> _4 | code >> _5 | code >> _6 | code >> _7 | code >> _8
            first[at] |= ((code | far) & _ONE) << shift
            second[at] |= ((code >> _1 | far) & _ONE) << shift
            third[at] |= ((code >> _2 | far) & _ONE) << shift


@compiled
def _unpack_dense(planes: Any, rest: Any, words: Any, base: Any) -> None:
    """Undo `_split` and `_pack_dense`, but for what was beyond."""
    step, bases = planes.size // 3, base * _ONE
    first, second, third = planes[:step], planes[step : 2 * step], planes[2 * step :]
    for place in range(8):
        shift, pair = np.uint64(place), rest[place * step : (place + 1) * step]
        low = words[place * step : (place + 1) * step]
        high = words[(place + 8) * step : (place + 9) * step]
        for at in range(step):
            both, one, two, four = (
                pair[at],
                first[at] >> shift,
                second[at] >> shift,
                third[at] >> shift,
            )
            code = (one & _ONE | (two & _ONE) << _1 | (four & _ONE) << _2) + bases
            low[at] = (both & _SIGN) << _8 | both & _MANTISSA | code << _7
            both, one, two, four = both >> _8, one >> _8, two >> _8, four >> _8
            code = (one & _ONE | (two & _ONE) << _1 | (four & _ONE) << _2) + bases
            high[at] = (both & _SIGN) << _8 | both & _MANTISSA | code << _7


# --- exponents that are beyond ---


@compiled
def _count(elements: Any, counts: Any) -> int:
    """How often each exponent occurs in a part of the elements; how many were looked at."""
    counts[:] = 0
    looked = 0
    for at in range(0, elements.size, _STRIDE):
        counts[elements[at] >> np.uint16(7) & np.uint16(255)] += 1
        looked += 1
    return looked


@compiled
def _base(counts: Any, window: int) -> Any:
    """Where the window of exponents begins that leaves fewest out, and how many it holds."""
    held = 0
    for exponent in range(window):
        held += counts[exponent]
    best, most = 0, held
    for base in range(1, 256 - window):
        held += counts[base + window - 1] - counts[base - 1]
        if held > most:
            best, most = base, held
    return best, most


@compiled
def _note_fixed(words: Any, elements: Any, base: Any, places: Any, exponents: Any) -> int:
    """Places and exponents beyond the window of 16, in order; DAMAGED if they do not fit."""
    bases, found = base * _ONE, 0
    for group in range(0, words.size, 8):
        far = _ZERO
        for at in range(group, group + 8):
            far |= ((words[at] >> _7 & _EXPONENT | _CARRY) - bases) ^ _CARRY
        if far & _BEYOND:
            for place in range(4 * group, 4 * group + 32):
                exponent = np.int64(elements[place] >> np.uint16(7) & np.uint16(255))
                if not 0 <= exponent - np.int64(base) < 16:
                    if found >= places.size:
                        return DAMAGED
                    places[found], exponents[found] = place, exponent
                    found += 1
    return found


@compiled
def _fix_fixed(places: Any, exponents: Any, elements: Any) -> int:
    """Put exponents where they belong; DAMAGED for a place that is none."""
    for found in range(places.size):
        place = places[found]
        if place >= elements.size:
            return DAMAGED
        elements[place] = elements[place] & _REST | np.uint16(exponents[found]) << np.uint16(7)
    return 0


@compiled
def _note_dense(elements: Any, planes: Any, exponents: Any) -> int:
    """Exponents beyond the window of 7, in the order of the planes; DAMAGED if there are more."""
    step, found = planes.size // 3, 0
    for word in range(step):
        far = planes[word] & planes[step + word] & planes[2 * step + word]
        while far:
            bit = _lowest(far)
            if found >= exponents.size:
                return DAMAGED
            place = (bit & 15) * 4 * step + 4 * word + (bit >> 4)
            exponents[found] = elements[place] >> np.uint16(7) & np.uint16(255)
            found += 1
            far &= far - _LAST
    return found


@compiled
def _fix_dense(planes: Any, exponents: Any, elements: Any) -> int:
    """Put exponents where they belong; DAMAGED unless there are just as many places."""
    step, found = planes.size // 3, 0
    for word in range(step):
        far = planes[word] & planes[step + word] & planes[2 * step + word]
        while far:
            if found >= exponents.size:
                return DAMAGED
            bit = _lowest(far)
            place = (bit & 15) * 4 * step + 4 * word + (bit >> 4)
            exponent = np.uint16(exponents[found]) << np.uint16(7)
            elements[place] = elements[place] & _REST | exponent
            found += 1
            far &= far - _LAST
    return 0 if found == exponents.size else DAMAGED


@compiled
def _palette(exponents: Any, palette: Any) -> None:
    """The exponents that occur most, 255 for want of more."""
    counts = np.zeros(256, np.int64)
    for found in range(exponents.size):
        counts[exponents[found]] += 1
    for place in range(PALETTE):
        most = 255
        for exponent in range(255):
            if counts[exponent] > counts[most]:
                most = exponent
        palette[place] = most
        counts[most] = 0


@compiled
def _pack_far(exponents: Any, palette: Any, codes: Any, rare: Any) -> int:
    """Three bits for each exponent: its place in the palette, or 7 and a byte in `rare`."""
    place_of = np.full(256, PALETTE, np.uint8)
    for place in range(PALETTE - 1, -1, -1):
        place_of[palette[place]] = place
    codes[:] = 0
    left = 0
    for found in range(exponents.size):
        code, bit = np.uint16(place_of[exponents[found]]), 3 * found
        if code == PALETTE:
            if left >= rare.size:
                return DAMAGED
            rare[left] = exponents[found]
            left += 1
        spread = code << np.uint16(bit & 7)
        codes[bit >> 3] |= np.uint8(spread)
        codes[(bit >> 3) + 1] |= np.uint8(spread >> np.uint16(8))
    return left


@compiled
def _unpack_far(codes: Any, palette: Any, rare: Any, exponents: Any) -> int:
    """Undo `_pack_far`; DAMAGED unless all of `rare` is used."""
    left = 0
    for found in range(exponents.size):
        bit = 3 * found
        pair = np.uint16(codes[bit >> 3]) | np.uint16(codes[(bit >> 3) + 1]) << np.uint16(8)
        code = pair >> np.uint16(bit & 7) & np.uint16(7)
        if code < PALETTE:
            exponents[found] = palette[code]
        elif left < rare.size:
            exponents[found] = rare[left]
            left += 1
        else:
            return DAMAGED
    return 0 if left == rare.size else DAMAGED


# --- segments ---


@compiled
def _words(size_bytes: int) -> int:
    """Bytes of whole words that hold so many."""
    return (size_bytes + 7) // 8 * 8


@compiled
def data_bytes(mode: int, elements: int, far: int, rare: int) -> int:
    """What a segment takes beside its record."""
    if mode == FIXED:
        return elements // 2 + elements + _words(2 * far) + _words(far)
    if mode == DENSE:
        return elements // 8 * 3 + elements + _words(3 * far // 8 + 2) + _words(rare)
    return 2 * elements


@compiled
def _encode_dense(elements: Any, data: Any, record: Any, base: Any, work: Any) -> int:
    """Write a segment down densely; DAMAGED if that saves nothing."""
    count = elements.size
    planes, rest = data[: count // 8 * 3], data[count // 8 * 3 : count // 8 * 11]
    words = elements.view(np.uint64)
    _pack_dense(words, planes.view(np.uint64), np.uint64(base))
    far = _note_dense(elements, planes.view(np.uint64), work[: count // 4])
    if far == DAMAGED:
        return DAMAGED
    exponents, rare = work[:far], work[count // 4 : count // 2]
    palette = record[PALETTE_AT : PALETTE_AT + PALETTE]
    _palette(exponents, palette)
    begin = count // 8 * 11
    end: int = begin + _words(3 * far // 8 + 2)
    left = _pack_far(exponents, palette, data[begin:end], rare)
    if left == DAMAGED or data_bytes(DENSE, count, far, left) >= 2 * count:
        return DAMAGED
    _split(words, rest.view(np.uint64))
    data[end : end + _words(left)] = 0
    data[end : end + left] = rare[:left]
    _note_record(record, DENSE, base, far, left)
    return end + _words(left)


@compiled
def _encode_fixed(elements: Any, data: Any, record: Any, base: Any, work: Any) -> int:
    """Write a segment down in fixed lengths; DAMAGED if that saves nothing."""
    count = elements.size
    words, places = elements.view(np.uint64), work[: count // 8].view(np.uint16)
    exponents = work[count // 4 : count // 2]
    far = _note_fixed(words, elements, np.uint64(base), places, exponents)
    if far == DAMAGED:
        return DAMAGED
    codes, rest = data[: count // 2], data[count // 2 : count // 2 * 3]
    _pack_fixed(words, codes.view(np.uint64), np.uint64(base))
    _split(words, rest.view(np.uint64))
    begin = count // 2 * 3
    end: int = begin + _words(2 * far)
    data[begin : end + _words(far)] = 0
    data[begin : begin + 2 * far] = places[:far].view(np.uint8)
    data[end : end + far] = exponents[:far]
    _note_record(record, FIXED, base, far, 0)
    return end + _words(far)


@compiled
def _note_record(record: Any, mode: int, base: Any, far: int, rare: int) -> None:
    """What a segment's record says; the palette is there already."""
    record[0], record[1] = mode, base
    record[2], record[3] = far & 255, far >> 8
    record[4], record[5] = rare & 255, rare >> 8


@compiled
def _read_record(record: Any) -> Any:
    """Mode, base, escapes and bytes among them, as signed numbers."""
    far = np.int64(record[2]) | np.int64(record[3]) << 8
    rare = np.int64(record[4]) | np.int64(record[5]) << 8
    return np.int64(record[0]), np.int64(record[1]), far, rare


@compiled
def _encode_segment(elements: Any, data: Any, record: Any, mode: int, work: Any) -> int:
    """Write a segment down in the best way that is allowed; bytes of its data."""
    counts = np.empty(256, np.int64)
    looked = _count(elements, counts)
    record[:] = 0
    base, held = _base(counts, 7)
    if mode == DENSE and 5 * (looked - held) < looked:
        size = _encode_dense(elements, data, record, base, work)
        if size != DAMAGED:
            return size
        record[:] = 0
    base, held = _base(counts, 16)
    if 16 * (looked - held) < looked:
        size = _encode_fixed(elements, data, record, base, work)
        if size != DAMAGED:
            return size
        record[:] = 0
    whole: int = 2 * elements.size
    data[:whole] = elements.view(np.uint8)
    return whole


@compiled
def encode(elements: Any, segment: int, records: Any, data: Any, mode: int) -> int:
    """Write all segments down, one behind the other; bytes of all their data.

    Args:
        elements: u16, a multiple of GRAIN of them.
        segment: elements of each segment but the last.
        records: u8, RECORD_BYTES for each segment.
        data: u8, at least as many bytes as the elements have, and a segment more.
        mode: DENSE, or FIXED for exponents in no other way.
    """
    work, end = np.empty(segment // 2 + 8, np.uint8), 0
    for number in range(records.size // RECORD_BYTES):
        part = elements[number * segment : (number + 1) * segment]
        record = records[number * RECORD_BYTES : (number + 1) * RECORD_BYTES]
        end += _encode_segment(part, data[end : end + 4 * segment], record, mode, work)
    return end


@compiled
def _decode_dense(data: Any, record: Any, elements: Any, work: Any) -> int:
    """Undo `_encode_dense`."""
    count, begin = elements.size, elements.size // 8 * 11
    _, _, far, rare = _read_record(record)
    planes = data[: count // 8 * 3].view(np.uint64)
    rest = data[count // 8 * 3 : begin].view(np.uint64)
    end = begin + _words(3 * far // 8 + 2)
    palette, exponents = record[PALETTE_AT : PALETTE_AT + PALETTE], work[:far]
    if _unpack_far(data[begin:end], palette, data[end : end + rare], exponents) == DAMAGED:
        return DAMAGED
    _unpack_dense(planes, rest, elements.view(np.uint64), np.uint64(record[1]))
    return _fix_dense(planes, exponents, elements)


@compiled
def _decode_fixed(data: Any, record: Any, elements: Any) -> int:
    """Undo `_encode_fixed`."""
    count, begin = elements.size, elements.size // 2 * 3
    _, _, far, _ = _read_record(record)
    end = begin + _words(2 * far)
    codes, rest = data[: count // 2], data[count // 2 : begin]
    _unpack_fixed(
        codes.view(np.uint64), rest.view(np.uint64), elements.view(np.uint64), np.uint64(record[1])
    )
    places = data[begin : begin + 2 * far].view(np.uint16)
    return _fix_fixed(places, data[end : end + far], elements)


@compiled
def _decode_segment(data: Any, record: Any, elements: Any, work: Any) -> int:
    """Undo `_encode_segment`; bytes of data used, or DAMAGED."""
    count: int = elements.size
    mode, base, far, rare = _read_record(record)
    size = data_bytes(mode, count, far, rare)
    if mode > DENSE or far > count // 4 or rare > far or size > data.size:
        return DAMAGED
    if mode == RAW:
        elements.view(np.uint8)[:] = data[:size]
        return size
    if base > (240 if mode == FIXED else 248):
        return DAMAGED
    if mode == FIXED:
        failed = _decode_fixed(data, record, elements)
    else:
        failed = _decode_dense(data[:size], record, elements, work)
    return DAMAGED if failed else size


@compiled
def decode(records: Any, data: Any, segment: int, elements: Any) -> int:
    """Undo `encode`; DAMAGED unless that takes all of `data`, else 0."""
    work, begin = np.empty(segment // 4 + 8, np.uint8), 0
    for number in range(records.size // RECORD_BYTES):
        part = elements[number * segment : (number + 1) * segment]
        record = records[number * RECORD_BYTES : (number + 1) * RECORD_BYTES]
        size = _decode_segment(data[begin:], record, part, work)
        if size == DAMAGED:
            return DAMAGED
        begin += size
    return 0 if begin == data.size else DAMAGED
