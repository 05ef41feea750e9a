"""Fixtures that several tests of the live room ask for. It holds no helpers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvwise.config import Config
from kvwise.live.daemon import Daemon
from tests.live.support import settings, thread_daemon


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """A small store with a disk tier."""
    return settings(tmp_path, disk=True)


@pytest.fixture
def running(config: Config) -> Iterator[Daemon]:
    """A daemon on a thread."""
    with thread_daemon(config) as daemon:
        yield daemon
