"""Where traces for tests are, and the shortest way to read one. It tests nothing.

The samples beside this file were written for these tests. Published traces are too large to be
kept here: `KVWISE_TRACES` names a folder with them, and without it their tests are skipped.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kvwise.sim.trace.assembly import Options
from kvwise.sim.trace.distance import Reuse, measure_reuse
from kvwise.sim.trace.read import read
from kvwise.sim.trace.records import Trace

SAMPLES = Path(__file__).parent / "samples"
SAMPLE = {
    "mooncake": SAMPLES / "mooncake.jsonl",
    "mooncake-delta": SAMPLES / "mooncake-delta.jsonl",
    "weka": SAMPLES / "weka.json",
    "ragpulse": SAMPLES / "ragpulse",
    "bailian": SAMPLES / "bailian.jsonl",
    "azure": SAMPLES / "azure.csv",
    "burstgpt": SAMPLES / "burstgpt.csv",
    "sharegpt": SAMPLES / "sharegpt.json",
    "served": SAMPLES / "served.jsonl",
}
"""The sample of every format."""

DEFAULT = Options()


def quiet(text: str) -> None:
    """Take word of progress and show nothing."""
    assert text


def load(*paths: Path, options: Options = DEFAULT) -> Trace:
    """Read files as one trace."""
    return read(paths, options, quiet)


def reuse_of(trace: Trace) -> Reuse:
    """Measure a trace."""
    return measure_reuse(trace, quiet)


def published(name: str) -> Path:
    """A published trace, or a skipped test that says what is missing."""
    folder = os.environ.get("KVWISE_TRACES")
    if folder is None:
        pytest.skip("published traces are not at hand; set KVWISE_TRACES to their folder")
    path = Path(folder) / name
    if not path.exists():
        pytest.skip(f"there is no {path}")
    return path
