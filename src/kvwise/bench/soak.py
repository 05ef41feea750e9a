"""A soak: a real daemon under clients that die, freeze and give up, on a disk that lies, for long.

It owns the run and the verdict: no wrong byte, nothing that grows, and everything back at its level
once the last client has left. It measures no speed.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from typing import Any

from kvwise.bench import machine, soak_watch
from kvwise.bench.children import Child
from kvwise.bench.places import SetupError
from kvwise.bench.progress import Progress
from kvwise.bench.rows import Row, Rows
from kvwise.bench.soak_client import SoakClient
from kvwise.bench.soak_faults import Crowd, Faults
from kvwise.bench.soak_watch import Process, Sample
from kvwise.config import environment
from kvwise.core.uses import USES_MAX
from kvwise.errors import CacheUnavailable
from kvwise.live.client import Client
from kvwise.units import MIB, format_size

DRAM_BYTES = 64 * MIB
DISK_BYTES = 160 * MIB
SEGMENT_BYTES = 8 * MIB
"""Together far less than what the clients ask for, so that both tiers evict all the time."""

MIN_FREE_BYTES = 256 * MIB
SAMPLE_S = 2.0
LOOK_S = 0.05
START_DEADLINE_S = 30
STOP_S = 30
DRAIN_S = 90.0
"""How long what is under way may take to end after the last client left: leases live for 30 s."""

REST_S = 10.0
"""How long the files of what was cleared may stay open."""

ASK_S = 10.0
SETTLE_DEADLINE_S = 120
LEARN_DEADLINE_S = 600
TOUCH_TURNS = 100
TELLING_MINUTES = 5.0
"""A shorter run cannot tell whether memory grows, and need not fill what is learned before."""

FRAGMENT_BYTES = 64 * 1024
"""What a filesystem may need for the map of one file full of holes."""

DISK_BLOCK_BYTES = 4096
HELPERS = 4
"""Threads of the disk tier that are made only when there is work for one more, however late."""

SPARES = {"descriptors": 0, "threads": HELPERS}
"""How many more than at the beginning there may be at the end."""


@dataclass(frozen=True, slots=True)
class SoakOptions:
    """What a run is asked for.

    Attributes:
        minutes: how long clients are at work.
        clients: how many processes.
        seed: draws requests and faults.
        folder: where the disk tier and the logs lie during the run.
        command: the command line, for the result.
    """

    minutes: float
    clients: int
    seed: int
    folder: Path
    command: str


@dataclass(slots=True)
class Found:
    """What a run saw, before anybody judges it.

    Attributes:
        begin, end: the daemon before the first client came and after the last one left.
        samples: the daemon while clients were at work.
        status: the daemon's own account when they left.
        drained: what was still under way long after that.
        cleared: what a clear could not drop.
        disk_bytes, used_bytes: what files take, and what the daemon believes they take.
        counts: what clients did.
        faults: what was done to them.
        lost: clients that ended by themselves.
        complaints: lines of the daemon's log that are errors, or that it did not end well.
    """

    begin: Process
    end: Process
    samples: list[Sample]
    status: dict[str, Any]
    drained: dict[str, int]
    cleared: dict[str, int]
    disk_bytes: int
    used_bytes: int
    counts: dict[str, int]
    faults: dict[str, int]
    lost: list[str]
    complaints: list[str] = field(default_factory=list)


def run_soak(options: SoakOptions, progress: Progress) -> Rows:
    """Soak, judge, and clean up; logs stay only where the verdict is bad.

    Raises:
        KvwiseError: the daemon could not be started or does not answer.
    """
    started = datetime.now(UTC).isoformat(timespec="seconds")
    facts = _prepare(options.folder)
    with _place(options.folder) as place:
        disk, log = place / "disk", place / "daemon.log"
        child = _daemon(place)
        try:
            found = _soaked(options, progress, child, disk)
        finally:
            progress.now("stopping the daemon")
            child.stop()
        found.complaints = _complaints(log)
        problems = judge(found)
        if problems:
            shutil.copytree(place, _kept(place), ignore=shutil.ignore_patterns("disk", "*.sock"))
            problems.append(f"the logs are in {_kept(place)}")
    row = _row(options, found) | {"verdict": "failed" if problems else "ok", "problems": problems}
    return Rows("soak", options.command, started, facts, [row], notes=_notes(found))


def judge(found: Found) -> list[str]:
    """Everything that is not as it must be, in words."""
    wrong = []
    if found.counts.get("wrong_bytes"):
        wrong.append(f"{found.counts['wrong_bytes']} bytes were wrong")
    if not found.counts.get("hits"):
        wrong.append("nothing was ever loaded: the run proves nothing")
    evicted = soak_watch.evictions(found.status)
    wrong += [
        f"{name} never evicted: the run was too short" for name, n in evicted.items() if not n
    ]
    wrong += [f"{n} {what} did not end" for what, n in found.drained.items() if n]
    wrong += [f"{n} {what} are left after a clear" for what, n in found.cleared.items() if n]
    for what, spare in SPARES.items():
        before, after = getattr(found.begin, what), getattr(found.end, what)
        if after > before + spare:
            wrong.append(
                f"the daemon had {before} {what} and has {after}, {before + spare} are allowed"
            )
    grown = soak_watch.growth(found.samples)
    if grown.is_leak:
        wrong.append(
            f"memory grew by {grown.mb_per_min:.2f} MiB a minute, "
            f"{grown.allowed_mb_per_min:.2f} are noise"
        )
    spare_bytes = DISK_BLOCK_BYTES * found.faults.get("bit_flipped", 0)
    spare_bytes += FRAGMENT_BYTES * (1 + DISK_BYTES // SEGMENT_BYTES)
    if abs(found.disk_bytes - found.used_bytes) > spare_bytes:
        wrong.append(
            f"files take {format_size(found.disk_bytes)} on disk, and the daemon believes "
            f"{format_size(found.used_bytes)}"
        )
    return wrong + found.lost + found.complaints


def _row(options: SoakOptions, found: Found) -> Row:
    """The measurements."""
    counts, grown = found.counts, soak_watch.growth(found.samples)
    allowed = grown.allowed_mb_per_min
    counters = found.status["counters"]
    return {
        "path": "soak",
        "minutes": options.minutes,
        "clients": options.clients,
        "seed": options.seed,
        "requests": counts.get("requests", 0),
        "puts": counts.get("puts", 0),
        "gets": counts.get("gets", 0),
        "hits": counts.get("hits", 0),
        "verified_mb": round(counts.get("verified_bytes", 0) / MIB),
        "wrong_bytes": counts.get("wrong_bytes", 0),
        "evictions": soak_watch.evictions(found.status),
        "faults": {
            **found.faults,
            "request_aborted": counts.get("aborts", 0),
            "lease_abandoned": counts.get("abandoned", 0),
        },
        "leases_expired": counters["leases_expired"],
        "corrupt_found": counters["failures"].get("disk|corrupt", 0),
        "unavailable": counts.get("unavailable", 0),
        "rss_slope_mb_per_min": round(grown.mb_per_min, 3),
        "rss_slope_allowed_mb_per_min": round(allowed, 3) if isfinite(allowed) else None,
        "rss_start_mb": round(found.begin.rss_mb, 1),
        "rss_end_mb": round(found.end.rss_mb, 1),
        "descriptors_start": found.begin.descriptors,
        "descriptors_end": found.end.descriptors,
        "descriptors_allowed": found.begin.descriptors + SPARES["descriptors"],
        "threads_start": found.begin.threads,
        "threads_end": found.end.threads,
        "threads_allowed": found.begin.threads + SPARES["threads"],
        "pins_end": found.cleared["blocks"],
        "leases_end": found.drained["leases"],
        "jobs_end": found.drained["jobs"],
        "queued_end": found.drained["queued"],
        "disk_files_mb": round(found.disk_bytes / MIB, 2),
        "disk_used_mb": round(found.used_bytes / MIB, 2),
    }


def _notes(found: Found) -> list[str]:
    """What a reader must know."""
    last = found.samples[-1].process if found.samples else found.end
    return [
        "pins_end counts the blocks that a clear at the end could not drop",
        f"the daemon had {last.descriptors} descriptors and {last.threads} threads under load",
        "what a killed client did in its last second is not counted",
    ]


# --- the run -------------------------------------------------------------------------------------


def _soaked(options: SoakOptions, progress: Progress, child: Child, disk: Path) -> Found:
    """Everything between the daemon's start and its end."""
    place = disk.parent
    watcher = _attached(child, place, progress)
    try:
        _settle(watcher, child, options, progress)
        begin = soak_watch.look(child.pid)
        until_s = time.monotonic() + options.minutes * 60
        with Crowd(_socket(place), place, options.seed) as crowd:
            for _ in range(options.clients):
                crowd.add()
            faults = Faults(crowd, options.clients, disk, until_s=until_s)
            samples = _watched(progress, child, faults, until_s)
            progress.now("letting the clients finish")
            crowd.stop()
        drained = _drained(watcher, progress)
        status = watcher.status()
        used_bytes, disk_bytes = _disk(watcher, disk)
        watcher.clear()
        cleared = soak_watch.held(watcher.status())
        return Found(
            begin,
            _rested(child, begin),
            samples,
            status,
            drained,
            cleared,
            disk_bytes,
            used_bytes,
            counts=dict(crowd.totals()),
            faults=dict(faults.counts),
            lost=crowd.lost,
        )
    finally:
        watcher.close()


def _watched(progress: Progress, child: Child, faults: Faults, until_s: float) -> list[Sample]:
    """Let clients and faults have their way, and look at the daemon now and then."""
    begin_s, samples = time.monotonic(), list[Sample]()
    while (now_s := time.monotonic()) < until_s:
        faults.look()
        if now_s - begin_s >= SAMPLE_S * len(samples):
            samples.append(Sample(now_s - begin_s, _seen(child)))
            done = faults.crowd.totals()
            progress.now(
                f"{(until_s - now_s) / 60:.1f} minutes left: {done['puts']} puts, "
                f"{done['gets']} gets, {sum(faults.counts.values())} faults, "
                f"{done['wrong_bytes']} wrong bytes, {samples[-1].process.rss_mb:.0f} MiB"
            )
        time.sleep(LOOK_S)
    return samples


def _seen(child: Child) -> Process:
    """The daemon at this moment.

    Raises:
        SetupError: it ended.
    """
    try:
        return soak_watch.look(child.pid)
    except (OSError, KeyError):  # a process that ended has neither files nor memory
        raise SetupError(f"the daemon ended under load; hint: see {child.log}") from None


def _settle(watcher: Client, child: Child, options: SoakOptions, progress: Progress) -> None:
    """Use everything until every table has its size and every thread exists.

    What is learned of reuse is kept for the last `USES_MAX` requests, and with loads and stores it
    would take a quarter of an hour to have met so many.

    Raises:
        SetupError: it took too long.
    """
    client = SoakClient(watcher, "soak-watch", 0)

    def is_full() -> bool:
        for _ in range(TOUCH_TURNS):
            client.turn()
        status = watcher.status()
        has_evicted = all(soak_watch.evictions(status).values())
        return has_evicted and soak_watch.arena_is_touched(status)

    def has_learned() -> bool:
        client.glance(TOUCH_TURNS)
        return client.counts["requests"] >= USES_MAX

    child.wait_until(is_full, SETTLE_DEADLINE_S, progress, "filling memory and disk once")
    if options.minutes >= TELLING_MINUTES:
        doing = f"asking {USES_MAX} times, until what is learned has its size"
        child.wait_until(has_learned, LEARN_DEADLINE_S, progress, doing)
    watcher.flush(ASK_S)


def _drained(watcher: Client, progress: Progress) -> dict[str, int]:
    """Wait until nothing is under way; what still is when the time is up."""
    deadline_s = time.monotonic() + DRAIN_S
    while any((left := soak_watch.busy(watcher.status())).values()):
        if time.monotonic() > deadline_s:
            break
        progress.now("waiting for everything to end")
        time.sleep(LOOK_S)
    return left


def _rested(child: Child, begin: Process) -> Process:
    """The daemon once it has given back what was cleared, or when the time for that is up."""
    deadline_s = time.monotonic() + REST_S
    while (now := _seen(child)).descriptors > begin.descriptors:
        if time.monotonic() > deadline_s:
            break
        time.sleep(LOOK_S)
    return now


def _disk(watcher: Client, disk: Path) -> tuple[int, int]:
    """(bytes that the daemon believes are on disk, bytes that files take there)."""
    used_bytes: int = watcher.status()["levels"]["tiers"]["disk"]["used_bytes"]
    return used_bytes, soak_watch.disk_bytes(disk)


# --- places and processes ------------------------------------------------------------------------


def _prepare(folder: Path) -> dict[str, Any]:
    """The machine, once the folder is there and has room.

    Raises:
        SetupError: it cannot be made, its parent is not there, or it is too full.
    """
    need_bytes = DISK_BYTES + MIN_FREE_BYTES
    try:
        folder.mkdir(exist_ok=True)
        free_bytes = shutil.disk_usage(folder).free
    except FileNotFoundError as error:
        raise SetupError(
            f"{folder} cannot be made, {folder.parent} is not there; hint: is that disk mounted? "
            "make it, or choose another --folder"
        ) from error
    except OSError as error:
        raise SetupError(
            f"{folder} cannot be used: {error.strerror}; hint: choose another --folder"
        ) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise SetupError(f"{folder} cannot be written; hint: choose another --folder")
    if free_bytes < need_bytes:
        raise SetupError(
            f"{folder} has {format_size(free_bytes)} free, and a soak needs "
            f"{format_size(need_bytes)}; hint: choose another --folder"
        )
    return machine.describe(folder)


@contextmanager
def _place(folder: Path) -> Iterator[Path]:
    """A folder for this run, gone at its end."""
    with tempfile.TemporaryDirectory(prefix="kvwise-soak-", dir=folder) as place:
        yield Path(place)


def _kept(place: Path) -> Path:
    """Where logs go that must be read."""
    return place.with_name(f"{place.name}-logs")


def _socket(place: Path) -> Path:
    """Where the daemon listens."""
    return place / "kvwise.sock"


def _daemon(place: Path) -> Child:
    """Start the daemon as an operator would."""
    command = [sys.executable, "-m", "kvwise", "serve", "--config", str(place / "kvwise.toml")]
    (place / "kvwise.toml").write_text(
        f'[serve]\nsocket = "{_socket(place)}"\nmetrics = ""\n'
        f'[dram]\nsize = {DRAM_BYTES}\npage = "16KiB"\n'
        f'[disk]\npaths = ["{place / "disk"}"]\nsize = {DISK_BYTES}\nsegment = {SEGMENT_BYTES}\n'
        f"min_free = {MIN_FREE_BYTES}\n"
    )
    log = place / "daemon.log"
    return Child("kvwise serve", command, log=log, env=environment(), stop_s=STOP_S)


def _attached(child: Child, place: Path, progress: Progress) -> Client:
    """A client of the daemon, as soon as that listens."""
    clients: list[Client] = []

    def answers() -> bool:
        if _socket(place).exists():
            try:
                clients.append(Client(str(_socket(place)), "soak-watch", timeout_s=ASK_S))
            except CacheUnavailable:
                return False
        return bool(clients)

    child.wait_until(answers, START_DEADLINE_S, progress, "starting the cache daemon")
    return clients[0]


def _complaints(log: Path) -> list[str]:
    """What the daemon said that nobody should hear, and whether it ended in order."""
    lines = log.read_text(errors="replace").splitlines()
    bad = [line for line in lines if " ERROR " in line or line.startswith("Traceback")]
    found = [f"the daemon logged: {line}" for line in bad[:5]]
    if len(bad) > len(found):
        found.append(f"and {len(bad) - len(found)} more lines like that")
    if not lines or not lines[-1].endswith(" stopped"):
        found.append(
            f"the daemon did not end in order: {lines[-1] if lines else 'it said nothing'}"
        )
    return found
