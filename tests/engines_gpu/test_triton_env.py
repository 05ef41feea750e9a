"""Owns how Triton's environment is found and made. Nothing is installed here."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kvwise.testing import triton_env
from kvwise.testing.triton_env import TritonEnvError, ensure, find


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder, and no choice made outside."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(triton_env.PYTHON_ENV, raising=False)
    return tmp_path / "kvwise"


def test_a_chosen_python_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment variable wins, and a name that is not there is refused."""
    monkeypatch.setenv(triton_env.PYTHON_ENV, sys.executable)
    assert ensure(Path("unused")) == find() == Path(sys.executable)

    monkeypatch.setenv(triton_env.PYTHON_ENV, "nowhere/python")
    with pytest.raises(TritonEnvError, match="not there"):
        ensure(Path("unused"))


def test_only_finished_environments_count(cache: Path) -> None:
    """A folder without its stamp is a build that was interrupted."""
    assert find() is None
    (cache / "triton-abc" / "bin").mkdir(parents=True)
    assert find() is None
    (cache / "triton-abc" / ".finished").touch()
    assert find() == cache / "triton-abc" / "bin" / "python"


ENGINE = """#!/bin/sh
if [ "$1" = -c ]; then echo some/site-packages; exit; fi
mkdir -p "$3/bin"
printf '#!/bin/sh\\necho no index reachable >&2; exit 1\\n' > "$3/bin/python"
chmod +x "$3/bin/python"
"""
"""Knows where its packages are and makes environments; in those, nothing can be installed."""


def test_a_failed_build_leaves_nothing(cache: Path, tmp_path: Path) -> None:
    """When a step fails, its last lines are shown and no half-made folder stays behind."""
    engine = tmp_path / "python"
    engine.write_text(ENGINE)
    engine.chmod(0o755)

    with pytest.raises(TritonEnvError, match="no index reachable"):
        ensure(engine)
    assert list(cache.iterdir()) == []


def test_an_engine_that_is_not_there_is_said(cache: Path) -> None:
    """The engine's Python is asked where its packages are; without it nothing can be built."""
    with pytest.raises(TritonEnvError, match="preparing Triton"):
        ensure(cache / "no" / "python")
