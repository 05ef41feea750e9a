"""The compiled loop against one that moves single pieces, and how its work is cut into calls."""

from __future__ import annotations

import ctypes
import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from kvwise.engines import host_copy, streaming
from kvwise.engines.copying import CopyPlan
from kvwise.engines.host_copy import HostCopier
from kvwise.engines.streaming import Streams, compiled_streams
from kvwise.units import KIB

Call = Callable[[int, int, int, int], None]

SPACE = 64 * KIB
"""Bytes between two pieces; none is longer."""

Bytes = NDArray[np.uint8]

sizes = st.one_of(
    st.integers(0, 3 * 64),
    st.integers(4 * KIB - 70, 4 * KIB + 70),
    st.integers(4 * KIB, SPACE - 64),
    st.sampled_from([4 * KIB, 24 * KIB, 32 * KIB]),
)
pieces = st.lists(st.tuples(sizes, st.integers(0, 63), st.integers(0, 63)), max_size=8)


@pytest.fixture(scope="module")
def streams() -> Streams:
    """The loop; the environment of the tests has Numba."""
    made = compiled_streams()
    assert made is not None
    return made


def _moved(
    streams: Streams, jobs: list[tuple[int, int, int]], *, keep_gil: bool
) -> tuple[Bytes, Bytes]:
    """Memory after the loop, and after a plain one; a job is a size and two shifts."""
    source = np.random.default_rng(len(jobs)).integers(0, 256, len(jobs) * SPACE + 1, np.uint8)
    target, expected = np.full(len(source), 7, np.uint8), np.full(len(source), 7, np.uint8)
    starts = np.arange(len(jobs), dtype=np.int64) * SPACE
    size, to, of = np.array(jobs, dtype=np.int64).reshape(-1, 3).T
    of, to = starts[::-1] + of, starts + to
    for place, begin, length in zip(to, of, size, strict=True):
        expected[place : place + length] = source[begin : begin + length]
    streams.move(to + target.ctypes.data, of + source.ctypes.data, size, keep_gil=keep_gil)
    return target, expected


@given(pieces, st.booleans())
def test_every_byte_arrives_and_no_other_changes(
    streams: Streams, jobs: list[tuple[int, int, int]], keep_gil: bool
) -> None:
    """Whatever the lengths and borders of pieces on either side."""
    target, expected = _moved(streams, jobs, keep_gil=keep_gil)

    assert np.array_equal(target, expected)


@pytest.mark.parametrize("keep_gil", [True, False])
@pytest.mark.parametrize("most", [1, 4 * KIB + 1, 10 * KIB, 64 * KIB])
def test_a_bound_on_a_call_loses_nothing(
    streams: Streams, keep_gil: bool, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pieces are cut where one is longer than a call may be, and no call is much longer."""
    monkeypatch.setattr(streaming, "CALL_BYTES", most)
    monkeypatch.setattr(streaming, "KEEP_CALL_BYTES", most)
    calls = _watched(streams, monkeypatch)
    jobs = [(300, 1, 2), (0, 0, 0), (20 * KIB + 5, 3, 63), (40, 0, 0), (5 * KIB, 9, 9)]
    target, expected = _moved(streams, jobs, keep_gil=keep_gil)

    assert np.array_equal(target, expected)
    assert sum(moved for _, moved in calls) == sum(size for size, _, _ in jobs)
    assert max(moved for _, moved in calls) < 2 * most
    assert {kept for kept, _ in calls} == {keep_gil}


@pytest.mark.parametrize(
    ("bounds", "kept"),
    [((0, 4), False), ((0, 1, 2, 3, 4), True), ((0, 3, 4), True)],
)
def test_who_is_waited_for_keeps_the_gil(
    streams: Streams, bounds: tuple[int, ...], kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job of that length lets go of it as a whole, and not once for each of its layers."""
    monkeypatch.setattr(host_copy, "KEEP_JOB_BYTES", 32 * KIB)
    calls = _watched(streams, monkeypatch)
    _load(HostCopier(), 24 * KIB, bounds)

    assert {keeps for keeps, _ in calls} == {kept}


def test_a_short_job_keeps_the_gil_and_a_long_one_lets_go(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waiting for the GIL once more would take longer than the copy."""
    monkeypatch.setattr(host_copy, "KEEP_JOB_BYTES", 32 * KIB)
    monkeypatch.setattr(host_copy, "CALL_BYTES", 64 * KIB)
    calls = _watched(streams, monkeypatch)
    _load(HostCopier(), 4 * KIB, (0, 4))
    _load(HostCopier(), 24 * KIB, (0, 1, 4))

    assert calls == [(True, 16 * KIB), (True, 24 * KIB), (False, 72 * KIB)]


@pytest.mark.parametrize(("compiled", "kind"), [(True, "compiled"), (False, "numpy")])
def test_a_copier_says_what_moves(compiled: bool, kind: str) -> None:
    """A bench and a log can name it."""
    assert HostCopier(compiled=compiled).kind == kind


def test_without_numba_numpy_moves(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A base installation copies as well, and its log says how."""
    monkeypatch.setitem(sys.modules, "numba", None)
    monkeypatch.setattr(host_copy, "compiled_streams", streaming._compiled_once.__wrapped__)
    with caplog.at_level(logging.INFO, streaming.__name__):
        copier = HostCopier()

    assert copier.kind == "numpy"
    assert "numpy moves KV" in caplog.text
    assert _load(copier, 24 * KIB, (0, 4))


@pytest.mark.parametrize(
    "code",
    [
        "import os; os.environ['NUMBA_DISABLE_JIT'] = '1'",
        "import numba; numba.config.DISABLE_JIT = True",
        "import sys; sys.path.insert(0, FOLDER)",
    ],
)
def test_a_numba_that_is_of_no_use_is_done_without(code: str, tmp_path: Path) -> None:
    """Switched off by the host's settings or broken: numpy moves, and nothing is raised."""
    (tmp_path / "numba.py").write_text("raise OSError('no such library')")
    code = code.replace("FOLDER", repr(str(tmp_path)))
    code += "\nfrom kvwise.engines.host_copy import HostCopier; print(HostCopier().kind)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert (done.stdout, done.returncode) == ("numpy\n", 0), done.stderr


def test_two_first_copiers_are_alike() -> None:
    """Threads that both come first wait for one loop; neither finds half of Numba."""
    code = """
from concurrent.futures import ThreadPoolExecutor
from kvwise.engines.host_copy import HostCopier
with ThreadPoolExecutor(4) as pool:
    print({one.kind for one in pool.map(lambda _: HostCopier(), range(4))})
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.stdout == "{'compiled'}\n", done.stderr


def _load(copier: HostCopier, size: int, bounds: tuple[int, ...]) -> bool:
    """Load so many pieces of one size; whether the right bytes came."""
    count = bounds[-1]
    source = np.random.default_rng(size).integers(0, 256, count * size, np.uint8)
    target = np.zeros_like(source)
    places = np.arange(count, dtype=np.int64) * size
    plan = CopyPlan(
        places + target.ctypes.data,
        places + source.ctypes.data,
        np.full(count, size, dtype=np.int64),
        bounds,
    )
    copier.load(plan, copier.fence(), lambda _: None)
    return np.array_equal(source, target)


def _watched(streams: Streams, monkeypatch: pytest.MonkeyPatch) -> list[tuple[bool, int]]:
    """Each call from now on: whether it keeps the GIL, and the bytes it moves."""
    calls: list[tuple[bool, int]] = []

    def watch(kept: bool, real: Call) -> Call:
        def call(to: int, of: int, lengths_at: int, count: int) -> None:
            calls.append((kept, sum((ctypes.c_int64 * count).from_address(lengths_at))))
            real(to, of, lengths_at, count)

        return call

    monkeypatch.setattr(streams, "_keeping", watch(True, streams._keeping))
    monkeypatch.setattr(streams, "_letting_go", watch(False, streams._letting_go))
    return calls
