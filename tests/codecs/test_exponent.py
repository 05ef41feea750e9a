"""The exponent codec restores every bit of BF16, shrinks what looks like KV, and trusts nothing."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from kvwise.codecs.base import Buffers, total_bytes
from kvwise.codecs.exponent import Exponent, Mode
from kvwise.errors import FrameError
from kvwise.testing.codecs import CodecSuite, pieces_of

KIB = 1024
HOSTILE_ROUNDS = 2000


def bf16(values: NDArray[np.float32]) -> bytes:
    """The upper halves of floats."""
    return (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()


def like_kv(elements: int, seed: int = 0) -> bytes:
    """Normal numbers of several scales, as heads have them."""
    chance = np.random.default_rng(seed)
    scales = np.repeat(chance.uniform(0.1, 8, -(-elements // 64)), 64)[:elements]
    return bf16((chance.standard_normal(elements) * scales).astype(np.float32))


def every_pattern() -> bytes:
    """All 65,536 patterns: NaN with every payload, both infinities and zeros, denormals."""
    return np.arange(1 << 16, dtype=np.uint16).tobytes()


def spiked(every: int) -> bytes:
    """What looks like KV, with the patterns in between, one in so many elements."""
    elements = np.frombuffer(like_kv(1 << 18), dtype=np.uint16).copy()
    places = np.arange(0, len(elements), every)
    elements[places] = np.arange(len(places)) * 257 % (1 << 16)
    return elements.tobytes()


def payloads() -> Iterator[bytes]:
    """What it must carry."""
    noise = random.Random(1)
    yield from (b"", b"\x01", bytes(127), bytes(128), bytes(70_000), noise.randbytes(70_000))
    yield every_pattern()
    yield from (every_pattern() * 3, every_pattern()[::-1], b"\x80" + every_pattern())
    yield from (like_kv(1 << 17), like_kv(1 << 15) + b"odd", like_kv(16_384 * 3 + 64 * 5 + 17))
    yield from (spiked(7), spiked(29), spiked(1000), bytes(80_000) + like_kv(40_000))


def written(codec: Exponent, data: bytes) -> bytes:
    """What it stores, joined."""
    return b"".join(codec.encode(pieces_of(data)))


def restored(codec: Exponent, stored: Buffers, size_bytes: int) -> bytes:
    """What it makes of stored bytes."""
    back = pieces_of(bytes(size_bytes))
    codec.decode(stored, back)
    return bytes(back[0])


class Exponents(CodecSuite):
    """The suite that every codec inherits, with payloads that it shrinks."""

    mode: Mode

    def codec(self) -> Exponent:
        """The codec under test."""
        return Exponent(self.mode)

    def payloads(self) -> Iterator[bytes]:
        """All but the smallest, which the suite cannot damage."""
        yield from (data for data in payloads() if len(data) > 1)

    def test_the_other_mode_is_read_too(self) -> None:
        """What is written in one mode is read by a codec that writes in the other."""
        other = Exponent("dense" if self.mode == "fixed" else "fixed")
        data = like_kv(1 << 16)
        stored = self.codec().encode(pieces_of(data))

        assert restored(other, stored, len(data)) == data

    def test_noise_and_constants(self) -> None:
        """Noise is stored as it is; constants take what their signs and mantissas take, or so."""
        noise, same = random.Random(3).randbytes(1 << 18), bf16(np.full(1 << 17, 3.5, np.float32))
        payload = pieces_of(noise)

        assert self.codec().encode(payload) is payload
        assert len(written(self.codec(), same)) < len(same) * 0.77

    def test_a_part_that_does_not_shrink_costs_its_record(self) -> None:
        """Half KV and half noise: the noise is stored as it is, beside a record of 16 bytes."""
        kv, noise = like_kv(1 << 16), random.Random(4).randbytes(1 << 17)
        alone, both = written(self.codec(), kv), written(self.codec(), kv + noise)

        assert len(both) - len(alone) == len(noise) + 16 * (len(noise) >> 15)

    def test_only_whole_sizes_are_read(self) -> None:
        """Bytes written for another size, cut short or followed by more are refused."""
        data, codec = like_kv(1 << 16), self.codec()
        stored = written(codec, data)
        for wrong, size_bytes in ((stored, len(data) - 2), (stored[:-1], len(data))):
            with pytest.raises(FrameError):
                restored(codec, pieces_of(wrong), size_bytes)
        with pytest.raises(FrameError, match="damaged"):
            restored(codec, pieces_of(stored + bytes(8)), len(data))

    def test_hostile_records(self) -> None:
        """Whatever records and data say, nothing but `FrameError` comes out."""
        chance, data, codec = random.Random(5), spiked(29)[: 1 << 16], self.codec()
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


class TestFixed(Exponents):
    """Four bits for each exponent."""

    mode = "fixed"

    def test_size(self) -> None:
        """What looks like KV takes little more than three quarters."""
        data = like_kv(1 << 18)

        assert 1.31 < len(data) / len(written(self.codec(), data)) < 4 / 3


class TestDense(Exponents):
    """Three bits for most exponents."""

    mode = "dense"

    def test_size(self) -> None:
        """What looks like KV takes little more than eleven sixteenths."""
        data = like_kv(1 << 18)

        assert 1.40 < len(data) / len(written(self.codec(), data)) < 16 / 11


def test_golden_bytes() -> None:
    """The format is what the module says, to the byte: a few elements by hand."""
    ones = np.full(64, 0x3F80, np.uint16)
    ones[5], ones[20] = 0xBF81, 0x0000
    data = np.concatenate([ones, np.full(16_384 - 64, 0x3F80, np.uint16)]).tobytes()
    stored = written(Exponent("fixed"), data)

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
