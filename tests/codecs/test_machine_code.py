"""Machine code that one process keeps and others load: what is found, and never for another."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvwise.codecs import compiler, forms, kept
from kvwise.codecs.base import scratch
from kvwise.codecs.forms import Codecs
from kvwise.core.elements import Coding, Elements, Form, Kind
from kvwise.errors import BugError

pytestmark = [
    pytest.mark.skipif(not forms.at_hand(), reason="Numba is not installed"),
    pytest.mark.timeout(600),  # the compiler gives way to whoever else is busy
]

READ = """
import sys
from kvwise.codecs import kept
from tests.codecs.test_machine_code import through
with kept.only_kept():
    for kind in sys.argv[1:]:
        try:
            print(kind, through(kind))
        except kept.NotKeptError:
            print(kind, "not kept")
"""
SIZE = 64 * 1024


def through(kind: str) -> bool:
    """Whether FP8 brings numbers of a kind back as nearly as it promises."""
    drawn = np.random.default_rng(5).standard_normal(SIZE // 4, np.float32)
    if kind == "bf16":
        words = (drawn.view(np.uint32) >> 16).astype(np.uint16)
    else:
        words = drawn.astype(np.float16 if kind == "fp16" else np.float32).view(np.uint16)
    payload, back, codecs = scratch(words.nbytes), scratch(words.nbytes), Codecs()
    payload[:] = words.tobytes()
    elements = Elements(Kind(kind), SIZE // 4, 1, SIZE // 4)
    codec = codecs.writer(Form(Coding.FP8, elements))
    codec.decode(codec.encode([payload]), [back])
    before, after = (floats(bytes(memory), kind) for memory in (payload, back))
    return bool((np.abs(after - before) <= np.abs(before) / 16 + 1e-4).all())


def floats(data: bytes, kind: str) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The numbers that bytes are."""
    if kind == "bf16":
        return (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(data, np.float16 if kind == "fp16" else np.float32).astype(np.float32)


def found(home: Path, *kinds: str) -> list[str]:
    """What a process of its own says that only loads, and has its home elsewhere."""
    env = {**os.environ, "HOME": str(home), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", READ, *kinds]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=280, check=True)
    return done.stdout.splitlines()


def compiled(home: Path, word: str) -> None:
    """Have the compiler do it, with somebody waiting for it."""
    command = [sys.executable, "-m", compiler.__name__, word]
    env = {**os.environ, "HOME": str(home)}
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE) as child:
        assert child.wait(280) == 0


def test_loops_that_close_over_something_are_kept_each_for_itself(tmp_path: Path) -> None:
    """Two processes compile FP8 for two kinds of 16 bits, and a third finds either, not mixed up.

    Their arguments have the same types; what they close over tells them apart. The same process
    makes nothing itself, and what nobody compiled is not there for it.
    """
    compiled(tmp_path, "fp8:bf16")
    compiled(tmp_path, "fp8:fp16")
    told = found(tmp_path, "bf16", "fp16", "fp32")
    assert told == ["bf16 True", "fp16 True", "fp32 not kept"]


def test_a_compiler_that_nobody_waits_for_leaves(tmp_path: Path) -> None:
    """Its standard input ends at once, as it does when a daemon dies."""
    command = [sys.executable, "-m", compiler.__name__, "dense:bf16"]
    env = {**os.environ, "HOME": str(tmp_path)}
    done = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, timeout=280, check=False)
    assert done.returncode == compiler.EXIT_ALONE


def test_names_say_what_a_loop_closes_over() -> None:
    """The same values give the same name, others another, and what has no name is refused."""
    from kvwise.codecs import machine_code

    def loop(step: object) -> Callable[[], object]:
        return lambda: step

    def name(step: object) -> str:
        return machine_code._name_of(loop(step))

    assert name(3) == name(3)
    values: list[object] = [3, 4, 3.0, int, len, True]
    assert len({name(value) for value in values}) == len(values)
    with pytest.raises(BugError, match="no name to be kept under"):
        name(object())


def test_refusing_ends_with_its_block() -> None:
    """A thread that may only load may compile again afterwards, whatever happened."""
    with kept.only_kept():
        with kept.only_kept():
            pass
        assert not kept.may_compile()
    assert kept.may_compile()
