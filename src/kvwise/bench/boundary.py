"""Owns one question: does a codec on the way to the disk pay, and is it chosen where it does?

A daemon as operators run it, its drive slowed down to one rate after another (`slow_serve`). The
same KV is kept in four namespaces, under one value of `disk.codec` each, and prompts of them are
loaded in turns, from the drive into the arena. Nothing else differs. It computes no KV.
"""

from __future__ import annotations

import os
import shlex
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from kvwise.bench import slow_serve
from kvwise.bench.daemon import Daemon, DaemonOptions
from kvwise.bench.dram import MODELS
from kvwise.bench.machine import describe
from kvwise.bench.places import SetupError
from kvwise.bench.progress import Progress
from kvwise.bench.rows import Row, Rows
from kvwise.bench.slow_serve import Orders
from kvwise.codecs import forms
from kvwise.core.coding import LOADS_KEPT
from kvwise.core.elements import Elements, Kind
from kvwise.core.keys import KEY_BYTES, ROOT
from kvwise.core.words import Namespace
from kvwise.errors import ConfigError
from kvwise.live.client import Client
from kvwise.live.clock import deadline_after, seconds_until
from kvwise.live.leases import unpack_pages
from kvwise.live.messages import Ask, Fill, Offer, Release, Step
from kvwise.units import MIB

POLICIES = ("off", "fixed", "dense", "auto")
"""Values of `disk.codec`; each has a namespace of its own."""

MODEL = MODELS[0]
PAGE_BYTES = 128 * 1024
PARTS = (0.4, 0.6, 0.75, 0.87, 0.94, 1.0, 1.06, 1.13, 1.25, 1.5, 2.0)
"""Rates, as parts of the one at which a codec should stop to pay."""

FIRST_RATE = 4e8
WARM_ROUNDS = LOADS_KEPT + 9
"""Rounds after each change of the rate that only teach: loads of the old one have to be forgotten,
and then the choice takes some objects."""

ROUNDS, ROUNDS_QUICK = 15, 2
OBJECTS = 5
ANSWER_S = 30.0
COMPILE_S = 240.0
"""How long codecs may take to be compiled, once on a machine."""

RATE_MAX = 1e6
LOOK_S = 1e-4
"""How often a load is looked at: seldom enough to leave the processor to it."""

SEED = 11

QUICK = "quick: too few loads to measure anything, the times and choices only show that it works"


@dataclass(frozen=True, slots=True)
class BoundaryOptions:
    """What to measure.

    Attributes:
        disk: an existing folder for the tier.
        rates_mb_per_s: of the drive; none chooses rates around the break-even.
        rounds: loads of each policy at each rate; 0 chooses.
        objects: of one prompt, 720 KiB each.
        io: as `disk.io`.
        quick: few rates and rounds, to see that it works.
    """

    disk: Path
    rates_mb_per_s: Sequence[float] = ()
    rounds: int = 0
    objects: int = OBJECTS
    io: str = "buffered"
    quick: bool = False

    @property
    def turns(self) -> int:
        """Loads of each policy at each rate."""
        return self.rounds or (ROUNDS_QUICK if self.quick else ROUNDS)

    @property
    def command(self) -> str:
        """How to run it again."""
        words = ["kvwise", "bench", "boundary", "--disk", str(self.disk)]
        words += [f"--rate={rate:g}" for rate in self.rates_mb_per_s]
        words += ["--rounds", str(self.turns), "--objects", str(self.objects), "--io", self.io]
        return shlex.join([*words, *(["--quick"] if self.quick else [])])


@dataclass(slots=True)
class Cell:
    """What was measured at one rate, by policy."""

    rate: float
    load_ms: dict[str, list[float]] = field(default_factory=lambda: {p: [] for p in POLICIES})
    chose: str = ""
    why: str = ""
    link: float = 0.0
    break_even: float = 0.0

    def median(self, policy: str) -> float:
        """Milliseconds of a load."""
        return statistics.median(self.load_ms[policy])

    def row(self) -> Row:
        """As a line of the result."""
        off, auto = self.median("off"), self.median("auto")
        codec = min(self.median("fixed"), self.median("dense"))
        return {
            "rate_mb_per_s": round(self.rate / 1e6, 1),
            "link_mb_per_s": round(self.link / 1e6, 1),
            "off_ms": round(off, 3),
            "fixed_ms": round(self.median("fixed"), 3),
            "dense_ms": round(self.median("dense"), 3),
            "codec_ms": round(codec, 3),
            "auto_ms": round(auto, 3),
            "auto_of_best": round(auto / min(off, codec), 3),
            "auto_chose": self.chose,
            "why": self.why,
            "break_even_mb_per_s": round(self.break_even / 1e6, 1),
        }


class Talk:
    """A client that stores prompts of a namespace and loads them; it checks what comes back."""

    def __init__(self, client: Client, objects: int) -> None:
        """Open a namespace for each policy."""
        self._client = client
        self._objects = objects
        self._payload = _kv(objects * MODEL.object_bytes)
        self._pages = -(-MODEL.object_bytes // PAGE_BYTES)
        page_elements = MODEL.block_bytes // 2
        elements = Elements(Kind.BF16, page_elements, 1, page_elements)
        self.spaces = {
            policy: Namespace(policy.encode().ljust(16), policy, MODEL.layout, elements=elements)
            for policy in POLICIES
        }
        for space in self.spaces.values():
            client.join(space)

    def store(self, policy: str) -> bytes:
        """Store a prompt that was never seen, on disk too; its keys."""
        space, keys = self.spaces[policy].digest, os.urandom(KEY_BYTES * self._objects)
        tokens = self._objects * MODEL.layout.chunk_tokens
        offer = Offer(keys.hex(), space, ROOT, keys, total_tokens=tokens)
        (grant,) = self._client.step(Step(offers=[offer]))
        if len(grant.chunks) != self._objects:
            raise SetupError(f"the daemon took {len(grant.chunks)} of {self._objects} objects")
        for place, at in enumerate(self._places(grant.pages)):
            self._client.pages[at] = self._piece(place)
        self._client.step(Step(fills=[Fill(grant.lease, self._objects)]))
        if not self._client.flush(ANSWER_S):
            raise SetupError(f"what was stored is not on disk after {ANSWER_S:.0f} s")
        return keys

    def load(self, policy: str, keys: bytes) -> float:
        """Milliseconds until a prompt that is only on disk is in the arena, looked at after."""
        space, tokens = self.spaces[policy].digest, self._objects * MODEL.layout.chunk_tokens
        plan = self._client.ask(Ask(keys.hex(), space, keys, 0, tokens + 1))
        if plan.chunks != self._objects or plan.decision.tiers != {"disk": tokens}:
            raise SetupError(f"the daemon would load {plan.decision.tiers}")
        started = time.perf_counter()
        grant = self._client.want(plan.lease, plan.chunks)
        deadline_ns = deadline_after(ANSWER_S)
        while (found := self._client.progress(plan.lease))[0] < self._objects:
            if found[1] or not seconds_until(deadline_ns):
                raise SetupError("a load failed, or took too long")
            time.sleep(LOOK_S)
        took_s = time.perf_counter() - started
        for place, at in enumerate(self._places(grant.pages)):
            if self._client.pages[at] != self._piece(place):
                raise SetupError(f"the disk gave other bytes back under {policy}")
        release = Release(plan.lease, waited_ns=int(took_s * 1e9))
        self._client.step(Step(releases=[release]))
        return took_s * 1e3

    def wait_for_codecs(self) -> None:
        """Wait until the daemon has compiled them."""
        deadline_ns = deadline_after(COMPILE_S)
        while not self.coding()["ready"]:
            if not seconds_until(deadline_ns):
                raise SetupError(f"the daemon has no codecs after {COMPILE_S:.0f} s")
            time.sleep(0.1)

    def coding(self) -> dict[str, Any]:
        """What the daemon says of codecs."""
        told: dict[str, Any] = self._client.status()["coding"]
        return told

    def _piece(self, place: int) -> memoryview:
        """A page of the payload."""
        number, page = divmod(place, self._pages)
        start = number * MODEL.object_bytes + page * PAGE_BYTES
        end = min(start + PAGE_BYTES, (number + 1) * MODEL.object_bytes)
        return self._payload[start:end]

    def _places(self, packed: bytes) -> Iterator[slice]:
        """Where each page of the payload is in the arena."""
        for place, page in enumerate(unpack_pages(packed)):
            at = page * PAGE_BYTES
            yield slice(at, at + self._piece(place).nbytes)


def measure_boundary(options: BoundaryOptions, progress: Progress) -> Rows:
    """Measure all policies at all rates.

    Raises:
        ConfigError: there are no codecs, or a rate cannot be.
        SetupError: the daemon failed, or gave wrong bytes.
    """
    started = datetime.now(UTC).isoformat(timespec="seconds")
    machine = describe(options.disk)
    if not all(0 < rate < RATE_MAX for rate in options.rates_mb_per_s):
        raise ConfigError(f"a rate is no number of MB/s up to {RATE_MAX:.0f}; hint: --rate 500")
    if not forms.at_hand():
        raise ConfigError(f"there are no codecs to measure; hint: {forms.INSTALL}")
    with _daemon(options, progress) as (talk, orders):
        progress.now("waiting for the codecs to be compiled")
        talk.wait_for_codecs()
        rates = [rate * 1e6 for rate in options.rates_mb_per_s]
        skipped: list[str] = []
        if not rates:
            rates, skipped = _rates(talk, orders, options, progress)
        cells = []
        for rate in rates:
            cells.append(_measure(talk, orders, rate, options, progress))
            progress.done(f"measured at {rate / 1e6:.0f} MB/s: auto is {cells[-1].chose}")
    rows = [cell.row() for cell in cells]
    notes = (QUICK,) if options.quick else _notes(cells)
    return Rows("boundary", options.command, started, machine, rows, skipped, notes)


def _rates(
    talk: Talk, orders: Path, options: BoundaryOptions, progress: Progress
) -> tuple[list[float], list[str]]:
    """Rates around the break-even, as far as the drive reaches, and which it does not reach."""
    progress.now("learning what codecs and the drive can do")
    Orders("load", 0.0).write(orders)
    _rounds(talk, WARM_ROUNDS, None)
    most = float(talk.coding()["read_bytes_per_s"]["disk"])
    Orders("load", FIRST_RATE).write(orders)
    _rounds(talk, WARM_ROUNDS, None)
    break_even = _break_even(talk.coding())
    parts = PARTS[::4] if options.quick else PARTS
    rates = [part * break_even for part in parts]
    reached = [rate for rate in rates if rate < 0.9 * most]
    skipped = [
        f"{rate / 1e6:.0f} MB/s: the drive reads at {most / 1e6:.0f} MB/s"
        for rate in rates
        if rate not in reached
    ]
    return reached, skipped


def _measure(
    talk: Talk, orders: Path, rate: float, options: BoundaryOptions, progress: Progress
) -> Cell:
    """All policies at one rate."""
    cell = Cell(rate)
    progress.now(f"at {rate / 1e6:.0f} MB/s")
    Orders("load", rate).write(orders)
    _rounds(talk, 2 if options.quick else WARM_ROUNDS, None)
    _rounds(talk, options.turns, cell)
    told = talk.coding()
    choice = told["choices"]["disk"]["auto"]
    cell.chose, cell.why = choice["coding"], choice["why"]
    cell.link = told["read_bytes_per_s"]["disk"]
    cell.break_even = _break_even(told)
    return cell


def _break_even(told: dict[str, Any]) -> float:
    """The rate below which the best codec pays, as the daemon reckons it."""
    choices = told["choices"]["disk"].get("auto", {})
    known = choices.get("break_even_bytes_per_s", {})
    if not known:
        raise SetupError("the daemon has measured no codec; hint: pip install 'kvwise[codecs]'")
    return float(max(known.values()))


def _rounds(talk: Talk, rounds: int, cell: Cell | None) -> None:
    """Store a prompt under each policy, push them all out of memory, and load them in turns."""
    for number in range(rounds):
        turn = [*POLICIES[number % len(POLICIES) :], *POLICIES[: number % len(POLICIES)]]
        stored = [(policy, talk.store(policy)) for policy in turn]
        talk.store("off")
        for policy, keys in stored:
            took_ms = talk.load(policy, keys)
            if cell is not None:
                cell.load_ms[policy].append(took_ms)


@contextmanager
def _daemon(options: BoundaryOptions, progress: Progress) -> Iterator[tuple[Talk, Path]]:
    """A daemon whose arena has room for one prompt and a half, and somebody to talk to it."""
    pages = options.objects * -(-MODEL.object_bytes // PAGE_BYTES)
    with tempfile.TemporaryDirectory(prefix=".kvwise-bench-", dir=options.disk) as place:
        folder = Path(place)
        orders = folder / "orders.json"
        Orders("load").write(orders)
        started = DaemonOptions(
            folder / "s",
            dram_bytes=(pages + pages // 2) * PAGE_BYTES,
            log=folder / "daemon.log",
            disk=folder / "tier",
            disk_bytes=1024 * MIB,
            settings={
                "KVWISE_PLAN_POLICY": "load",
                "KVWISE_WRITE_MIN_CHANCE": "0",
                "KVWISE_EVICT_POLICY": "lru",
                "KVWISE_DISK_CODEC": "auto",
                "KVWISE_DISK_IO": options.io,
                "KVWISE_DISK_MIN_FREE": str(MIB),
            },
            program=(slow_serve.__name__, str(orders)),
        )
        with (
            Daemon.start(started, progress),
            closing(Client(str(started.socket), "bench", timeout_s=ANSWER_S)) as client,
        ):
            yield Talk(client, options.objects), orders


def _notes(cells: Sequence[Cell]) -> tuple[str, ...]:
    """Where the choice flipped, where the times cross, and how far auto was from the best.

    The rate of the formula is the one that is the break-even which the daemon reckons at it: what
    was learned at other rates is of loads that took longer or shorter.
    """
    notes = ["times are from asking for the pages until the last byte is in the arena, medians"]
    ordered = sorted(cells, key=lambda cell: cell.rate)
    chosen = _crossing(ordered, lambda cell: 1.0 if cell.chose == "plain" else -1.0)
    timed = _crossing(ordered, lambda cell: _codec_ms(cell) - cell.median("off"))
    formula = _crossing(ordered, lambda cell: cell.rate - cell.break_even)
    if chosen and formula:
        notes.append(
            f"the choice flips at {chosen / 1e6:.0f} MB/s, {chosen / formula:.2f} of the "
            f"{formula / 1e6:.0f} MB/s of the formula"
        )
    if timed:
        notes.append(f"the measured times cross at {timed / 1e6:.0f} MB/s")
    return tuple(notes)


def _codec_ms(cell: Cell) -> float:
    """Milliseconds of a load with the better codec."""
    return min(cell.median("fixed"), cell.median("dense"))


def _crossing(cells: Sequence[Cell], value: Callable[[Cell], float]) -> float:
    """The rate between the last two neighbours at which a value goes from below 0 to above it."""
    found = 0.0
    for slow, fast in pairwise(cells):
        below, above = value(slow), value(fast)
        if below < 0 <= above:
            found = slow.rate + (fast.rate - slow.rate) * -below / (above - below)
    return found


def _kv(size_bytes: int) -> memoryview:
    """Numbers in BF16 whose exponents are spread as those of KV: a bell curve's."""
    numbers = np.random.default_rng(SEED).standard_normal(size_bytes // 2, np.float32)
    return memoryview((numbers.view(np.uint32) >> 16).astype(np.uint16).tobytes())
