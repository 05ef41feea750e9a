"""Exponents beyond the window of their segment: found, written and put back, compiled with Numba.

Loops here work on one element after another, so they avoid branches that cannot be foreseen: they
write more than is needed and go on by as much as is. Sizes that stored bytes claim are checked.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic

from kvwise.codecs.machine_code import compiled

DAMAGED = -1
PALETTE = 7
FAR_IN_WORD = 21
"""Codes of 3 bits in a word of 64."""

SPARE = 64
"""How much longer than what they hold places and exponents must be."""

_STRIDE = 7
"""One in so many exponents is looked at to choose a base: coprime to all sizes of heads."""

_AT_ONCE = 6
"""Places found between two looks at whether there are more: more than most words of 64 have."""

_REST = np.uint16(0x807F)
"""All bits of an element but its exponent."""

_ZERO, _LAST = np.uint64(0), np.uint64(1)
_3, _4, _CODE, _LANE = np.uint64(3), np.uint64(4), np.uint64(7), np.uint64(15)


def _counting(name: str) -> Any:
    """A function of a 64-bit word that is one instruction on most machines."""

    @intrinsic  # type: ignore[untyped-decorator,unused-ignore]
    def count(_: Any, _word: Any) -> Any:
        from llvmlite import ir

        def generate(_: Any, builder: Any, __: Any, values: Any) -> Any:
            word, flag = ir.IntType(64), ir.IntType(1)
            zeros = name == "llvm.cttz"
            kind = ir.FunctionType(word, [word, flag] if zeros else [word])
            called = builder.module.declare_intrinsic(name, [word], kind)
            return builder.call(called, [values[0], ir.Constant(flag, 0)] if zeros else values)

        return types.int64(types.uint64), generate

    return count


_lowest = _counting("llvm.cttz")
"""The place of the lowest bit that is set; 64 where none is."""

_bits = _counting("llvm.ctpop")
"""How many bits are set."""


# --- the window ---


@compiled
def count_exponents(elements: Any, counts: Any) -> int:
    """How often each exponent occurs in a part of the elements; how many were looked at."""
    counts[:] = 0
    looked = 0
    for at in range(0, elements.size, _STRIDE):
        counts[elements[at] >> np.uint16(7) & np.uint16(255)] += 1
        looked += 1
    return looked


@compiled
def best_base(counts: Any, window: int) -> Any:
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


# --- fixed ---


@compiled
def note_fixed(elements: Any, flags: Any, base: Any, places: Any, room: Any) -> int:
    """Places and exponents beyond the window of 16, in order; DAMAGED if they do not fit.

    Args:
        elements: in the form of BF16.
        flags: what `pack_fixed` found.
        base: of the window.
        places: as many as may be.
        room: for the exponents, and for the places of flags; as long as `flags` at least.
    """
    exponents, spots = room
    hits, found = 0, 0
    for group in range(0, flags.size, 4):
        if flags[group] | flags[group + 1] | flags[group + 2] | flags[group + 3]:
            for at in range(group, group + 4):
                spots[hits] = at
                hits += flags[at] != _ZERO
    for quarter in range(4):
        for hit in range(hits):
            begin = 4 * (quarter * flags.size + np.int64(spots[hit]))
            for place in range(begin, begin + 4):
                exponent = np.int64(elements[place] >> np.uint16(7) & np.uint16(255))
                if not 0 <= exponent - base < 16:
                    if found >= places.size:
                        return DAMAGED
                    places[found], exponents[found] = place, exponent
                    found += 1
    return found


@compiled
def fix_fixed(places: Any, exponents: Any, elements: Any) -> int:
    """Put exponents where they belong; DAMAGED for a place that is none."""
    for found in range(places.size):
        place = places[found]
        if place >= elements.size:
            return DAMAGED
        elements[place] = elements[place] & _REST | np.uint16(exponents[found]) << np.uint16(7)
    return 0


# --- dense ---


@compiled
def find_dense(planes: Any, places: Any) -> int:
    """Numbers in the planes of all escapes, in order; DAMAGED if they do not fit."""
    step, found = planes.size // 3, 0
    for word in range(step):
        far = planes[word] & planes[step + word] & planes[2 * step + word]
        count, at = _bits(far), found
        if found + count + _AT_ONCE > places.size:
            return DAMAGED
        found += count
        while at < found:
            for next_at in range(at, at + _AT_ONCE):
                places[next_at] = np.uint16(64 * word + _lowest(far))
                far &= far - _LAST
            at += _AT_ONCE
    return found


@compiled
def _element_of(number: Any, step: Any) -> Any:
    """The element that has this number in the planes, which are `step` words each."""
    return (number & 15) * 4 * step + (number >> 4)


@compiled
def note_dense(elements: Any, step: int, places: Any, exponents: Any) -> None:
    """The exponents at these places."""
    for found in range(places.size):
        place = _element_of(np.int64(places[found]), step)
        exponents[found] = elements[place] >> np.uint16(7) & np.uint16(255)


@compiled
def _turn(elements: Any, lanes: Any, number: Any, how: Any) -> None:
    """Change the element that has this number in the planes, which have so many lanes each."""
    place = np.uint64(number)
    elements[(place & _LANE) * lanes + (place >> _4)] ^= how


@compiled
def fix_dense(elements: Any, codes: Any, places: Any, far: Any, spots: Any) -> int:
    """Turn the exponents at these places into those that codes stand for; DAMAGED if not so many.

    Args:
        elements: all of them have the exponent beyond the window at these places.
        codes: words, of just as many codes as there are places.
        places: numbers in the planes.
        far: what turns that exponent into each of the palette, the last one nothing; and what
            turns it into each of those that are not in it, as many as there are.
        spots: for places of those; longer than `places`.
    """
    lanes, (palette, rare), left = np.uint64(elements.size // 16), far, 0
    whole = places.size // FAR_IN_WORD * FAR_IN_WORD
    for begin in range(0, whole, FAR_IN_WORD):
        word = codes[begin // FAR_IN_WORD]
        for found in range(begin, begin + FAR_IN_WORD):
            code = word & _CODE
            word >>= _3
            _turn(elements, lanes, places[found], palette[code])
            spots[left] = found
            left += code == _CODE
    for found in range(whole, places.size):
        code = codes[codes.size - 1] >> np.uint64(3 * (found - whole)) & _CODE
        _turn(elements, lanes, places[found], palette[code])
        spots[left] = found
        left += code == _CODE
    if left != rare.size:
        return DAMAGED
    for spot in range(left):
        _turn(elements, lanes, places[spots[spot]], rare[spot])
    return 0


@compiled
def choose_palette(exponents: Any, palette: Any) -> None:
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
def pack_far(exponents: Any, palette: Any, codes: Any, rare: Any) -> int:
    """Three bits for each exponent: its place in the palette, or 7 and a byte in `rare`."""
    place_of = np.full(256, PALETTE, np.uint8)
    for place in range(PALETTE - 1, -1, -1):
        place_of[palette[place]] = place
    codes[:] = _ZERO
    left = 0
    for found in range(exponents.size):
        code = np.uint64(place_of[exponents[found]])
        if code == _CODE:
            if left >= rare.size:
                return DAMAGED
            rare[left] = exponents[found]
            left += 1
        codes[found // FAR_IN_WORD] |= code << np.uint64(found % FAR_IN_WORD * 3)
    return left
