"""Owns the proof that a GPU writes and reads exponents as the CPU does, byte for byte.

Kernels run under Triton's interpreter, and compile for real GPUs. It says nothing about speed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from kvwise.codecs.elements import Kind
from kvwise.codecs.exponent import Exponent, Mode
from kvwise.errors import FrameError
from kvwise.testing.codecs import pieces_of
from tests.codecs_gpu.running import run_cases

SEGMENT = 16_384
DAMAGES = 24
MODES: tuple[Mode, ...] = ("fixed", "dense")
KEPT = {f"{mode}|bf16|{name}" for mode in MODES for name in ("noise", "small", "empty", "nan")}
KEPT |= {"fixed|e4m3|narrow", "fixed|e5m2|narrow"}
"""What does not shrink, by a block at least."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def like_kv(elements: int) -> NDArray[np.float32]:
    """Normal numbers of several scales, as heads have them."""
    chance = np.random.default_rng(elements)
    scales = np.repeat(chance.uniform(0.1, 8, -(-elements // 64)), 64)[:elements]
    return (chance.standard_normal(elements) * scales).astype(np.float32)


def bf16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The upper halves of floats."""
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def spiked(elements: int, every: int) -> NDArray[np.uint16]:
    """BF16 like KV, with any patterns in between: NaN, infinities, zeros, denormals."""
    found = bf16(like_kv(elements))
    places = np.arange(0, elements, every)
    found[places] = np.arange(len(places)) * 257 % (1 << 16)
    return found


def short(elements: int, exponent_at: int, every: int) -> bytes:
    """Floats of 8 bits with three exponents for the most part, any pattern in between."""
    chance = np.random.default_rng(exponent_at)
    mantissa = chance.integers(0, 1 << exponent_at, elements)
    codes = chance.integers(5, 8, elements) << exponent_at | mantissa
    codes |= chance.integers(0, 2, elements) << 7
    codes[::every] = np.arange(0, elements, every) % 256
    return codes.astype(np.uint8).tobytes()


def payloads() -> Iterator[tuple[str, Kind, bytes]]:
    """What must be the same on both sides, with names."""
    noise = random.Random(1).randbytes(2 * SEGMENT)
    whole = bf16(like_kv(SEGMENT))
    yield "kv", Kind.BF16, bf16(like_kv(SEGMENT + 64 * 65 + 17)).tobytes() + b"odd"
    yield "many escapes", Kind.BF16, spiked(SEGMENT, 29).tobytes()
    yield "too many", Kind.BF16, whole.tobytes() + spiked(SEGMENT, 7).tobytes()
    yield "noise between", Kind.BF16, whole.tobytes() + noise + whole[::-1].tobytes()
    yield "noise", Kind.BF16, noise
    yield "constant", Kind.BF16, np.full(SEGMENT, 0x4060, np.uint16).tobytes()
    yield "zeros", Kind.BF16, bytes(2 * SEGMENT + 2)
    yield "nan", Kind.BF16, np.full(SEGMENT, 0xFFC1, np.uint16).tobytes()
    yield "small", Kind.BF16, bytes(100)
    yield "empty", Kind.BF16, b""
    yield "kv", Kind.FP16, like_kv(2 * SEGMENT + 64 * 64 + 5).astype(np.float16).tobytes()
    yield "kv", Kind.FP32, like_kv(64 * 160 + 5).tobytes() + b"odd"
    yield "noise between", Kind.FP32, like_kv(SEGMENT).tobytes() + 2 * noise
    yield "narrow", Kind.E4M3, short(2 * SEGMENT + 64 * 160 + 1, 3, 197)
    yield "narrow", Kind.E5M2, short(SEGMENT + 64 * 80 + 1, 2, 37)


def damaged(chance: random.Random, stored: bytes) -> bytes:
    """One to three bytes changed, where it hurts."""
    changed, end = bytearray(stored), len(stored)
    for _ in range(chance.randrange(1, 4)):
        low, high = chance.choice(((0, 16), (16, 32), (32, end), (end - 600, end)))
        changed[chance.randrange(low, high)] = chance.randrange(256)
    return bytes(changed)


def array(data: bytes) -> NDArray[np.uint8]:
    """Bytes as they travel."""
    return np.frombuffer(data, dtype=np.uint8)


def damages(mode: Mode) -> Iterator[tuple[bytes, bytes, int]]:
    """Damaged bytes, what the CPU makes of them (nothing if it refuses), and the payload's size."""
    codec, chance = Exponent(mode, Kind.BF16), random.Random(2)
    good = spiked(64 * 170 + 5, 29).tobytes()
    stored = b"".join(codec.encode(pieces_of(good)))
    for _ in range(DAMAGES):
        wrong, back = damaged(chance, stored), pieces_of(bytes(len(good)))
        try:
            codec.decode(pieces_of(wrong), back)
            expected = bytes(back[0])
        except FrameError:
            expected = b""
        yield wrong, expected, len(good)


def made() -> dict[str, NDArray[Any]]:
    """All cases, with what the CPU makes of them."""
    cases: dict[str, NDArray[Any]] = {}
    for mode in MODES:
        for name, kind, data in payloads():
            key = f"exponent|{mode}|{kind.value}|{name}"
            stored = b"".join(Exponent(mode, kind).encode(pieces_of(data)))
            cases |= {f"data:{key}": array(data), f"stored:{key}": array(stored)}
            cases[f"restored:{key}"] = array(data)
        for number, (wrong, expected, size_bytes) in enumerate(damages(mode)):
            key = f"exponent|{mode}|{number}"
            cases |= {f"damaged:{key}": array(wrong), f"expected:{key}": array(expected)}
            cases[f"size:{key}"] = np.array(size_bytes)
    return cases


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the kernels make of all cases under the interpreter."""
    return run_cases(tmp_path_factory.mktemp("exponent"), "interpret", made())


def test_bytes_are_those_of_the_cpu(interpreted: dict[str, Any]) -> None:
    """Each payload is written as the CPU writes it and read back, in both modes."""
    trips = interpreted["trips"]
    kept = {name.partition("|")[2] for name, trip in trips.items() if trip["kept"]}

    assert len(trips) == len(MODES) * len(list(payloads()))
    assert kept == KEPT
    for kind in ("written_wrong", "read_wrong", "guards"):
        assert [name for name, trip in trips.items() if trip.get(kind)] == []


def test_damaged_bytes_are_refused_or_read_as_the_cpu_reads_them(
    interpreted: dict[str, Any],
) -> None:
    """What the CPU refuses is refused; what both read is the same; no byte beside is touched."""
    found = interpreted["verdicts"]

    assert found["both_read"] > DAMAGES // 10
    assert found["both_refuse"] > DAMAGES // 3
    assert (found.get("refused_less", 0), found.get("otherwise", 0), found["guards"]) == (0, 0, 0)
