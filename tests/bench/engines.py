"""Owns what tests that start real engines and daemons share. It starts nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kvwise.bench.places import finished
from kvwise.bench.provision import ENGINE_ENV, engine_folder, model_folder


def require_engine() -> None:
    """Skip where no engine is installed, unless one has to be."""
    here = ENGINE_ENV in os.environ or finished(engine_folder())
    if not here and os.environ.get("KVWISE_REQUIRE_ENGINE") != "1":
        pytest.skip("no engine is installed: python -m kvwise.bench.provision --engine --model")
    if here and not finished(model_folder()):
        pytest.skip("no model is installed: python -m kvwise.bench.provision --model")


def mentioning(text: str) -> list[str]:
    """Command lines of processes that mention `text`."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if text in line:
            found.append(line)
    return found
