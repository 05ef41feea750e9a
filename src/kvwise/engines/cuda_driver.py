"""The five calls of the CUDA driver that torch does not offer, through ctypes.

Calls through ctypes release the GIL, cost a fraction of torch's, and leave the runtime's own error
state alone: a refused registration would otherwise surface in the engine's next kernel. It keeps no
memory and no stream.
"""

from __future__ import annotations

import ctypes
from typing import Any

from kvwise.engines.staging import Rows
from kvwise.errors import EngineError

_LIBRARY = "libcuda.so.1"
_PORTABLE = 1
"""Pinned for every context of the process, not only the current one."""


class Driver:
    """The driver, with the context that was current where it was made."""

    def __init__(self, library: Any = None) -> None:
        """Load the driver, or use one that is given.

        Raises:
            EngineError: there is no CUDA driver, or no context is current.
        """
        if library is None:
            try:
                library = ctypes.CDLL(_LIBRARY)
            except OSError as error:
                raise EngineError(f"the CUDA driver cannot be loaded: {error}") from error
        self._memcpy = library.cuMemcpyAsync
        self._memcpy.argtypes = (
            ctypes.c_uint64,
            ctypes.c_uint64,
            ctypes.c_size_t,
            ctypes.c_void_p,
        )
        self._register = library.cuMemHostRegister_v2
        self._register.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint)
        self._unregister = library.cuMemHostUnregister
        self._unregister.argtypes = (ctypes.c_void_p,)
        self._set_current = library.cuCtxSetCurrent
        self._set_current.argtypes = (ctypes.c_void_p,)
        self._context = ctypes.c_void_p()
        library.cuCtxGetCurrent.argtypes = (ctypes.POINTER(ctypes.c_void_p),)
        _require(library.cuCtxGetCurrent(ctypes.byref(self._context)), "cuCtxGetCurrent")
        if self._context.value is None:
            raise EngineError("no CUDA context is current: torch has not started on this device")

    def enter(self) -> None:
        """Make the context current in the calling thread; a thread starts without one.

        Raises:
            EngineError: the driver refused.
        """
        _require(self._set_current(self._context), "cuCtxSetCurrent")

    def copy(self, rows: Rows, stream: int) -> None:
        """Start one copy for each row; addresses may be of the host or of the device.

        Raises:
            EngineError: the driver refused one; those before it are under way.
        """
        sources, targets, sizes = rows.sources.tolist(), rows.targets.tolist(), rows.sizes.tolist()
        for source, target, size in zip(sources, targets, sizes, strict=True):
            _require(self._memcpy(target, source, size, stream), f"cuMemcpyAsync of {size} bytes")

    def register(self, address: int, size_bytes: int) -> int:
        """Pin host memory; 0, or the driver's error number."""
        return int(self._register(address, size_bytes, _PORTABLE))

    def unregister(self, address: int) -> int:
        """Unpin what `register` pinned at `address`; 0, or the driver's error number."""
        return int(self._unregister(address))


def _require(error: int, what: str) -> None:
    """Turn an error number into an `EngineError`."""
    if error:
        raise EngineError(f"{what} failed: CUDA error {error}")
