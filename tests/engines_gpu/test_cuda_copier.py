"""Owns the proof that the copy path is exact and ordered on a device that runs as late as it can.

It says nothing about speed, and nothing about a real GPU.
"""

from __future__ import annotations

import logging
import threading
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwise.engines.copying import CopyPlan
from kvwise.engines.cuda import CudaCopier, Limits
from kvwise.engines.host_copy import HostCopier
from kvwise.errors import BugError, EngineError
from tests.engines_gpu.plans import Job, Shape, shapes
from tests.engines_gpu.virtual_gpu import VirtualGpu, VirtualLane, move

SMALL = Shape(groups=((64, 64, 64),), blocks_per_chunk=2, chunks=3, page_bytes=128, ranks=1)


def ignore(_layer: int) -> None:
    """Nobody waits for this layer."""


def unexpected(layer: int) -> None:
    """Nobody may be told that this layer arrived."""
    pytest.fail(f"layer {layer} was reported")


def fill(job: Job, value: int) -> None:
    """What a kernel of the engine does: write KV."""
    for tensor in job.tensors:
        tensor[...] = value


def copier_for(gpu: VirtualGpu, job: Job, limits: Limits) -> CudaCopier:
    """A copier that knows the job's arena."""
    copier = CudaCopier(gpu, limits)
    copier.pin(job.arena_address, job.arena.nbytes)
    return copier


def tiny(staging_bytes: int = 256, slices: int = 2, deadline_s: float = 20.0) -> Limits:
    """Limits that make many batches out of a small job."""
    return Limits(staging_bytes, staging_bytes * slices, deadline_s)


@pytest.fixture
def job() -> Job:
    """A small job."""
    return Job(SMALL, seed=1)


@given(
    shapes(),
    st.integers(0, 2**32),
    st.sampled_from([16, 80, 256, 4096]),
    st.sampled_from([1, 3]),
    st.sampled_from([0, 300, 1 << 60]),
)
def test_bytes_are_those_of_a_plain_loop(
    shape: Shape, seed: int, staging: int, slices: int, pinnable: int
) -> None:
    """Any job, batch size and amount of pinned memory moves the same bytes as the host's copier."""
    real, plain = Job(shape, seed), Job(shape, seed)
    gpu = VirtualGpu(seed, pinnable=pinnable)
    copier = copier_for(gpu, real, tiny(staging, slices))

    copier.store(real.plan, copier.fence())
    HostCopier().store(plain.plan, object())
    assert real.arena.tobytes() == plain.arena.tobytes()

    for job in (real, plain):
        job.scramble(seed + 1)
    copier.load(real.plan, copier.fence(), ignore)
    HostCopier().load(plain.plan, object(), ignore)
    assert real.device() == plain.device()

    copier.close()
    assert gpu.registered == {}


@given(shapes(), st.integers(0, 2**32))
def test_layers_are_reported_once_in_order_when_they_are_there(shape: Shape, seed: int) -> None:
    """At the report of a layer its last byte has arrived, and no layer is left out."""
    job, expected = Job(shape, seed), Job(shape, seed)
    HostCopier().load(expected.plan, object(), ignore)
    reported = []

    def on_layer(layer: int) -> None:
        reported.append(layer)
        assert job.tensors[layer].tobytes() == expected.tensors[layer].tobytes()

    copier = copier_for(VirtualGpu(seed), job, tiny())
    copier.load(job.plan, copier.fence(), on_layer)

    assert reported == list(range(len(job.tensors)))


@pytest.mark.pain("W9")
@pytest.mark.parametrize("seed", range(20))
def test_store_sees_what_the_engine_had_queued(job: Job, seed: int) -> None:
    """KV that a kernel before the fence still has to write is what gets stored (W9)."""
    gpu = VirtualGpu(seed)
    copier = copier_for(gpu, job, tiny())
    gpu.engine.put(partial(fill, job, 7))

    copier.store(job.plan, copier.fence())

    starts = (job.plan.arena - job.arena_address).tolist()
    stored = [job.arena[a : a + n] for a, n in zip(starts, job.plan.sizes.tolist(), strict=True)]
    assert all((part == 7).all() for part in stored)


@pytest.mark.pain("W9")
@pytest.mark.parametrize("seed", range(20))
def test_load_does_not_overtake_the_engine(job: Job, seed: int) -> None:
    """A kernel before the fence still reads the old bytes of blocks that are loaded over (W9)."""
    gpu = VirtualGpu(seed)
    copier = copier_for(gpu, job, tiny())
    before, seen = job.device(), []
    gpu.engine.put(lambda: seen.append(job.device()))

    copier.load(job.plan, copier.fence(), ignore)

    assert seen == [before]
    assert job.device() != before


@pytest.mark.parametrize("call", ["load", "store"])
@pytest.mark.parametrize("fail_at", range(1, 7))
def test_a_failed_call_leaves_nothing_under_way(job: Job, call: str, fail_at: int) -> None:
    """After a refusal by the driver in mid-call, nothing moves any more and the next call works."""
    gpu = VirtualGpu(fail_at)
    copier = copier_for(gpu, job, tiny())
    for lane in gpu.lanes:
        lane.fail_at = fail_at

    with pytest.raises(EngineError, match="refused"):
        run(copier, call, job)
    left = (job.arena.tobytes(), job.device())
    gpu.run_all()

    assert (job.arena.tobytes(), job.device()) == left
    run(copier, call, job)
    assert all(lane.idle for lane in gpu.lanes)


def run(copier: CudaCopier, call: str, job: Job) -> None:
    """Call `load` or `store`."""
    if call == "load":
        copier.load(job.plan, copier.fence(), ignore)
    else:
        copier.store(job.plan, copier.fence())


@pytest.mark.parametrize("call", ["load", "store"])
def test_a_device_that_stops_is_given_up(
    job: Job, call: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A stuck stream ends in an error within the deadline; later calls are refused at once."""
    gpu = VirtualGpu(3)
    copier = copier_for(gpu, job, tiny(deadline_s=0.05))
    for lane in gpu.lanes:
        lane.stream.stopped = True

    with pytest.raises(EngineError, match="did not finish"):
        run(copier, call, job)
    with pytest.raises(EngineError, match="out of use"):
        run(copier, call, job)
    with caplog.at_level(logging.ERROR):
        copier.close()

    assert "stays pinned" in caplog.text
    assert gpu.registered


@pytest.mark.parametrize("call", ["load", "store"])
def test_a_device_that_fails_is_given_up(job: Job, call: str) -> None:
    """A failed kernel ends in an error, never in a report that bytes arrived."""
    gpu = VirtualGpu(3)
    copier = copier_for(gpu, job, tiny())
    gpu.dead = True

    with pytest.raises(EngineError, match="failed"):
        copier.load(job.plan, copier.fence(), unexpected)
    with pytest.raises(EngineError, match="out of use"):
        run(copier, call, job)


def test_a_reporter_that_fails_leaves_nothing_under_way(job: Job) -> None:
    """An error in the caller's own code ends the load cleanly."""
    gpu = VirtualGpu(5)
    copier = copier_for(gpu, job, tiny())

    def on_layer(_layer: int) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        copier.load(job.plan, copier.fence(), on_layer)
    assert all(lane.idle for lane in gpu.lanes)


def test_calls_from_many_threads_do_not_mix() -> None:
    """Loads and stores at the same time, several each way, all move their own bytes."""
    jobs = [Job(SMALL, seed) for seed in range(8)]
    expected = [Job(SMALL, seed) for seed in range(8)]
    arena = np.concatenate([job.arena for job in jobs])
    gpu = VirtualGpu(11)
    copier = CudaCopier(gpu, tiny())
    copier.pin(int(arena.ctypes.data), arena.nbytes)
    plans = []
    for nth, (job, plain) in enumerate(zip(jobs, expected, strict=True)):
        shift = int(arena.ctypes.data) + nth * job.arena.nbytes - job.arena_address
        plan = CopyPlan(job.plan.device, job.plan.arena + shift, job.plan.sizes, job.plan.bounds)
        plans.append(plan)
        if nth % 2:
            HostCopier().store(plain.plan, object())
        else:
            HostCopier().load(plain.plan, object(), ignore)

    def work(nth: int) -> None:
        if nth % 2:
            copier.store(plans[nth], copier.fence())
        else:
            copier.load(plans[nth], copier.fence(), ignore)

    threads = [threading.Thread(target=work, args=(nth,)) for nth in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert arena.tobytes() == b"".join(job.arena.tobytes() for job in expected)
    assert [job.device() for job in jobs] == [job.device() for job in expected]


@pytest.mark.pain("C5")
@pytest.mark.parametrize(
    "copies",
    [
        [],
        [(0, 0, 0)],
        [(0, 0, 40)],
        [(0, 0, 0), (8, 8, 16), (70, 70, 0)],
        [(0, 64, 32), (16, 0, 32), (0, 128, 8)],
        [(0, 0, 32), (64, 16, 32), (32, 8, 16)],
        [(128, 0, 600), (0, 300, 500)],
    ],
    ids=[
        "empty",
        "zero",
        "single",
        "mixed",
        "device-overlap",
        "arena-overlap",
        "larger-than-staging",
    ],
)
@pytest.mark.parametrize("seed", range(5))
def test_odd_batches(copies: list[tuple[int, int, int]], seed: int) -> None:
    """Empty, zero-length, single and overlapping copies do what a plain loop does (C5)."""
    memory = [np.random.default_rng(n).integers(0, 256, 1024, np.uint8) for n in (1, 2)]
    plain = [m.copy() for m in memory]
    copier = CudaCopier(VirtualGpu(seed), tiny(64))
    copier.pin(int(memory[1].ctypes.data), memory[1].nbytes)
    table = np.array(copies, dtype=np.int64).reshape(-1, 3)
    plan = CopyPlan(
        table[:, 0] + memory[0].ctypes.data,
        table[:, 1] + memory[1].ctypes.data,
        table[:, 2],
        (0, len(table)),
    )

    copier.load(plan, copier.fence(), ignore)
    for device, arena, size in copies:
        move(int(plain[0].ctypes.data) + device, int(plain[1].ctypes.data) + arena, size)
    assert [m.tobytes() for m in memory] == [m.tobytes() for m in plain]

    copier.store(plan, copier.fence())
    for device, arena, size in copies:
        move(int(plain[1].ctypes.data) + arena, int(plain[0].ctypes.data) + device, size)
    assert [m.tobytes() for m in memory] == [m.tobytes() for m in plain]


@pytest.mark.pain("C10", "P4")
def test_pinning_follows_use(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is pinned before a copy needs it, and a refusal is said once."""
    gpu = VirtualGpu(1, pinnable=512)
    copier = copier_for(gpu, job, tiny())
    assert gpu.registered == {}

    with caplog.at_level(logging.WARNING):
        copier.store(job.plan, copier.fence())
        copier.load(job.plan, copier.fence(), ignore)

    assert len(gpu.registered) == 1
    assert caplog.text.count("several times slower") == 1


def test_another_arena_takes_the_place_of_the_first(job: Job) -> None:
    """Pinning a new arena unpins the old one, and copies go to the new one."""
    gpu, other = VirtualGpu(1), Job(SMALL, seed=2)
    copier = copier_for(gpu, job, tiny())
    copier.store(job.plan, copier.fence())
    copier.pin(other.arena_address, other.arena.nbytes)
    assert gpu.registered == {}

    expected = Job(SMALL, seed=2)
    HostCopier().store(expected.plan, object())
    copier.store(other.plan, copier.fence())
    assert other.arena.tobytes() == expected.arena.tobytes()


def test_a_plan_beyond_the_arena_is_a_bug(job: Job) -> None:
    """Addresses outside the pinned range are refused before anything moves."""
    gpu = VirtualGpu(1)
    copier = CudaCopier(gpu, tiny())
    with pytest.raises(BugError, match="before the arena"):
        copier.store(job.plan, copier.fence())
    copier.pin(job.arena_address, 128)
    with pytest.raises(BugError, match="beyond the arena"):
        copier.store(job.plan, copier.fence())


def test_closing_twice_and_using_after(job: Job) -> None:
    """Closing is idempotent, gives everything back, and ends the copier's use."""
    gpu = VirtualGpu(1)
    copier = copier_for(gpu, job, tiny())
    copier.store(job.plan, copier.fence())
    copier.close()
    copier.close()

    assert gpu.registered == {}
    assert all(lane.closed for lane in gpu.lanes)
    with pytest.raises(EngineError, match="closed"):
        copier.store(job.plan, copier.fence())


def test_a_lane_that_is_never_free_is_reported(job: Job) -> None:
    """A call that cannot get its turn in time fails instead of waiting for ever."""
    gpu = VirtualGpu(1)
    copier = copier_for(gpu, job, tiny(deadline_s=0.05))
    copier._stores.turn.acquire()

    with pytest.raises(EngineError, match="no turn"):
        copier.store(job.plan, copier.fence())
    copier.load(job.plan, copier.fence(), ignore)


def test_the_adversary_can_win(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the fence, the virtual GPU does mix up the engine's work and ours."""
    monkeypatch.setattr(VirtualLane, "after", lambda _self, _mark: None)
    wrong = 0
    for seed in range(20):
        gpu = VirtualGpu(seed)
        copier = copier_for(gpu, job, tiny())
        gpu.engine.put(partial(fill, job, seed))
        copier.store(job.plan, copier.fence())
        first = int(job.plan.arena[0]) - job.arena_address
        wrong += job.arena[first] != seed
        gpu.run_all()

    assert wrong > 0
