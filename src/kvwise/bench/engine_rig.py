"""Owns the processes of the engine bench: an engine without kvwise, one with it, and a daemon.

It measures nothing. Both engines are the same program with the same settings on the same cores, and
everything else of them is on the others. Both live all the time, and only one of them runs while it
is measured.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kvwise.bench import machine
from kvwise.bench.daemon import Daemon, DaemonOptions
from kvwise.bench.engine_cpu import process_s, processes
from kvwise.bench.engine_load import Conversation, Load
from kvwise.bench.engine_quiet import freeze, keep_off, thaw
from kvwise.bench.engine_switch import Switch
from kvwise.bench.places import SetupError
from kvwise.bench.progress import Progress
from kvwise.bench.provision import ensure_engine, ensure_smollm2
from kvwise.bench.server import Engine, EngineOptions
from kvwise.units import GIB, format_size

MEMORY_BYTES = 9 * GIB
"""What two engines, their models and the arena take together."""
DRAM_BYTES = 1 * GIB
STORE_ALL = {"KVWISE_WRITE_MIN_CHANCE": "0"}
"""Without this, prompts that never come back are no longer stored after the first hundred."""

DISK_MIN_FREE_BYTES = 4 * GIB
"""What the daemon leaves free on a filesystem unless told otherwise."""

_WRITTEN_DEADLINE_S = 120
_RETURN_DEADLINE_S = 90


@dataclass(slots=True)
class Rig:
    """What runs.

    Attributes:
        bare: the engine without kvwise.
        cached: the engine with kvwise.
        switch: takes kvwise away from it.
        daemon: holds what the cached engine computes.
        cores: cores that each engine computes on.
        spare: cores for everything else; the same ones where none was spared.
    """

    bare: Engine
    cached: Engine
    switch: Switch
    daemon: Daemon
    cores: list[int]
    spare: list[int]
    progress: Progress

    @property
    def sessions(self) -> set[int]:
        """Sessions of all processes."""
        return {self.bare.session, self.cached.session, self.daemon.session}

    def only(self, engine: Engine, *, has_kvwise: bool = True) -> None:
        """Let only this engine run from now on, beside a daemon that has written everything.

        Without `has_kvwise` it runs as if it had been started without a connector.

        Raises:
            SetupError: the disk is too slow for this bench.
        """
        self.settle()
        self.switch.turn(on=has_kvwise)
        for other in (self.bare, self.cached):
            if other is not engine:
                freeze(other.session)
        thaw(engine.session)

    def settle(self) -> float:
        """Wait until the daemon has written what it deferred; how many seconds that took.

        Raises:
            SetupError: the disk is too slow for this bench.
        """
        begin_s = time.monotonic()
        if not self.daemon.written(_WRITTEN_DEADLINE_S):
            raise SetupError(
                f"writing to {self.daemon.options.disk} was not done within "
                f"{_WRITTEN_DEADLINE_S} s; hint: choose a folder on a faster disk with --out"
            )
        return time.monotonic() - begin_s

    def daemon_cpu_s(self) -> float:
        """Processor time that the daemon has used so far."""
        return sum(map(process_s, processes({self.daemon.session})))

    def restart_daemon(self, load: Load, prompt: Conversation) -> None:
        """Leave everything on disk and nothing in memory; ask `prompt` until the daemon is used.

        Raises:
            SetupError: the engine did not come back to it within its deadline.
        """
        self.settle()
        self.daemon.stop()
        self.daemon = Daemon.start(self.daemon.options, self.progress)
        keep_off(self.sessions, self.spare)
        deadline = time.monotonic() + _RETURN_DEADLINE_S
        while not self.daemon.decisions(limit=1):
            if time.monotonic() > deadline:
                raise SetupError(
                    f"the engine did not come back to the daemon within {_RETURN_DEADLINE_S} s; "
                    f"hint: see {self.daemon.options.log.parent / 'cached' / 'engine.log'}"
                )
            self.progress.now("waiting until the engine uses the restarted daemon")
            load.forget()
            load.one(prompt)


@contextmanager
def prepared(out: Path, disk_bytes: int, spare_cores: int, progress: Progress) -> Iterator[Rig]:
    """Start everything, and end everything that was started, however this ends.

    Raises:
        SetupError: something cannot be installed or started, or there is no room for it.
    """
    out.mkdir(parents=True, exist_ok=True)
    _require_room(out, disk_bytes)
    python = ensure_engine(progress)
    model = ensure_smollm2(python, progress)
    cores, spare = engine_cores(spare_cores)
    with (
        # The address of a socket is short, and the path of `out` may not be.
        tempfile.TemporaryDirectory(prefix="kvwise-bench-") as place,
        tempfile.TemporaryDirectory(dir=out, prefix="bench-disk-") as disk,
    ):
        socket = Path(place) / "kvwise.sock"
        log = out / "daemon.log"
        options = DaemonOptions(
            socket, DRAM_BYTES, log, disk=Path(disk), disk_bytes=disk_bytes, settings=STORE_ALL
        )
        with Daemon.start(options, progress) as daemon:
            folders = [out / name for name in ("bare", "cached")]
            for folder in folders:
                folder.mkdir(exist_ok=True)
                (folder / "engine.log").unlink(missing_ok=True)
            place_of_switch = Path(place) / "switch"
            switch = Switch.make(place_of_switch)
            bare = EngineOptions(python, model, folders[0], None, cores)
            cache = {"client.url": str(socket)}
            cached = EngineOptions(python, model, folders[1], cache, cores, place_of_switch)
            with Engine.begin(bare) as first, Engine.begin(cached) as second:
                first.wait_ready(progress)
                second.wait_ready(progress)
                progress.done("two engines are ready, one with kvwise and one without")
                rig = Rig(first, second, switch, daemon, cores, spare, progress)
                keep_off(rig.sessions, spare)
                try:
                    yield rig
                finally:
                    progress.now("stopping the engines and the daemon")
                    switch.turn(on=True)
                    for engine in (first, second):
                        thaw(engine.session)
                    rig.daemon.stop()
                    with ThreadPoolExecutor(2, thread_name_prefix="kvwise-stop") as pool:
                        list(pool.map(Engine.stop, (first, second)))


def engine_cores(spare: int) -> tuple[list[int], list[int]]:
    """Cores that engines compute on, and the last `spare` of those that this process may use.

    Raises:
        SetupError: that leaves none.
    """
    cores = sorted(os.sched_getaffinity(0))
    if spare >= len(cores):
        raise SetupError(
            f"{len(cores)} cores leave none to an engine when {spare} are spared; hint: lower "
            "--spare-cores"
        )
    return cores[: len(cores) - spare], cores[len(cores) - spare :]


def _require_room(out: Path, disk_bytes: int) -> None:
    """Refuse before anything starts when memory or disk cannot hold it."""
    memory_bytes = machine.memory_bytes("MemAvailable")
    if memory_bytes < MEMORY_BYTES:
        raise SetupError(
            f"{format_size(memory_bytes)} of memory are available, and this bench needs "
            f"{format_size(MEMORY_BYTES)}; hint: end what else runs, and run again"
        )
    need_bytes = DISK_MIN_FREE_BYTES + disk_bytes
    free_bytes = shutil.disk_usage(out).free
    if free_bytes < need_bytes:
        raise SetupError(
            f"{out} has {format_size(free_bytes)} free, and this bench needs "
            f"{format_size(need_bytes)}, of which it leaves most; hint: choose another folder "
            "with --out"
        )
