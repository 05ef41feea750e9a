"""Accounts: what the ledger keeps of copies, leases and jobs. Data only; it checks nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from kvwise.core.words import Load, Store


class Life(Enum):
    """Whether a copy's bytes are there."""

    COMING = "coming"
    WHOLE = "whole"


@dataclass(slots=True)
class Copy:
    """One copy of a block. `pages` is for the arena, `location` for the tiers below."""

    life: Life
    stored_bytes: int
    pages: tuple[int, ...] = ()
    location: int = 0


@dataclass(slots=True)
class Promise:
    """A load lease as the client understands it.

    Attributes:
        tiers: name of the tier each chunk was to come from.
        chunk_tokens: tokens of one chunk.
        skip_tokens: tokens of the first chunk that the device has already.
    """

    client: int
    request: str
    keys: list[bytes]
    tiers: list[str]
    chunk_tokens: int
    skip_tokens: int
    wanted: bool = False
    ready: int = 0
    failed: bool = False


@dataclass(slots=True)
class Grant:
    """A store lease as the client understands it."""

    client: int
    keys: list[bytes]
    raw_bytes: int


@dataclass(slots=True)
class Job:
    """A command under way, and its items that have not ended."""

    command: Load | Store
    left: set[int] = field(default_factory=set)
