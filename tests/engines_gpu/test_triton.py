"""Owns the proof that the kernel is exact under Triton's interpreter and compiles for real GPUs.

It runs where Triton is, in a process of its own. It says nothing about speed.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kvwise.testing import triton_env

ROOT = Path(__file__).resolve().parents[2]
KERNEL = "kernel_cases.py"
DEVICE = "device_cases.py"
COUNT = 30

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def python() -> Path:
    """A Python that has Triton."""
    found = triton_env.find()
    if found is not None:
        return found
    if os.environ.get("KVWISE_REQUIRE_ENGINE") == "1":
        pytest.fail("no Triton: run `python -m kvwise.bench.provision --triton`")
    pytest.skip(f"no Triton: set {triton_env.PYTHON_ENV}, or run `make test`, which installs it")


def run_cases(python: Path, cache: Path, script: str, *arguments: str) -> dict[str, Any]:
    """What a script of cases prints."""
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
        "TRITON_CACHE_DIR": str(cache),
        "TRITON_INTERPRET": "0" if "compile" in arguments else "1",
    }
    done = subprocess.run(
        [str(python), str(Path(__file__).with_name(script)), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=380,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


@pytest.fixture(scope="module")
def interpreted(python: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The cases of one run under the interpreter."""
    return run_cases(python, tmp_path_factory.mktemp("triton"), KERNEL, "interpret", str(COUNT))


def test_rows_are_copied_exactly(interpreted: dict[str, Any]) -> None:
    """Rows of any size, alignment and tail arrive whole, and no byte beside them changes."""
    cases = interpreted["rows"]

    assert len(cases) == COUNT
    assert {case["alignment"] for case in cases} == {1, 2, 4, 8, 16}
    assert [case for case in cases if case["wrong"]] == []


@pytest.mark.pain("C2")
def test_caches_of_any_layout_survive_a_round_trip(interpreted: dict[str, Any]) -> None:
    """Store and load through staging give what indexing gives, skipped blocks untouched (C2)."""
    cases = interpreted["paged"]

    assert sum(case["bytes"] > 0 for case in cases) >= COUNT / 2
    assert [case for case in cases if case["stored_wrong"] or case["loaded_wrong"]] == []


def test_the_judge_can_say_no(interpreted: dict[str, Any]) -> None:
    """A cache that was not loaded yet, and an arena with one flipped bit, are found wrong."""
    cases = [case for case in interpreted["paged"] if case["bytes"]]

    assert all(case["judged_wrong_before"] > 0 for case in cases)
    assert all(case["judged_wrong_when_flipped"] == 1 for case in cases)


def test_it_compiles_to_the_widest_accesses(python: Path, tmp_path: Path) -> None:
    """For each GPU, aligned rows move 16 bytes an access, others what divides them."""
    widths = {"16": "v2.b64", "8": "b64", "4": "b32", "2": "b16", "1": "b8"}
    columns = ["ld.global.b64"] * 3

    for accesses in run_cases(python, tmp_path, KERNEL, "compile").values():
        for alignment, width in widths.items():
            assert accesses[alignment][:3] == columns
            moved = set(accesses[alignment][3:])
            assert moved == {f"ld.global.{width}", f"st.global.{width}"}


def test_the_calls_of_the_torch_device_fit_together(python: Path, tmp_path: Path) -> None:
    """With torch's GPU stood in, caches survive, pins are undone, errors of the GPU are said."""
    answer = run_cases(python, tmp_path, DEVICE)

    assert all(case["bytes"] > 0 for case in answer["cases"])
    assert all(case["pinned"] > 0 for case in answer["cases"])
    for kind in ("left_pinned", "stored_wrong", "loaded_wrong"):
        assert [case for case in answer["cases"] if case[kind]] == []
    assert "illegal memory access" in answer["failure"]
