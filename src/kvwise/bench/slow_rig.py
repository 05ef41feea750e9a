"""Owns an engine beside a daemon that can be told how slow its drive is. It measures nothing."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kvwise.bench import slow_serve
from kvwise.bench.daemon import Daemon, DaemonOptions
from kvwise.bench.engine_quiet import keep_off
from kvwise.bench.engine_rig import engine_cores
from kvwise.bench.progress import Progress
from kvwise.bench.provision import ensure_engine, ensure_smollm2
from kvwise.bench.server import Engine, EngineOptions
from kvwise.bench.slow_serve import Orders


@dataclass(frozen=True, slots=True)
class SlowOptions:
    """What is started.

    Attributes:
        out: folder for logs and, meanwhile, the disk tier.
        spare_cores: cores that the engine leaves to everything else.
        dram_bytes, disk_bytes: of the daemon.
        settings: of the daemon, as variables of its environment.
    """

    out: Path
    spare_cores: int
    dram_bytes: int
    disk_bytes: int
    settings: dict[str, str]


@dataclass(frozen=True, slots=True)
class Slow:
    """What runs.

    Attributes:
        orders: the file that the daemon is told by.
        spare: cores that the engine does not compute on.
    """

    engine: Engine
    daemon: Daemon
    orders: Path
    spare: list[int]


@contextmanager
def slow_rig(options: SlowOptions, progress: Progress) -> Iterator[Slow]:
    """Start both, and end what was started; a daemon that took the first one's place is not ours.

    Raises:
        SetupError: something cannot be installed or started.
    """
    python = ensure_engine(progress)
    model = ensure_smollm2(python, progress)
    cores, spare = engine_cores(options.spare_cores)
    out = options.out.resolve()
    with (
        # The address of a socket is short, and the path of `out` may not be.
        tempfile.TemporaryDirectory(prefix="kvwise-bench-") as place,
        tempfile.TemporaryDirectory(dir=out, prefix="bench-disk-") as disk,
    ):
        socket, orders = Path(place) / "kvwise.sock", Path(place) / "orders.json"
        Orders().write(orders)
        first = DaemonOptions(
            socket,
            options.dram_bytes,
            out / "daemon.log",
            disk=Path(disk),
            disk_bytes=options.disk_bytes,
            settings=options.settings,
            program=(slow_serve.__name__, str(orders)),
        )
        engine = EngineOptions(python, model, out, {"client.url": str(socket)}, cores)
        with Daemon.start(first, progress) as daemon, Engine.start(engine, progress) as server:
            keep_off({server.session, daemon.session}, spare)
            yield Slow(server, daemon, orders, spare)
