"""NVFP4 rounds as its definition says, takes 4.5 bits an element, and stays within its bound."""

from __future__ import annotations

import random
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from kvwise.codecs.elements import Elements, Kind
from kvwise.codecs.nvfp4 import Nvfp4
from kvwise.errors import ConfigError, FrameError
from kvwise.testing.codecs import LossyCodecSuite, pieces_of, read_as, written_as
from tests.codecs import small_floats as oracle

KV = Elements(Kind.BF16, 6144, 3, 2048)
BLOCK = 16
HEADER_BYTES = 32
PEAK = 6.0 * 448.0


def back(codec: Nvfp4, data: bytes) -> bytes:
    """What comes back of a payload that was encoded."""
    payload, restored = pieces_of(data), pieces_of(bytes(len(data)))
    stored = codec.encode(payload)
    assert stored is not payload
    codec.decode(stored, restored)
    return bytes(restored[0])


def allowed(values: NDArray[np.float64], kind: Kind) -> NDArray[np.float64]:
    """The error stated for each element of tensors, one in each row."""
    blocks = np.abs(values).reshape(len(values), -1, BLOCK)
    scales = np.abs(values).max(axis=1) / PEAK * (1 + 2**-15)
    scales = np.maximum(scales, oracle.LEAST_SCALE)[:, None, None]
    least = 2.0**-25 if kind is Kind.FP16 else 0.0
    stated = blocks / 5 + blocks.max(axis=2, keepdims=True) / 22 + scales / 170 + least
    return np.asarray(stated.reshape(values.shape), np.float64)


class Suite(LossyCodecSuite):
    """The suite that every lossy codec inherits."""

    elements = KV

    def codec(self) -> Nvfp4:
        return Nvfp4(self.elements)

    def allowed(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        return allowed(values, self.elements.kind)


class TestBf16(Suite):
    """Elements as most engines have them."""


class TestFp16(Suite):
    """Elements of 16 bits with few for their exponents."""

    elements = Elements(Kind.FP16, 6144, 3, 2048)


class TestFp32(Suite):
    """Elements of 32 bits."""

    elements = Elements(Kind.FP32, 6144, 3, 2048)


def wanted(row: list[float]) -> tuple[float, list[int], list[int], list[int]]:
    """Scale, scales of blocks, codes and restored BF16 of a tensor, straight from the definition.

    Signs are in the fourth bit of codes.
    """
    scale = oracle.scale(max(abs(one) for one in row), PEAK)
    scales, codes, restored = [], [], []
    for start in range(0, len(row), BLOCK):
        block = row[start : start + BLOCK]
        peak = max(abs(one) for one in block)
        scales.append(oracle.nearest(oracle.E4M3, oracle.divided(peak, 6 * scale)))
        own = oracle.E4M3[scales[-1]] * scale
        for one in block:
            code = oracle.nearest(oracle.E2M1, oracle.divided(one, own))
            sign = bool(np.signbit(one))
            codes.append(code | sign << 3)
            restored.append(oracle.bf16((-1.0 if sign else 1.0) * oracle.E2M1[code] * own))
    return scale, scales, codes, restored


def test_rounds_as_the_definition_says() -> None:
    """Blocks of all sizes in a tensor get the scales, codes and elements that a search finds."""
    chance = np.random.default_rng(3)
    spread = np.repeat(np.exp2(chance.uniform(-24, 3, (4, 384))), BLOCK, axis=1)
    data = written_as(Kind.BF16, chance.standard_normal((4, 6144)) * spread)
    (stored,) = Nvfp4(KV).encode(pieces_of(data))
    restored = np.frombuffer(back(Nvfp4(KV), data), np.uint16).reshape(4, -1)
    begin = HEADER_BYTES + 4 * 4
    scales = np.frombuffer(stored[HEADER_BYTES:begin], np.float32)
    tensors = np.frombuffer(stored[begin:], np.uint8).reshape(4, -1)

    seen = set()
    for at, row in enumerate(read_as(Kind.BF16, data).reshape(4, -1).tolist()):
        scale, block_scales, codes, elements = wanted(row)
        assert scales[at] == scale
        assert tensors[at, :384].tolist() == block_scales
        pairs = zip(codes[::2], codes[1::2], strict=True)
        assert tensors[at, 384:].tolist() == [low | high << 4 for low, high in pairs]
        assert restored[at].tolist() == elements
        seen |= set(codes) | {0x100 + code for code in block_scales}
    assert set(range(16)) <= seen
    assert {0x100, 0x101, 0x107, 0x108, 0x17E} <= seen


@given(data=st.data(), kind=st.sampled_from([Kind.BF16, Kind.FP16, Kind.FP32]))
def test_errors_are_as_stated_for_any_numbers(data: st.DataObject, kind: Kind) -> None:
    """Whatever finite numbers a tensor has, each comes back within the bound of its block."""
    finite = st.floats(width=16 if kind is Kind.FP16 else 32, allow_nan=False, allow_infinity=False)
    drawn = data.draw(st.lists(finite, min_size=1, max_size=64))
    before = read_as(kind, written_as(kind, np.resize(np.array(drawn), 8192)))
    before[np.abs(before) > 2.0**127] = 0
    codec = Nvfp4(Elements(kind, 8192, 1, 8192))
    after = read_as(kind, back(codec, written_as(kind, before)))

    assert (np.abs(after - before)[None] <= allowed(before[None], kind)).all()


def test_takes_four_and_a_half_bits() -> None:
    """Besides 32 bytes of header and 4 for a tensor, an element takes 4.5 bits: 3.56 of BF16."""
    data = written_as(Kind.BF16, np.random.default_rng(4).standard_normal((60, 6144)))
    (stored,) = Nvfp4(KV).encode(pieces_of(data))

    assert stored.nbytes == 32 + 60 * 4 + 60 * 6144 * 9 // 16
    assert len(data) / stored.nbytes == pytest.approx(32 / 9, rel=0.002)


def test_golden_bytes() -> None:
    """The format is what the module says, to the byte; the first of two is in the lower half."""
    values = np.zeros((4, 4096))
    values[:, :2] = [448 * 6, -448]
    values[:, 16:20] = [6, -4, 1.25, 1.75]
    (stored,) = Nvfp4(Elements(Kind.BF16, 4096, 1, 4096)).encode(
        pieces_of(written_as(Kind.BF16, values))
    )
    header = struct.pack("<BBBBIQQQ", 1, 0, 2, 0, 1, 4 * 8192, 4096, 16)
    codes = 48 + 256

    assert bytes(stored[:48]) == header + struct.pack("<4f", 1, 1, 1, 1)
    assert bytes(stored[48:51]) == bytes([0x7E, 0x38, 0])
    assert bytes(stored[codes : codes + 3]) == bytes([0xA7, 0, 0])
    assert bytes(stored[codes + 8 : codes + 10]) == bytes([0xE7, 0x42])


@pytest.mark.parametrize(
    ("elements", "said"),
    [
        (Elements(Kind.E5M2, 64, 1, 64), "hint: this codec takes bf16, fp16, fp32, so"),
        (Elements(Kind.BF16, 100, 1, 100), "hint: NVFP4 takes 16 elements at a time"),
        (Elements(Kind.BF16, 0, 1, 1), "no whole number"),
    ],
)
def test_what_cannot_be_is_refused(elements: Elements, said: str) -> None:
    """Elements without a scale and tensors that are no blocks are refused in words."""
    with pytest.raises(ConfigError, match=said):
        Nvfp4(elements)


def test_damage_is_refused() -> None:
    """A header of another form, scales that cannot be and sizes that do not fit are seen."""
    payload = written_as(Kind.BF16, np.ones((4, KV.tensor_elements)))
    stored = bytes(Nvfp4(KV).encode(pieces_of(payload))[0])
    wrong = [
        stored[:at] + bytes([value]) + stored[at + 1 :]
        for at, value in (
            (0, 2),
            (1, 3),
            (2, 0),
            (3, 1),
            (4, 2),
            (8, 1),
            (16, 1),
            (24, 8),
            (48, 0x7F),
            (48, 0x80),
        )
    ]
    scales = (0.0, -1.0, float("nan"), float("inf"), 2.0**-101, 2.0**127)
    wrong += [stored[:32] + struct.pack("<f", scale) + stored[36:] for scale in scales]
    for one in [*wrong, stored[:-1], stored + b"\0", stored[:31]]:
        with pytest.raises(FrameError):
            Nvfp4(KV).decode(pieces_of(one), pieces_of(bytes(len(payload))))


def test_hostile_bytes() -> None:
    """Whatever header, scales and codes say, nothing but `FrameError` comes out."""
    chance, refused = random.Random(5), 0
    payload = written_as(Kind.BF16, np.ones((4, KV.tensor_elements)))
    stored = bytes(Nvfp4(KV).encode(pieces_of(payload))[0])
    for _ in range(2000):
        changed = bytearray(stored)
        for _ in range(chance.randrange(1, 4)):
            end = chance.choice((32, 48, len(stored)))
            changed[chance.randrange(end)] = chance.randrange(256)
        try:
            Nvfp4(KV).decode(pieces_of(bytes(changed)), pieces_of(bytes(len(payload))))
        except FrameError:
            refused += 1

    assert refused > 500
