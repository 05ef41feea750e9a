"""Two tiers: a trace against memory and a disk that may be written so much a day. It only drives.

Nothing queues: what the brain commands has happened at once, in the order of its commands. Under
LRU all that comes is taken into memory, so that rules for writing have the same memory above. What
each tier holds is kept here too, from what was carried out, so hits are not the brain's own count.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kvwise.core.admit import WORTH
from kvwise.core.balance import Balance
from kvwise.core.brain import Brain
from kvwise.core.govern import DAY_S
from kvwise.core.hints import NO_HINTS, Hints
from kvwise.core.keys import KEY_BYTES, ROOT
from kvwise.core.words import (
    DRAM,
    Asked,
    Budgeted,
    Command,
    Done,
    Drop,
    Event,
    Filled,
    Load,
    Offered,
    Planned,
    Released,
    Store,
    TierSpec,
    Wanted,
)
from kvwise.core.world import BrainConfig
from kvwise.errors import ConfigError
from kvwise.sim.replay.brains import CLIENT, Digest, granted, planned, space_of, teach
from kvwise.sim.replay.profile import Profile
from kvwise.sim.replay.tape import Tape
from kvwise.sim.trace.assembly import Report
from kvwise.units import NS_PER_S

REPORT_EVERY = 500
DISK = 1
LRU = "lru"
DISK_LATENCY_S = 1e-4
EMPTY = Balance(0.0, 0, 0.0, 0.0, ())
"""What is left of the budget when a trace begins: nothing, so that a share of what writing all
takes is that share of it in a trace of any length."""

WELCOME = Hints(priority=1e-9)
"""Lets a request's blocks into memory whatever they are worth, and is too small to change that."""

_COPIES_TOLD = 64
"""Every so many loads the brain is told how long one took: nothing queues, so nothing changes."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What is written to the disk, and what leaves both tiers when they are full."""

    admission: str
    eviction: str

    @property
    def name(self) -> str:
        """What people call it."""
        return (
            self.admission
            if self.eviction == self.admission
            else f"{self.admission}, {self.eviction}"
        )


@dataclass(frozen=True, slots=True)
class Machine:
    """Blocks that each tier holds, and the rate at which the disk is read."""

    dram_blocks: int
    disk_blocks: int
    disk_bytes_per_s: int


@dataclass(frozen=True, slots=True)
class WriteJob:
    """One run.

    Attributes:
        share: what may be written, of what writing all without a limit takes; None is no limit.
        per_day_bytes: the same in bytes a day; 0 is no limit.
    """

    rule: Rule
    machine: Machine
    share: float | None = None
    per_day_bytes: int = 0

    def told(self) -> str:
        """The job in a few words."""
        limit = "no limit" if self.share is None else f"{self.share:.4g} of all writes"
        return f"{self.rule.name}, {limit}"


@dataclass(slots=True)
class WriteRun:
    """What came of a job.

    Attributes:
        dram_hits, disk_hits: blocks found before each request, in memory, and on disk alone.
        loaded_disk_blocks: of those on disk, the ones that were loaded.
        disk_blocks_written, disk_bytes_written: over the whole trace.
        disk_bytes_per_day: of those bytes, over the time of the trace.
        seconds_saved, seconds_lost: by loads from disk, computing less loading, block by block.
        total_seconds_saved: by all loads, from memory too, less what was lost by them.
    """

    requests: int = 0
    input_blocks: int = 0
    dram_hits: int = 0
    disk_hits: int = 0
    loaded_disk_blocks: int = 0
    disk_blocks_written: int = 0
    disk_bytes_written: int = 0
    disk_bytes_per_day: int = 0
    seconds_saved: float = 0.0
    seconds_lost: float = 0.0
    total_seconds_saved: float = 0.0
    digest: str = ""

    @property
    def hit_ratio(self) -> float:
        """Hit blocks of both tiers over all input blocks, the cold start included."""
        return (self.dram_hits + self.disk_hits) / max(1, self.input_blocks)


def machine_of(tape: Tape, shares: tuple[float, float], disk_bytes_per_s: int) -> Machine:
    """Memory and disk that hold shares of the trace's different blocks.

    Raises:
        ConfigError: one of them would hold none.
    """
    blocks = [int(share * tape.distinct_blocks) for share in shares]
    for name, share, count in zip(("dram", "disk"), shares, blocks, strict=True):
        if not count:
            raise ConfigError(
                f"--{name}-share: {share:.4g} of {tape.distinct_blocks} different blocks is none; "
                "hint: a larger share, or a longer trace"
            )
    return Machine(blocks[DRAM], blocks[DISK], disk_bytes_per_s)


def per_day_bytes(tape: Tape, written_bytes: int, share: float) -> int:
    """A share of what was written over the trace, as bytes a day."""
    last, first = int(tape.arrival_ns[-1]), int(tape.arrival_ns[0])
    seconds = max(1.0, (last - first) / NS_PER_S)
    return max(1, round(share * written_bytes / seconds * DAY_S))


class _Media:
    """What lies on each tier, from what was carried out, by number of the block."""

    def __init__(self, tape: Tape) -> None:
        """Nothing does."""
        names = tape.keys.tobytes()
        self._number = {
            names[at : at + KEY_BYTES]: at // KEY_BYTES for at in range(0, len(names), KEY_BYTES)
        }
        self._here = [np.zeros(tape.distinct_blocks, dtype=bool) for _ in (DRAM, DISK)]

    def put(self, tier: int, key: bytes) -> None:
        """A block is there now."""
        self._here[tier][self._number[key]] = True

    def keep(self, tier: int, path: NDArray[np.int32]) -> None:
        """Blocks are there now, by their numbers."""
        self._here[tier][path] = True

    def drop(self, command: Drop) -> None:
        """Blocks are gone from a tier."""
        keys, here = command.keys, self._here[command.tier]
        for at in range(0, len(keys), KEY_BYTES):
            here[self._number[keys[at : at + KEY_BYTES]]] = False

    def on(self, tier: int, path: NDArray[np.int32]) -> NDArray[np.bool_]:
        """For each block of a path whether it is there."""
        return self._here[tier][path]


class _Driver:
    """One brain with two tiers, and one client of it."""

    def __init__(self, tape: Tape, profile: Profile, job: WriteJob) -> None:
        """A brain that knows the profile's speeds and holds nothing."""
        self._tape, self._profile, self._machine = tape, profile, job.machine
        self._space = space_of(profile, tape.block_tokens)
        self._brain = Brain(self._config(job))
        teach(self._brain, profile, self._space, job.machine.dram_blocks)
        self._brain.handle(Budgeted(0, DISK, EMPTY, 0.0))
        self._media = _Media(tape)
        self._digest = Digest()
        self._loads = 0
        self._hints = WELCOME if job.rule.eviction == LRU else NO_HINTS
        self.run = WriteRun()

    def _config(self, job: WriteJob) -> BrainConfig:
        """The rules to compare with write all that they may, whatever its chance."""
        machine, profile, each = job.machine, self._profile, self._space.object_bytes
        link = (profile.link_bytes_per_s, profile.link_latency_s)
        disk = (machine.disk_bytes_per_s, DISK_LATENCY_S)
        dram_bytes = machine.dram_blocks * each
        tiers = (
            TierSpec("dram", dram_bytes, each, 0, *link),
            TierSpec("disk", machine.disk_blocks * each, each, 0, *disk),
        )
        config = BrainConfig(
            each,
            tiers,
            queue_bytes=dram_bytes,
            write_bytes_per_day=job.per_day_bytes,
            eviction=job.rule.eviction,
            admission=job.rule.admission,
        )
        return config if job.rule.admission == WORTH else replace(config, chance_min=0.0)

    def request(self, number: int) -> None:
        """One request, from its question to what it leaves in the cache."""
        tape, space = self._tape, self._space
        path = tape.blocks(number)
        keys = tape.keys[path].tobytes()
        now_ns, name = int(tape.arrival_ns[number]), str(number)
        total = len(path) * space.chunk_tokens + 1
        plan = planned(self._say(Asked(now_ns, CLIENT, name, space.digest, keys, 0, total)))
        hits = plan.decision.match_tokens // space.chunk_tokens
        on_disk = ~self._media.on(DRAM, path[:hits]) & self._media.on(DISK, path[:hits])
        self._account(plan, on_disk, len(path))
        if plan.lease:
            self._load(plan, on_disk, now_ns)
        if hits == len(path):
            return
        at = hits * KEY_BYTES
        parent = keys[at - KEY_BYTES : at] if hits else ROOT
        offer = Offered(now_ns, CLIENT, name, space.digest, parent, keys[at:], total, self._hints)
        grant = granted(self._say(offer))
        if grant.lease:
            chunks = np.array(grant.chunks, dtype=np.int64)
            self._media.keep(DRAM, path[hits + chunks])
            self._say(Filled(now_ns, CLIENT, grant.lease, len(chunks)))

    def _say(self, event: Event) -> list[Command]:
        """Tell the brain something, and carry out at once what it commands, to the last job."""
        out = self._brain.handle(event)
        todo = list(out)
        self._digest.add(out)
        while todo:
            command = todo.pop(0)
            if isinstance(command, Drop):
                self._media.drop(command)
            elif isinstance(command, Load | Store):
                todo += self._carry_out(command, event.now_ns)
        return out

    def _carry_out(self, job: Load | Store, now_ns: int) -> list[Command]:
        """Every object of a job is where it should be."""
        out, run = list[Command](), self.run
        for place, item in enumerate(job.items):
            if isinstance(job, Store):
                run.disk_blocks_written += 1
                run.disk_bytes_written += job.raw_bytes
            self._media.put(DISK if isinstance(job, Store) else DRAM, item.key)
            stored_bytes = job.raw_bytes if isinstance(job, Store) else 0
            out += self._brain.handle(Done(now_ns, job.job, place, stored_bytes=stored_bytes))
        self._digest.add(out)
        return out

    def _load(self, plan: Planned, on_disk: NDArray[np.bool_], now_ns: int) -> None:
        """Copy what was promised, without anybody in the way."""
        each = self._space.object_bytes
        read_s = int(on_disk[: plan.chunks].sum()) * each / self._machine.disk_bytes_per_s
        size_bytes = plan.chunks * each
        copy_ns = round(self._profile.load_s(size_bytes) * NS_PER_S)
        self._say(Wanted(now_ns, CLIENT, plan.lease, plan.chunks))
        told = self._loads % _COPIES_TOLD == 0
        self._loads += 1
        copied = (size_bytes, copy_ns) if told else (0, 0)
        waited_ns = copy_ns + round(read_s * NS_PER_S)
        self._say(Released(now_ns, CLIENT, plan.lease, *copied, waited_ns))

    def _account(self, plan: Planned, on_disk: NDArray[np.bool_], blocks: int) -> None:
        """What was found, and what loading was worth by the profile's law."""
        run = self.run
        found = int(on_disk.sum())
        run.requests += 1
        run.input_blocks += blocks
        run.dram_hits += len(on_disk) - found
        run.disk_hits += found
        if not plan.chunks:
            return
        places = np.flatnonzero(on_disk[: plan.chunks])
        run.loaded_disk_blocks += len(places)
        run.total_seconds_saved += self._saved_s(np.arange(plan.chunks), len(places))
        if len(places):
            saved_s = self._saved_s(places, len(places))
            run.seconds_saved += max(0.0, saved_s)
            run.seconds_lost += max(0.0, -saved_s)

    def _saved_s(self, places: NDArray[np.int64], from_disk: int) -> float:
        """Computing less loading of blocks at these places of a prompt, so many of them on disk."""
        profile, chunk, each = self._profile, self._space.chunk_tokens, self._space.object_bytes
        pairs = chunk * chunk * float((places + 0.5).sum())
        compute_s = profile.token_s * chunk * len(places) + profile.pair_s * pairs
        read_s = from_disk * each / self._machine.disk_bytes_per_s
        return compute_s - read_s - profile.load_s(len(places) * each)

    def finish(self) -> WriteRun:
        """The account, with the digest of all commands."""
        run = self.run
        if run.disk_bytes_written:
            run.disk_bytes_per_day = per_day_bytes(self._tape, run.disk_bytes_written, 1.0)
        run.digest = self._digest.text()
        return run


def run_writes(tape: Tape, profile: Profile, job: WriteJob, report: Report) -> WriteRun:
    """Run a whole trace.

    Raises:
        ConfigError: the profile's objects are too large.
    """
    driver = _Driver(tape, profile, job)
    for number in range(tape.requests):
        if number % REPORT_EVERY == 0:
            report(f"{job.told()}: {number} of {tape.requests}")
        driver.request(number)
    return driver.finish()
