"""Owns the proof that the codecs' kernels become machine code for real GPUs. It runs none."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.codecs_gpu.running import run_cases

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def test_kernels_compile_for_real_gpus(tmp_path: Path) -> None:
    """Each kernel compiles for three generations of GPUs, with divisions that round exactly."""
    kernels = run_cases(tmp_path, "compile")

    assert len(kernels) == 14 * 3
    assert [name for name, kernel in kernels.items() if not kernel["bytes"]] == []
    assert {found for kernel in kernels.values() for found in kernel["rounded"]} == {"div.rn.f32"}
