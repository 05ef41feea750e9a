"""The hot loops of the FP8 codec, compiled with Numba. They check sizes and never allocate.

What the bytes mean is said in `fp8`. Importing this module needs Numba; compiling happens at the
first call of each loop, for one kind of element and one form.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from kvwise.codecs.elements import Kind
from kvwise.codecs.floats_cpu import (
    LEAST_SCALE,
    Form,
    bits_of,
    element,
    narrower,
    scale_of,
    widener,
)
from kvwise.codecs.machine_code import compiled
from kvwise.codecs.scaled import DAMAGED, Loops

_ONE = np.float32(1)


@cache
def loops(kind: Kind, form: Form) -> Loops:
    """The loops between elements of a kind and codes of a form."""
    encode, decode = _encode(kind, form), _decode(kind, form)
    return Loops(element(kind).word, encode, decode)


def _encode(kind: Kind, form: Form) -> Any:
    """The loop that writes tensors down."""
    of, narrow = element(kind), narrower(form)
    widen, word, word_bytes = of.widen, of.word, kind.bytes
    greatest, magnitude, limit = np.float32(form.greatest), word(of.magnitude), word(of.limit)

    @compiled
    def peak_of(words: Any, run: Any, heads: Any, head: Any) -> Any:
        """The greatest magnitude of a head."""
        peak = word(0)
        for number in range(head, words.size // run, heads):
            part = words[number * run : (number + 1) * run]
            for at in range(run):
                peak = max(peak, word(part[at] & magnitude))
        return peak

    @compiled
    def find_scales(words: Any, run: Any, scales: Any) -> Any:
        """Scales for all heads of a tensor; whether there are such."""
        for head in range(scales.size):
            peak = peak_of(words, run, scales.size, head)
            if peak > limit:
                return False
            scales[head] = scale_of(widen(peak), greatest)
        return True

    @compiled
    def write(words: Any, inverse: Any, codes: Any) -> None:
        """Codes of a run."""
        for at in range(words.size):
            codes[at] = narrow(bits_of(widen(words[at]) * inverse))

    @compiled
    def encode(raw: Any, words: Any, shape: Any, scales: Any, data: Any) -> Any:
        """Write all tensors down; bytes of data used."""
        tensor, heads, run = shape
        tensor_bytes, end = tensor * word_bytes, 0
        for number in range(words.size // tensor):
            part = words[number * tensor : (number + 1) * tensor]
            own = scales[number * heads : (number + 1) * heads]
            if find_scales(part, run, own):
                for at in range(tensor // run):
                    codes = data[end + at * run : end + (at + 1) * run]
                    write(part[at * run : (at + 1) * run], _ONE / own[at % heads], codes)
                end += tensor
            else:
                own[:] = np.float32(0)
                data[end : end + tensor_bytes] = raw[
                    number * tensor_bytes : (number + 1) * tensor_bytes
                ]
                end += tensor_bytes
        return end

    return encode


def _decode(kind: Kind, form: Form) -> Any:
    """The loop that restores tensors."""
    of, widen = element(kind), widener(form)
    narrow, word, word_bytes = of.narrow, of.word, kind.bytes
    greatest_scale = np.float32(np.finfo(np.float32).max / form.greatest)
    magnitude, greatest_code = np.uint8(0x7F), np.uint8(form.greatest_code)

    @compiled
    def are_codes(codes: Any) -> Any:
        """Whether all codes are of finite numbers."""
        peak = np.uint8(0)
        for at in range(codes.size):
            peak = max(peak, np.uint8(codes[at] & magnitude))
        return peak <= greatest_code

    @compiled
    def read(codes: Any, scale: Any, words: Any) -> None:
        """Elements of a run."""
        for at in range(codes.size):
            words[at] = word(narrow(bits_of(widen(codes[at]) * scale)))

    @compiled
    def restore(codes: Any, scales: Any, run: Any, words: Any) -> Any:
        """Elements of a tensor; whether it is whole."""
        if not are_codes(codes):
            return False
        for at in range(words.size // run):
            scale = scales[at % scales.size]
            if not LEAST_SCALE <= scale <= greatest_scale:
                return False
            read(codes[at * run : (at + 1) * run], scale, words[at * run : (at + 1) * run])
        return True

    @compiled
    def decode(data: Any, scales: Any, shape: Any, raw: Any, words: Any) -> Any:
        """Restore all tensors; bytes of data used, or DAMAGED."""
        tensor, heads, run = shape
        tensor_bytes, begin = tensor * word_bytes, 0
        for number in range(words.size // tensor):
            own = scales[number * heads : (number + 1) * heads]
            left = data.size - begin
            if own[0] == 0:
                if own.any() or left < tensor_bytes:
                    return DAMAGED
                raw[number * tensor_bytes : (number + 1) * tensor_bytes] = data[
                    begin : begin + tensor_bytes
                ]
                begin += tensor_bytes
            else:
                part = words[number * tensor : (number + 1) * tensor]
                if left < tensor or not restore(data[begin : begin + tensor], own, run, part):
                    return DAMAGED
                begin += tensor
        return begin

    return decode
