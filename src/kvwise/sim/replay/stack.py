"""Stack: the machines that a trace is run on, as a TOML file says. Data and refusals, no behaviour.

All engines share one arena and what lies below it, as engines of one node do.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct

from kvwise.core.policies import POLICIES
from kvwise.sim.replay.brains import LEARNS
from kvwise.sim.replay.profile import DEFAULT, PROFILES, Profile, profile_of
from kvwise.sim.replay.settings import (
    Bytes,
    Count,
    Misfit,
    Rate,
    Seconds,
    Share,
    faults_of,
    read_toml,
    understand,
)


class _Engine(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many engines, and how each works off what it is given."""

    count: Annotated[int, Meta(ge=1, le=1_024)] = 1
    running_max: Annotated[int, Meta(ge=1, le=65_536)] = 256
    step_tokens: Annotated[int, Meta(ge=1, le=1 << 24)] = 8_192
    routing: Literal["least-work", "prefix", "in-turn"] = "least-work"


class Device(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Room for KV on the devices of one engine."""

    kv_tokens: Count


class Dram(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The arena; `link_bytes_per_s` is that of one engine, instead of the profile's."""

    size: Bytes
    link_bytes_per_s: Rate | None = None


class Disk(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Drives.

    Attributes:
        size: what the cache may use of all of them together.
        read_bytes_per_s, write_bytes_per_s: of each.
        mixed: share of its rate that each direction keeps while both are used.
        drive_size: of each, for its life.
        dwpd, warranty_years: how often a day a drive may be written whole, and for how long.
        write_amplification: bytes that a drive writes for each it is given.
        codec: how objects are written, as the configuration of the same name; KV is BF16.
    """

    size: Bytes
    drives: Annotated[int, Meta(ge=1, le=1_024)] = 1
    read_bytes_per_s: Rate
    write_bytes_per_s: Rate
    latency_s: Seconds = 1e-4
    mixed: Share = 0.7
    drive_size: Bytes | None = None
    dwpd: Annotated[float, Meta(gt=0, le=1_000)] = 1.0
    warranty_years: Annotated[float, Meta(gt=0, le=100)] = 5.0
    write_amplification: Annotated[float, Meta(ge=1, le=100)] = 1.1
    codec: Literal["auto", "off", "fixed", "dense"] = "off"

    def life_years(self, written_bytes: int, seconds: float) -> float | None:
        """How long the drives last if they are written like this; None if they are not."""
        if not written_bytes or seconds <= 0:
            return None
        each = self.drive_size if self.drive_size is not None else self.size / self.drives
        per_day = written_bytes / seconds * 86_400 * self.write_amplification
        return each * self.drives * self.dwpd * self.warranty_years / per_day


class Network(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A store that is reached over a network, below everything else."""

    size: Bytes
    read_bytes_per_s: Rate
    write_bytes_per_s: Rate
    latency_s: Seconds = 1e-3


class BrainSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the brain is told.

    Attributes:
        margin, min_chance: the brain's own when they are left out; a policy other than `worth`,
            which is there to compare, then writes everything.
    """

    eviction: str = LEARNS
    plan: Literal["auto", "load", "recompute"] = "auto"
    margin: Annotated[float, Meta(ge=0, le=10)] | None = None
    min_chance: Annotated[float, Meta(ge=0, le=1)] | None = None
    load_timeout_s: Annotated[float, Meta(gt=0, le=1e6)] = 10.0
    queue_size: Bytes = 8 << 30
    write_bytes_per_day: Annotated[int, Meta(ge=0, le=1 << 60)] = 0


class _File(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The sections of a file; `engine` without the keys of a profile."""

    engine: _Engine
    device: Device
    dram: Dram
    disk: Disk | None = None
    network: Network | None = None
    brain: BrainSettings = BrainSettings()


class Stack(Struct, frozen=True, kw_only=True):
    """Everything a trace is run on."""

    profile: Profile
    engine: _Engine
    device: Device
    dram: Dram
    disk: Disk | None
    network: Network | None
    brain: BrainSettings


def read_stack(path: Path) -> Stack:
    """The stack in a file.

    Raises:
        ConfigError: it cannot be read, or is none; the message names all keys that are wrong.
    """
    return stack_of(read_toml(path), str(path))


def stack_of(values: Mapping[str, object], source: str) -> Stack:
    """A stack from sections of keys.

    Raises:
        Misfit: something is unknown, missing or cannot be.
    """
    engine = values.get("engine", {})
    said = dict(engine) if isinstance(engine, dict) else {}
    own = {key: said.pop(key) for key in _Engine.__struct_fields__ if key in said}
    sections = {**values, "engine": own if isinstance(engine, dict) else engine}
    faults, profile = [*faults_of(sections, _File)], PROFILES[DEFAULT]
    try:
        profile = profile_of(said, f"{source}: engine")
    except Misfit as error:
        faults = [*(f"engine.{fault}" for fault in error.faults), *faults]
    brain = values.get("brain")
    policy = brain.get("eviction", LEARNS) if isinstance(brain, dict) else LEARNS
    if isinstance(policy, str) and policy not in POLICIES:
        faults.append(f"brain.eviction: there is no {policy!r}, only {', '.join(POLICIES)}")
    if faults:
        raise Misfit(source, faults)
    file = understand(sections, _File, source)
    if file.dram.link_bytes_per_s is not None:
        link = {"link_bytes_per_s": file.dram.link_bytes_per_s}
        profile = profile_of({**_told(profile), **link}, source)
    parts = {name: getattr(file, name) for name in _File.__struct_fields__}
    return Stack(profile=profile, **parts)


def _told(profile: Profile) -> dict[str, object]:
    """A profile as keys."""
    return {name: getattr(profile, name) for name in Profile.__struct_fields__}
