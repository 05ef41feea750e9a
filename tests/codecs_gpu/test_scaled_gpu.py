"""Owns the proof that a GPU writes and reads FP8 and NVFP4 as the CPU does, byte for byte.

Kernels run under Triton's interpreter. How far from the payload that is, tests of the CPU say.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from kvwise.codecs.base import Codec
from kvwise.codecs.elements import Elements, Kind
from kvwise.codecs.fp8 import Fp8
from kvwise.codecs.nvfp4 import Nvfp4
from kvwise.errors import FrameError
from kvwise.testing.codecs import pieces_of
from tests.codecs_gpu.running import run_cases

DAMAGES = 40
TENSOR = 3072
KV = Elements(Kind.BF16, TENSOR, 3, 64)
ODD = Elements(Kind.BF16, 5001, 1, 5001)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def numbers(kind: Kind, count: int) -> bytes:
    """Normal numbers of several scales, and of none at all, in a kind of element."""
    chance = np.random.default_rng(count)
    scales = np.repeat(10.0 ** chance.uniform(-6, 3, -(-count // 64)), 64)[:count]
    values = (chance.standard_normal(count) * scales).astype(np.float32)
    values[::37], values[1::53] = 0.0, -0.0
    if kind is Kind.FP16:
        return values.astype(np.float16).tobytes()
    return values.tobytes() if kind is Kind.FP32 else bf16(values).tobytes()


def bf16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The upper halves of floats."""
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def patterns(shift: int = 0) -> bytes:
    """All finite patterns of BF16, or of FP32 whose lower half is 0."""
    every = np.arange(1 << 16, dtype=np.uint32)
    every = every[every & 0x7F80 != 0x7F80] << shift
    return bytes(every.astype(np.uint32 if shift else np.uint16).tobytes())


def spoiled(elements: Elements) -> bytes:
    """Four tensors, the second of which has a NaN and the third an infinity."""
    found = np.frombuffer(numbers(Kind.BF16, 4 * elements.tensor_elements), np.uint16).copy()
    found[elements.tensor_elements + 3], found[3 * elements.tensor_elements - 1] = 0x7FC1, 0xFF80
    return found.tobytes()


def payloads(codec: str) -> Iterator[tuple[str, Elements, int, bytes]]:
    """What must be the same on both sides: name, geometry, form and bytes."""
    form = 2 if codec == "nvfp4" else 0
    whole = replace(KV, heads=1, run_elements=TENSOR)
    small = replace(whole, tensor_elements=2048, run_elements=2048)
    yield "kv", whole, form, numbers(Kind.BF16, 3 * TENSOR) + b"odd"
    yield "patterns", small, form, patterns()
    yield "spoiled", whole, form, spoiled(whole)
    yield "zeros", whole, form, bytes(4 * TENSOR)
    yield "all minus", whole, form, b"\0\x80" * (2 * TENSOR)
    yield "kv16", replace(whole, kind=Kind.FP16), form, numbers(Kind.FP16, 3 * TENSOR) + b"!"
    yield "kv32", replace(whole, kind=Kind.FP32), form or 1, numbers(Kind.FP32, 3 * TENSOR)
    yield "small", whole, form, bytes(100)
    if codec == "fp8":
        yield "heads", KV, form, numbers(Kind.BF16, 3 * TENSOR)
        yield "heads apart", replace(KV, run_elements=1024), form, numbers(Kind.BF16, 2 * TENSOR)
        yield "wide", replace(small, kind=Kind.FP32), 1, patterns(16)
        yield "odd", ODD, form, spoiled(ODD)


def codec_of(codec: str, elements: Elements, form: int) -> Codec:
    """The CPU's codec."""
    if codec == "nvfp4":
        return Nvfp4(elements)
    return Fp8(elements, (Kind.E4M3, Kind.E5M2)[form], "head")


def array(data: bytes) -> NDArray[np.uint8]:
    """Bytes as they travel."""
    return np.frombuffer(data, dtype=np.uint8)


def read(codec: Codec, stored: bytes, size_bytes: int) -> bytes:
    """What the CPU makes of stored bytes, nothing if it refuses."""
    back = pieces_of(bytes(size_bytes))
    try:
        codec.decode(pieces_of(stored), back)
    except FrameError:
        return b""
    return bytes(back[0])


def made(name: str) -> dict[str, NDArray[Any]]:
    """All cases of a codec, with what the CPU makes of them."""
    cases: dict[str, NDArray[Any]] = {}
    for what, elements, form, data in payloads(name):
        run = 16 if name == "nvfp4" else elements.run_elements
        shape = (form, elements.kind.value, elements.tensor_elements, elements.heads, run)
        key = "|".join(str(part) for part in (name, *shape, what))
        codec, payload = codec_of(name, elements, form), pieces_of(data)
        found = codec.encode(payload)
        stored = b"".join(found)
        restored = data if found is payload else read(codec, stored, len(data))
        cases |= {f"data:{key}": array(data), f"stored:{key}": array(stored)}
        cases[f"restored:{key}"] = array(restored)
    return cases | damaged(name)


def damaged(name: str) -> dict[str, NDArray[Any]]:
    """Stored bytes with up to three changed, and what the CPU makes of them."""
    cases: dict[str, NDArray[Any]] = {}
    elements, chance = (KV if name == "fp8" else replace(KV, heads=1)), random.Random(3)
    codec, data = codec_of(name, elements, 0), spoiled(elements)
    stored = b"".join(codec.encode(pieces_of(data)))
    for number in range(DAMAGES):
        changed, end = bytearray(stored), len(stored)
        for _ in range(chance.randrange(1, 4)):
            low, high = chance.choice(((0, 32), (32, 64), (32, end), (end - 600, end)))
            changed[chance.randrange(low, high)] = chance.randrange(256)
        cut = chance.choice((end, end, end, end - 1))
        wrong, key = bytes(changed[:cut]), f"{name}|{number}"
        expected = read(codec, wrong, len(data))
        cases |= {f"damaged:{key}": array(wrong), f"expected:{key}": array(expected)}
        cases[f"size:{key}"] = np.array(len(data))
    return cases


@pytest.fixture(scope="module", params=["fp8", "nvfp4"])
def interpreted(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """What the kernels of a codec make of all cases under the interpreter."""
    answer = run_cases(tmp_path_factory.mktemp("scaled"), "interpret", made(request.param))
    return answer | {"expected": len(list(payloads(request.param)))}


def test_bytes_are_those_of_the_cpu(interpreted: dict[str, Any]) -> None:
    """Each payload is written as the CPU writes it, and read as the CPU reads it."""
    trips = interpreted["trips"]

    assert len(trips) == interpreted["expected"]
    assert {name.split("|")[-1] for name, trip in trips.items() if trip["kept"]} == {"small"}
    for kind in ("written_wrong", "read_wrong", "guards"):
        assert [name for name, trip in trips.items() if trip.get(kind)] == []


def test_damaged_bytes_are_refused_or_read_as_the_cpu_reads_them(
    interpreted: dict[str, Any],
) -> None:
    """What the CPU refuses is refused; what both read is the same; no byte beside is touched."""
    found = interpreted["verdicts"]

    assert found["both_read"] > DAMAGES // 10
    assert found["both_refuse"] > DAMAGES // 4
    assert (found.get("refused_less", 0), found.get("otherwise", 0), found["guards"]) == (0, 0, 0)
