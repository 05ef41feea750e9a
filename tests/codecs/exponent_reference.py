"""What stored bytes of the exponent codec mean, read slowly with numpy and nothing of the codec.

It believes that the bytes are good, and checks none of them.
"""

from __future__ import annotations

import struct

import numpy as np
from numpy.typing import NDArray

Lanes = NDArray[np.uint16]

BYTES = (2, 2, 4, 1, 1)
REST_BITS = (8, 8, 8, 0, 0)
LOW_BITS = (0, 3, 16, 4, 3)


def restored(stored: bytes) -> bytes:
    """The payload."""
    _, kind, bits, _, _, size = struct.unpack_from("<BBBBIQ", stored)
    element, segment, payload = BYTES[kind], 1 << bits, b""
    whole = size // (64 * element) * 64
    segments = -(-whole // segment)
    at = 16 + 16 * segments
    for number in range(segments):
        record = stored[16 + 16 * number :][:16]
        count = min(segment, whole - number * segment)
        one, used = _segment(kind, count, record, stored[at:])
        payload += one
        at += used
    return payload + stored[at:]


def _segment(kind: int, count: int, record: bytes, data: bytes) -> tuple[bytes, int]:
    """The elements of a segment, and how many bytes they took."""
    mode, base, far, rare = struct.unpack_from("<BBHH", record)
    if mode == 0:
        return data[: count * BYTES[kind]], count * BYTES[kind]
    code_bits, at = (4 if mode == 1 else 3), 0
    sizes = (LOW_BITS[kind], code_bits, REST_BITS[kind])
    lows, codes, rest = (
        _lanes(data, at_bits * count // 8, bits * count // 8)
        for at_bits, bits in zip((0, sizes[0], sizes[0] + sizes[1]), sizes, strict=True)
    )
    at = sum(sizes) * count // 8
    if mode == 1:
        exponents = base + _spread(codes, 4, 4)
        places = np.frombuffer(data, np.uint16, far, at)
        at += _whole(2 * far)
        exponents[places] = np.frombuffer(data, np.uint8, far, at)
        at += _whole(far)
    else:
        exponents = base + _planes(codes)
        numbers = _far_codes(data[at:], far)
        at += _whole(-(-far // 21) * 8)
        palette = np.frombuffer(record, np.uint8, 8, 6)
        exponents[_far_places(codes)] = _far(numbers, palette, data[at : at + rare])
        at += _whole(rare)
    beside = _spread(rest, 8, 2) if rest.size else np.zeros(count, np.uint16)
    words = (beside & 0x80) << 8 | beside & 0x7F | exponents.astype(np.uint16) << 7
    return _elements(kind, words, lows), at


def _elements(kind: int, words: Lanes, lows: Lanes) -> bytes:
    """Words as elements of a kind."""
    half = words.size // 2
    if kind == 1:
        return (words & 0x8000 | (words & 0x0FFF) << 3 | _planes(lows)).tobytes()
    if kind == 2:
        pairs = np.empty((words.size, 2), np.uint16)
        for column, lanes in ((1, words), (0, lows)):
            pairs[:half, column], pairs[half:, column] = lanes[::2], lanes[1::2]
        return pairs.tobytes()
    if kind == 0:
        return words.tobytes()
    low = _spread(lows, 4, 4) if kind == 3 else _planes(lows)
    sign, mantissa = (low >> 3, low & 7) if kind == 3 else (low >> 2, low & 3)
    exponents = words >> 7 & (15 if kind == 3 else 31)
    numbers = sign << 7 | exponents << (3 if kind == 3 else 2) | mantissa
    mixed = np.empty(words.size, np.uint8)
    mixed[::2], mixed[1::2] = numbers[:half], numbers[half:]
    return mixed.tobytes()


def _lanes(data: bytes, begin: int, size: int) -> Lanes:
    """Bytes as lanes."""
    return np.frombuffer(data, np.uint16, size // 2, begin)


def _spread(lanes: Lanes, bits: int, parts: int) -> Lanes:
    """Parts of lanes, all lowest ones first."""
    mask = np.uint16((1 << bits) - 1)
    return np.concatenate([lanes >> np.uint16(part * bits) & mask for part in range(parts)])


def _planes(lanes: Lanes) -> Lanes:
    """Three planes of one bit for each element."""
    one, two, four = np.split(lanes, 3)
    bits = [_spread(plane, 1, 16) << np.uint16(at) for at, plane in enumerate((one, two, four))]
    codes: Lanes = bits[0] | bits[1] | bits[2]
    return codes


def _far_places(planes: Lanes) -> NDArray[np.int64]:
    """Elements whose code is all ones, in the order of the planes' bits."""
    one, two, four = np.split(planes, 3)
    bits = np.unpackbits((one & two & four).view(np.uint8), bitorder="little")
    numbers = np.flatnonzero(bits)
    return numbers // 16 + numbers % 16 * one.size


def _far_codes(data: bytes, far: int) -> list[int]:
    """Codes of 3 bits, 21 to a word."""
    words = struct.unpack_from(f"<{-(-far // 21)}Q", data)
    return [word >> 3 * place & 7 for word in words for place in range(21)][:far]


def _far(codes: list[int], palette: NDArray[np.uint8], rare: bytes) -> list[int]:
    """Exponents that the codes stand for."""
    left = iter(rare)
    return [next(left) if code == 7 else int(palette[code]) for code in codes]


def _whole(size: int) -> int:
    """Bytes of whole words."""
    return -(-size // 8) * 8
