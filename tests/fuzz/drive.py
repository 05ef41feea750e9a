"""Throwing inputs at a parser, one after another, and keeping count. It makes no inputs.

An input is accepted, refused with the documented error, or a finding: any other error, no end
within seconds, or memory beyond the bound of the process. A finding is written to the corpus, so
that it is tried first from then on.
"""

from __future__ import annotations

import hashlib
import re
import resource
import signal
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import FrameType

from kvwise.errors import KvwiseError
from tests.fuzz.parsers import CORPUS, Parser, Try

INPUT_S = 10.0
"""No input may take longer."""

MEMORY_BYTES = 1 << 30
"""What trying inputs may take beyond what the process has: a hostile length allocates nothing."""

PROGRESS_EVERY = 100_000


class Endless(Exception):
    """An input was not done in time."""


class Finding(Exception):
    """An input that a parser neither accepted nor refused as documented."""


@dataclass
class Summary:
    """What became of the inputs.

    Attributes:
        refusals: how often each error came, its numbers and names left out.
        grown_bytes: how much more memory the process held at the end than after the first inputs.
    """

    parser: str
    inputs: int = 0
    accepted: int = 0
    seconds: float = 0.0
    grown_bytes: int = 0
    refusals: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        refused = self.inputs - self.accepted
        return (
            f"{self.parser}: {self.inputs} inputs, {self.accepted} accepted, {refused} refused "
            f"with {len(self.refusals)} distinct errors, {self.seconds:.1f} s, "
            f"{self.grown_bytes / 1e6:.1f} MB grown"
        )


def drive(parser: Parser, inputs: Iterable[bytes], *, progress: bool = False) -> Summary:
    """Try inputs.

    Raises:
        Finding: one of them was neither accepted nor refused as documented; it is kept.
    """
    summary, begin, held = Summary(parser.name), time.monotonic(), 0
    with ExitStack() as stack:
        stack.enter_context(_deadlines())
        attempt = parser.open(stack)
        for data in inputs:
            _one(parser, attempt, data, summary)
            if summary.inputs in (1, 1000):
                held = _resident_bytes()
            if progress and summary.inputs % PROGRESS_EVERY == 0:
                summary.seconds = time.monotonic() - begin
                print(summary, flush=True)
        summary.grown_bytes = _resident_bytes() - held
    summary.seconds = time.monotonic() - begin
    return summary


def _one(parser: Parser, attempt: Try, data: bytes, summary: Summary) -> None:
    """Try one input."""
    summary.inputs += 1
    signal.setitimer(signal.ITIMER_REAL, INPUT_S)
    try:
        attempt(data)
        summary.accepted += 1
    except parser.errors as error:
        summary.refusals[_kind(error)] += 1
    except (Exception, Endless) as error:
        raise Finding(f"{parser.name}: {keep(parser, data)}: {error!r}") from error
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _kind(error: KvwiseError) -> str:
    """An error without what differs from input to input."""
    return re.sub(r"/\S+|\d+|'[^']*'|\"[^\"]*\"|`[^`]*`", "*", str(error))[:60]


def keep(parser: Parser, data: bytes) -> str:
    """Write an input to the corpus; its name."""
    name = hashlib.blake2b(data, digest_size=6).hexdigest() + ".bin"
    folder = CORPUS / parser.name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data)
    return name


@contextmanager
def _deadlines() -> Iterator[None]:
    """The alarm clock raises `Endless`, and rings in the main thread only."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise Endless(f"not done after {INPUT_S} s")

    before = signal.signal(signal.SIGALRM, ring)
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, before)


def limit_memory() -> None:
    """Let this process have little more address space than it has; for a process of its own."""
    with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123
        pages = int(file.read().split()[0])
    limit = pages * resource.getpagesize() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _resident_bytes() -> int:
    """Memory that this process holds now."""
    with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123
        return int(file.read().split()[1]) * resource.getpagesize()
