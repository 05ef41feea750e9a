"""Owns the arithmetic of a comparison: medians, and how sure a ratio is. It measures nothing.

A ratio is the median of the ratios of pairs that were measured one after the other, so that what
weighs on both sides of a pair cancels out. Its interval comes from drawing the pairs again, with
replacement, many times: 95 of 100 such draws fall inside it. Neighbouring pairs share what the
machine did meanwhile, so a few of them are drawn at a time, or the interval would be too narrow.
Pairs of one start of two engines share what those two differ by, so starts are drawn first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

DRAWS = 4000
SEED = 20
"""The same pairs give the same interval."""

RUN = 3
"""Neighbouring pairs that are drawn together, or fewer where that would leave nothing to draw."""

_LOW_PERCENT, _HIGH_PERCENT = 2.5, 97.5


@dataclass(frozen=True, slots=True)
class Ratio:
    """One side over the other.

    Attributes:
        median: of the ratios of all pairs.
        low, high: bounds of its 95 % interval.
        n: how many pairs.
    """

    median: float
    low: float
    high: float
    n: int


def ratio(
    over: Sequence[float], under: Sequence[float], counts: Sequence[int] | None = None
) -> Ratio:
    """`over` / `under`, pair by pair; `counts` says how many of the pairs are of each start.

    Raises:
        ValueError: there is no pair, or a value without a partner or a start.
    """
    if not over or len(over) != len(under):
        raise ValueError(f"{len(over)} values cannot be paired with {len(under)}")
    ratios = np.asarray(over) / np.asarray(under)
    if sum(counts or [len(ratios)]) != len(ratios):
        raise ValueError(f"{len(ratios)} pairs are not those of starts with {counts}")
    dice = np.random.default_rng(SEED)
    starts = np.split(ratios, np.cumsum(counts or [len(ratios)])[:-1])
    drawn = [_drawn(start, dice) for start in starts]
    chosen = dice.integers(len(starts), size=(DRAWS, len(starts)))
    medians = [
        np.median(np.concatenate([drawn[start][draw] for start in chosen[draw]]))
        for draw in range(DRAWS)
    ]
    low, high = np.percentile(medians, (_LOW_PERCENT, _HIGH_PERCENT))
    return Ratio(float(np.median(ratios)), float(low), float(high), len(ratios))


def _drawn(ratios: NDArray[np.float64], dice: np.random.Generator) -> NDArray[np.float64]:
    """As many ratios as there are, drawn again in runs of neighbours; a row for each draw."""
    count = len(ratios)
    run = max(1, min(RUN, count // RUN))
    starts = dice.integers(count, size=(DRAWS, -(-count // run)))
    places = (starts[:, :, None] + np.arange(run)).reshape(DRAWS, -1)[:, :count] % count
    found: NDArray[np.float64] = ratios[places]
    return found


def median(values: Sequence[float]) -> float:
    """The value in the middle."""
    return float(np.median(values))


def unrest(values: Sequence[float]) -> float:
    """How far the middle half of values of the same thing lie apart, as a part of their median."""
    quarter, middle, three_quarters = np.percentile(values, (25, 50, 75))
    return float((three_quarters - quarter) / middle)
