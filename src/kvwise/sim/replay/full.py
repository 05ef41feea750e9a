"""A whole stack over a trace: engines, links, drives and the brain in virtual time. It only drives.

Every request goes to one of the engines when it arrives, and is followed to its first token.
Answers are decoded, which takes time from the prompts, but are not kept: a trace does not say what
they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from kvwise.core.admit import ALL, WORTH
from kvwise.core.brain import Brain
from kvwise.core.hints import Hints
from kvwise.core.timing import Equipped
from kvwise.core.words import Tick, TierSpec
from kvwise.core.world import BrainConfig
from kvwise.errors import ConfigError
from kvwise.sim.codecs import LAWS
from kvwise.sim.replay.brains import CLIENT, LEARNS, space_of, teach
from kvwise.sim.replay.device import Device
from kvwise.sim.replay.engine import Call, Engine, EngineSpec
from kvwise.sim.replay.node import UNITS, Drives, Node, Pipe
from kvwise.sim.replay.stack import Disk, Network, Stack
from kvwise.sim.replay.tape import Tape
from kvwise.sim.timeline import Timeline
from kvwise.sim.trace.assembly import Report
from kvwise.units import NS_PER_S

REPORT_EVERY = 200
TICK_NS = NS_PER_S
LANES = 4
"""Threads that decode at once, as with the usual `disk.threads`."""

IDLE_PARTS = 60
"""While nothing happens, time passes in steps of this part of how long nothing has happened."""

QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
NO_CACHE, ALWAYS, WRITE_ALL = "no cache", "always load", "lru, all written"
STACK = "this stack"
VARIANTS = (STACK, NO_CACHE, ALWAYS, WRITE_ALL)
"""What every run is held against, beside the clairvoyant bound of its hits."""


@dataclass(slots=True)
class Account:
    """What came of a run, by the simulator's own clock and counters.

    Attributes:
        ttft_s: of every request.
        found_blocks: matched on the device or in the cache, loaded or not.
        used_blocks: of them, those that were not computed, by where they came from.
        hit_tokens: the same in tokens.
        read_bytes, written_bytes: by tier.
        gpu_s: of all steps that computed prompts, without what decoding adds to them.
        gpu_busy: share of the engines' time in which they computed anything at all.
        wait_s: of all loads together.
        late: loads that were given up.
        brain_saved_s, brain_lost_s: by the brain's estimate.
    """

    name: str
    requests: int
    seconds: float
    ttft_s: list[float]
    input_blocks: int
    found_blocks: int
    used_blocks: dict[str, int]
    hit_tokens: dict[str, int]
    read_bytes: dict[str, int]
    written_bytes: dict[str, int]
    gpu_s: float
    gpu_busy: float
    computed_tokens: int
    wait_s: float
    loads: int
    late: int
    brain_saved_s: float
    brain_lost_s: float
    refused: dict[str, int]
    digest: str = ""
    life_years: float | None = None

    @property
    def hit_ratio(self) -> float:
        """Blocks that were found over all input blocks."""
        return self.found_blocks / max(1, self.input_blocks)

    def ttft(self) -> dict[str, float]:
        """Mean and quantiles of the time to first token."""
        times = np.array(self.ttft_s)
        quantiles = {name: float(np.quantile(times, at)) for name, at in QUANTILES.items()}
        return {"mean": float(times.mean()), **quantiles}

    def against(self, other: Account) -> tuple[float, float]:
        """Seconds to first token saved and lost against another run of the same requests."""
        gain = np.array(other.ttft_s) - np.array(self.ttft_s)
        return float(gain[gain > 0].sum()), float(np.abs(gain[gain < 0]).sum())

    def to_builtins(self) -> dict[str, Any]:
        """Everything as plain values, with quantiles in place of every request's time."""
        told = asdict(self)
        del told["ttft_s"]
        return {**told, "hit_ratio": self.hit_ratio, "ttft_s": self.ttft()}


def config_of(stack: Stack, variant: str, tape: Tape, each: int) -> BrainConfig:
    """How the brain of a variant is set up; an arena never needs more room than the trace has."""
    settings, profile = stack.brain, stack.profile
    pages = min(stack.dram.size // each, tape.distinct_blocks)
    if not pages:
        raise ConfigError(
            f"dram.size: {stack.dram.size} bytes hold no object of {each}; hint: a larger one"
        )
    link = (profile.link_bytes_per_s, profile.link_latency_s)
    tiers = [TierSpec("dram", pages * each, each, 0, *link)]
    disk, network = stack.disk, stack.network
    codec = disk.codec if disk is not None and variant in {STACK, ALWAYS} else "off"
    unit = each if codec == "off" or each % UNITS else each // UNITS
    if disk is not None:
        rate = disk.read_bytes_per_s * disk.drives
        tiers.append(TierSpec("disk", disk.size, unit, 0, rate, disk.latency_s, each, LANES))
    if network is not None:
        rate = network.read_bytes_per_s
        latency_s = network.latency_s
        tiers.append(TierSpec("network", network.size, unit, 0, rate, latency_s, each, LANES))
    plan = {STACK: settings.plan, NO_CACHE: "recompute", ALWAYS: "load", WRITE_ALL: "auto"}
    own = variant in {STACK, ALWAYS}
    config = BrainConfig(
        page_bytes=each,
        tiers=tuple(tiers),
        policy=plan[variant],
        load_timeout_ns=round(settings.load_timeout_s * NS_PER_S),
        queue_bytes=max(each, settings.queue_size),
        write_bytes_per_day=settings.write_bytes_per_day if own else 0,
        eviction=settings.eviction if own else "lru",
        admission=ALL if variant == WRITE_ALL else WORTH,
        codec=codec,
        codings=tuple(LAWS),
    )
    if own and settings.min_chance is not None:
        config = replace(config, chance_min=settings.min_chance)
    elif config.eviction != LEARNS:
        config = replace(config, chance_min=0.0)
    return config if settings.margin is None else replace(config, margin=settings.margin)


class _Run:
    """One variant over one trace."""

    def __init__(self, tape: Tape, stack: Stack, variant: str, speed: float) -> None:
        """Nothing has arrived yet."""
        self._tape, self._stack, self._variant, self._speed = tape, stack, variant, speed
        self._space = space_of(stack.profile, tape.block_tokens)
        config = config_of(stack, variant, tape, self._space.object_bytes)
        self._timeline = Timeline()
        self._node = Node(self._timeline, Brain(config))
        count = stack.engine.count
        pages = config.tiers[0].capacity_bytes // config.page_bytes
        self._node.brain.handle(Equipped(0, config.codings))
        teach(self._node.brain, stack.profile, self._space, pages, count)
        self._before = self._node.brain.snapshot()["counters"]
        self._names = [tier.name for tier in config.tiers]
        self._drives = self._make_drives()
        self._node.attach(self._drives)
        self._engines = [self._make_engine(client) for client in range(count)]
        self._calls: list[Call] = []
        self._left = tape.requests

    def _make_drives(self) -> list[Drives]:
        disk, network = self._stack.disk, self._stack.network
        drives = []
        if disk is not None:
            pipes = self._pipes(disk, disk.drives)
            drives.append(Drives(self._timeline, pipes, disk.mixed, self._node.say))
        if network is not None:
            drives.append(Drives(self._timeline, self._pipes(network, 1), 1.0, self._node.say))
        return drives

    def _pipes(self, tier: Disk | Network, count: int) -> tuple[Pipe, Pipe]:
        read, write = tier.read_bytes_per_s * count, tier.write_bytes_per_s * count
        latency_s = tier.latency_s
        return Pipe(self._timeline, read, latency_s), Pipe(self._timeline, write, latency_s)

    def _make_engine(self, number: int) -> Engine:
        stack, space = self._stack, self._space
        off = self._variant == NO_CACHE
        spec = EngineSpec(
            profile=stack.profile,
            space=space,
            step_tokens=stack.engine.step_tokens,
            running_max=stack.engine.running_max,
            hints=Hints(no_store=off, no_load=off),
        )
        device = Device(stack.device.kv_tokens // space.chunk_tokens)
        engine = Engine(CLIENT + number, spec, self._node, device)
        engine.on_first(self._answered)
        return engine

    def run(self, report: Report) -> Account:
        """From the first arrival to the last first token, and the loads and writes up to then."""
        self._timeline.at(0, partial(self._arrive, 0))
        self._timeline.at(0, self._tick)
        told = 0
        while self._left and self._timeline.step():
            if len(self._calls) >= told:
                report(f"{self._variant}: {len(self._calls)} of {self._tape.requests} requests")
                told = len(self._calls) + REPORT_EVERY
        return self._account()

    def _arrive(self, number: int) -> None:
        """A request arrives, and the next one is awaited."""
        tape = self._tape
        path = tape.blocks(number)
        call = Call(
            number=number,
            arrival_ns=self._timeline.now_ns,
            input_tokens=max(1, int(tape.input_tokens[number])),
            output_tokens=max(1, int(tape.output_tokens[number])),
            path=path.tolist(),
            keys=tape.keys[path].tobytes(),
        )
        self._calls.append(call)
        self._route(call).submit(call)
        if number + 1 < tape.requests:
            since_ns = int(tape.arrival_ns[number + 1]) - int(tape.arrival_ns[0])
            self._timeline.at(int(since_ns / self._speed), partial(self._arrive, number + 1))

    def _route(self, call: Call) -> Engine:
        """The engine for a request."""
        engines, routing = self._engines, self._stack.engine.routing
        if routing == "in-turn":
            return engines[call.number % len(engines)]
        if routing == "least-work" or len(engines) == 1:
            return min(engines, key=Engine.work_s)
        profile, chunk = self._stack.profile, self._space.chunk_tokens

        def needed_s(engine: Engine) -> float:
            held = min(engine.match(call.path) * chunk, call.input_tokens)
            return engine.work_s() + profile.compute_s(call.input_tokens - held, held)

        return min(engines, key=needed_s)

    def _tick(self) -> None:
        """Time passes for the brain too, in larger steps the longer nothing has happened."""
        timeline = self._timeline
        now_ns = timeline.now_ns
        self._node.say(Tick(now_ns))
        step_ns = (now_ns - self._node.active_ns) // IDLE_PARTS
        next_ns = timeline.next_ns()
        if next_ns is not None:
            step_ns = min(step_ns, next_ns - now_ns)
        timeline.after(max(TICK_NS, step_ns), self._tick)

    def _answered(self, call: Call) -> None:
        self._left -= 1
        call.path, call.keys = call.path if call.left_tokens > 0 else [], b""

    def _account(self) -> Account:
        """Add everything up."""
        calls, engines, chunk = self._calls, self._engines, self._space.chunk_tokens
        seconds = self._timeline.now_ns / NS_PER_S
        hits: Counter[str] = Counter()
        for call in calls:
            hits["device"] += call.local_blocks * chunk
            hits.update(call.loaded)
        busy_s = sum(engine.busy_s for engine in engines)
        names, drives = self._names, self._drives
        reads = [sum(engine.link_in.moved_bytes for engine in engines)]
        writes = [sum(engine.link_out.moved_bytes for engine in engines)]
        reads += [one.reads.moved_bytes for one in drives]
        writes += [one.writes.moved_bytes for one in drives]
        after, before = self._node.brain.snapshot()["counters"], self._before
        written = dict(zip(names, writes, strict=True))
        disk = self._stack.disk
        return Account(
            name=self._variant,
            requests=len(calls),
            seconds=seconds,
            ttft_s=[(call.first_ns - call.arrival_ns) / NS_PER_S for call in calls],
            input_blocks=len(self._tape.path),
            found_blocks=sum(call.found_blocks for call in calls),
            used_blocks={tier: tokens // chunk for tier, tokens in hits.items()},
            hit_tokens=dict(hits),
            read_bytes=dict(zip(names, reads, strict=True)),
            written_bytes=written,
            gpu_s=sum(engine.prompts_s for engine in engines),
            gpu_busy=busy_s / max(seconds * len(engines), 1e-9),
            computed_tokens=sum(engine.computed_tokens for engine in engines),
            wait_s=sum(call.wait_s for call in calls),
            loads=sum(call.wait_s > 0 for call in calls),
            late=sum(call.is_late for call in calls),
            brain_saved_s=_grown(after["seconds_saved"], before["seconds_saved"]),
            brain_lost_s=_grown(after["seconds_lost"], before["seconds_lost"]),
            refused={name: count for name, count in after["refused"].items() if count},
            life_years=disk.life_years(written["disk"], seconds) if disk else None,
            digest=self._node.digest.text(),
        )


def _grown(after: Mapping[str, float], before: Mapping[str, float]) -> float:
    """By how much counters grew, all together."""
    return sum(after.values()) - sum(before.values())


def check(stack: Stack, tape: Tape) -> None:
    """Refuse a stack that could never serve a request of the trace.

    Raises:
        ConfigError: the devices have too little room for one.
    """
    chunk = tape.block_tokens
    tokens = tape.input_tokens + np.maximum(1, tape.output_tokens)
    longest = int(tokens.max())
    if -(-longest // chunk) > stack.device.kv_tokens // chunk:
        raise ConfigError(
            f"device.kv_tokens: {stack.device.kv_tokens} tokens have no room for the longest "
            f"request, which has {longest}; hint: at least {-(-longest // chunk) * chunk}"
        )


def capacity_blocks(stack: Stack, block_tokens: int) -> int:
    """Blocks that all tiers and devices hold together, as if none held what another does."""
    each = space_of(stack.profile, block_tokens).object_bytes
    sizes = [tier.size for tier in (stack.dram, stack.disk, stack.network) if tier is not None]
    devices = stack.engine.count * (stack.device.kv_tokens // block_tokens)
    return devices + sum(size // each for size in sizes)


def run_full(tape: Tape, stack: Stack, variant: str, speed: float, report: Report) -> Account:
    """Run one variant.

    Raises:
        ConfigError: the stack cannot serve the trace.
    """
    check(stack, tape)
    return _Run(tape, stack, variant, speed).run(report)
