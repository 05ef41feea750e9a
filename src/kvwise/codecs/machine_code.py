"""Machine code for loops, made by Numba once and kept on disk. It knows no loop.

Numba keeps code by the file that a loop is in, and does not look at what the loop calls: code of an
earlier version would go on calling what was changed elsewhere. So it is kept in a folder that is
named after the contents of all files of this room (`kept`). Where no such folder can be had, code
is made anew in each process.

A loop that closes over something is kept under a name that says over what, as is all that it calls:
two of them must never be taken for each other, neither by who looks for a file nor by the linker.

Importing this module needs Numba; compiling happens at the first call of each loop.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from numba import config, njit
from numba.core.caching import FunctionCache

from kvwise.codecs.kept import NotKeptError, folder, may_compile
from kvwise.errors import BugError

Loop = TypeVar("Loop", bound=Callable[..., Any])


class _Kept(FunctionCache):  # type: ignore[misc,unused-ignore]
    """The machine code of one loop on disk, for each kind of arguments."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """What is kept for such arguments.

        Raises:
            NotKeptError: nothing is, and this thread may not make it.
        """
        found = super().load_overload(sig, target_context)
        if found is None and not may_compile():
            raise NotKeptError(f"no machine code is kept of {self._name}")
        return found

    def _index_key(self, sig: Any, codegen: Any) -> Any:
        """Arguments and processor; folder and file name say all else, and do in each process."""
        return sig, codegen.magic_tuple()


def compiled(function: Loop) -> Loop:
    """A loop as machine code that lets other threads run while it does."""
    loop = cast("Any", function)
    if loop.__closure__:
        loop.__qualname__ = _name_of(loop)
    made = njit(nogil=True, boundscheck=False, error_model="numpy")(loop)
    if place := folder():
        before = config.CACHE_DIR
        config.CACHE_DIR = place
        try:
            made._cache = _Kept(loop)  # noqa: SLF001  as its own enable_caching does
        finally:
            config.CACHE_DIR = before
    return cast("Loop", made)


def _name_of(loop: Any) -> str:
    """The name of a loop that closes over something; the same in each process."""
    cells = zip(loop.__code__.co_freevars, loop.__closure__, strict=True)
    values = [f"{name} = {_told(cell.cell_contents)}" for name, cell in cells]
    digest = hashlib.blake2b("\n".join(values).encode(), digest_size=8).hexdigest()
    return f"{loop.__qualname__}_{digest}"


def _told(value: Any) -> str:
    """A value that a loop closes over, in words that no other has."""
    named = getattr(value, "py_func", value)
    if hasattr(named, "__qualname__"):
        return f"{named.__module__}.{named.__qualname__}"
    if isinstance(value, (bool, int, float, np.generic)):
        return f"{type(value).__qualname__} {value!r}"
    raise BugError(f"a loop closes over {value!r}, which has no name to be kept under")
