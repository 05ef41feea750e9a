"""Owns what every test shares: Hypothesis profiles and a clean environment. It holds no helpers."""

from __future__ import annotations

import os
import signal

import pytest
from hypothesis import settings

settings.register_profile("quick", max_examples=50, deadline=None)
settings.register_profile("long", max_examples=2000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))

KEPT = {
    "KVWISE_ENGINE_PYTHON",
    "KVWISE_MODELS",
    "KVWISE_REQUIRE_ENGINE",
    "KVWISE_SMOLLM2",
    "KVWISE_TRACES",
    "KVWISE_TRITON_PYTHON",
}
"""They say where things are; any other KVWISE_ variable would change a configuration."""


@pytest.fixture(autouse=True)
def _no_configuration_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """A developer's own KVWISE_ settings must not change what a test means."""
    for name in list(os.environ):
        if name.startswith("KVWISE_") and name not in KEPT:
            monkeypatch.delenv(name)


def pytest_configure() -> None:
    """Take Ctrl-C as usual where a background job was told to ignore it: children inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
