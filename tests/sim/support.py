"""Small scenarios by hand, for tests that know what happens when. Nothing is random here."""

from __future__ import annotations

from dataclasses import replace

from kvwise.core.hints import Hints
from kvwise.core.words import TierSpec
from kvwise.core.world import BrainConfig
from kvwise.sim.drive import DriveSpec
from kvwise.sim.engine import EngineSpec
from kvwise.sim.faults import Plan, Upset
from kvwise.sim.machines import DriveLaw, GpuLaw
from kvwise.sim.scenario import HEADER_BYTES, LARGE, OBJECT_BYTES, PAGE_BYTES, UNIT_BYTES, Scenario
from kvwise.sim.workload import CHUNK_TOKENS, Request
from kvwise.sim.world import World
from kvwise.units import NS_PER_MS

DISK = DriveSpec(
    DriveLaw(100_000, read_bytes_per_s=1e9, write_bytes_per_s=5e8, mixed=0.7, depth=4),
    TierSpec("disk", 40 * OBJECT_BYTES, UNIT_BYTES, HEADER_BYTES, 1e9, 5e-4),
)
ENGINE = EngineSpec(
    space=LARGE,
    gpu=GpuLaw(step_s=1e-3, token_s=1e-4, pair_s=0.0, crowd=0.0),
    link_bytes_per_s=1e10,
    link_latency_ns=10_000,
    device_chunks=0,
)
CHUNKS = 4
PAGES_EACH = -(-LARGE.layout.object_bytes // PAGE_BYTES)


def ms(value: float) -> int:
    """Milliseconds as nanoseconds."""
    return int(value * NS_PER_MS)


def prompt(number: int, at_ms: float, *, talk: int = 0) -> Request:
    """A request for the chunks of a talk and one token more; one without output."""
    content = tuple(1000 * talk + chunk + 1 for chunk in range(CHUNKS))
    tokens = CHUNKS * CHUNK_TOKENS + 1
    return Request(f"r{number}", ms(at_ms), 0, content, tokens, 0, Hints())


def scenario(
    *requests: Request, upsets: tuple[Upset, ...] = (), arena_objects: int = 40, disk: int = 40
) -> Scenario:
    """One engine that always loads what it can, over an arena and a disk."""
    tier = replace(DISK.tier, capacity_bytes=disk * OBJECT_BYTES)
    pages = arena_objects * PAGES_EACH
    arena = TierSpec("dram", pages * PAGE_BYTES, PAGE_BYTES, 0, 1e10, 0.0)
    return Scenario(
        seed=0,
        brain=BrainConfig(PAGE_BYTES, (arena, tier), policy="load", lease_ttl_ns=ms(1000)),
        drives=(replace(DISK, tier=tier),),
        engines=(ENGINE,),
        requests=requests,
        plan=Plan({}, upsets),
    )


def served(made: Scenario) -> World:
    """The world after a scenario, every event audited."""
    world = World(made, audit_every=1)
    world.run()
    return world
