"""For the day a GPU is at hand: do the codecs write the CPU's bytes there, and how fast are they?

Prints one JSON object and exits with 1 if a byte differed, or if the comparison could not have
noticed. Needs numpy, Numba, and torch with CUDA, which brings Triton. GB/s are 1e9 bytes of payload
per second; each figure is the median of rounds, beside a plain copy of the same payload within the
device in the same minute. Payloads are normal numbers of several scales, as KV has them: real KV
has other exponents, so ratios here are not what a model gets. It tunes nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from bench.gpu_check import machine, seconds_of
from kvwise.codecs import exponent_gpu, fp8_gpu, nvfp4_gpu
from kvwise.codecs.base import Codec, scratch
from kvwise.codecs.elements import Elements, Kind
from kvwise.codecs.exponent import Exponent, Mode
from kvwise.codecs.fp8 import Fp8
from kvwise.codecs.nvfp4 import BLOCK_ELEMENTS, Nvfp4
from kvwise.codecs.scaled import Shape
from kvwise.errors import FrameError
from kvwise.units import MIB

DEVICE = "cuda:0"
CHECKED_BYTES = 8 * MIB
GEOMETRY = Elements(Kind.BF16, 16_384, 8, 2048)
"""Llama-3-8B's K or V in a block of 16 tokens: 8 heads of 128, one after another."""

_TORCH = {
    Kind.BF16: torch.bfloat16,
    Kind.FP16: torch.float16,
    Kind.FP32: torch.float32,
    Kind.E4M3: torch.float8_e4m3fn,
    Kind.E5M2: torch.float8_e5m2,
}


@dataclass(frozen=True, slots=True)
class Case:
    """A codec on both sides.

    Attributes:
        name: what it is called here.
        kind: what its elements are.
        codec: the CPU's.
        encode: payload to stored bytes, or the payload.
        decode: stored bytes to payload.
    """

    name: str
    kind: Kind
    codec: Codec
    encode: Callable[[torch.Tensor], torch.Tensor]
    decode: Callable[[torch.Tensor, torch.Tensor], None]


def exponents(mode: Mode, kind: Kind) -> Case:
    """The exponent codec."""
    codec = Exponent(mode, kind)

    def encode(payload: torch.Tensor) -> torch.Tensor:
        return exponent_gpu.encode(payload, mode, kind)

    return Case(f"{codec.name}.{kind.value}", kind, codec, encode, exponent_gpu.decode)


def cases() -> Iterator[Case]:
    """All codecs, in all kinds that a cache has."""
    for kind in Kind:
        yield exponents("fixed", kind)
        yield exponents("dense", kind)
    whole = replace(GEOMETRY, heads=1, run_elements=GEOMETRY.tensor_elements)
    for form, kind in enumerate((Kind.E4M3, Kind.E5M2)):
        fp8 = Fp8(GEOMETRY, kind, "head")
        shape = Shape(form, GEOMETRY)
        yield Case(fp8.name, Kind.BF16, fp8, _with(fp8_gpu.encode, shape), fp8_gpu.decode)
    blocks = Shape(2, replace(whole, run_elements=BLOCK_ELEMENTS))
    nvfp4 = Nvfp4(whole)
    yield Case(nvfp4.name, Kind.BF16, nvfp4, _with(nvfp4_gpu.encode, blocks), nvfp4_gpu.decode)


def _with(
    encode: Callable[[torch.Tensor, Shape], torch.Tensor], shape: Shape
) -> Callable[[torch.Tensor], torch.Tensor]:
    """An encoder of one shape."""
    return lambda payload: encode(payload, shape)


def like_kv(size_bytes: int, kind: Kind, device: str) -> torch.Tensor:
    """Normal numbers, each 64 neighbours of one scale, some not finite: as bytes on the device."""
    count = size_bytes // kind.bytes
    chance = torch.Generator(device).manual_seed(1)
    scales = torch.rand(-(-count // 64), generator=chance, device=device) * 7.9 + 0.1
    values = torch.randn(count, generator=chance, device=device)
    values *= scales.repeat_interleave(64)[:count]
    values[::300_007] = float("nan")
    return values.to(_TORCH[kind]).view(torch.uint8)


def exactness(case: Case, size_bytes: int, device: str) -> dict[str, int]:
    """Bytes of both sides compared, each side reading what the other wrote."""
    payload = like_kv(size_bytes, case.kind, device)
    on_host = scratch(size_bytes)
    on_host[:] = payload.cpu().numpy().data
    found, (expected, *_) = case.encode(payload), case.codec.encode([on_host])
    if found is payload:
        return {"kept": 1, "written_wrong": int(expected is not on_host)}
    stored = torch.frombuffer(bytearray(expected), dtype=torch.uint8).to(device)
    restored, back = scratch(size_bytes), torch.empty_like(payload)
    case.codec.decode([expected], [restored])
    case.decode(stored, back)
    same = torch.frombuffer(bytearray(restored), dtype=torch.uint8)
    return {
        "kept": 0,
        "written_wrong": int(not torch.equal(found, stored)),
        "read_wrong": int(not torch.equal(back.cpu(), same)),
        "judge_slept": int(slept(case, stored, back)),
    }


def slept(case: Case, stored: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether bytes with one bit changed in the middle are read as if nothing were."""
    changed, back = stored.clone(), torch.empty_like(expected)
    changed[changed.numel() // 2] ^= 1
    try:
        case.decode(changed, back)
    except FrameError:
        return False
    return bool(torch.equal(back, expected))


def rates(case: Case, size_bytes: int) -> dict[str, Any]:
    """GB/s of payload, encoded and decoded, beside a copy within the device."""
    payload = like_kv(size_bytes, case.kind, DEVICE)
    other, stored = torch.empty_like(payload), case.encode(payload)
    seconds = {"copy": seconds_of(lambda: other.copy_(payload))}
    seconds["encode"] = seconds_of(lambda: case.encode(payload))
    if stored is not payload:
        case.decode(stored, other)
        seconds["decode"] = seconds_of(lambda: case.decode(stored, other))
    row = {f"{name}_gbps": size_bytes / taken / 1e9 for name, taken in seconds.items()}
    row |= {f"{name}_of_copy": seconds["copy"] / taken for name, taken in seconds.items()}
    return {"codec": case.name, "ratio": size_bytes / stored.numel(), **row}


def main() -> int:
    """Run everything and print what was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--size-mib", type=int, default=512, help="payload of each timed call")
    size_bytes = parser.parse_args().size_mib * MIB
    found: dict[str, Any] = {"machine": machine(), "size_bytes": size_bytes}
    found["exactness"] = {case.name: exactness(case, CHECKED_BYTES, DEVICE) for case in cases()}
    found["rows"] = [rates(case, size_bytes) for case in cases()]
    print(json.dumps(found, indent=2))
    wrong = ("written_wrong", "read_wrong", "judge_slept")
    return int(any(one.get(key) for one in found["exactness"].values() for key in wrong))


if __name__ == "__main__":
    sys.exit(main())
