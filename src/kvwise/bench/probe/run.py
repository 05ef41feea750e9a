"""Owns the order of a probe: which parts there are, and how they share its time.

It measures nothing itself and writes no file.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from kvwise.bench.machine import describe
from kvwise.bench.probe.codecs import measure_codecs_within
from kvwise.bench.probe.disk import file_bytes, measure_disk, require_room
from kvwise.bench.probe.gpu import measure_gpu
from kvwise.bench.probe.limits import Found, Tell, Timetable
from kvwise.bench.probe.links import measure_loopback
from kvwise.bench.probe.memory import measure_memory
from kvwise.bench.probe.servers import Place, measure_server
from kvwise.bench.progress import Progress
from kvwise.bench.rows import Rows
from kvwise.bench.yardstick import MOVED
from kvwise.host import Host
from kvwise.units import MIB, format_size

BYTES_MIN = 64 * MIB
"""Below, a file would be too small for any depth."""
SETTLING_S = 1.5
"""Of the time: for starting and for writing the result."""

Part = Callable[[float, Tell], Found]


@dataclass(frozen=True, slots=True)
class ProbeOptions:
    """What to measure.

    Attributes:
        folders: directories to measure; nothing stays in them.
        seconds: how long everything may take.
        write_bytes: how much may be written to each directory and each server.
        keep_bytes: what each filesystem must keep free.
        places: servers to measure.
    """

    folders: Sequence[Path]
    seconds: float
    write_bytes: int
    keep_bytes: int
    places: Sequence[Place] = ()
    host: Host = field(default_factory=Host)

    @property
    def command(self) -> str:
        """How to run it again."""
        words = ["kvwise", "probe", "--seconds", f"{self.seconds:g}"]
        words += ["--bytes", str(self.write_bytes)]
        for folder in self.folders:
            words += ["--disk", str(folder)]
        for place in self.places:
            words += [f"--{place.kind}", place.shown]
        return shlex.join(words)


def measure_host(options: ProbeOptions, progress: Progress) -> Rows:
    """Measure every part within the time.

    Raises:
        ConfigError: a directory cannot take the file; nothing was measured then.
    """
    started = datetime.now(UTC).isoformat(timespec="seconds")
    machine = describe(options.folders[0] if options.folders[0].exists() else Path())
    for folder in options.folders:
        require_room(folder, file_bytes(options.write_bytes), options.keep_bytes)
    parts: list[tuple[str, float, Part]] = []
    for folder in options.folders:  # first: what a plan needs most, and others outrun their time
        name = f"disk {folder}, at most {format_size(options.write_bytes)} written"
        parts.append((name, 12, partial(measure_disk, folder, options.write_bytes)))
    parts += [
        ("memory", 4, partial(measure_memory, options.host)),
        ("loopback", 1, measure_loopback),
        ("gpu", 2, partial(measure_gpu, options.host)),
    ]
    for place in options.places:
        work = partial(measure_server, place, options.write_bytes)
        parts.append((f"{place.kind} {place.shown}", 4, work))
    parts.append(("codecs", 9, measure_codecs_within))
    timetable = Timetable([weight for _, weight, _ in parts], options.seconds - SETTLING_S)
    found = Found()
    for name, _, part in parts:
        one = part(timetable.next_end_s(), progress.now)
        found.add(one)
        if one.rows:
            progress.done(f"measured: {name}")
    moved = sum(row["gbps_high"] > MOVED * row["gbps_low"] for row in found.rows if "gbps" in row)
    if moved:
        found.notes.append(
            f"{moved} of the figures moved by more than a fifth within the run: something else was "
            "busy, here or beneath; see their ranges"
        )
    return Rows("probe", options.command, started, machine, found.rows, found.skipped, found.notes)
