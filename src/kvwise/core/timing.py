"""Timing: events by which tiers tell what work took, and codecs that they are there. Data only.

Nothing here judges.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from kvwise.core.elements import Coding


class Work(Enum):
    """What a tier does that takes time."""

    READ = "read"
    WRITE = "write"
    ENCODE = "encode"
    DECODE = "decode"


@dataclass(frozen=True, slots=True)
class Timed:
    """What some work of a tier took since it was last told.

    Attributes:
        coding: of ENCODE and DECODE; PLAIN beside what moves bytes.
        size_bytes: of the medium for READ and WRITE, of payload for ENCODE and DECODE.
        elapsed_ns: for READ and WRITE, while any was under way; else summed up over threads.
    """

    now_ns: int
    tier: int
    work: Work
    coding: Coding
    size_bytes: int
    elapsed_ns: int


@dataclass(frozen=True, slots=True)
class Equipped:
    """Codings that can be used from now on: what they need is loaded and compiled."""

    now_ns: int
    codings: tuple[Coding, ...]
