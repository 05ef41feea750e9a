"""Owns how cases of the GPU's codecs are run: where Triton is, in a process of their own.

It judges nothing. Cases and answers travel in files, since the two processes share no packages.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from kvwise.testing import triton_env

ROOT = Path(__file__).resolve().parents[2]
SCRIPT, CASES = "codec_cases.py", "cases.npz"


def python() -> Path:
    """A Python that has Triton."""
    found = triton_env.find()
    if found is not None:
        return found
    if os.environ.get("KVWISE_REQUIRE_ENGINE") == "1":
        pytest.fail("no Triton: run `python -m kvwise.bench.provision --triton`")
    pytest.skip(f"no Triton: set {triton_env.PYTHON_ENV}, or run `make test`, which installs it")


def run_cases(
    folder: Path, what: str, cases: Mapping[str, NDArray[Any]] | None = None
) -> dict[str, Any]:
    """What the script of cases prints; `compile` runs without the interpreter."""
    if cases is not None:
        arrays: Any = cases
        np.savez(folder / CASES, **arrays)
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "TRITON_INTERPRET": "0" if what == "compile" else "1",
    }
    done = subprocess.run(
        [str(python()), str(Path(__file__).with_name(SCRIPT)), what, str(folder / CASES)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=380,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer
