"""Owns how the codecs' kernels are compiled for GPUs that are not here. It needs Triton."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kvwise.codecs import (
    exponent_gpu,
    exponent_read_gpu,
    exponent_write_gpu,
    floats_cpu,
    fp8_gpu,
    nvfp4_gpu,
    scaled_gpu,
)
from kvwise.codecs.floats_gpu import narrowing, widening
from kvwise.codecs.scaled import KINDS

GPUS = (80, 90, 100)
WARPS = {"num_warps": scaled_gpu.WARPS}
TABLE = {"records": "*i64", "begins": "*i64"}
SEGMENTS = {"count": "i32", "segment": 16_384, "kind": 0}
ELEMENTS, HALVES, OCTETS = {"elements": "*i16"}, {"data": "*i16"}, {"data": "*u8"}
FAR, DAMAGED, SIZE = {"beyond": "*u8"}, {"damaged": "*i32"}, {"element_bytes": 2}
TILE, COLUMNS = {"tile": exponent_gpu.TILE}, {"columns": exponent_gpu.COLUMNS}
SCALES = {"words": "*i16", "scales": "*fp32"}
TENSORS = SCALES | {"begins": "*i64"} | OCTETS
GEOMETRY = {"tensor": "i32", "heads": "i32", "run": "i32", "kind": 0}


def writing() -> Iterator[tuple[Any, dict[str, Any]]]:
    """Kernels of the exponent codec that write, and their arguments."""
    of = exponent_write_gpu
    looked = {"records": "*i64", "sizes": "*i64"}
    yield of.look_kernel, ELEMENTS | looked | SEGMENTS | SIZE | {"dense": True} | TILE
    yield of.write_kernel, ELEMENTS | TABLE | HALVES | SEGMENTS | SIZE | TILE
    yield of.write_lows_kernel, ELEMENTS | TABLE | HALVES | SEGMENTS | {"kind": 1} | COLUMNS
    yield of.write_dense_kernel, ELEMENTS | TABLE | HALVES | FAR | SEGMENTS | COLUMNS
    yield of.write_far_kernel, TABLE | OCTETS | FAR | SEGMENTS | {"tile": exponent_gpu.COLUMNS}


def reading() -> Iterator[tuple[Any, dict[str, Any]]]:
    """Kernels of the exponent codec that read."""
    of = exponent_read_gpu
    yield of.read_kernel, TABLE | HALVES | ELEMENTS | SEGMENTS | SIZE | TILE
    yield of.read_list_kernel, TABLE | HALVES | ELEMENTS | DAMAGED | SEGMENTS | TILE
    yield of.read_far_kernel, TABLE | OCTETS | FAR | DAMAGED | SEGMENTS | TILE
    yield of.read_dense_kernel, TABLE | HALVES | FAR | ELEMENTS | DAMAGED | SEGMENTS | COLUMNS


def scaling() -> Iterator[tuple[Any, dict[str, Any]]]:
    """Kernels of the codecs with scales."""
    of, form = floats_cpu.element(KINDS[0]), floats_cpu.E4M3
    magnitude, tile = {"magnitude": of.magnitude}, {"tile": scaled_gpu.TILE}
    peak = magnitude | {"limit": of.limit, "greatest": form.greatest}
    yield scaled_gpu.scale_kernel, SCALES | GEOMETRY | peak | tile
    yield fp8_gpu.write_kernel, TENSORS | GEOMETRY | {"form": narrowing(form)} | tile
    code = {"form": widening(form), "greatest_code": form.greatest_code}
    yield fp8_gpu.read_kernel, TENSORS | DAMAGED | GEOMETRY | code | tile
    one, tile = {"tensor": "i32", "kind": 0}, {"tile": nvfp4_gpu.BLOCKS}
    yield nvfp4_gpu.write_kernel, TENSORS | one | magnitude | tile
    yield nvfp4_gpu.read_kernel, TENSORS | DAMAGED | one | tile


def compile_all() -> dict[str, dict[str, Any]]:
    """Bytes of machine code and what it divides and fuses floats with, by kernel and GPU."""
    found: dict[str, dict[str, Any]] = {}
    for kernel, arguments in (*writing(), *reading(), *scaling()):
        constants = {key: value for key, value in arguments.items() if not isinstance(value, str)}
        types = {
            key: "constexpr" if key in constants else value for key, value in arguments.items()
        }
        source = ASTSource(kernel, types, constants)
        for gpu in GPUS:
            built = triton.compile(source, target=GPUTarget("cuda", gpu, 32), options=WARPS)
            rounded = set(re.findall(r"\b(?:div|fma|rcp)\.[.\w]*f32", built.asm["ptx"]))
            name = f"{kernel.__module__}.{kernel.__name__}.{gpu}"
            found[name] = {"bytes": len(built.asm["cubin"]), "rounded": sorted(rounded)}
    return found
