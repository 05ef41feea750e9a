"""Owns what can be said of the driver's calls without a driver: arguments, order and errors."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from kvwise.engines.cuda_driver import Driver
from kvwise.engines.staging import Rows
from kvwise.errors import EngineError

CONTEXT = 0x1234


class Call:
    """A driver entry that notes its arguments; `error` is what it returns."""

    def __init__(self, name: str, calls: list[tuple[Any, ...]]) -> None:
        self.name = name
        self.calls = calls
        self.error = 0
        self.argtypes: tuple[Any, ...] = ()

    def __call__(self, *arguments: Any) -> int:
        assert len(arguments) == len(self.argtypes)
        if self.name == "cuCtxGetCurrent":
            arguments[0]._obj.value = CONTEXT
        else:
            self.calls.append((self.name, *arguments))
        return self.error


class Library:
    """A CUDA driver library that does nothing."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.cuMemcpyAsync = Call("cuMemcpyAsync", self.calls)
        self.cuMemHostRegister_v2 = Call("cuMemHostRegister_v2", self.calls)
        self.cuMemHostUnregister = Call("cuMemHostUnregister", self.calls)
        self.cuCtxSetCurrent = Call("cuCtxSetCurrent", self.calls)
        self.cuCtxGetCurrent = Call("cuCtxGetCurrent", self.calls)


def rows(*copies: tuple[int, int, int]) -> Rows:
    """Copies given as (source, target, size)."""
    sources, targets, sizes = np.array(copies, dtype=np.int64).T
    return Rows(sources, targets, sizes)


def test_copies_go_target_first_in_order() -> None:
    """Each row is one call, with the driver's order of arguments and the stream's handle."""
    library = Library()
    Driver(library).copy(rows((10, 20, 5), (30, 40, 6)), 99)

    assert library.calls == [("cuMemcpyAsync", 20, 10, 5, 99), ("cuMemcpyAsync", 40, 30, 6, 99)]
    assert library.cuMemcpyAsync.argtypes[2] is ctypes.c_size_t


def test_a_refused_copy_is_an_engine_error() -> None:
    """The error number and what was tried reach the message."""
    library = Library()
    library.cuMemcpyAsync.error = 1
    with pytest.raises(EngineError, match="cuMemcpyAsync of 5 bytes failed: CUDA error 1"):
        Driver(library).copy(rows((10, 20, 5)), 99)


def test_threads_enter_the_context_of_the_maker() -> None:
    """Every thread works in the context that torch made."""
    library = Library()
    Driver(library).enter()

    ((name, context),) = library.calls
    assert name == "cuCtxSetCurrent"
    assert context.value == CONTEXT


@pytest.mark.pain("H5")
def test_pinning_reports_the_drivers_answer() -> None:
    """A refusal to pin is an answer, not an exception: copies work without."""
    library = Library()
    driver = Driver(library)
    library.cuMemHostRegister_v2.error = 712

    assert driver.register(4096, 64) == 712
    assert driver.unregister(4096) == 0
    assert library.calls == [("cuMemHostRegister_v2", 4096, 64, 1), ("cuMemHostUnregister", 4096)]


def test_no_driver_is_said_plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without a CUDA driver gets one sentence."""

    def missing(_name: str) -> None:
        raise OSError("libcuda.so.1: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    with pytest.raises(EngineError, match="CUDA driver cannot be loaded"):
        Driver()


def test_no_context_is_said_plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a current context there is no device to copy to."""
    library = Library()
    monkeypatch.setattr(library, "cuCtxGetCurrent", Silent())
    with pytest.raises(EngineError, match="no CUDA context"):
        Driver(library)


class Silent:
    """An entry that answers nothing."""

    argtypes: tuple[Any, ...] = ()

    def __call__(self, *_arguments: Any) -> int:
        return 0
