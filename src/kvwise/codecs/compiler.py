"""Compiler: `python -m kvwise.codecs.compiler WORD...` compiles codecs for whoever loads them next.

A process of its own and of low priority; what it makes is kept on disk (`machine_code`). A word is
a coding and a kind of element (`dense:bf16`), or the number of a codec in frames. It leaves when
whoever started it does, which is when its standard input ends. It serves nobody.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable, Mapping
from dataclasses import replace

from kvwise.codecs.forms import WARM, Codecs
from kvwise.core.elements import Coding, Elements, Kind

NICE = 10
"""A tenth of the share of who is not nice: an engine hardly notices, and it still gets done."""

EXIT_ALONE = 3
"""The exit status when nobody waits any more."""


def words(codings: Mapping[Coding, Elements], numbers: Iterable[int]) -> list[str]:
    """What says that these are to be compiled."""
    kinds = [f"{coding.value}:{elements.kind.value}" for coding, elements in codings.items()]
    return kinds + [str(number) for number in numbers]


def compile_all(said: Iterable[str]) -> None:
    """Compile what words say, and keep it.

    Raises:
        ImportError: Numba does not go with what else is installed.
    """
    codecs = Codecs()
    for word in said:
        coding, _, kind = word.partition(":")
        if kind:
            codecs.warm([Coding(coding)], replace(WARM, kind=Kind(kind)))
        else:
            codecs.make(int(coding))


def _leave_with_parent() -> None:
    """Wait for the end of standard input, on a thread of its own."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(EXIT_ALONE)


def main() -> None:
    """Compile what the command line says."""
    os.nice(NICE)
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    compile_all(sys.argv[1:])


if __name__ == "__main__":
    main()
