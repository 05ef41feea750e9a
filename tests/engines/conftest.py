"""Owns the engine that the tests of this folder share. Where there is none they are skipped."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.engines.support import Processes, engine_python


@pytest.fixture(scope="session")
def processes() -> Iterator[Processes]:
    """Processes with a real vLLM, and results that several tests look at."""
    python = engine_python()
    if python is None or not python.exists():
        reason = f"no engine environment ({python}); set KVWISE_ENGINE_PYTHON"
        if os.environ.get("KVWISE_REQUIRE_ENGINE") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    started = Processes(python)
    yield started
    started.close()
