"""Policies: which block leaves next, by the name used in the configuration. It owns no state."""

from __future__ import annotations

from collections.abc import Callable

from kvwise.core.evict import Eviction, Lru
from kvwise.core.index import Index
from kvwise.core.ranked import Ranked, wild, worth
from kvwise.core.reuse import Reuse, Stay
from kvwise.core.s3fifo import S3Fifo

POLICIES: dict[str, Callable[[Index, Reuse, Stay], Eviction]] = {
    "lru": lambda index, _reuse, _stay: Lru(index),
    "s3fifo": lambda index, reuse, _stay: S3Fifo(index, reuse),
    "wild": lambda index, reuse, stay: Ranked(index, reuse, stay, wild),
    "worth": lambda index, reuse, stay: Ranked(index, reuse, stay, worth),
}
"""How to make each one, for one tier."""
