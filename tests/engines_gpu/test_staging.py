"""Owns the proof that batches fit staging and runs are as long as they can be. No bytes move."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwise.engines.copying import CopyPlan
from kvwise.engines.staging import RUN_BYTES_AIM, Staging, load_batches, store_batches, waves
from kvwise.units import KIB, MIB
from tests.engines_gpu.plans import Job, Shape, shapes

DEVICE, ARENA, STAGING = 1 << 40, 1 << 41, 1 << 42


def plan_of(layers: int, chunks: int, slice_bytes: int) -> CopyPlan:
    """Contiguous objects of `layers` slices each, as a planner orders them: layer by layer."""
    layer, chunk = np.divmod(np.arange(layers * chunks, dtype=np.int64), chunks)
    return CopyPlan(
        device=DEVICE + np.arange(layers * chunks, dtype=np.int64) * 2 * slice_bytes,
        arena=ARENA + (chunk * layers + layer) * slice_bytes,
        sizes=np.full(layers * chunks, slice_bytes, dtype=np.int64),
        bounds=tuple(range(0, layers * chunks + 1, chunks)),
    )


@given(shapes(), st.integers(0, 2**32), st.sampled_from([16, 80, 256]), st.sampled_from([1, 3]))
def test_batches_fit_and_lose_nothing(shape: Shape, seed: int, size: int, slices: int) -> None:
    """Each batch fits staging, each run fits one slice, and each byte of the plan is in one."""
    job = Job(shape, seed)
    staging = Staging(STAGING, size, job.arena_address, size * slices)
    moved = 0
    for batch in store_batches(job.plan, staging):
        assert batch.blocks.total_bytes == batch.runs.total_bytes <= size
        ends = batch.runs.targets + batch.runs.sizes
        assert (batch.runs.targets >= STAGING).all()
        assert (ends <= STAGING + size).all()
        first = (batch.runs.sources - job.arena_address) // staging.slice_bytes
        last = batch.runs.sources + batch.runs.sizes - 1 - job.arena_address
        assert (first == last // staging.slice_bytes).all()
        moved += batch.runs.total_bytes

    assert moved == job.plan.total_bytes


def test_objects_that_lie_together_become_one_run() -> None:
    """A store of neighbouring objects is one transfer for each batch, whatever the page size."""
    staging = Staging(STAGING, 32 * MIB, ARENA, 64 * MIB)
    batches = list(store_batches(plan_of(32, 64, 16 * KIB), staging))

    assert [len(batch.runs.sizes) for batch in batches] == [1]
    assert batches[0].runs.total_bytes == 32 * MIB


@pytest.mark.parametrize(
    ("slice_bytes", "expected"),
    [(16 * KIB, 8), (RUN_BYTES_AIM, 1), (4 * RUN_BYTES_AIM, 1), (1 * KIB, 32), (48 * KIB, 3)],
)
def test_waves_have_as_few_layers_as_make_long_runs(slice_bytes: int, expected: int) -> None:
    """Layers travel alone when their slices are long, and together until they are."""
    plan = plan_of(32, 64, slice_bytes)
    found = waves(plan)

    assert len(found[0]) == expected
    assert [layer for wave in found for layer in wave] == list(range(32))
    batch = next(load_batches(plan, found[0], Staging(STAGING, 64 * MIB, ARENA, 64 * MIB)))
    assert len(batch.runs.sizes) == (1 if expected == 32 else 64)


def test_a_plan_without_copies_still_has_its_layers() -> None:
    """Somebody waits for each layer, even when none of it has to be moved."""
    nothing = np.zeros(0, dtype=np.int64)
    plan = CopyPlan(nothing, nothing, nothing, (0, 0, 0, 0))

    assert [layer for wave in waves(plan) for layer in wave] == [0, 1, 2]
    assert list(store_batches(plan, Staging(STAGING, 16, ARENA, 16))) == []


def test_slices_must_be_whole_batches() -> None:
    """A staging that does not divide a slice would leave copies that cross its border."""
    with pytest.raises(ValueError, match="not whole"):
        Staging(STAGING, 48, ARENA, 64)
