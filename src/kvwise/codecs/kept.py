"""Kept: where machine code is kept on disk, and whether any may be made here. It knows no Numba.

A daemon has its codecs compiled by another process and only loads what that one kept, because
compiling competes with requests for the interpreter, for many seconds. So it says `only_kept` while
it loads, and what is not there is `NotKeptError`.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

FOLDER = "~/.cache/kvwise/machine-code"
"""Where it is kept, as messages name it."""

_here = threading.local()


class NotKeptError(RuntimeError):
    """Machine code would have to be made where only what is kept may be used."""


@contextmanager
def only_kept() -> Iterator[None]:
    """Let this thread load what is kept, and make nothing."""
    before = may_compile()
    _here.refuses = True
    try:
        yield
    finally:
        _here.refuses = not before


def may_compile() -> bool:
    """Whether this thread may make machine code."""
    return not getattr(_here, "refuses", False)


@cache
def folder() -> str:
    """Where machine code of these very sources is kept; empty if nowhere."""
    hasher = hashlib.blake2b(digest_size=8)
    for path in sorted(Path(__file__).parent.glob("*.py")):
        hasher.update(path.name.encode())
        hasher.update(path.read_bytes())
    try:
        place = Path(FOLDER).expanduser() / hasher.hexdigest()
        place.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        return ""
    return str(place) if os.access(place, os.W_OK) else ""
