"""Owns the folders that kvwise fills once and reuses: where, whose turn it is, which are whole.

It fills nothing itself. A folder counts only when its stamp says that it was finished, so that an
interrupted installation is done again, and one process fills a folder while others wait.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from kvwise.bench.progress import Progress
from kvwise.errors import KvwiseError
from kvwise.units import format_size

STAMP = ".finished"
LOCK_WAIT_S = 45 * 60
"""Longer than the slowest installation that we would let another process finish."""

_LOCK_POLL_S = 0.5


class SetupError(KvwiseError):
    """What the demo needs could not be installed or started; the message says what to do."""


def cache_root() -> Path:
    """The folder for everything that is installed once: `$XDG_CACHE_HOME/kvwise`."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "kvwise"


def finished(folder: Path) -> bool:
    """Whether `folder` was filled to the end."""
    return (folder / STAMP).is_file()


def fill_once(
    folder: Path, need_bytes: int, progress: Progress, fill: Callable[[Path], None]
) -> Path:
    """`folder`, filled by `fill(folder)` unless an earlier call finished that.

    Raises:
        SetupError: too little disk space, or another process holds the folder for too long.
    """
    if finished(folder):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _turn(folder.with_name(folder.name + ".lock"), progress):
        if finished(folder):
            return folder
        if folder.exists():
            progress.now(f"removing an unfinished {folder.name}")
            shutil.rmtree(folder)
        _require_space(folder.parent, need_bytes)
        folder.mkdir()
        fill(folder)
        (folder / STAMP).touch()
    return folder


def _require_space(folder: Path, need_bytes: int) -> None:
    """Refuse before an installation that would fill the disk half way."""
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < need_bytes:
        raise SetupError(
            f"{folder} has {format_size(free_bytes)} free, and {format_size(need_bytes)} are "
            "needed; hint: free some space, or point XDG_CACHE_HOME at a larger disk, and run again"
        )


@contextmanager
def _turn(path: Path, progress: Progress) -> Iterator[None]:
    """Hold the lock file; the kernel gives it back if this process dies."""
    deadline = time.monotonic() + LOCK_WAIT_S
    with path.open("a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise SetupError(
                        f"another process has held {path} for {LOCK_WAIT_S // 60} minutes; "
                        "hint: end it and run again"
                    ) from None
                progress.now(f"another process is filling {path.stem}, waiting for it")
                time.sleep(_LOCK_POLL_S)
        yield
