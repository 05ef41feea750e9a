"""Owns what every test shares: Hypothesis profiles and a clean environment. It holds no helpers."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

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

ENGINES = "tests/engines/"
"""Ranks spin while they wait, and daemons beside them have to answer in time."""


@pytest.fixture(autouse=True)
def _no_configuration_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """A developer's own KVWISE_ settings must not change what a test means."""
    for name in list(os.environ):
        if name.startswith("KVWISE_") and name not in KEPT:
            monkeypatch.delenv(name)


def pytest_configure(config: pytest.Config) -> None:
    """Take Ctrl-C as usual where a background job was told to ignore it: children inherit that.

    Folders of one of several processes have names as short as those of one alone: sockets lie in
    them, and the path of one is limited to 107 bytes.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(config, "workerinput"):
        place = Path(config.option.basetemp)
        config.option.basetemp = str(place.with_name(place.name.removeprefix("popen-gw")))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where several processes share the work, begin with the files that take longest.

    One that is begun last would leave the other processes idle, so files with most engine tests
    come first, then those with slow ones; the rest stays shuffled.
    """
    if not hasattr(config, "workerinput"):
        return
    counts = {
        mark: Counter(item.path for item in items if item.get_closest_marker(mark))
        for mark in ("engine", "slow")
    }
    items.sort(key=lambda item: [-count[item.path] for count in counts.values()])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A file's tests stay in one process, and so do all engines that have deadlines to keep."""
    from xdist.scheduler import LoadFileScheduling

    made: Any = LoadFileScheduling(config, log)
    file_of = made._split_scope
    made._split_scope = lambda test: ENGINES if test.startswith(ENGINES) else file_of(test)
    return made
