"""Stored bytes of the exponent codec as hostile bytes would have them. It owns no format.

An input is what a codec stored, in small segments so that it is short. What is accepted must be
what a reader of the format who shares no line with the codec makes of it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import ExitStack
from itertools import product

import numpy as np

from kvwise.codecs.elements import KINDS, Kind
from kvwise.codecs.exponent import Exponent
from kvwise.testing.codecs import pieces_of
from tests.codecs import exponent_reference

SEGMENT_BITS, ELEMENTS = 10, 1024 + 64
PAYLOAD_BYTES_MAX = 1 << 15


def open_codec(_stack: ExitStack) -> Callable[[bytes], None]:
    """Restore a payload of the size that the input claims, as far as that is believable.

    What is compiled at the first call is compiled here, where no input has to be done in time.
    """
    codec = Exponent("fixed", Kind.BF16)

    def attempt(data: bytes) -> None:
        claimed = struct.unpack_from("<Q", data, 8)[0] if len(data) >= 16 else 0
        payload = pieces_of(bytes(min(claimed, PAYLOAD_BYTES_MAX)))
        codec.decode(pieces_of(data), payload)
        assert bytes(payload[0]) == exponent_reference.restored(data)

    attempt(stored()[0])
    return attempt


def stored() -> list[bytes]:
    """What is written for a few elements of each kind, in each mode."""
    from kvwise.codecs import exponent_cpu

    modes = (exponent_cpu.FIXED, exponent_cpu.DENSE, exponent_cpu.RAW)
    return [_written(mode, kind) for mode, kind in product(modes, range(len(KINDS)))]


def _written(mode: int, kind: int) -> bytes:
    """A header, records and data, with bytes that no segment takes at the end."""
    from kvwise.codecs import exponent_cpu

    chance = np.random.default_rng(kind)
    size = ELEMENTS * KINDS[kind].bytes
    if mode == exponent_cpu.RAW:
        elements = chance.integers(0, 256, size, np.uint8)
    else:
        elements = _floats(chance, KINDS[kind])
    records = np.zeros(2 * exponent_cpu.RECORD_BYTES, np.uint8)
    data = np.zeros(3 * size, np.uint8)
    used = exponent_cpu.encode((kind, mode), 1 << SEGMENT_BITS, elements, records, data)
    header = struct.pack("<BBBBIQ", 1, kind, SEGMENT_BITS, 0, 0, size + 3)
    return header + records.tobytes() + data[:used].tobytes() + b"odd"


def _floats(chance: np.random.Generator, kind: Kind) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """Normal numbers, and a few far from them."""
    values = chance.standard_normal(ELEMENTS).astype(np.float32)
    values[::50] *= 1e-3
    values[7::200] *= 1e-9
    if kind is Kind.FP32:
        return values.view(np.uint8)
    if kind is Kind.BF16:
        return values.view(np.uint16)[1::2].copy().view(np.uint8)
    halves = values.astype(np.float16)
    if kind is Kind.FP16:
        return halves.view(np.uint8)
    return halves.view(np.uint8)[1::2].copy()
