"""Owns `kvwise serve` on a medium that goes wrong on order: below the tier, at the system call.

`python fault_serve.py ORDERS serve ...`; ORDERS is a JSON file that the test writes and rewrites,
`{"read": {"errno": 5, "name": "segment-1.kvw", "first": 0, "last": 9}, "write": {"hold": true}}`.
With `"torn": true` the first half of a frame is written before anything else is obeyed.
Everything above the system call is the daemon that operators run.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

HOLD_S = 60.0
LOOK_S = 0.005
BLOCK_BYTES = 4096
Vectored = Callable[[int, Sequence[memoryview], int], int]


class Medium:
    """What stands between the tier and its segment files."""

    def __init__(self, orders: Path) -> None:
        """Without a file of orders all is well."""
        self._orders = orders

    def wrap(self, verb: str, call: Vectored) -> Vectored:
        """The system call, once it has obeyed what is ordered for it."""

        def wrapped(fd: int, pieces: Sequence[memoryview], offset: int) -> int:
            if self._ordered(verb).get("torn"):
                half = pieces[1].nbytes // 2 // BLOCK_BYTES * BLOCK_BYTES
                call(fd, [pieces[0], pieces[1][:half]], offset)
            self._obey(verb, fd, offset, sum(piece.nbytes for piece in pieces))
            return call(fd, pieces, offset)

        return wrapped

    def _obey(self, verb: str, fd: int, offset: int, size_bytes: int) -> None:
        """Hold the call, or let it fail."""
        name = Path(f"/proc/self/fd/{fd}").readlink().name
        if not name.startswith("segment-"):
            return
        deadline = time.monotonic() + HOLD_S
        while self._ordered(verb).get("hold") and time.monotonic() < deadline:
            time.sleep(LOOK_S)
        order = self._ordered(verb)
        first, last = order.get("first", 0), order.get("last", 1 << 62)
        here = first < offset + size_bytes and offset < last and order.get("name", name) == name
        if "errno" in order and here:
            raise OSError(order["errno"], os.strerror(order["errno"]))

    def _ordered(self, verb: str) -> dict[str, Any]:
        """What is ordered for a verb now."""
        try:
            orders: dict[str, dict[str, Any]] = json.loads(self._orders.read_text())
        except FileNotFoundError:
            return {}
        return orders.get(verb, {})


def main() -> None:
    """Put the medium in place and run the command line."""
    medium = Medium(Path(sys.argv.pop(1)))
    for verb, name in (("read", "preadv"), ("write", "pwritev")):
        setattr(os, name, medium.wrap(verb, getattr(os, name)))
    from kvwise.__main__ import main as command_line

    command_line()


if __name__ == "__main__":
    main()
