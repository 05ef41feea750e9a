"""Owns a daemon for a bench: `kvwise serve` with a slow disk tier, and a policy that can be told.

`python -m kvwise.bench.slow_serve ORDERS serve ...`; ORDERS is a JSON file that the bench rewrites:
`{"policy": "auto", "bytes_per_s": 4e7, "jitter_s": 0.02}`. Reads from the tier go through
`tiers.wrap`; a rate of 0 leaves them alone. Everything else is the daemon that operators run. This
is a hook for tests and benches: no key of the configuration slows a tier down.
"""

from __future__ import annotations

import json
import runpy
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kvwise.core.brain import Brain
from kvwise.core.words import Asked, Command, Event
from kvwise.core.world import BrainConfig
from kvwise.errors import TierError
from kvwise.live import node, pump
from kvwise.live.clock import now_ns
from kvwise.tiers.base import Tier, Want
from kvwise.tiers.disk import DiskConfig, DiskTier
from kvwise.tiers.wrap import Delayed, Throttled, Wrapped

SEED = 1


@dataclass(frozen=True, slots=True)
class Orders:
    """What the bench wants of the daemon now.

    Attributes:
        policy: as `plan.policy`, for the requests that are asked about from now on.
        bytes_per_s: rate of reads from the disk tier; 0 for as fast as it is.
        jitter_s: reads begin later by up to this time.
    """

    policy: str = "auto"
    bytes_per_s: float = 0.0
    jitter_s: float = 0.0

    def write(self, path: Path) -> None:
        """Let a daemon read this; at no moment is there half of it."""
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps({name: getattr(self, name) for name in self.__slots__}))
        fresh.replace(path)

    @classmethod
    def read(cls, path: Path) -> Orders:
        """What was written last."""
        return cls(**json.loads(path.read_text()))


class Slow(Wrapped):
    """A tier whose reads are as slow as is ordered; writes are as fast as they can be."""

    def __init__(self, inner: Tier, orders: Path) -> None:
        """Begin as ordered now."""
        super().__init__(inner)
        self._path = orders
        self._orders = Orders.read(orders)
        self._reads = self._wrapped()

    def _wrapped(self) -> Tier:
        """The tier as reads see it."""
        orders, inner = self._orders, self.inner
        if orders.bytes_per_s:
            inner = Throttled(
                inner, bytes_per_s=orders.bytes_per_s, clock_ns=now_ns, sleep=time.sleep
            )
        if orders.jitter_s:
            inner = Delayed(
                inner, fixed_s=0.0, jitter_s=orders.jitter_s, seed=SEED, sleep=time.sleep
            )
        return inner

    def get(self, wants: Sequence[Want]) -> Iterator[tuple[int, TierError | None]]:
        """Read as slowly as is ordered."""
        orders = Orders.read(self._path)
        if replace(orders, policy=self._orders.policy) != self._orders:
            self._orders = orders
            self._reads = self._wrapped()
        yield from self._reads.get(wants)


def main() -> None:
    """Put tier and policy in place and run the command line."""
    path = Path(sys.argv.pop(1))

    def opened(config: DiskConfig, *, clock_ns: object) -> Tier:
        del clock_ns
        return Slow(DiskTier(config, clock_ns=now_ns), path)

    class Told(Brain):
        """A brain that takes its policy from the orders."""

        def __init__(self, config: BrainConfig) -> None:
            super().__init__(config)
            self._config = config

        def handle(self, event: Event) -> list[Command]:
            """As any brain, under the policy of this moment."""
            if isinstance(event, Asked):
                policy = Orders.read(path).policy
                self._world.config = replace(self._config, policy=policy)
            return super().handle(event)

    for module, name, stand_in in ((node, "DiskTier", opened), (pump, "Brain", Told)):
        setattr(module, name, stand_in)
    runpy.run_module("kvwise", run_name="__main__")


if __name__ == "__main__":
    main()
