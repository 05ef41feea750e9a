"""A node: owns everything that one store consists of, opens it in order and closes it in order.

It knows which engines are attached and which namespaces they opened. It decides nothing.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import kvwise
from kvwise.codecs import forms, frame
from kvwise.codecs.base import BLOCK_BYTES
from kvwise.codecs.forms import Codecs
from kvwise.config import Config
from kvwise.core.brain import Brain
from kvwise.core.elements import Coding, Kind
from kvwise.core.govern import life_years
from kvwise.core.timing import Equipped
from kvwise.core.words import Joined, Left, Namespace, Recovered, TierSpec
from kvwise.core.world import SPACES_MAX, BrainConfig
from kvwise.errors import ConfigError
from kvwise.host import check_host
from kvwise.live.budget import Keeper
from kvwise.live.clock import now_ns
from kvwise.live.codecs import CodecLoader
from kvwise.live.decisions import DecisionLog
from kvwise.live.drives import daily_bytes, rated_bytes
from kvwise.live.events import EventLog
from kvwise.live.pump import Plant, Pump
from kvwise.live.stats import Latencies
from kvwise.live.warm import Warmer
from kvwise.tiers.base import Found, Tier
from kvwise.tiers.directio import Io
from kvwise.tiers.disk import READ_RUN_BYTES, DiskConfig, DiskTier
from kvwise.tiers.dram import Arena, ArenaShape, Backing
from kvwise.units import NS_PER_S, format_size

DISK = 1
LEASE_SLOTS = 1 << 16
"""Leases that the shared table tells apart: more than can be alive between two uses of a slot."""

DISK_RATE_BYTES_PER_S = 1e9
DISK_LATENCY_S = 5e-4
"""First guesses for the disk, about one NVMe drive of a cloud machine; measuring replaces them."""

LEASE_TTL_NS = 30 * NS_PER_S
READY_S = 30.0
"""How long a start waits for the codecs that wrote what is on disk: a second where they are kept as
machine code, and several beside engines that compute on all cores; what was encoded cannot be
loaded before. It does not wait for them to be compiled; then they come when they are there."""

CLOSE_S = 5.0
"""How long a worker may take to come back from a tier at the end."""

_log = logging.getLogger(__name__)


class Node:
    """Arena, tiers, brain and pump of one store.

    Attributes:
        epoch: drawn anew at every start; part of every lease that clients see.
        pump, arena, latencies: its parts.
    """

    def __init__(self, config: Config) -> None:
        """Open everything and recover what the disk holds.

        Raises:
            ConfigError: something cannot be had as configured.
            TierError: the disk tier cannot be opened.
        """
        check_host(config)
        self.epoch = secrets.randbits(30) + 1
        self._started_ns = now_ns()
        self._rated_bytes = rated_bytes(config)
        self._amplification = config.disk.write_amplification
        self._lock = threading.Lock()
        self._engines: dict[str, tuple[int, int]] = {}
        self._clients = 0
        self._joined: dict[bytes, Namespace] = {}
        self._found_bytes: dict[bytes, int] = {}
        _refuse_shared_logs(config)
        with ExitStack() as undo:
            self.arena = _open_arena(config)
            undo.callback(self.arena.close)
            self._tiers: dict[int, Tier] = {}
            self._codecs = Codecs(on_demand=False)
            self._loader = CodecLoader(self._codecs, self._equipped)
            if config.disk.paths:
                self._tiers[DISK] = _open_disk(config, self._codecs)
                undo.callback(self._tiers[DISK].close)
            brain = _brain_config(config, self.arena)
            wanted = self._tiers and config.disk.codec != "off"
            self._to_equip = {one: forms.WARM for one in brain.codings if one.lossless and wanted}
            self._lossy: set[tuple[Coding, Kind]] = set()
            self._log = _open_log(config, brain)
            self._decisions = _open_decisions(config)
            self.latencies = Latencies(tuple(tier.name for tier in brain.tiers))
            plant = Plant(
                self.arena,
                self._tiers,
                max(1, config.disk.threads),
                self.latencies,
                self._log,
                self._decisions,
            )
            self.pump = Pump(brain, plant)
            folders = [Path(path) for path in config.disk.paths]
            keepers = {DISK: Keeper(folders, DISK)} if self._tiers else {}
            for keeper in keepers.values():
                undo.callback(keeper.close)
            undo.callback(self.pump.close, CLOSE_S)
            undo.callback(self._loader.close, CLOSE_S)
            for number, tier in self._tiers.items():
                self._recover(number, tier, keepers[number])
            self.pump.start()
            if wanted or self._codecs.missing:
                lossy = [one for one in brain.codings if not one.lossless]
                self._lossy.update((one, kind) for one in lossy for kind in Kind)
            self._loader.load({}, self._codecs.missing).wait(READY_S)
            undo.callback(Warmer(self.arena, self.pump.pages_used).close)
            self._undo = undo.pop_all()

    def close(self, flush_s: float) -> bool:
        """Flush deferred writes, at most `flush_s` seconds, and close; whether all were written."""
        flushed = not self._tiers or not self.pump.is_sound or self.pump.flush(flush_s)
        self._undo.close()
        return flushed

    def reopen_logs(self) -> None:
        """Go on in a new decision log, where somebody moved the old one; an event log is whole."""
        if self._decisions is not None:
            self._decisions.reopen()

    # --- who is here ---

    def attach(self, engine: str) -> int:
        """One more session of an engine; the number of its client."""
        with self._lock:
            client, sessions = self._engines.get(engine, (0, 0))
            if not sessions:
                self._clients += 1
                client = self._clients
            self._engines[engine] = client, sessions + 1
            return client

    def detach(self, engine: str) -> None:
        """One session fewer; with the last one the client's leases end."""
        with self._lock:
            client, sessions = self._engines.pop(engine)
            if sessions > 1:
                self._engines[engine] = client, sessions - 1
                return
        if self.pump.is_sound:
            self.pump.handle([Left(now_ns(), client)])

    def join(self, client: int, namespace: Namespace) -> None:
        """A client opens a namespace.

        Raises:
            ConfigError: its objects do not fit the arena or the codec that it asks for, or its
                name stands for another shape.
        """
        forms.require(namespace.lossy, namespace.elements)
        raw_bytes, shape = namespace.layout.object_bytes, self.arena.shape
        if raw_bytes > shape.page_count * shape.page_bytes:
            raise ConfigError(
                f"one object of {namespace.label} has {format_size(raw_bytes)}, more than the "
                "arena; hint: raise dram.size or lower client.chunk_tokens"
            )
        if self._found_bytes.get(namespace.digest, raw_bytes) != raw_bytes:
            raise ConfigError(
                f"the disk holds objects of another size under the namespace {namespace.label}; "
                "hint: name it differently, or empty disk.paths"
            )
        with self._lock:
            known = self._joined.keys() | self._found_bytes.keys()
            if len(known) >= SPACES_MAX and namespace.digest not in known:
                raise ConfigError(
                    f"{len(known)} namespaces are open, one for each way a model is served; "
                    "hint: restart the daemon to forget those that are over"
                )
            _require_same(self._joined.setdefault(namespace.digest, namespace), namespace)
        self.pump.handle([Joined(now_ns(), client, namespace)])
        if namespace.elements is not None:
            with self._lock:
                codings, self._to_equip = self._to_equip, {}
                loops = namespace.lossy, namespace.elements.kind
                if loops in self._lossy:
                    self._lossy.remove(loops)
                    codings = {**codings, namespace.lossy: namespace.elements}
            self._loader.load(codings)

    def knows(self, space: bytes) -> bool:
        """Whether somebody joined a namespace."""
        return space in self._joined

    # --- what it holds ---

    def status(self) -> dict[str, Any]:
        """The brain's snapshot, and what the shell knows beside it."""
        snapshot = self.pump.query(Brain.snapshot)
        return snapshot | {
            "version": kvwise.__version__,
            "pid": os.getpid(),
            "uptime_s": (now_ns() - self._started_ns) / NS_PER_S,
            "arena": {
                "backing": self.arena.backing.value,
                "page_bytes": self.arena.shape.page_bytes,
                "pages": self.arena.shape.page_count,
                "resident_bytes": self.arena.resident_bytes,
            },
            "down": {tier.name: list(tier.down) for tier in self._tiers.values()},
            "drive_life_years": self._lives(snapshot["endurance"]),
            "event_log": self._log is not None and self._log.is_open,
            "codecs": self._loader.status(),
            "decision_log": self._decisions is not None and self._decisions.is_open,
        }

    def _lives(self, endurance: dict[str, Any]) -> dict[str, float]:
        """Years that the drives of a tier last at the pace of the last day, if rated at all."""
        if not self._rated_bytes:
            return {}
        return {
            name: life_years(self._rated_bytes, each["written_per_day_bytes"], self._amplification)
            for name, each in endurance.items()
        }

    def _recover(self, number: int, tier: Tier, keeper: Keeper) -> None:
        """Tell the brain what a tier found, that this was all, and what its budget has left."""
        count = 0
        for found in tier.scan():
            self._found_bytes.setdefault(found.space, found.raw_bytes)
            self._tell(number, found)
            count += len(found.locations) // 8
        self.pump.handle([Recovered(now_ns(), number, b"", b"", b"", b"", b"", 0)])
        self.pump.handle(keeper.begin(fresh=not count))
        keeper.start(lambda: self.pump.query(Brain.balances)[number])
        if count:
            _log.info("%s: found %d objects of an earlier life", tier.name, count)

    def _equipped(self, codings: tuple[Coding, ...]) -> None:
        """Tell the brain which codecs were loaded; none, that there are none after all."""
        if self.pump.is_sound:
            self.pump.handle([Equipped(now_ns(), codings)])

    def _tell(self, number: int, found: Found) -> None:
        """Tell the brain of some records."""
        self.pump.handle(
            [
                Recovered(
                    now_ns(),
                    number,
                    found.space,
                    found.keys,
                    found.parents,
                    found.locations,
                    found.stored_bytes,
                    found.raw_bytes,
                )
            ]
        )


def _require_same(known: Namespace, namespace: Namespace) -> None:
    """See that a namespace is what its name stands for already.

    Raises:
        ConfigError: it has another shape, or its objects are other numbers, or are written so.
    """
    if known.layout.digest() != namespace.layout.digest():
        raise ConfigError(
            f"namespace {namespace.label} was opened before with another layout; "
            "hint: engines that share a namespace must agree on chunk and block size"
        )
    if (known.elements, known.lossy) != (namespace.elements, namespace.lossy):
        raise ConfigError(
            f"namespace {namespace.label} was opened before with other elements or another lossy "
            "codec; hint: engines that share a namespace must agree on kv cache dtype and "
            "client.lossy"
        )


def _open_arena(config: Config) -> Arena:
    """Memory for the pages.

    Raises:
        ConfigError: it cannot be had, or not as huge pages where those are demanded.
    """
    count = config.dram.size // config.dram.page
    shape = ArenaShape.of(count, config.dram.page, lease_slots=LEASE_SLOTS)
    try:
        arena = Arena.create(shape, huge_pages=config.dram.hugepages != "off")
    except OSError as error:
        raise ConfigError(
            f"dram.size = {format_size(config.dram.size)} cannot be had: {error.strerror}; "
            "hint: lower it, or raise the limits of this process (ulimit)"
        ) from error
    if config.dram.hugepages == "on" and arena.backing is not Backing.HUGETLB:
        arena.close()
        raise ConfigError(
            f"dram.hugepages = 'on', but {format_size(shape.size_bytes)} of huge pages cannot be "
            "had; hint: raise vm.nr_hugepages, or write auto"
        )
    return arena


def _open_disk(config: Config, codecs: Codecs | None = None) -> Tier:
    """The disk tier."""
    disk = config.disk
    return DiskTier(
        DiskConfig(
            directories=tuple(Path(path) for path in disk.paths),
            capacity_bytes=disk.size,
            min_free_bytes=disk.min_free,
            segment_bytes=disk.segment,
            io=Io(disk.io),
            readers=disk.threads,
        ),
        clock_ns=now_ns,
        codecs=codecs,
    )


def _open_log(config: Config, brain: BrainConfig) -> EventLog | None:
    """The event log, where one is asked for."""
    if not config.serve.event_log:
        return None
    try:
        return EventLog(Path(config.serve.event_log), brain)
    except OSError as error:
        raise ConfigError(
            f"serve.event_log = {config.serve.event_log!r} cannot be written: {error.strerror}"
        ) from error


def _refuse_shared_logs(config: Config) -> None:
    """Refuse two logs that would replace each other, or what is kept of each other."""
    names = (config.serve.event_log, config.serve.decision_log)
    events, decisions = (
        {os.path.realpath(name), os.path.realpath(name) + ".old"} if name else set()
        for name in names
    )
    if events & decisions:
        raise ConfigError(
            f"serve.event_log = {names[0]!r} and serve.decision_log = {names[1]!r} are one file, "
            "or one is where the other is kept as .old; hint: name two files"
        )


def _open_decisions(config: Config) -> DecisionLog | None:
    """The decision log, where one is asked for."""
    if not config.serve.decision_log:
        return None
    try:
        return DecisionLog(Path(config.serve.decision_log))
    except OSError as error:
        raise ConfigError(
            f"serve.decision_log = {config.serve.decision_log!r} cannot be written: "
            f"{error.strerror}"
        ) from error


def _brain_config(config: Config, arena: Arena) -> BrainConfig:
    """What the brain is told."""
    page_bytes = arena.shape.page_bytes
    tiers = [TierSpec("dram", arena.shape.page_count * page_bytes, page_bytes, 0, 1e10, 0.0)]
    if config.disk.paths:
        overhead_bytes = frame.HEADER_BYTES
        tiers.append(
            TierSpec(
                "disk",
                config.disk.size,
                BLOCK_BYTES,
                overhead_bytes,
                DISK_RATE_BYTES_PER_S,
                DISK_LATENCY_S,
                run_bytes=READ_RUN_BYTES,
                lanes=max(1, min(config.disk.threads, len(os.sched_getaffinity(0)))),
            )
        )
    return BrainConfig(
        page_bytes=page_bytes,
        tiers=tuple(tiers),
        policy=config.plan.policy,
        margin=config.plan.margin,
        load_timeout_ns=int(config.plan.timeout_s * NS_PER_S),
        lease_ttl_ns=LEASE_TTL_NS,
        tokens_min=config.write.min_tokens,
        queue_bytes=config.write.queue,
        write_bytes_per_day=daily_bytes(config),
        chance_min=config.write.min_chance,
        eviction=config.evict.policy,
        codec=config.disk.codec,
        codings=_codings(config),
    )


def _codings(config: Config) -> tuple[Coding, ...]:
    """Codings that can be used, said once where some are wanted and there are none."""
    found = forms.installed()
    if config.disk.paths and config.disk.codec != "off" and not found:
        _log.warning(
            "no codecs: what is written to disk stays as it is; hint: %s, or disk.codec = off",
            forms.INSTALL,
        )
    return found
