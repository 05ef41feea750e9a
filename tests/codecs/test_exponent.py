"""The exponent codec restores every bit, shrinks what looks like KV, and trusts nothing."""

from __future__ import annotations

import gc
import itertools
import random
from collections.abc import Iterator
from functools import cache
from typing import get_args

import numpy as np
import pytest
from numpy.typing import NDArray

from kvwise.codecs.base import Buffers, total_bytes
from kvwise.codecs.elements import Kind
from kvwise.codecs.exponent import Exponent, Mode
from kvwise.errors import FrameError
from kvwise.testing.codecs import CodecSuite, pieces_of
from tests.codecs import exponent_reference

HOSTILE_ROUNDS = 500
EACH = list(itertools.product(get_args(Mode), Kind))
SIZES = {
    ("fixed", Kind.BF16): (1.31, 16 / 12),
    ("dense", Kind.BF16): (1.40, 16 / 11),
    ("fixed", Kind.FP16): (1.05, 16 / 15),
    ("dense", Kind.FP16): (1.11, 16 / 14),
    ("fixed", Kind.FP32): (1.13, 32 / 28),
    ("dense", Kind.FP32): (1.16, 32 / 27),
    ("fixed", Kind.E4M3): (1.0, 1.0),
    ("dense", Kind.E4M3): (1.09, 8 / 7),
    ("fixed", Kind.E5M2): (1.13, 8 / 7),
    ("dense", Kind.E5M2): (1.27, 8 / 6),
}
"""How many times smaller what looks like KV becomes, at least and less than."""


def as_kind(values: NDArray[np.float32], kind: Kind) -> bytes:
    """Floats in another kind; what has no room is cut off, what is too large is the largest."""
    bits = values.view(np.uint32)
    if kind is Kind.BF16:
        return (bits >> 16).astype(np.uint16).tobytes()
    if kind is Kind.FP32:
        return values.tobytes()
    halves = values.astype(np.float16)
    if kind is Kind.FP16:
        return halves.tobytes()
    if kind is Kind.E5M2:
        return (halves.view(np.uint16) >> 8).astype(np.uint8).tobytes()
    exponents = np.clip((bits >> 23 & 255).astype(np.int64) - 120, 0, 15)
    return (bits >> 31 << 7 | exponents << 3 | bits >> 20 & 7).astype(np.uint8).tobytes()


def like_kv(elements: int, kind: Kind, seed: int = 0) -> bytes:
    """Normal numbers of several scales, as heads have them."""
    chance = np.random.default_rng(seed)
    scales = np.repeat(chance.uniform(0.1, 8, -(-elements // 64)), 64)[:elements]
    return as_kind((chance.standard_normal(elements) * scales).astype(np.float32), kind)


def every_pattern(kind: Kind) -> bytes:
    """All patterns: NaN with every payload, both infinities and zeros, denormals.

    Of FP32 it is all upper halves, each with another lower half.
    """
    if kind.bytes == 1:
        return bytes(range(256)) * 256
    if kind.bytes == 2:
        return np.arange(1 << 16, dtype=np.uint16).tobytes()
    lows = np.random.default_rng(1).permutation(1 << 16)
    return (np.arange(1 << 16) << 16 | lows).astype(np.uint32).tobytes()


def spiked(every: int, kind: Kind, elements: int = 1 << 18) -> bytes:
    """What looks like KV, with all patterns in between, one in so many elements."""
    mixed = np.frombuffer(like_kv(elements, kind), np.uint8).reshape(-1, kind.bytes).copy()
    patterns = np.frombuffer(every_pattern(kind), np.uint8).reshape(-1, kind.bytes)
    places = np.arange(0, elements, every)
    mixed[places] = patterns[np.arange(len(places)) * 257 % len(patterns)]
    return mixed.tobytes()


@cache
def payloads(kind: Kind) -> tuple[bytes, ...]:
    """What it must carry."""
    noise = random.Random(1)
    patterns = every_pattern(kind)
    return (
        *(b"", b"\x01", bytes(127), bytes(128), bytes(70_000), noise.randbytes(70_000)),
        *(patterns, patterns * 3, patterns[::-1], b"\x80" + patterns),
        *(like_kv(1 << 17, kind), like_kv(1 << 15, kind) + b"odd"),
        like_kv(16_384 * 3 + 64 * 5 + 17, kind),
        *(spiked(every, kind) for every in (7, 29, 1000)),
        bytes(80_000) + like_kv(40_000, kind),
    )


def written(codec: Exponent, data: bytes) -> bytes:
    """What it stores, joined."""
    return b"".join(codec.encode(pieces_of(data)))


def restored(codec: Exponent, stored: Buffers, size_bytes: int) -> bytes:
    """What it makes of stored bytes."""
    back = pieces_of(bytes(size_bytes))
    codec.decode(stored, back)
    return bytes(back[0])


class TestExponent(CodecSuite):
    """The suite that every codec inherits, for each mode and kind of element."""

    mode: Mode
    kind: Kind

    @pytest.fixture(autouse=True, params=EACH, ids=lambda pair: f"{pair[0]}-{pair[1].value}")
    def choose(self, request: pytest.FixtureRequest) -> None:
        """Mode and kind under test."""
        self.mode, self.kind = request.param

    def codec(self) -> Exponent:
        """The codec under test."""
        return Exponent(self.mode, self.kind)

    def payloads(self) -> Iterator[bytes]:
        """All but the smallest, which the suite cannot damage."""
        yield from (data for data in payloads(self.kind) if len(data) > 1)

    def test_size(self) -> None:
        """What looks like KV takes little more than the bits that its mode counts on."""
        data = like_kv(1 << 18, self.kind)
        least, most = SIZES[self.mode, self.kind]
        ratio = len(data) / len(written(self.codec(), data))

        assert least <= ratio < most or ratio == least == most

    def test_the_format_is_what_it_is_said_to_be(self) -> None:
        """A reader that shares no line with the codec restores what it writes."""
        tried = 0
        for data in (spiked(29, self.kind, 40_000) + b"odd", like_kv(70_000, self.kind)):
            payload = pieces_of(data)
            stored = self.codec().encode(payload)
            if stored is not payload:
                assert exponent_reference.restored(b"".join(stored)) == data
                tried += 1

        assert tried or SIZES[self.mode, self.kind] == (1.0, 1.0)

    def test_any_other_codec_of_it_reads_that_too(self) -> None:
        """What is written is read whatever mode and kind the reader would write."""
        data = like_kv(1 << 16, self.kind)
        payload = pieces_of(data)
        stored = self.codec().encode(payload)
        for mode, kind in EACH:
            assert stored is payload or restored(Exponent(mode, kind), stored, len(data)) == data

    def test_writing_again_gives_the_same_bytes(self) -> None:
        """Memory that held something else before leaves no trace of it."""
        codec, data = self.codec(), spiked(29, self.kind, 1 << 16)
        first = written(codec, data)
        for other in (every_pattern(self.kind), bytes(1 << 17), like_kv(1 << 17, self.kind, 5)):
            written(codec, other)

            assert written(codec, data) == first

    def test_noise_is_stored_as_it_is(self) -> None:
        """What cannot shrink is the payload itself."""
        payload = pieces_of(random.Random(3).randbytes(1 << 18))

        assert self.codec().encode(payload) is payload

    def test_only_whole_sizes_are_read(self) -> None:
        """Bytes written for another size, cut short or followed by more are refused."""
        data, codec = like_kv(1 << 16, self.kind), self.codec()
        stored = written(codec, data)
        for wrong, size_bytes in ((stored, len(data) - 2), (stored[:-1], len(data))):
            with pytest.raises(FrameError):
                restored(codec, pieces_of(wrong), size_bytes)
        with pytest.raises(FrameError):
            restored(codec, pieces_of(stored + bytes(8)), len(data))

    def test_hostile_records(self) -> None:
        """Whatever records and data say, nothing but `FrameError` comes out."""
        chance, data, codec = random.Random(5), spiked(29, self.kind, 1 << 15), self.codec()
        stored = written(codec, data)
        refused = 0
        for _ in range(HOSTILE_ROUNDS):
            damaged = bytearray(stored)
            for _ in range(chance.randrange(1, 4)):
                end = chance.choice((16, 48, len(stored)))
                damaged[chance.randrange(end)] = chance.randrange(256)
            try:
                restored(codec, pieces_of(bytes(damaged)), len(data))
            except FrameError:
                refused += 1

        assert refused > HOSTILE_ROUNDS // 4


@pytest.mark.parametrize("mode", get_args(Mode))
def test_random_fp32(mode: Mode) -> None:
    """Any bits of 32 come back, where the part that shrinks makes the codec write them."""
    noise = np.random.default_rng(9).integers(0, 1 << 32, 1 << 18, np.uint32)
    data = like_kv(1 << 18, Kind.FP32) + noise.tobytes()
    stored = Exponent(mode, Kind.FP32).encode(pieces_of(data))

    assert total_bytes(stored) < len(data)
    assert restored(Exponent(mode, Kind.FP32), stored, len(data)) == data


@pytest.mark.parametrize("mode", get_args(Mode))
def test_a_part_that_does_not_shrink_costs_its_record(mode: Mode) -> None:
    """Half KV and half noise: the noise is stored as it is, beside a record of 16 bytes."""
    codec, kv = Exponent(mode, Kind.BF16), like_kv(1 << 16, Kind.BF16)
    noise = random.Random(4).randbytes(1 << 17)
    alone, both = written(codec, kv), written(codec, kv + noise)

    assert len(both) - len(alone) == len(noise) + 16 * (len(noise) >> 15)


def test_constants_take_sign_and_mantissa() -> None:
    """One number again and again takes what its other bits take, or little more."""
    data = as_kind(np.full(1 << 17, 3.5, np.float32), Kind.BF16)

    assert len(written(Exponent("fixed", Kind.BF16), data)) < len(data) * 0.77
    assert len(written(Exponent("dense", Kind.BF16), data)) < len(data) * 0.70


def test_what_was_written_stays_while_it_is_looked_at() -> None:
    """Memory is used again only once nothing made of it is left, however little that is."""
    codec, data = Exponent("fixed", Kind.BF16), like_kv(1 << 17, Kind.BF16)
    (stored,) = codec.encode(pieces_of(data))
    address = np.frombuffer(stored, np.uint8).ctypes.data
    part, whole = stored[4096:8192], bytes(stored)
    del stored
    gc.collect()
    for seed in range(1, 4):
        (other,) = codec.encode(pieces_of(like_kv(1 << 17, Kind.BF16, seed)))

        assert np.frombuffer(other, np.uint8).ctypes.data != address
        assert bytes(part) == whole[4096:8192]


def test_golden_bytes() -> None:
    """The format is what the module says, to the byte: a few elements by hand."""
    ones = np.full(64, 0x3F80, np.uint16)
    ones[5], ones[20] = 0xBF81, 0x0000
    data = np.concatenate([ones, np.full(16_384 - 64, 0x3F80, np.uint16)]).tobytes()
    stored = written(Exponent("fixed", Kind.BF16), data)

    assert stored[:16] == bytes([1, 0, 14, 0, 0, 0, 0, 0]) + len(data).to_bytes(8, "little")
    mode, base, escapes, rare = stored[16], stored[17], stored[18:20], stored[20:22]
    assert (mode, escapes, rare) == (1, b"\x01\x00", bytes(2))
    codes, rest = stored[32 : 32 + 8192], stored[32 + 8192 : 32 + 24_576]
    assert base <= 127 < base + 16
    assert codes[:2] == bytes([(127 - base) * 17] * 2)
    assert rest[10] == 0x81
    assert rest[11] == 0
    assert stored[32 + 24_576 : 32 + 24_578] == b"\x14\x00"
    assert stored[32 + 24_584] == 0
    assert total_bytes([memoryview(stored)]) == 32 + 24_576 + 16
