"""Dice: every random draw of the simulator, from one seed. It knows nothing of what is drawn.

A draw can be named. A named draw depends on the seed and its name alone, never on how many draws
came before it, so that taking a request out of a scenario does not change what happens to the rest.
That is what makes a failing scenario shrink. The generator is SplitMix64 (Steele, Lea and Flood,
2014), the same on every machine and with every version of Python.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import TypeVar

_MASK = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15
T = TypeVar("T")


class Dice:
    """A stream of draws, and the source of streams with other names."""

    def __init__(self, seed: int) -> None:
        """The stream of a seed."""
        self._seed = seed & _MASK
        self._state = self._seed

    def named(self, *name: str | bytes | int) -> Dice:
        """The stream of this seed that has this name, wherever this one stands."""
        text = repr((self._seed, name)).encode()
        return Dice(int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little"))

    def bits(self) -> int:
        """The next 64 bits."""
        self._state = (self._state + _STEP) & _MASK
        z = self._state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        return z ^ (z >> 31)

    def unit(self) -> float:
        """A number from 0 up to, not including, 1."""
        return (self.bits() >> 11) / (1 << 53)

    def below(self, end: int) -> int:
        """An integer from 0 up to, not including, `end`."""
        return self.bits() * end >> 64

    def between(self, low: int, high: int) -> int:
        """An integer from `low` to `high`, both included."""
        return low + self.below(high - low + 1)

    def chance(self, probability: float) -> bool:
        """Whether something of this probability happens."""
        return self.unit() < probability

    def pick(self, items: Sequence[T]) -> T:
        """One of the items."""
        return items[self.below(len(items))]

    def wait(self, mean: float) -> float:
        """An exponential waiting time."""
        return -mean * math.log(1.0 - self.unit())

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """The items in another order."""
        order = list(items)
        for last in range(len(order) - 1, 0, -1):
            other = self.below(last + 1)
            order[last], order[other] = order[other], order[last]
        return order
