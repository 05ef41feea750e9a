"""Run by test_triton.py in an environment that has Triton: the kernel against plain copies.

With `interpret` it runs the kernel on host memory, with `compile` it compiles it for GPUs that are
not here. It prints one JSON object and judges nothing.
"""

from __future__ import annotations

import json
import re
import sys

import numpy as np
import torch
import triton
from numpy.typing import NDArray

from kvwise.engines import paged_triton
from kvwise.engines.cuda import CudaCopier, Limits
from kvwise.engines.cuda_device import common_alignment
from kvwise.engines.staging import Rows
from kvwise.testing.paged_cases import PagedCase, random_shape
from tests.engines_gpu.virtual_gpu import VirtualGpu, VirtualLane

GPUS = (80, 90, 100)


def ignore(_layer: int) -> None:
    """Nobody waits for this layer."""


def run_kernel(rows: Rows) -> int:
    """The kernel over host memory; what it was launched with."""
    table = np.stack((rows.sources, rows.targets, rows.sizes), axis=1)
    alignment = common_alignment(table)
    longest = int(rows.sizes.max())
    paged_triton.copy_rows(torch.from_numpy(table), longest=longest, alignment=alignment)
    return alignment


class KernelLane(VirtualLane):
    """A lane of the virtual GPU whose kernel is the real one."""

    def shuffle(self, rows: Rows) -> None:
        """Put the real kernel on the stream."""
        self.stream.put(lambda: run_kernel(rows))


class KernelGpu(VirtualGpu):
    """A virtual GPU that runs the real kernel."""

    def lane(self, staging_bytes: int) -> KernelLane:
        """A lane with the real kernel."""
        self.lanes.append(KernelLane(self, staging_bytes))
        lane = self.lanes[-1]
        assert isinstance(lane, KernelLane)
        return lane


def scattered_rows(seed: int) -> dict[str, int]:
    """Rows of random sizes at random places of one alignment, tails and long rows included."""
    rng = np.random.default_rng(seed)
    step = int(rng.choice([1, 2, 4, 8, 16]))
    count = int(rng.integers(1, 6))
    tile = paged_triton.TILE_BYTES
    around = [tile - step, tile, tile + step, 2 * tile + 3 * step, step, 3 * step]
    sizes = rng.choice(around, count) // step * step
    room = int(sizes.max()) + 64
    memory = rng.integers(0, 256, (2, count, room), dtype=np.uint8)
    places = (rng.integers(0, 64, (2, count)) // step) * step
    expected = memory.copy()
    base = [int(side.ctypes.data) + np.arange(count) * room for side in memory]
    for i in range(count):
        part = memory[0, i, places[0, i] : places[0, i] + sizes[i]]
        expected[1, i, places[1, i] : places[1, i] + sizes[i]] = part
    alignment = run_kernel(Rows(base[0] + places[0], base[1] + places[1], sizes.astype(np.int64)))
    return {"alignment": alignment, "wrong": int((memory != expected).sum())}


def paged_round_trip(seed: int) -> dict[str, int]:
    """A cache in a random layout, stored and loaded through the copier with the real kernel."""
    case = PagedCase(random_shape(seed), "cpu", seed)
    arena = np.zeros(case.arena_bytes, dtype=np.uint8)
    copier = CudaCopier(KernelGpu(seed), Limits(4096, 8192))
    address = int(arena.ctypes.data)
    copier.pin(address, arena.nbytes)
    copier.store(case.plan(address), copier.fence())
    stored_wrong = case.stored_wrong(arena)
    case.clear()
    unloaded_wrong = case.loaded_wrong()
    copier.load(case.plan(address), copier.fence(), ignore)
    copier.close()
    loaded_wrong = case.loaded_wrong()
    return {
        "bytes": case.plan(address).total_bytes,
        "stored_wrong": stored_wrong,
        "loaded_wrong": loaded_wrong,
        "judged_wrong_before": unloaded_wrong,
        "judged_wrong_when_flipped": flipped_wrong(case, arena),
    }


def flipped_wrong(case: PagedCase, arena: NDArray[np.uint8]) -> int:
    """What the judge says after one bit of the first copied byte was flipped in the arena."""
    address = int(arena.ctypes.data)
    for place in (case.plan(address).arena[:1] - address).tolist():
        arena[place] ^= 1
    return case.stored_wrong(arena)


def interpret(count: int) -> dict[str, list[dict[str, int]]]:
    """The same `count` cases of each kind every time."""
    return {
        "rows": [scattered_rows(seed) for seed in range(count)],
        "paged": [paged_round_trip(seed) for seed in range(count)],
    }


def compile_for_gpus() -> dict[str, dict[str, list[str]]]:
    """The memory accesses of the machine code, by GPU and alignment."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    found: dict[str, dict[str, list[str]]] = {}
    for alignment, (word, word_bytes) in paged_triton.ALIGNMENTS.items():
        constants = {
            "WORD": word,
            "WORD_BYTES": word_bytes,
            "TILE": paged_triton.TILE_BYTES // word_bytes,
            "ALIGN": alignment,
        }
        signature = {"rows": "*i64"} | dict.fromkeys(constants, "constexpr")
        source = ASTSource(paged_triton.copy_rows_kernel, signature, constants)
        for gpu in GPUS:
            built = triton.compile(source, target=GPUTarget("cuda", gpu, 32))
            assert len(built.asm["cubin"]) > 0
            accesses = re.findall(r"(?:ld|st)\.global[.\w]*", built.asm["ptx"])
            found.setdefault(str(gpu), {})[str(alignment)] = accesses
    return found


if __name__ == "__main__":
    mode, *numbers = sys.argv[1:]
    print(json.dumps(compile_for_gpus() if mode == "compile" else interpret(int(numbers[0]))))
