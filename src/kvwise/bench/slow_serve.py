"""Owns a daemon for a bench: `kvwise serve` with a slow drive, and policies that can be told.

`python -m kvwise.bench.slow_serve ORDERS serve ...`; ORDERS is a JSON file that the bench rewrites:
`{"policy": "auto", "bytes_per_s": 4e7, "jitter_s": 0.02, "first_byte_s": 0.1}`. Reads of files take
as long as they would over a link of that rate, below all else that the tier does; a rate of 0
leaves them alone. After a pause the first byte takes its time, as those of network disks and object
stores do; what is asked for meanwhile follows right behind it. A namespace whose label is a value
of `disk.codec` has that instead of the configured one. Everything else is the daemon that operators
run. This is a hook for tests and benches: no key of the configuration slows a drive down.
"""

from __future__ import annotations

import json
import runpy
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kvwise.codecs.forms import Codecs
from kvwise.core.brain import Brain
from kvwise.core.coding import CODECS, Codings, Subject
from kvwise.core.elements import Form
from kvwise.core.words import Asked, Command, Event
from kvwise.core.world import BrainConfig, World
from kvwise.errors import TierError
from kvwise.live import node, pump
from kvwise.live.clock import now_ns
from kvwise.tiers import disk
from kvwise.tiers.base import Tier, Want
from kvwise.tiers.disk import DiskConfig, DiskTier
from kvwise.tiers.extents import Extent
from kvwise.tiers.segments import Directory
from kvwise.tiers.wrap import Delayed, Wrapped
from kvwise.units import NS_PER_S

SEED = 1

SPIN_NS = 150_000
"""The end of a wait is waited for awake: a sleep that long ends at any time."""

IDLE_NS = 50_000_000
"""A link that carried nothing for so long is idle: reads of one load follow each other sooner."""


@dataclass(frozen=True, slots=True)
class Orders:
    """What the bench wants of the daemon now.

    Attributes:
        policy: as `plan.policy`, for the requests that are asked about from now on.
        bytes_per_s: rate of reads from the drive; 0 for as fast as it is.
        jitter_s: reads begin later by up to this time.
        first_byte_s: what a read waits for its first byte where the link was idle.
    """

    policy: str = "auto"
    bytes_per_s: float = 0.0
    jitter_s: float = 0.0
    first_byte_s: float = 0.0

    def write(self, path: Path) -> None:
        """Let a daemon read this; at no moment is there half of it."""
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps({name: getattr(self, name) for name in self.__slots__}))
        fresh.replace(path)

    @classmethod
    def read(cls, path: Path) -> Orders:
        """What was written last."""
        return cls(**json.loads(path.read_text()))


class Standing:
    """The orders as they are now; they are read again when the file is another one."""

    def __init__(self, path: Path) -> None:
        """Begin as ordered now."""
        self._path = path
        self._seen = (0, 0)
        self._orders = Orders()

    def now(self) -> Orders:
        """What is ordered."""
        status = self._path.stat()
        if (found := (status.st_ino, status.st_mtime_ns)) != self._seen:
            self._orders, self._seen = Orders.read(self._path), found
        return self._orders


class Link:
    """A link of so many bytes a second, far away or not, shared by all that is read."""

    def __init__(self, orders: Standing) -> None:
        """Nothing is on its way."""
        self._orders = orders
        self._lock = threading.Lock()
        self._free_at_ns = 0.0

    def reserve(self, size_bytes: int) -> float:
        """When bytes that set out now have come, behind those that set out before."""
        orders, now = self._orders.now(), now_ns()
        if not (orders.bytes_per_s or orders.first_byte_s):
            return now
        passing_s = size_bytes / orders.bytes_per_s if orders.bytes_per_s else 0.0
        with self._lock:
            if now - self._free_at_ns > IDLE_NS:
                passing_s += orders.first_byte_s
            self._free_at_ns = max(self._free_at_ns, now) + passing_s * NS_PER_S
            return self._free_at_ns


class SlowDirectory(Directory):
    """A directory on a drive as slow as is ordered."""

    link: Link

    def read(self, extent: Extent, pieces: Sequence[memoryview]) -> tuple[int, TierError | None]:
        """Read, and be done no sooner than the link allows."""
        until_ns = self.link.reserve(extent.size_bytes)
        found = super().read(extent, pieces)
        if (left_ns := until_ns - now_ns()) > SPIN_NS:
            time.sleep((left_ns - SPIN_NS) / NS_PER_S)
        while now_ns() < until_ns:
            time.sleep(0)
        return found


class Jittered(Wrapped):
    """A tier whose reads begin as late as is ordered."""

    def __init__(self, inner: Tier, orders: Standing) -> None:
        """Begin as ordered now."""
        super().__init__(inner)
        self._orders = orders

    def get(self, wants: Sequence[Want]) -> Iterator[tuple[int, TierError | None]]:
        """Read as late as is ordered."""
        inner, jitter_s = self.inner, self._orders.now().jitter_s
        if jitter_s:
            inner = Delayed(inner, fixed_s=0.0, jitter_s=jitter_s, seed=SEED, sleep=time.sleep)
        yield from inner.get(wants)


class Labelled(Codings):
    """Codings that let the label of a namespace say what is wished for it."""

    def __init__(self, world: World) -> None:
        """As the world's own, with nothing measured."""
        config = world.config
        super().__init__(config.tiers, config.codec, config.codings)
        self._world, self._configured = world, config.codec

    def form(self, tier: int, subject: Subject) -> Form:
        """As its label says, if that says anything."""
        label = self._world.spaces[subject.number].label
        self.wish = label if label in CODECS else self._configured
        return super().form(tier, subject)


def main() -> None:
    """Put drive and policies in place and run the command line."""
    orders = Standing(Path(sys.argv.pop(1)))
    SlowDirectory.link = Link(orders)

    def opened(config: DiskConfig, *, clock_ns: object, codecs: Codecs) -> Tier:
        del clock_ns
        return Jittered(DiskTier(config, clock_ns=now_ns, codecs=codecs), orders)

    class Told(Brain):
        """A brain that takes its policies from orders and labels."""

        def __init__(self, config: BrainConfig) -> None:
            super().__init__(config)
            self._config = config
            self._world.codings = Labelled(self._world)

        def handle(self, event: Event) -> list[Command]:
            """As any brain, under the policy of this moment."""
            if isinstance(event, Asked):
                self._world.config = replace(self._config, policy=orders.now().policy)
            return super().handle(event)

    stand_ins = ((disk, "Directory", SlowDirectory), (node, "DiskTier", opened))
    for module, name, stand_in in (*stand_ins, (pump, "Brain", Told)):
        setattr(module, name, stand_in)
    runpy.run_module("kvwise", run_name="__main__")


if __name__ == "__main__":
    main()
