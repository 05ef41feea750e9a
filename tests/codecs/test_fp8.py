"""FP8 rounds as its definition says, stays within its bounds, and keeps what has no scale."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from kvwise.codecs.elements import Elements, Kind
from kvwise.codecs.fp8 import Fp8, Scale
from kvwise.errors import ConfigError, FrameError
from kvwise.testing.codecs import LossyCodecSuite, pieces_of, read_as, written_as
from tests.codecs import small_floats as oracle

FORMS = {Kind.E4M3: (oracle.E4M3, 4, 10), Kind.E5M2: (oracle.E5M2, 3, 17)}
"""Numbers of each form, and what its error is: so many bits of an element, and of the scale."""
KV = Elements(Kind.BF16, 6144, 3, 2048)
HEADER_BYTES = 32


def back(codec: Fp8, data: bytes) -> bytes:
    """What comes back of a payload that was encoded."""
    payload, restored = pieces_of(data), pieces_of(bytes(len(data)))
    stored = codec.encode(payload)
    assert stored is not payload
    codec.decode(stored, restored)
    return bytes(restored[0])


def allowed(
    values: NDArray[np.float64], elements: Elements, form: Kind, scale: Scale
) -> NDArray[np.float64]:
    """The error stated for each element of tensors, one in each row."""
    numbers, bits, scale_bits = FORMS[form]
    heads, run = (1, 1) if scale == "tensor" else (elements.heads, elements.run_elements)
    runs = np.abs(values).reshape(len(values), -1, heads, run)
    peaks = np.broadcast_to(runs.max(axis=(1, 3), keepdims=True), runs.shape)
    scales = np.maximum(peaks / numbers[-1] * (1 + 2**-15), oracle.LEAST_SCALE)
    least = 2.0**-25 if elements.kind is Kind.FP16 else 0.0
    stated = runs * 2.0**-bits + scales * 2.0**-scale_bits + least
    return np.asarray(stated.reshape(values.shape), np.float64)


class Suite(LossyCodecSuite):
    """The suite that every lossy codec inherits."""

    elements = KV
    form = Kind.E4M3
    scale: Scale = "tensor"

    def codec(self) -> Fp8:
        return Fp8(self.elements, self.form, self.scale)

    def allowed(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        return allowed(values, self.elements, self.form, self.scale)


class TestTensor(Suite):
    """E4M3, a scale for each tensor."""


class TestHead(Suite):
    """E4M3, a scale for each head."""

    scale: Scale = "head"


class TestE5M2(Suite):
    """E5M2, heads of neighbours in turn, as some engines lay them out."""

    elements = Elements(Kind.BF16, 4096, 4, 64)
    form = Kind.E5M2
    scale: Scale = "head"


class TestFp16(Suite):
    """Elements of 16 bits with few for their exponents."""

    elements = Elements(Kind.FP16, 6144, 3, 2048)


class TestFp32(Suite):
    """Elements of 32 bits."""

    elements = Elements(Kind.FP32, 6144, 3, 2048)
    scale: Scale = "head"


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.value)
def test_every_pattern_rounds_as_the_definition_says(form: Kind) -> None:
    """All finite BF16 patterns get the scale, the code and the element that a search finds."""
    numbers, _, _ = FORMS[form]
    tensor = 2048
    patterns = np.arange(1 << 16, dtype=np.uint16).reshape(-1, tensor)
    patterns = patterns[[at for at in range(len(patterns)) if at % 16 != 15]]
    data = patterns.tobytes()
    codec = Fp8(Elements(Kind.BF16, tensor, 1, tensor), form)
    (stored,) = codec.encode(pieces_of(data))
    begin = HEADER_BYTES + 4 * len(patterns)
    scales = np.frombuffer(stored[HEADER_BYTES:begin], np.float32)
    codes = np.frombuffer(stored[begin:], np.uint8)
    wanted_scales, wanted_codes, wanted = [], [], []
    for row in read_as(Kind.BF16, data).reshape(patterns.shape).tolist():
        scale = oracle.scale(max(abs(one) for one in row), numbers[-1])
        wanted_scales.append(scale)
        for one in row:
            code, sign = oracle.nearest(numbers, oracle.divided(one, scale)), np.signbit(one)
            wanted_codes.append(code | (0x80 if sign else 0))
            wanted.append(oracle.bf16((-1.0 if sign else 1.0) * numbers[code] * scale))
    restored = np.frombuffer(back(codec, data), np.uint16)
    assert np.array_equal(scales, wanted_scales)
    assert np.flatnonzero(codes != wanted_codes).size == 0
    assert np.flatnonzero(restored != wanted).size == 0


@given(data=st.data(), kind=st.sampled_from([Kind.BF16, Kind.FP16, Kind.FP32]))
def test_errors_are_as_stated_for_any_numbers(data: st.DataObject, kind: Kind) -> None:
    """Whatever finite numbers a tensor has, each comes back within the bound of its head."""
    drawn = data.draw(
        st.lists(
            st.floats(width=16 if kind is Kind.FP16 else 32, allow_nan=False, allow_infinity=False),
            min_size=1,
            max_size=64,
        )
    )
    elements = Elements(kind, 8192, 2, 32)
    before = read_as(kind, written_as(kind, np.resize(np.array(drawn), 8192)))
    before[np.abs(before) > 2.0**127] = 0
    after = read_as(kind, back(Fp8(elements, scale="head"), written_as(kind, before)))
    errors = np.abs(after - before)[None]

    assert (errors <= allowed(before[None], elements, Kind.E4M3, "head")).all()


def test_a_head_has_a_scale_of_its_own() -> None:
    """A head a million times smaller than its neighbour survives with it, and not without it."""
    values = np.ones((4, 3, 2048))
    values[:, 1] = 2.0**-20
    data = written_as(Kind.BF16, values)
    by_head, by_tensor = (
        read_as(Kind.BF16, back(Fp8(KV, scale=scale), data)).reshape(values.shape)
        for scale in ("head", "tensor")
    )

    assert (by_head == values).all()
    assert (by_tensor[:, 1] == 0).all()


def test_huge_numbers_have_no_scale() -> None:
    """A tensor beyond 2**127 is kept as it is, so that no product can leave what is finite."""
    values = np.full(KV.tensor_elements * 4, 1.5)
    values[0] = 2.0**127 * 1.5
    data = written_as(Kind.BF16, values)
    restored = back(Fp8(KV), data)

    assert restored == data


def test_sizes() -> None:
    """A header of 32 bytes, four for each scale, a byte for each element, what is kept as it is."""
    values = np.random.default_rng(2).standard_normal((4, KV.tensor_elements))
    sizes = {}
    for scale in ("tensor", "head"):
        (stored,) = Fp8(KV, scale=scale).encode(pieces_of(written_as(Kind.BF16, values) + b"end"))
        sizes[scale] = stored.nbytes
    values[2, 5] = np.inf
    (spoiled,) = Fp8(KV).encode(pieces_of(written_as(Kind.BF16, values)))

    assert sizes == {"tensor": 32 + 4 * 4 + 4 * 6144 + 3, "head": 32 + 4 * 12 + 4 * 6144 + 3}
    assert spoiled.nbytes == 32 + 4 * 4 + 5 * 6144


def test_golden_bytes() -> None:
    """The format is what the module says, to the byte."""
    values = np.zeros((4, 4096))
    values[:, :4] = [448, -1.0, 0.0019, 17]
    (stored,) = Fp8(Elements(Kind.BF16, 4096, 2, 2048)).encode(
        pieces_of(written_as(Kind.BF16, values))
    )
    header = struct.pack("<BBBBIQQQ", 1, 0, 0, 0, 1, 4 * 8192, 4096, 4096)

    assert bytes(stored[:48]) == header + struct.pack("<4f", 1, 1, 1, 1)
    assert bytes(stored[48:54]) == bytes([0x7E, 0xB8, 0x01, 0x58, 0, 0])


@pytest.mark.parametrize(
    ("elements", "form", "said"),
    [
        (Elements(Kind.E4M3, 64, 1, 64), Kind.E4M3, "hint: this codec takes bf16, fp16, fp32, so"),
        (Elements(Kind.BF16, 0, 1, 64), Kind.E4M3, "no whole number"),
        (Elements(Kind.BF16, 100, 3, 32), Kind.E4M3, "no whole number"),
        (KV, Kind.FP16, "hint: e4m3 or e5m2"),
    ],
)
def test_what_cannot_be_is_refused(elements: Elements, form: Kind, said: str) -> None:
    """Elements without a scale, tensors that are no runs and other forms are refused in words."""
    with pytest.raises(ConfigError, match=said):
        Fp8(elements, form, "head")


def damaged() -> Iterator[bytes]:
    """Stored bytes, each with something that no encoder writes."""
    payload = pieces_of(written_as(Kind.BF16, np.ones((4, KV.tensor_elements))))
    stored = bytes(Fp8(KV, scale="head").encode(payload)[0])
    for at, bits in [(0, "<B"), (1, "<B"), (2, "<B"), (3, "<B"), (4, "<I"), (8, "<Q"), (16, "<Q")]:
        for value in (0, 1, 3, 7, 255):
            changed = bytearray(stored)
            struct.pack_into(bits, changed, at, value)
            if bytes(changed) != stored and (at, value) != (2, 1) and (at, value) != (1, 1):
                yield bytes(changed)
    for scale in (0.0, -1.0, float("nan"), float("inf"), 2.0**-101, 2.0**127):
        yield stored[:32] + struct.pack("<f", scale) + stored[36:]
    for run in (0, 7, 255):
        yield stored[:24] + struct.pack("<Q", run) + stored[32:]
    yield stored[:-1] + b"\x7f"
    yield stored[:-1]
    yield stored + b"\0"
    yield stored[:31]


def test_damage_is_refused() -> None:
    """Every field of the header, each scale, codes that are no numbers and sizes are looked at."""
    for stored in damaged():
        with pytest.raises(FrameError):
            Fp8(KV).decode(pieces_of(stored), pieces_of(bytes(4 * KV.tensor_elements * 2)))


def test_hostile_bytes() -> None:
    """Whatever header, scales and codes say, nothing but `FrameError` comes out."""
    chance, refused = random.Random(5), 0
    payload = written_as(Kind.BF16, np.ones((4, KV.tensor_elements)))
    stored = bytes(Fp8(KV, scale="head").encode(pieces_of(payload))[0])
    for _ in range(2000):
        changed = bytearray(stored)
        for _ in range(chance.randrange(1, 4)):
            end = chance.choice((32, 80, len(stored)))
            changed[chance.randrange(end)] = chance.randrange(256)
        try:
            Fp8(KV).decode(pieces_of(bytes(changed)), pieces_of(bytes(len(payload))))
        except FrameError:
            refused += 1

    assert refused > 500
