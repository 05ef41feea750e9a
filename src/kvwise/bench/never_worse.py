"""Owns one question on a real engine: is choosing ever worse than always loading, or never?

Prompts are on a disk tier whose reads are slowed down to one rate after another, and are asked
again under three policies in turns: load, recompute, auto. Nothing else differs. Where the choice
flips is compared with the rate at which both ways should take equally long.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from kvwise.bench import chat, machine
from kvwise.bench.daemon import Daemon
from kvwise.bench.engine_cpu import Meter
from kvwise.bench.engine_load import Conversation, Load
from kvwise.bench.engine_one_shot import CHUNK_TOKENS, TOKEN_BYTES
from kvwise.bench.engine_prompts import Prompts
from kvwise.bench.engine_quiet import Others, keep_off
from kvwise.bench.engine_stats import median
from kvwise.bench.places import SetupError
from kvwise.bench.progress import Progress
from kvwise.bench.rows import Row, Rows
from kvwise.bench.server import Engine
from kvwise.bench.slow_rig import SlowOptions, slow_rig
from kvwise.bench.slow_serve import Orders
from kvwise.core.words import Decision
from kvwise.units import GIB, KIB, round_up

POLICIES = ("load", "recompute", "auto")
RATES_MB_PER_S = (0.0, 100.0, 40.0, 20.0, 10.0)
JITTER_S, JITTERED_MB_PER_S = 0.1, 100.0
WAYS = ("expected", "measured")
"""By kvwise's own estimates, and by the times that were measured."""

AROUND = (1.0, 0.8, 1.2, 0.9, 1.1, 0.7, 1.4)
"""Rates near the break-even that was expected in the cell before, as parts of it, out of order."""

NEAR = (0.8, 1.2)
"""Parts of the break-even below which the choice should compute, and above which load."""

PROMPTS = 7
"""Prompts in rotation: when one comes again, others have taken its place in memory.

The same policy comes again two or five requests later, so five prompts would be too few.
"""

PAGE_BYTES = 128 * KIB
WORSE_MAX = 1.1
ANSWER_TOKENS = 2
UNSLOWED = 3
"""Times as many rounds where nothing is slowed down: a tenth of a second is soon a tenth longer."""

WARM_UPS = ("load", "recompute", "load", "recompute", "auto")
WRITTEN_S, TIMEOUT_S, RETURNS = 120.0, 60.0, 30
NO_STORE = {"no_store": True}


_READING = (
    "times are medians over rounds in which the policies take turns; the warm-up of each rate is "
    "not counted, and its forced loads teach auto how fast the disk is"
)


@dataclass(frozen=True, slots=True)
class NeverWorseOptions:
    """What a run is asked for.

    Attributes:
        out: folder for the logs and, during the run, the disk tier.
        rounds: requests under each policy at each rate; three times as many at full speed.
        prompt_tokens: tokens of each prompt.
        spare_cores: cores that the engine leaves to everything else.
        seed: draws prompts.
    """

    out: Path
    rounds: int
    prompt_tokens: int
    spare_cores: int
    seed: int


@dataclass(frozen=True, slots=True)
class Fixed:
    """What a load takes where nothing slows the disk down.

    Attributes:
        expected_s: as kvwise estimates it.
        measured_s: until the first token, what remains to be computed included.
    """

    expected_s: float
    measured_s: float


@dataclass(slots=True)
class Cell:
    """What was measured at one rate."""

    rate_mb_per_s: float
    jitter_s: float
    ttft_ms: dict[str, list[float]] = field(default_factory=lambda: {p: [] for p in POLICIES})
    decisions: dict[str, list[Decision]] = field(default_factory=lambda: {p: [] for p in POLICIES})

    @property
    def said(self) -> str:
        """The rate in words."""
        return f"{self.rate_mb_per_s:.0f} MB/s" if self.rate_mb_per_s else "full speed"

    @property
    def loads(self) -> int:
        """How often auto loaded from the disk; a chunk that was left in memory is no load of it."""
        return sum(_disk_share(one) > 0.5 for one in self.decisions["auto"])

    @property
    def mostly_loads(self) -> bool:
        """Whether auto loaded from the disk in most rounds."""
        return self.loads * 2 > len(self.decisions["auto"])

    @property
    def ratio(self) -> float:
        """The median time of auto over that of the better policy."""
        times = {policy: median(found) for policy, found in self.ttft_ms.items()}
        return times["auto"] / min(times["load"], times["recompute"])

    @property
    def found_tokens(self) -> tuple[int, int]:
        """The least and the most tokens that a request found stored.

        Where they differ, so does what is left to compute, and with it a third of a hit's time.
        """
        found = [one.match_tokens for some in self.decisions.values() for one in some]
        return min(found), max(found)

    @property
    def fixed(self) -> Fixed:
        """What a load takes at this rate."""
        expected_s = median([one.load_s for one in self.decisions["load"]])
        return Fixed(expected_s, median(self.ttft_ms["load"]) / 1e3)

    def break_even_mb_per_s(self, fixed: Fixed) -> dict[str, float]:
        """The rate at which loading takes as long as computing, by each way to know; 0 for none.

        Reading at a rate comes on top of what a load takes where nothing slows it down.
        """
        loads = self.decisions["load"]
        size_mb = median([one.load_tokens for one in loads]) * TOKEN_BYTES / 1e6
        left_s = {
            "expected": median([one.recompute_s for one in loads]) - fixed.expected_s,
            "measured": median(self.ttft_ms["recompute"]) / 1e3 - fixed.measured_s,
        }
        return {way: size_mb / left if left > 0 else 0.0 for way, left in left_s.items()}

    def row(self, fixed: Fixed) -> Row:
        """One line of the result."""
        loads = [one for one in self.decisions["load"] if one.actual_s]
        return {
            "path": "never_worse",
            "rate_mb_per_s": round(self.rate_mb_per_s, 1) or None,
            "jitter_ms": self.jitter_s * 1e3,
            "rounds": len(self.ttft_ms["auto"]),
            "ttft_ms": {policy: round(median(found), 1) for policy, found in self.ttft_ms.items()},
            "ttft_ratio": round(self.ratio, 3),
            "auto_loads": self.loads,
            "found_tokens": list(self.found_tokens),
            **{
                f"break_even_{way}_mb_per_s": round(rate, 1) or None
                for way, rate in self.break_even_mb_per_s(fixed).items()
            },
            "load_estimate_ratio": round(median([o.load_s / o.actual_s for o in loads]), 2),
            "disk_share": round(min(map(_disk_share, loads), default=0.0), 2),
            "requests": {policy: self._requests(policy) for policy in POLICIES},
        }

    def _requests(self, policy: str) -> list[Row]:
        """Every request under a policy: its time, and what was expected of both ways."""
        return [
            {
                "ttft_ms": round(ttft_ms, 1),
                "choice": one.choice.value,
                "load_ms": round(one.load_s * 1e3, 1),
                "compute_ms": round(one.recompute_s * 1e3, 1),
                "must_win_by_ms": round((one.margin * one.own_s + one.doubt_s) * 1e3, 1),
                "load_took_ms": round(one.actual_s * 1e3, 1),
            }
            for ttft_ms, one in zip(self.ttft_ms[policy], self.decisions[policy], strict=True)
        ]


def _disk_share(decision: Decision) -> float:
    """Part of what a request found that was loaded from the disk."""
    found = decision.match_tokens - decision.local_tokens
    return decision.tiers.get("disk", 0) / found if found > 0 else 0.0


@dataclass(slots=True)
class _Rig:
    """One engine, a daemon that is told how slow to be, and prompts that are on its disk."""

    engine: Engine
    daemon: Daemon
    orders: Path
    spare: list[int]
    load: Load
    prompts: list[Conversation]
    progress: Progress
    asked: int = 0

    def begin(self, orders: Orders) -> None:
        """A daemon that knows nothing of speed and has nothing in memory, at a rate.

        Raises:
            SetupError: the engine did not come back to it.
        """
        self.daemon.stop()
        orders.write(self.orders)
        self.daemon = Daemon.start(self.daemon.options, self.progress)
        keep_off({self.engine.session, self.daemon.session}, self.spare)
        for _ in range(RETURNS):
            self.ask()
            if self.daemon.decisions(limit=1):
                return
        raise SetupError("the engine did not come back to the daemon; hint: see engine.log")

    def ask(self) -> float:
        """Ask the next prompt, of which the engine holds nothing; milliseconds to its answer."""
        self.load.forget()
        self.asked += 1
        prompt = self.prompts[self.asked % len(self.prompts)]
        return self.load.one(prompt, hints=NO_STORE).ttft_ms


def run_never_worse(options: NeverWorseOptions, command: str, progress: Progress) -> Rows:
    """Measure; nothing that was started is left running, however this ends.

    Raises:
        KvwiseError: something could not be installed, started or asked.
    """
    started = datetime.now(UTC)
    options.out.mkdir(parents=True, exist_ok=True)
    facts = machine.describe(options.out)
    with _prepared(options, progress) as rig:
        facts |= {"engine": f"vLLM {chat.version(rig.engine.port)}"}
        others = Others({rig.engine.session})
        cells = [
            _measure(rig, Orders(bytes_per_s=rate * 1e6), options.rounds) for rate in RATES_MB_PER_S
        ]
        jitter = Orders(bytes_per_s=JITTERED_MB_PER_S * 1e6, jitter_s=JITTER_S)
        cells.append(_measure(rig, jitter, options.rounds))
        fixed = cells[0].fixed
        for part in AROUND:
            rate = part * cells[-1].break_even_mb_per_s(fixed)["expected"]
            cells.append(_measure(rig, Orders(bytes_per_s=rate * 1e6), options.rounds))
        facts |= {"others_cores": round(others.cores(), 2)}
    return Rows(
        bench="never-worse",
        command=command,
        started=started.isoformat(timespec="seconds"),
        machine=facts | {"load_average_at_the_end": round(os.getloadavg()[0], 2)},
        rows=[*(cell.row(fixed) for cell in cells), flip(cells, fixed)],
        notes=notes_of(cells),
    )


def _measure(rig: _Rig, orders: Orders, rounds: int) -> Cell:
    """One rate: warm up, then the policies in turns."""
    cell = Cell(orders.bytes_per_s / 1e6, orders.jitter_s)
    rounds *= 1 if cell.rate_mb_per_s else UNSLOWED
    said = cell.said
    rig.progress.now(f"disk at {said}: warming up")
    rig.begin(orders)
    for policy in WARM_UPS:
        Orders(policy, orders.bytes_per_s, orders.jitter_s).write(rig.orders)
        rig.ask()
    for number in range(rounds):
        rig.progress.now(f"disk at {said}: round {number + 1} of {rounds}")
        first = number % len(POLICIES)
        for policy in POLICIES[first:] + POLICIES[:first]:
            Orders(policy, orders.bytes_per_s, orders.jitter_s).write(rig.orders)
            cell.ttft_ms[policy].append(rig.ask())
            cell.decisions[policy] += rig.daemon.decisions(limit=1)
    rig.progress.done(
        f"disk at {said}: auto took {cell.ratio:.2f} of the better, and loaded {cell.loads} times"
    )
    return cell


def flip(cells: list[Cell], fixed: Fixed) -> Row:
    """Up to where auto mostly computes and from where it loads, in parts of the break-even.

    Each cell is held against the break-even of its own time: an engine on a machine that others
    share computes half as fast again from one minute to the next.
    """
    steady = [cell for cell in cells if cell.rate_mb_per_s and not cell.jitter_s]
    row: Row = {"path": "break_even"}
    for way in WAYS:
        rates = [cell.break_even_mb_per_s(fixed)[way] for cell in steady]
        known = [(cell, rate) for cell, rate in zip(steady, rates, strict=True) if rate]
        parts = {True: [math.inf], False: [0.0]}
        for cell, rate in known:
            parts[cell.mostly_loads].append(cell.rate_mb_per_s / rate)
        computes, loads = max(parts[False]), min(parts[True])
        row[f"{way}_mb_per_s"] = [round(min(rates), 1), round(max(rates), 1)]
        row[f"computes_up_to_{way}"] = round(computes, 2)
        row[f"loads_from_{way}"] = round(loads, 2) if loads < math.inf else None
        row[f"is_where_{way}"] = computes <= NEAR[1] and NEAR[0] <= loads < math.inf
    return row


def notes_of(cells: list[Cell]) -> list[str]:
    """What a reader must know to take the numbers right."""
    notes = [_READING]
    worse = [cell for cell in cells if cell.ratio > WORSE_MAX]
    notes += [f"at {cell.said} auto took {cell.ratio:.2f} of the better policy" for cell in worse]
    least, most = zip(*(cell.found_tokens for cell in cells), strict=True)
    if min(least) < max(most):
        notes.append(
            f"prompts had {min(least)} to {max(most)} tokens stored, so times differ by which "
            "prompts a policy was asked for"
        )
    return notes


@contextmanager
def _prepared(options: NeverWorseOptions, progress: Progress) -> Iterator[_Rig]:
    """Start everything, and end everything that was started, however this ends."""
    started = SlowOptions(
        out=options.out,
        spare_cores=options.spare_cores,
        dram_bytes=_arena_bytes(options.prompt_tokens),
        disk_bytes=GIB,
        settings={"KVWISE_PLAN_TIMEOUT_S": str(TIMEOUT_S)},
    )
    with slow_rig(started, progress) as slow:
        load = Load(slow.engine.port, ANSWER_TOKENS, Meter.of_workers(slow.engine.session))
        rig = _Rig(slow.engine, slow.daemon, slow.orders, slow.spare, load, [], progress)
        try:
            _store(rig, options)
            yield rig
        finally:
            rig.daemon.stop()


def _store(rig: _Rig, options: NeverWorseOptions) -> None:
    """Have every prompt computed once, and written.

    Raises:
        SetupError: the disk is too slow for this bench.
    """
    prompts = Prompts(
        lambda messages: chat.count_tokens(rig.engine.port, messages),
        options.prompt_tokens,
        options.seed,
    )
    for number in range(PROMPTS):
        rig.progress.now(f"storing prompt {number + 1} of {PROMPTS}")
        rig.prompts.append(prompts.next())
        rig.load.one(rig.prompts[-1])
        if not rig.daemon.written(WRITTEN_S):
            raise SetupError("the prompts were not written in time; hint: use a faster disk")


def _arena_bytes(prompt_tokens: int) -> int:
    """Room for one prompt and no more, so that the next one takes its place."""
    return prompt_tokens // CHUNK_TOKENS * round_up(CHUNK_TOKENS * TOKEN_BYTES, PAGE_BYTES)
