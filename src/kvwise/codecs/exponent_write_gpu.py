"""Kernels of the exponent codec that write: what `exponent_cpu.encode` does, a program a segment.

They trust their arguments: sizes were made to fit by those who launch them. Data are words of 16
bits unless said otherwise, and begin at multiples of 8 bytes.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kvwise.codecs.exponent_words_gpu import (
    length_of,
    load_elements,
    load_words,
    low_lanes,
    low_of,
    palette_of,
    record_of,
    rest_lanes,
    rest_of,
    whole_words,
)

_FIXED, _DENSE = tl.constexpr(1), tl.constexpr(2)
_FP32, _E4M3 = tl.constexpr(2), tl.constexpr(3)
_STRIDE = tl.constexpr(7)


# --- looking ---


@triton.jit  # type: ignore[untyped-decorator]
def _window(counts: tl.tensor, width: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    """Where the window of exponents begins that leaves fewest out, and how many it holds."""
    begins, upto = tl.arange(0, 256), tl.cumsum(counts, 0)
    held = tl.gather(upto, tl.minimum(begins + width - 1, 255), 0) - upto + counts
    held = tl.where(begins < 256 - width, held, -1)
    return tl.argmax(held, 0), tl.max(held, 0)


@triton.jit  # type: ignore[untyped-decorator]
def _fixed_record(
    source: tl.tensor,
    length: tl.tensor,
    base: tl.tensor,
    raw: tl.tensor,
    kind: tl.constexpr,
    tile: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """First half of the record and the size of a fixed segment; 0 and `raw` if that saves none."""
    far = length * 0
    for start in range(0, length, tile):
        at = start + tl.arange(0, tile)
        exponent = load_words(source, at, length, at < length, kind) >> 7 & 255
        beyond = (at < length) & ((exponent < base) | (exponent > base + 15))
        far += tl.sum(beyond.to(tl.int32), 0)
    low = (base << 8 | 1).to(tl.int64) | far.to(tl.int64) << 16
    size = 2 * (low_lanes(length, kind) + length // 4 + rest_lanes(length, kind))
    size += whole_words(2 * far) + whole_words(far)
    fits = (far <= length // 16) & (size < raw)
    return tl.where(fits, low, 0), tl.where(fits, size, raw)


@triton.jit  # type: ignore[untyped-decorator]
def _dense_record(
    source: tl.tensor,
    length: tl.tensor,
    base: tl.tensor,
    raw: tl.tensor,
    kind: tl.constexpr,
    tile: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Both halves of the record and the size of a dense segment; zeros and `raw` as above.

    Of exponents that occur as often 255 comes first and then the lowest: hence bins by exponent
    plus one.
    """
    bins, counts = tl.arange(0, 256), tl.zeros([256], tl.int32)
    for start in range(0, length, tile):
        at = start + tl.arange(0, tile)
        exponent = load_words(source, at, length, at < length, kind) >> 7 & 255
        beyond = (at < length) & ((exponent < base) | (exponent > base + 6))
        counts += tl.histogram((exponent + 1) & 255, 256, mask=beyond)
    far = tl.sum(counts, 0)
    rare, high = far, tl.zeros([], tl.int64)
    low = (base << 8 | 2).to(tl.int64) | far.to(tl.int64) << 16
    for place in tl.static_range(7):
        best = tl.argmax(counts, 0)
        exponent = ((best + 255) & 255).to(tl.int64)
        if place < 2:
            low |= exponent << (48 + 8 * place)
        else:
            high |= exponent << (8 * place - 16)
        rare -= tl.max(counts, 0)
        counts = tl.where(bins == best, 0, counts)
    low |= rare.to(tl.int64) << 32
    size = 2 * (low_lanes(length, kind) + length // 16 * 3 + rest_lanes(length, kind))
    size += (far + 20) // 21 * 8 + whole_words(rare)
    fits = (far <= length // 4) & (size < raw)
    return tl.where(fits, low, 0), tl.where(fits, high, 0), tl.where(fits, size, raw)


@triton.jit  # type: ignore[untyped-decorator]
def look_kernel(
    elements: tl.tensor,
    records: tl.tensor,
    sizes: tl.tensor,
    count: tl.tensor,
    segment: tl.constexpr,
    kind: tl.constexpr,
    element_bytes: tl.constexpr,
    dense: tl.constexpr,
    tile: tl.constexpr,
) -> None:
    """Choose how each segment is written: its record (two words of 64 bits) and its size."""
    number = tl.program_id(0).to(tl.int64)
    length = length_of(count, number, segment)
    source, counts = elements + number * segment, tl.zeros([256], tl.int32)
    looked = (length + _STRIDE - 1) // _STRIDE
    for start in range(0, looked, tile):
        at = start + tl.arange(0, tile)
        words = load_words(source, at * _STRIDE, length, at < looked, kind)
        counts += tl.histogram(words >> 7 & 255, 256, mask=at < looked)
    raw = length * element_bytes
    low, high, size = tl.zeros([], tl.int64), tl.zeros([], tl.int64), raw
    if dense:
        base, held = _window(counts, 7)
        if 5 * (looked - held) < looked:
            low, high, size = _dense_record(source, length, base, raw, kind, tile)
    if low == 0:
        base, held = _window(counts, 16)
        if 16 * (looked - held) < looked:
            low, size = _fixed_record(source, length, base, raw, kind, tile)
    tl.store(records + 2 * number, low)
    tl.store(records + 2 * number + 1, high)
    tl.store(sizes + number, size.to(tl.int64))


# --- writing ---


@triton.jit  # type: ignore[untyped-decorator]
def _write_codes(
    source: tl.tensor,
    data: tl.tensor,
    length: tl.tensor,
    base: tl.tensor,
    kind: tl.constexpr,
    tile: tl.constexpr,
) -> None:
    """Codes of four bits, and behind them what they leave of words."""
    quarter = length // 4
    for start in range(0, quarter, tile):
        at = start + tl.arange(0, tile)
        inside = at < quarter
        code, first, second = at * 0, at * 0, at * 0
        for part in tl.static_range(4):
            words = load_words(source, part * quarter + at, length, inside, kind)
            code |= (((words >> 7 & 255) - base) & 15) << (4 * part)
            if part % 2 == 0:
                first |= rest_of(words) << (4 * part)
            else:
                second |= rest_of(words) << (4 * part - 4)
        tl.store(data + at, code.to(tl.int16), mask=inside)
        if kind < _E4M3:
            tl.store(data + quarter + at, first.to(tl.int16), mask=inside)
            tl.store(data + 2 * quarter + at, second.to(tl.int16), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _write_list(
    source: tl.tensor,
    places: tl.tensor,
    length: tl.tensor,
    base: tl.tensor,
    far: tl.tensor,
    kind: tl.constexpr,
    tile: tl.constexpr,
) -> None:
    """Places and exponents beyond the window of 16, in order, each filled up to whole words."""
    exponents = places.to(tl.pointer_type(tl.uint8)) + whole_words(2 * far)
    found = 0
    for start in range(0, length, tile):
        at = start + tl.arange(0, tile)
        exponent = load_words(source, at, length, at < length, kind) >> 7 & 255
        beyond = (at < length) & ((exponent < base) | (exponent > base + 15))
        rank = found + tl.cumsum(beyond.to(tl.int32), 0) - 1
        tl.store(places + rank, at.to(tl.int16), mask=beyond)
        tl.store(exponents + rank, exponent.to(tl.uint8), mask=beyond)
        found += tl.sum(beyond.to(tl.int32), 0)
    more = far + tl.arange(0, 8)
    tl.store(places + more, (more * 0).to(tl.int16), mask=2 * more < whole_words(2 * far))
    tl.store(exponents + more, (more * 0).to(tl.uint8), mask=more < whole_words(far))


@triton.jit  # type: ignore[untyped-decorator]
def write_kernel(
    elements: tl.tensor,
    records: tl.tensor,
    begins: tl.tensor,
    data: tl.tensor,
    count: tl.tensor,
    segment: tl.constexpr,
    kind: tl.constexpr,
    element_bytes: tl.constexpr,
    tile: tl.constexpr,
) -> None:
    """Write the segments that are fixed, or as they are."""
    number = tl.program_id(0).to(tl.int64)
    mode, base, far, _ = record_of(records, number)
    length = length_of(count, number, segment)
    source, target = elements + number * segment, data + tl.load(begins + number) // 2
    if mode == 0:
        halves = source.to(tl.pointer_type(tl.int16))
        lanes = length * element_bytes // 2
        for start in range(0, lanes, tile):
            at = start + tl.arange(0, tile)
            tl.store(target + at, tl.load(halves + at, mask=at < lanes), mask=at < lanes)
    if mode == _FIXED:
        target += low_lanes(length, kind)
        _write_codes(source, target, length, base, kind, tile)
        target += length // 4 + rest_lanes(length, kind)
        _write_list(source, target, length, base, far, kind, tile)


@triton.jit  # type: ignore[untyped-decorator]
def write_lows_kernel(
    elements: tl.tensor,
    records: tl.tensor,
    begins: tl.tensor,
    data: tl.tensor,
    count: tl.tensor,
    segment: tl.constexpr,
    kind: tl.constexpr,
    columns: tl.constexpr,
) -> None:
    """Write what finds no room in the words of segments that are not as they are.

    Rows are the parts of a lane: 1 of 16 bits, 4 of 4 bits, or 16 of one bit in each of 3 planes.
    """
    number = tl.program_id(0).to(tl.int64)
    mode, _, _, _ = record_of(records, number)
    length = length_of(count, number, segment)
    source, target = elements + number * segment, data + tl.load(begins + number) // 2
    parts: tl.constexpr = 1 if kind == _FP32 else (4 if kind == _E4M3 else 16)
    bits: tl.constexpr = 16 // parts
    planes: tl.constexpr = 3 if parts == 16 else 1
    lanes, part = length // parts, tl.arange(0, parts)[:, None]
    if mode > 0:
        for start in range(0, lanes, columns):
            lane = start + tl.arange(0, columns)
            inside = (lane < lanes)[None, :] & (part >= 0)
            found = load_elements(source, part * lanes + lane[None, :], length, inside, kind)
            low = low_of(found, kind)
            for plane in tl.static_range(planes):
                value = low >> plane
                if planes == 3:
                    value &= 1
                packed = tl.sum(value << (part * bits), 0)
                tl.store(target + plane * lanes + lane, packed.to(tl.int16), mask=lane < lanes)


@triton.jit  # type: ignore[untyped-decorator]
def write_dense_kernel(
    elements: tl.tensor,
    records: tl.tensor,
    begins: tl.tensor,
    data: tl.tensor,
    beyond: tl.tensor,
    count: tl.tensor,
    segment: tl.constexpr,
    kind: tl.constexpr,
    columns: tl.constexpr,
) -> None:
    """Write planes and rests of dense segments; escapes' exponents go to `beyond`, in order.

    Rows are the 16 bits of a plane's lane, so ranks run down a column before the next begins.
    """
    number = tl.program_id(0).to(tl.int64)
    mode, base, _, _ = record_of(records, number)
    length = length_of(count, number, segment)
    step, found = length // 16, 0
    source, target = elements + number * segment, data + tl.load(begins + number) // 2
    target += low_lanes(length, kind)
    bits, eight = tl.arange(0, 16)[:, None], tl.arange(0, 8)[:, None]
    listed = beyond + number * (segment // 4)
    if mode == _DENSE:
        for start in range(0, step, columns):
            lane = start + tl.arange(0, columns)
            inside = (lane < step)[None, :] & (bits >= 0)
            words = load_words(source, bits * step + lane[None, :], length, inside, kind)
            exponent = words >> 7 & 255
            far = inside & ((exponent < base) | (exponent > base + 6))
            code = tl.where(far, 7, exponent - base)
            for plane in tl.static_range(3):
                ones = tl.sum((code >> plane & 1) << bits, 0)
                tl.store(target + plane * step + lane, ones.to(tl.int16), mask=lane < step)
            if kind < _E4M3:
                pairs = tl.reshape(rest_of(words) << (bits // 8 * 8), (2, 8, columns))
                place = 3 * step + eight * step + lane[None, :]
                some = (lane < step)[None, :] & (eight >= 0)
                tl.store(target + place, tl.sum(pairs, 0).to(tl.int16), mask=some)
            one = far.to(tl.int32)
            column = tl.sum(one, 0)
            rank = tl.cumsum(one, 0) - 1 + (found + tl.cumsum(column, 0) - column)[None, :]
            tl.store(listed + rank, exponent.to(tl.uint8), mask=far)
            found += tl.sum(column, 0)


@triton.jit  # type: ignore[untyped-decorator]
def write_far_kernel(
    records: tl.tensor,
    begins: tl.tensor,
    data: tl.tensor,
    beyond: tl.tensor,
    count: tl.tensor,
    segment: tl.constexpr,
    kind: tl.constexpr,
    tile: tl.constexpr,
) -> None:
    """Write the escapes of dense segments, 21 codes to a word; `data` is of bytes."""
    number = tl.program_id(0).to(tl.int64)
    mode, _, far, rare = record_of(records, number)
    length = length_of(count, number, segment)
    packed, found = (far + 20) // 21, 0
    lanes = low_lanes(length, kind) + length // 16 * 3 + rest_lanes(length, kind)
    target = data + tl.load(begins + number) + 2 * lanes
    words, rares = target.to(tl.pointer_type(tl.int64)), target + 8 * packed
    listed, entry = beyond + number * (segment // 4), tl.arange(0, 32)[None, :]
    if mode == _DENSE:
        for start in range(0, packed, tile):
            group = start + tl.arange(0, tile)
            place = 21 * group[:, None] + entry
            inside = (place < far) & (entry < 21)
            exponent = tl.load(listed + place, mask=inside, other=0).to(tl.int32)
            code = place * 0 + 7
            for slot in tl.static_range(7):
                same = exponent == palette_of(records, number, 6 - slot)
                code = tl.where(same, 6 - slot, code)
            one = (inside & (code == 7)).to(tl.int32)
            row = tl.sum(one, 1)
            rank = tl.cumsum(one, 1) - 1 + (found + tl.cumsum(row, 0) - row)[:, None]
            tl.store(rares + rank, exponent.to(tl.uint8), mask=one > 0)
            found += tl.sum(row, 0)
            code = tl.where(inside, code, 0).to(tl.int64) << tl.where(entry < 21, 3 * entry, 0)
            tl.store(words + group, tl.sum(code, 1), mask=group < packed)
        more = rare + tl.arange(0, 8)
        tl.store(rares + more, (more * 0).to(tl.uint8), mask=more < whole_words(rare))
