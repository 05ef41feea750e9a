"""Admit: whether a block may be written to a tier. It answers with a verdict; it writes nothing."""

from __future__ import annotations

from dataclasses import dataclass

from kvwise.core.hints import Hints
from kvwise.core.words import Why

WORTH, ALL, SECOND_TOUCH = "worth", "all", "second-touch"
ADMISSIONS = (WORTH, ALL, SECOND_TOUCH)
"""What a tier below the arena is written: what is worth its bytes at the price of the day, or, to
compare with, all that comes or all that was seen before, as long as the budget has bytes left."""


@dataclass(frozen=True, slots=True)
class Admit:
    """Yes."""


@dataclass(frozen=True, slots=True)
class Reject:
    """No; asking again makes sense only once more is known of the block."""

    why: Why


@dataclass(frozen=True, slots=True)
class Throttle:
    """Not now: ask again after `wait_ns`."""

    wait_ns: int


Verdict = Admit | Reject | Throttle


def admit_prompt(total_tokens: int, tokens_min: int, hints: Hints) -> Verdict:
    """Whether blocks of this prompt may enter the cache at all."""
    if hints.no_store or hints.no_reuse:
        return Reject(Why.DISABLED)
    if 0 < total_tokens < tokens_min:
        return Reject(Why.TOO_SHORT)
    return Admit()
