"""Owns a plan's test on the live engine of this machine: what is predicted, then what comes.

An engine computes prompts of some lengths and loads some from memory and from disk. From that alone
follow predictions: from which prefix on a drive of one rate or another is quicker than computing,
and what requests with the shape of a trace hit and wait for. Then just that is measured. Prompts
are lists of tokens, so that every length is exact; the engine's own cache is emptied before each.
"""

from __future__ import annotations

import hashlib
import os
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from kvwise.bench import chat, machine
from kvwise.bench.chat import Answer, Tokens
from kvwise.bench.daemon import Daemon, DaemonOptions
from kvwise.bench.engine_one_shot import CHUNK_TOKENS, TOKEN_BYTES
from kvwise.bench.engine_quiet import Others, keep_off
from kvwise.bench.engine_stats import median
from kvwise.bench.places import SetupError
from kvwise.bench.progress import Progress
from kvwise.bench.rows import Row, Rows
from kvwise.bench.server import Engine
from kvwise.bench.slow_rig import SlowOptions, slow_rig
from kvwise.bench.slow_serve import Orders
from kvwise.codecs.frame import frame_bytes
from kvwise.planner.oracle import Times
from kvwise.planner.validate import (
    BREAK_EVEN_OFF,
    HITS_OFF,
    TTFT_OFF,
    Check,
    Drive,
    Host,
    Line,
    Shape,
    crossing,
    crossings,
    lengths_around,
    times_of,
)
from kvwise.units import GIB, KIB, round_up

CALIBRATED = (128, 320, 768, 1280, 1920)
"""Lengths that predictions know computing of; whole chunks, as all lengths here."""

LOADED = (256, 1024, 1920)
"""Lengths that they know loading of, from memory and from the disk as it is."""

SHARES = (0.25, 0.45, 0.6)
"""Drives take this much of computing's time for each token, by the first look."""

MIDDLE_TOKENS = 900
"""And all are as far away as makes this the break-even of the second."""

CHECKED = (0.5, 0.7, 0.9, 1.1, 1.35, 1.6)
"""Lengths at which loading is held against computing, as parts of the expected break-even."""

LOOKS = 3
"""How often everything is computed and loaded for that."""

USED_TO = 12
"""A daemon that knew a fast drive takes a slow one for what it is after so many loads, at most."""

BLOCKS_MAX = 60
"""Of a prompt of the trace."""

AGAIN_EVERY = 8
"""After so many requests of the trace computing is timed once more: machines change."""

OTHERS_MAX = 0.2
"""Cores that others may keep busy before a reader is told."""

DISK_SHARE_MIN = 0.98
PAGE_BYTES = 128 * KIB
STORED_BYTES = frame_bytes(CHUNK_TOKENS * TOKEN_BYTES) / CHUNK_TOKENS
"""Of a token on the disk."""

OBJECT_BYTES = round_up(CHUNK_TOKENS * TOKEN_BYTES, PAGE_BYTES)
DRAM_TOKENS = 2_080
"""Of these memory has room for: the longest prompt, of which nothing is left two prompts later."""

DISK_BYTES = 2 * GIB
WRITTEN_S, RETURN_S, TIMEOUT_S = 120.0, 60.0, 60.0
ANSWER_TOKENS = 2
FIRST_ID, IDS = 1_000, 40_000
"""Ids of common tokens of the model."""

AS_IT_IS = Drive(0.0)
"""The disk, not slowed down."""

NO_STORE = {"no_store": True}
SETTINGS = {
    "KVWISE_PLAN_TIMEOUT_S": str(TIMEOUT_S),
    "KVWISE_EVICT_POLICY": "lru",
    "KVWISE_WRITE_MIN_CHANCE": "0",
}
"""Hits are predicted for an exact LRU that takes in everything."""

_READING = (
    "requests come one after the other, so nobody waits for anybody; the disk is slowed down, its "
    "first byte delayed, below kvwise, which is told to load or to compute, whatever is quicker"
)

Seconds = dict[int, list[float]]
"""Times to first token by length of the prompt, without its last token."""


@dataclass(frozen=True, slots=True)
class RealityOptions:
    """What a run is asked for.

    Attributes:
        out: folder for the logs and, during the run, the disk tier.
        rounds: how often everything is measured at each rate.
        spare_cores: cores that the engine leaves to everything else.
        seed: draws tokens, and families of requests.
    """

    out: Path
    rounds: int
    spare_cores: int
    seed: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run found.

    Attributes:
        rows: everything, ready to be printed.
        checks: predictions beside measurements.
        times: of whole prompts, for `kvwise plan --recompute`.
    """

    rows: Rows
    checks: list[Check]
    times: Times


@dataclass(slots=True)
class _Rig:
    """One engine, and a daemon that is told how slow to be and what to do."""

    engine: Engine
    daemon: Daemon
    orders: Path
    spare: list[int]
    seed: int
    progress: Progress
    asked: int = 0
    elsewhere: int = 0

    def ask(self, prompt: list[int], orders: Orders, hints: dict[str, bool] | None) -> Answer:
        """Ask once, of an engine that holds nothing of it."""
        orders.write(self.orders)
        chat.forget(self.engine.port)
        self.asked += 1
        question = Tokens(f"plan-{self.asked}", prompt, ANSWER_TOKENS, hints)
        return chat.ask(self.engine.port, question)

    def prompt(self, name: str, tokens: int) -> list[int]:
        """The prompt of a name: whole chunks, and one token more."""
        blocks = [f"{name}-{number}" for number in range(tokens // CHUNK_TOKENS)]
        return prompt_of(blocks, self.seed)

    def compute_s(self, tokens: int) -> float:
        """Seconds to first token of a prompt that is computed."""
        prompt = self.prompt(f"checked-{tokens}", tokens)
        return self.ask(prompt, Orders("recompute"), NO_STORE).ttft_s

    def load_s(self, tokens: int, tier: str, drive: Drive = AS_IT_IS) -> float | None:
        """The same when it is loaded; None when it was not, or from elsewhere too."""
        prompt = self.prompt(f"checked-{tokens}", tokens)
        orders = Orders("load", drive.bytes_per_s, first_byte_s=drive.first_byte_s)
        answer = self.ask(prompt, orders, NO_STORE)
        (decision,) = self.daemon.decisions(limit=1)
        share = decision.tiers.get(tier, 0) / tokens
        if answer.cached_tokens != tokens or share < DISK_SHARE_MIN:
            return None
        return answer.ttft_s

    def begin(self, options: DaemonOptions) -> None:
        """Another daemon in the place of this one, until the engine uses it.

        Raises:
            SetupError: the engine did not come back to it.
        """
        self.daemon.stop()
        self.daemon = Daemon.start(options, self.progress)
        keep_off({self.engine.session, self.daemon.session}, self.spare)
        deadline = time.monotonic() + RETURN_S
        prompt = self.prompt("return", CALIBRATED[0])
        while not self.ask(prompt, Orders("load"), None).cached_tokens:
            if time.monotonic() > deadline:
                raise SetupError("the engine did not come back to the daemon; hint: see engine.log")


@dataclass(slots=True)
class _Known:
    """What predictions are made from."""

    computed: Seconds = field(default_factory=dict)
    memory: Seconds = field(default_factory=dict)
    disk: Seconds = field(default_factory=dict)

    def compute(self, rig: _Rig, lengths: Sequence[int]) -> None:
        """Time computing at these lengths."""
        for tokens in lengths:
            self.computed.setdefault(tokens, []).append(rig.compute_s(tokens))

    def load(self, rig: _Rig) -> None:
        """Time loading: from the disk, and once more when it is in memory."""
        for tokens in LOADED:
            for tier, found in (("disk", self.disk), ("dram", self.memory)):
                seconds = rig.load_s(tokens, tier)
                if seconds is None:
                    rig.elsewhere += 1
                else:
                    found.setdefault(tokens, []).append(seconds)

    def host(self) -> Host:
        """As the planner takes it.

        Raises:
            SetupError: too little was loaded from where it should be.
        """
        for name, found in (("memory", self.memory), ("disk", self.disk)):
            if len(found) < 2:
                raise SetupError(f"prompts were not loaded from {name}; hint: see daemon.log")
        return Host(
            times_of("this engine", self.computed),
            Line.through(self.memory),
            Line.through(self.disk),
            STORED_BYTES,
        )


@dataclass(slots=True)
class _Held:
    """Loading from one drive held against computing, at lengths around a break-even."""

    drive: Drive
    lengths: list[int]
    computed: Seconds = field(default_factory=dict)
    loaded: Seconds = field(default_factory=dict)

    @property
    def said(self) -> str:
        """The drive in words."""
        rate, late = self.drive.bytes_per_s / 1e6, self.drive.first_byte_s * 1e3
        return f"drive of {rate:.1f} MB/s, {late:.0f} ms away"

    def once(self, rig: _Rig, known: _Known, where: str) -> None:
        """All lengths once, the shortest first, and between them those that predictions know."""
        for tokens in sorted({*CALIBRATED, *self.lengths}):
            rig.progress.now(f"{self.said}, {where}: {tokens} tokens")
            if tokens in CALIBRATED:
                known.compute(rig, [tokens])
                continue
            computed_s = rig.compute_s(tokens)
            loaded_s = rig.load_s(tokens, "disk", self.drive)
            if loaded_s is None:
                rig.elsewhere += 1
                continue
            self.computed.setdefault(tokens, []).append(computed_s)
            self.loaded.setdefault(tokens, []).append(loaded_s)

    def check(self, host: Host, seed: int) -> Check:
        """The break-even that is predicted, beside the one that was measured."""
        return Check(
            f"break-even prefix, {self.said}",
            "tokens",
            host.break_even_tokens(self.drive, CALIBRATED[0], CALIBRATED[-1]),
            crossing(self.loaded, self.computed),
            BREAK_EVEN_OFF,
            between=crossings(self.loaded, self.computed, seed),
        )

    def rows(self) -> Iterator[Row]:
        """What was measured at each length."""
        for tokens in sorted(self.loaded):
            yield {
                "path": "held",
                "drive": self.said,
                "tokens": tokens,
                "computed_ms": [round(1e3 * one, 1) for one in self.computed[tokens]],
                "loaded_ms": [round(1e3 * one, 1) for one in self.loaded[tokens]],
            }


def prompt_of(blocks: Sequence[object], seed: int) -> list[int]:
    """Tokens of blocks, the same for the same ones, and one token more."""
    ids: list[int] = []
    for block in blocks:
        text = hashlib.shake_128(f"{seed}:{block}".encode()).digest(2 * CHUNK_TOKENS)
        ids += [FIRST_ID + word % IDS for word in struct.unpack(f"<{CHUNK_TOKENS}H", text)]
    return [*ids, FIRST_ID]


def run_reality(options: RealityOptions, shape: Shape, command: str, progress: Progress) -> Outcome:
    """Predict and measure; nothing that was started is left running, however this ends.

    Raises:
        KvwiseError: something could not be installed, started or asked.
    """
    started = datetime.now(UTC)
    options.out.mkdir(parents=True, exist_ok=True)
    facts = machine.describe(options.out)
    with _prepared(options, progress) as rig:
        facts |= {"engine": f"vLLM {chat.version(rig.engine.port)}", "model": "SmolLM2-135M"}
        others = Others({rig.engine.session})
        host, held = _hold(rig, options.rounds)
        checks = [one.check(host, rig.seed) for one in held]
        checks += _replay(rig, host, shape)
        facts |= {"others_cores": round(others.cores(), 2)}
        elsewhere = rig.elsewhere
    notes = [_READING]
    if facts["others_cores"] > OTHERS_MAX:
        notes.append(
            f"others kept {facts['others_cores']} cores busy meanwhile: times vary with them; "
            "run it on a quiet machine"
        )
    if elsewhere:
        notes.append(f"{elsewhere} loads were not from where they should be, and left out")
    rows = Rows(
        bench="plan-validate",
        command=command,
        started=started.isoformat(timespec="seconds"),
        machine=facts | {"load_average_at_the_end": round(os.getloadavg()[0], 2)},
        rows=[
            *({"path": "check", **check.row()} for check in checks),
            *_measured(host),
            *(row for one in held for row in one.rows()),
        ],
        notes=notes,
    )
    return Outcome(rows, checks, host.oracle)


def _measured(host: Host) -> list[Row]:
    """What predictions were made from."""
    rows: list[Row] = [
        {"path": "prefill", "tokens": tokens, "seconds": round(seconds, 6)}
        for tokens, seconds in host.oracle.knots
    ]
    for name, line in (("memory", host.memory), ("disk", host.disk)):
        rate = STORED_BYTES / line.token_s / 1e9 if line.token_s else None
        rows.append({"path": name, "fixed_ms": round(line.fixed_s * 1e3, 2), "gb_per_s": rate})
    return rows


def _hold(rig: _Rig, rounds: int) -> tuple[Host, list[_Held]]:
    """Hold loading from three drives against computing; what predictions know is from meanwhile."""
    _store(rig, [*LOADED, DRAM_TOKENS])
    first = _Known()
    for _ in range(LOOKS):
        rig.progress.now("looking how fast this engine computes and loads")
        first.compute(rig, CALIBRATED)
        first.load(rig)
    host = first.host()
    drives = host.drives(SHARES, MIDDLE_TOKENS)
    held = [_Held(drive, _lengths(host, drive)) for drive in drives]
    _store(rig, sorted({tokens for one in held for tokens in one.lengths}))
    rig.progress.now("letting the daemon get used to a slow drive")
    _get_used(rig, held[-1].drive)
    known = replace(first, computed={})
    for number in range(1, rounds + 1):
        for one in held:
            one.once(rig, known, f"round {number} of {rounds}")
    rig.progress.done(f"loading from {len(held)} drives was held against computing")
    return known.host(), held


def _store(rig: _Rig, lengths: Sequence[int]) -> None:
    """Have prompts of these lengths computed and written.

    Raises:
        SetupError: that takes too long.
    """
    for tokens in lengths:
        rig.progress.now(f"storing a prompt of {tokens} tokens")
        rig.ask(rig.prompt(f"checked-{tokens}", tokens), Orders("recompute"), None)
        if not rig.daemon.written(WRITTEN_S):
            raise SetupError("the prompts were not written in time; hint: use a faster disk")


def _lengths(host: Host, drive: Drive) -> list[int]:
    """Lengths around the break-even that a first look makes one expect.

    Raises:
        SetupError: it makes one expect none.
    """
    expected = host.break_even_tokens(drive, CALIBRATED[0], CALIBRATED[-1])
    if expected is None:
        raise SetupError(
            "computing took too different times for the same length; hint: use a quiet machine"
        )
    apart = {*CALIBRATED, *LOADED}
    return lengths_around(expected, CHECKED, CHUNK_TOKENS, apart, DRAM_TOKENS)


def _get_used(rig: _Rig, drive: Drive) -> None:
    """Load until the daemon waits as long as such a drive takes, and no longer gives up loads."""
    whole = 0
    for number in range(USED_TO):
        loaded_s = rig.load_s(LOADED[number % len(LOADED)], "disk", drive)
        whole = whole + 1 if loaded_s is not None else 0
        if whole == len(LOADED):
            return


def _replay(rig: _Rig, host: Host, shape: Shape) -> list[Check]:
    """What requests with the shape of a trace hit, and how long they wait."""
    memory_bytes = shape.capacity_blocks * OBJECT_BYTES
    rig.begin(replace(rig.daemon.options, dram_bytes=memory_bytes, disk=None, disk_bytes=0))
    known, cached, waited = _Known(), list[int](), list[float]()
    usual = [tokens for tokens in CALIBRATED if tokens <= BLOCKS_MAX * CHUNK_TOKENS]
    for number, blocks in enumerate(shape.prompts):
        rig.progress.now(f"request {number + 1} of {len(shape.prompts)} of the trace")
        if number % AGAIN_EVERY == 0:
            known.compute(rig, [usual[number // AGAIN_EVERY % len(usual)]])
        answer = rig.ask(prompt_of(blocks, rig.seed), Orders("load"), None)
        cached.append(answer.cached_tokens)
        waited.append(answer.ttft_s)
    known.compute(rig, usual)
    now = replace(host, oracle=times_of("this engine", known.computed))
    predicted_s = [
        now.ttft_s(hit * CHUNK_TOKENS, (len(blocks) - hit) * CHUNK_TOKENS + 1)
        for hit, blocks in zip(shape.hits, shape.prompts, strict=True)
    ]
    rig.progress.done(f"{len(waited)} requests of the trace came to {sum(cached)} cached tokens")
    said = f"hit ratio, {len(waited)} requests, memory for {shape.capacity_blocks} blocks"
    ratios = shape.hit_ratio, sum(cached) / CHUNK_TOKENS / shape.blocks
    middles = median(predicted_s) * 1e3, median(waited) * 1e3
    return [
        Check(said, "of blocks", *ratios, HITS_OFF, is_ratio=False),
        Check("time to first token, p50", "ms", *middles, TTFT_OFF),
    ]


@contextmanager
def _prepared(options: RealityOptions, progress: Progress) -> Iterator[_Rig]:
    """Start everything, and end everything that was started, however this ends."""
    started = SlowOptions(
        out=options.out,
        spare_cores=options.spare_cores,
        dram_bytes=DRAM_TOKENS // CHUNK_TOKENS * OBJECT_BYTES,
        disk_bytes=DISK_BYTES,
        settings=SETTINGS,
    )
    with slow_rig(started, progress) as slow:
        rig = _Rig(slow.engine, slow.daemon, slow.orders, slow.spare, options.seed, progress)
        progress.done("an engine and a daemon are ready")
        try:
            yield rig
        finally:
            rig.daemon.stop()
