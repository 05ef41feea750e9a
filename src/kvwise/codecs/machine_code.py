"""Machine code for loops, made by Numba once and kept on disk. It knows no loop.

Numba keeps code by the file that a loop is in, and does not look at what the loop calls: code of an
earlier version would go on calling what was changed elsewhere. So it is kept in a folder that is
named after the contents of all files of this room. Where no such folder can be had, code is made
anew in each process.

Importing this module needs Numba; compiling happens at the first call of each loop.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

from numba import config, njit

Loop = TypeVar("Loop", bound=Callable[..., Any])


def compiled(function: Loop) -> Loop:
    """A loop as machine code that lets other threads run while it does.

    What closes over something is not kept on disk: that has another name in each process, so each
    would add files that no other finds.
    """
    folder = "" if function.__closure__ else _folder()
    before = config.CACHE_DIR
    config.CACHE_DIR = folder or before
    try:
        made = njit(nogil=True, boundscheck=False, error_model="numpy", cache=bool(folder))
        return cast("Loop", made(function))
    finally:
        config.CACHE_DIR = before


@cache
def _folder() -> str:
    """Where machine code of these very sources is kept; empty if nowhere."""
    hasher = hashlib.blake2b(digest_size=8)
    for path in sorted(Path(__file__).parent.glob("*.py")):
        hasher.update(path.name.encode())
        hasher.update(path.read_bytes())
    try:
        folder = Path.home() / ".cache" / "kvwise" / "machine-code" / hasher.hexdigest()
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        return ""
    return str(folder) if os.access(folder, os.W_OK) else ""
