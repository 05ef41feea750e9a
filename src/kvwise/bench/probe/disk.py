"""Owns the measurement of a directory: reads and writes of several sizes and depths, and mixed.

Blocks go through the disk tier's own calls, past the page cache where the directory allows it. The
file has no name from the moment it is made, so nothing is left behind however this ends.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Self

import numpy as np

from kvwise.bench.places import SetupError
from kvwise.bench.probe.limits import ROUNDS_WISHED, Allowance, Found, Tell, figure, left_s, rounds
from kvwise.bench.yardstick import gbps, pattern
from kvwise.config import Disk
from kvwise.errors import ConfigError
from kvwise.tiers.directio import Io, open_flags, probe, read_all, write_all
from kvwise.tiers.mapping import Mapping as MemoryMapping
from kvwise.units import GIB, KIB, MIB, format_size

FILE_BYTES_MAX = GIB
"""Of what is read; caches of drives are smaller, those of a virtual machine's host may not be."""
FILL_BYTES = 16 * MIB
"""Of one call while the file is made."""
FILL_SHARE = 0.25
"""Of a directory's time that making the file may take."""
SLICE_S_MIN, SLICE_S_MAX = 0.1, 0.5
"""How long one figure is taken."""
SMALL_BYTES = 4 * KIB
OBJECT_BYTES = 2 * MIB
TIER_DEPTH = Disk().threads
"""Calls that the disk tier has under way at once."""

_STRIDE = 0x9E37_79B1
"""Odd, so that multiples of it meet every block of a file whose blocks are a power of two."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One thing to measure: `depth` threads, each with one call of `block_bytes` under way."""

    way: str
    block_bytes: int
    depth: int

    @property
    def text(self) -> str:
        """As a person would say it."""
        return f"{self.way}, {format_size(self.block_bytes)} blocks, depth {self.depth}"


CELLS = (
    Cell("read", SMALL_BYTES, 1),
    Cell("read", 128 * KIB, 1),
    Cell("read", 128 * KIB, 16),
    Cell("read", OBJECT_BYTES, 1),
    Cell("read", OBJECT_BYTES, TIER_DEPTH),
    Cell("read", OBJECT_BYTES, 16),
    Cell("read", 16 * MIB, 1),
    Cell("read", 16 * MIB, TIER_DEPTH),
    Cell("write", OBJECT_BYTES, 1),
    Cell("write", OBJECT_BYTES, TIER_DEPTH),
    Cell("write", 16 * MIB, 1),
    Cell("mixed", OBJECT_BYTES, TIER_DEPTH),
)
NEEDED = {
    Cell("read", SMALL_BYTES, 1),
    Cell("read", OBJECT_BYTES, TIER_DEPTH),
    Cell("write", OBJECT_BYTES, 1),
}
"""What a plan takes of a drive: it comes first, for there may be no time for more."""


def require_room(folder: Path, wanted_bytes: int, keep_bytes: int) -> None:
    """Refuse a directory that cannot take the file.

    Raises:
        ConfigError: it is no directory, cannot be written, or has too little room.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder} is no directory; hint: `mkdir -p {folder}`, or name another")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"{folder} cannot be written by this user; hint: name another directory")
    found = os.statvfs(folder)
    free_bytes = found.f_frsize * found.f_bavail
    if free_bytes < wanted_bytes + keep_bytes:
        raise ConfigError(
            f"{folder} has {format_size(free_bytes)} free, and the probe would take "
            f"{format_size(wanted_bytes)} of them for a while and leave {format_size(keep_bytes)}; "
            "hint: free some space, or lower --bytes or disk.min_free"
        )


def file_bytes(limit_bytes: int) -> int:
    """Bytes of the file where so many may be written: half of them, in whole calls."""
    return min(FILE_BYTES_MAX, limit_bytes // 2 // FILL_BYTES * FILL_BYTES)


def measure_disk(folder: Path, limit_bytes: int, end_s: float, tell: Tell) -> Found:
    """Everything about one directory, until a moment and within so many bytes written."""
    found = Found()
    try:
        with _Scratch(folder, limit_bytes) as file:
            tell(f"{folder}: writing {format_size(file_bytes(limit_bytes))}")
            file.fill(file_bytes(limit_bytes), time.monotonic() + FILL_SHARE * left_s(end_s))
            cells = [cell for cell in CELLS if cell.block_bytes * (cell.depth + 1) <= file.bytes]
            slice_s = left_s(end_s) / len(CELLS) / ROUNDS_WISHED
            file.slice_s = min(SLICE_S_MAX, max(SLICE_S_MIN, slice_s))
            file.share_out(sum(cell.way != "read" for cell in CELLS) * ROUNDS_WISHED)
            first = sorted(cells, key=lambda cell: cell not in NEEDED)
            actions = {cell: partial(file.measure, cell) for cell in first}
            figures = rounds(actions, end_s, lambda cell: tell(f"{folder}: {cell.text}"))
            found.rows += [
                {"part": "disk", "path": str(folder), "io": file.io.value, **row}
                for cell in cells
                for row in _rows(cell, figures[cell], file)
            ]
            found.skipped += _missing(folder, figures, file_bytes(limit_bytes))
            if file.io is Io.BUFFERED:
                found.notes.append(
                    f"{folder} takes no direct I/O: its figures are those of the page cache"
                )
    except (ConfigError, SetupError, OSError) as error:
        found.skipped.append(f"{folder}: {error}")
    return found


def _missing(
    folder: Path, figures: Mapping[Cell, Sequence[float]], file_bytes_wished: int
) -> Iterator[str]:
    """What has no figure, and for want of what; nothing where everything has one."""
    late, large = list[str](), list[str]()
    for cell in CELLS:
        if not any(found := figures.get(cell, ())):
            too_large = bool(found) or cell.block_bytes * (cell.depth + 1) > file_bytes_wished
            (large if too_large else late).append(cell.text)
    said = [f"no time was left for {'; '.join(late)}"] if late else []
    said += [f"too few bytes for {'; '.join(large)}"] if large else []
    options = (["--seconds"] if late else []) + (["--bytes"] if large else [])
    if said:
        yield f"{folder}: {', and '.join(said)}; hint: raise {' and '.join(options)}"


def _rows(cell: Cell, values: list[float], file: _Scratch) -> Iterator[dict[str, object]]:
    """The lines about a cell, none where it has no figure."""
    if not any(values):
        return
    row = {"way": cell.way, "block_bytes": cell.block_bytes, "depth": cell.depth}
    row |= figure([value for value in values if value], _over_time(cell))
    if cell in file.latencies_us:
        row["latency_us"] = round(statistics.median(file.latencies_us[cell]), 1)
    if cell.way == "mixed":
        row["written_gbps"] = round(statistics.median(file.written_gbps), 4)
    yield row


def _over_time(cell: Cell) -> Callable[[Sequence[float]], float]:
    """How figures of a cell come to all bytes over all seconds, as other tools tell a rate.

    Reads take equally long, and whatever writes stops after as many bytes. A drive that stalls now
    and then has a median that nobody gets.
    """
    return statistics.fmean if cell.way == "read" else statistics.harmonic_mean


class _Scratch:
    """A file without a name in a directory, and threads that read and write it.

    Attributes:
        bytes: how long it is.
        slice_s: how long one figure is taken.
        latencies_us: of calls at depth 1, by cell.
        written_gbps: what the writer of mixed figures came to.
    """

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        """Make the file; nothing is written yet."""
        self.io = probe(folder, Io.AUTO).io
        self.bytes = 0
        self.slice_s = SLICE_S_MIN
        self.latencies_us: dict[Cell, list[float]] = {}
        self.written_gbps: list[float] = []
        self._allowance = self._portion = Allowance(limit_bytes)
        self._figure_bytes = 0
        self._stop = threading.Event()
        self._fd = _nameless(folder, self.io)
        self._pool = ThreadPoolExecutor(max(cell.depth for cell in CELLS) + 1)
        self._pieces: list[memoryview] = []

    def __enter__(self) -> Self:
        most = max(cell.depth for cell in CELLS) + 1
        sizes = [FILL_BYTES if number <= TIER_DEPTH else OBJECT_BYTES for number in range(most)]
        self._pieces = _memory(sizes)
        for number, piece in enumerate(self._pieces, 1):
            words = np.frombuffer(piece, np.uint64)
            words[:] = pattern(len(words), number)
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()
        os.close(self._fd)

    def fill(self, size_bytes: int, end_s: float) -> None:
        """Make the file so long, or as long as the time allows."""
        while self.bytes < size_bytes and (left_s(end_s) or not self.bytes):
            if not self._allowance.take(FILL_BYTES):
                break
            self._write(self._pieces[0], self.bytes)
            self.bytes += FILL_BYTES

    def share_out(self, figures: int) -> None:
        """Have each of so many figures write its share of what may still be written."""
        share = self._allowance.left_bytes // figures
        self._figure_bytes = max(FILL_BYTES, share)

    def measure(self, cell: Cell) -> float:
        """GB/s of a cell; 0 once no more may be written."""
        self._stop.clear()
        if cell.way == "read":
            return self._together(cell, self._read)
        self._portion = self._allowance.lend(self._figure_bytes)
        try:
            if self._portion.left_bytes < FILL_BYTES:
                return 0.0
            return self._together(cell, self._write_counted if cell.way == "write" else self._read)
        finally:
            self._allowance.give_back(self._portion)

    def _together(self, cell: Cell, call: Callable[[memoryview, int], bool]) -> float:
        """GB/s of all threads of a cell, for a while or until no more may be written."""
        until_s = time.perf_counter() + self.slice_s
        parts = cell.depth + (cell.way == "mixed")
        each = self.bytes // parts // cell.block_bytes * cell.block_bytes
        work = [
            self._pool.submit(self._loop, call, cell, number, each, until_s)
            for number in range(cell.depth)
        ]
        if cell.way == "mixed":
            writing = self._pool.submit(
                self._loop, self._write_counted, cell, cell.depth, each, until_s
            )
            self.written_gbps.append(together_gbps([writing.result()], cell.block_bytes))
        return together_gbps([one.result() for one in work], cell.block_bytes)

    def _loop(
        self,
        call: Callable[[memoryview, int], bool],
        cell: Cell,
        number: int,
        each_bytes: int,
        until_s: float,
    ) -> list[float]:
        """One thread's calls in its own part of the file: when it began, and when each ended."""
        piece = self._pieces[number][: cell.block_bytes]
        blocks = each_bytes // cell.block_bytes
        small = cell.block_bytes == SMALL_BYTES
        ends = [time.perf_counter()]
        while ends[-1] < until_s and not self._stop.is_set():
            done = len(ends) - 1
            at = done * _STRIDE % blocks if small else done % blocks
            if not call(piece, number * each_bytes + at * cell.block_bytes):
                self._stop.set()
                break
            ends.append(time.perf_counter())
        if cell.depth == 1 and len(ends) > 1 and cell.way != "mixed":
            laps = np.diff(ends)
            self.latencies_us.setdefault(cell, []).append(1e6 * float(np.median(laps)))
        return ends

    def _read(self, piece: memoryview, offset: int) -> bool:
        """One call; a fault is an error, as is a file that ends early."""
        done, error = read_all(self._fd, [piece], offset)
        if error is not None:
            raise error
        if done != piece.nbytes:
            raise SetupError(f"a read of {piece.nbytes} bytes gave {done}")
        return True

    def _write_counted(self, piece: memoryview, offset: int) -> bool:
        """One call, unless no more may be written."""
        if not self._portion.take(piece.nbytes):
            return False
        self._write(piece, offset)
        return True

    def _write(self, piece: memoryview, offset: int) -> None:
        """One call; whatever does not go out is an error."""
        _, error = write_all(self._fd, [piece], offset)
        if error is not None:
            raise error


def together_gbps(ends: Sequence[Sequence[float]], block_bytes: int) -> float:
    """GB/s of threads while all of them worked; each tells when it began, and when calls ended.

    The last calls of some run beside fewer others, and so faster: what is beyond the first thread's
    end does not count, and of calls that are under way then a part does. 0 where none worked.
    """
    worked = [one for one in ends if len(one) > 1]
    begin_s = max((one[0] for one in worked), default=0.0)
    end_s = min((one[-1] for one in worked), default=0.0)
    if end_s <= begin_s:
        return 0.0
    calls = sum(np.diff(np.interp((begin_s, end_s), one, range(len(one))))[0] for one in worked)
    return gbps(calls * block_bytes, end_s - begin_s)


def _memory(sizes: Sequence[int]) -> list[memoryview]:
    """Pieces of memory as the arena's is: in huge pages where there are any.

    Transfers are cut at the edges of pieces of physical memory, so in scattered pages large ones
    would be slower than those of a daemon.
    """
    ends = list(accumulate(sizes))
    fd = os.memfd_create("kvwise-probe")
    try:
        os.ftruncate(fd, ends[-1])
        mapping = MemoryMapping(fd, ends[-1])
    finally:
        os.close(fd)
    mapping.join(0, ends[-1])
    return [mapping.view[end - size : end] for size, end in zip(sizes, ends, strict=True)]


def _nameless(folder: Path, io: Io) -> int:
    """A descriptor of a file that has no name any more."""
    with _named(folder) as path:
        return os.open(path, os.O_RDWR | open_flags(io))


@contextmanager
def _named(folder: Path) -> Iterator[str]:
    """A new file in a directory, which loses its name with the end of the block."""
    fd, path = tempfile.mkstemp(".tmp", ".kvwise-probe-", folder)
    try:
        os.close(fd)
        yield path
    finally:
        Path(path).unlink()
