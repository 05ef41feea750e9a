"""Kernels of the exponent codec that read: what `exponent_cpu.decode` does.

They trust records and sizes, which were checked on the host. Of data they trust nothing: a place
that is none is left out, and what does not add up sets `damaged`. Data are words of 16 bits unless
said otherwise, and begin at multiples of 8 bytes.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kvwise.codecs.exponent_words_gpu import (
    element_at,
    element_of,
    length_of,
    load_lows,
    low_lanes,
    low_of,
    palette_of,
    record_of,
    rest_lanes,
    rest_of,
    whole_words,
    word_from,
    word_of,
)

_FIXED, _DENSE = tl.constexpr(1), tl.constexpr(2)
_E4M3 = tl.constexpr(3)


@triton.jit  # type: ignore[untyped-decorator]
def read_kernel(
    records: tl.tensor,
    begins: tl.tensor,
    data: tl.tensor,
    elements: tl.tensor,
    count: tl.tensor,
    segment: tl.constexpr,
    kind: tl.constexpr,
    element_bytes: tl.constexpr,
    tile: tl.constexpr,
) -> None:
    """Read one tile of lanes of a segment that is fixed, or as it is, but for escapes."""
    number = tl.program_id(0).to(tl.int64)
    mode, base, _, _ = record_of(records, number)
    length = length_of(count, number, segment)
    source, target = data + tl.load(begins + number) // 2, elements + number * segment
    at = tl.program_id(1) * tile + tl.arange(0, tile)
    if mode == 0:
        lanes = length * element_bytes // 8
        halves, inside = target.to(tl.pointer_type(tl.int16)), at < lanes
        for part in tl.static_range(4):
            words = tl.load(source + part * lanes + at, mask=inside)
            tl.store(halves + part * lanes + at, words, mask=inside)
    if mode == _FIXED:
        quarter = length // 4
        inside, codes = at < quarter, source + low_lanes(length, kind)
        code = tl.load(codes + at, mask=inside, other=0).to(tl.int32)
        for part in tl.static_range(4):
            rest = at * 0
            if kind < _E4M3:
                pair = tl.load(codes + (1 + part % 2) * quarter + at, mask=inside, other=0)
                rest = pair.to(tl.int32) >> (part // 2 * 8)
            word, place = word_from(rest, (code >> (4 * part) & 15) + base), part * quarter + at
            element = element_of(word, load_lows(source, place, length, inside, kind), kind)
            tl.store(target + element_at(place, length, kind), element, mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def read_list_kernel(
    records: tl.tensor,
    begins: tl.tensor,
    data: tl.tensor,
    elements: tl.tensor,
    damaged: tl.tensor,
    count: tl.tensor,
    segment: tl.constexpr,
    kind: tl.constexpr,
    tile: tl.constexpr,
) -> None:
    """Put the escapes of fixed segments where they belong; their places must ascend."""
    number = tl.program_id(0).to(tl.int64)
    mode, _, far, _ = record_of(records, number)
    length = length_of(count, number, segment)
    places = data + tl.load(begins + number) // 2 + low_lanes(length, kind)
    places += length // 4 + rest_lanes(length, kind)
    exponents = places.to(tl.pointer_type(tl.uint8)) + whole_words(2 * far)
    target, wrong = elements + number * segment, 0
    if mode == _FIXED:
        for start in range(0, far, tile):
            at = start + tl.arange(0, tile)
            inside = at < far
            place = tl.load(places + at, mask=inside, other=0).to(tl.int32) & 0xFFFF
            before = tl.load(places + at - 1, mask=inside & (at > 0), other=0).to(tl.int32)
            before = tl.where(at > 0, before & 0xFFFF, -1)
            good = inside & (place < length) & (place > before)
            exponent = tl.load(exponents + at, mask=good, other=0).to(tl.int32)
            spot = target + element_at(place, length, kind)
            found = tl.load(spot, mask=good, other=0).to(tl.int32)
            word = word_from(rest_of(word_of(found, kind)), exponent)
            tl.store(spot, element_of(word, low_of(found, kind), kind), mask=good)
            wrong += tl.sum((inside & (good == 0)).to(tl.int32), 0)
        if wrong > 0:
            tl.store(damaged, 1)


@triton.jit  # type: ignore[untyped-decorator]
def read_far_kernel(
    records: tl.tensor,
    begins: tl.tensor,
    data: tl.tensor,
    beyond: tl.tensor,
    damaged: tl.tensor,
    count: tl.tensor,
    segment: tl.constexpr,
    kind: tl.constexpr,
    tile: tl.constexpr,
) -> None:
    """The exponents of dense segments' escapes, in order; `data` is of bytes."""
    number = tl.program_id(0).to(tl.int64)
    mode, _, far, rare = record_of(records, number)
    length = length_of(count, number, segment)
    lanes = low_lanes(length, kind) + length // 16 * 3 + rest_lanes(length, kind)
    codes = data + tl.load(begins + number) + 2 * lanes
    words, rares, found = codes.to(tl.pointer_type(tl.int64)), codes + (far + 20) // 21 * 8, 0
    if mode == _DENSE:
        for start in range(0, far, tile):
            at = start + tl.arange(0, tile)
            inside = at < far
            word = tl.load(words + at // 21, mask=inside, other=0)
            code = (word >> (at % 21 * 3) & 7).to(tl.int32)
            one = (inside & (code == 7)).to(tl.int32)
            rank = found + tl.cumsum(one, 0) - 1
            known = (one > 0) & (rank < rare)
            exponent = tl.load(rares + rank, mask=known, other=0).to(tl.int32)
            for slot in tl.static_range(7):
                exponent = tl.where(code == slot, palette_of(records, number, slot), exponent)
            tl.store(beyond + number * (segment // 4) + at, exponent.to(tl.uint8), mask=inside)
            found += tl.sum(one, 0)
        if found != rare:
            tl.store(damaged, 1)


@triton.jit  # type: ignore[untyped-decorator]
def read_dense_kernel(
    records: tl.tensor,
    begins: tl.tensor,
    data: tl.tensor,
    beyond: tl.tensor,
    elements: tl.tensor,
    damaged: tl.tensor,
    count: tl.tensor,
    segment: tl.constexpr,
    kind: tl.constexpr,
    columns: tl.constexpr,
) -> None:
    """Read dense segments; there must be just as many escapes as the record says."""
    number = tl.program_id(0).to(tl.int64)
    mode, base, escapes, _ = record_of(records, number)
    length = length_of(count, number, segment)
    step, found = length // 16, 0
    source, target = data + tl.load(begins + number) // 2, elements + number * segment
    planes, bits = source + low_lanes(length, kind), tl.arange(0, 16)[:, None]
    listed = beyond + number * (segment // 4)
    if mode == _DENSE:
        for start in range(0, step, columns):
            lane = start + tl.arange(0, columns)
            inside = (lane < step)[None, :] & (bits >= 0)
            code = bits * 0 + (lane * 0)[None, :]
            rest = bits * 0 + (lane * 0)[None, :]
            for plane in tl.static_range(3):
                ones = tl.load(planes + plane * step + lane, mask=lane < step, other=0)
                code |= (ones.to(tl.int32)[None, :] >> bits & 1) << plane
            one = (inside & (code == 7)).to(tl.int32)
            column = tl.sum(one, 0)
            rank = tl.cumsum(one, 0) - 1 + (found + tl.cumsum(column, 0) - column)[None, :]
            known = (one > 0) & (rank < escapes)
            exponent = tl.load(listed + rank, mask=known, other=0).to(tl.int32)
            exponent = tl.where(one > 0, exponent, code + base)
            if kind < _E4M3:
                pair = 3 * step + (bits & 7) * step + lane[None, :]
                pairs = tl.load(planes + pair, mask=inside, other=0)
                rest = pairs.to(tl.int32) >> (bits // 8 * 8)
            place = bits * step + lane[None, :]
            low = load_lows(source, place, length, inside, kind)
            element = element_of(word_from(rest, exponent), low, kind)
            tl.store(target + element_at(place, length, kind), element, mask=inside)
            found += tl.sum(column, 0)
        if found != escapes:
            tl.store(damaged, 1)
