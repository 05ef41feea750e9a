"""Owns the yardsticks: memcpy and fio, taken in turns with what they are held against.

It measures nothing of kvwise and judges no goal. A machine that others share drifts within
minutes, so a figure is only given beside a yardstick of the same passes.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import shlex
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kvwise.bench.machine import memory_bytes
from kvwise.bench.places import SetupError
from kvwise.errors import ConfigError
from kvwise.units import MIB, format_size, parse_size, round_up

MOVED = 1.2
"""A yardstick whose fastest and slowest pass are further apart has moved within the run."""

WORKING_SET_BYTES_MIN = 512 * MIB
FIO_S = 300.0
"""How long one run of fio may take."""

_L3 = Path("/sys/devices/system/cpu/cpu0/cache/index3/size")
_ODD = np.uint64(0x9E37_79B9_7F4A_7C15)
_FIO_HINT = "hint: apt-get install fio"
_OTHER_HINT = "hint: is it fio? `fio --version` should say fio-3"


# --- taking turns --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Spread:
    """Figures of all passes: their median, the least and the most."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The spread of at least one figure."""
        return cls(statistics.median(values), min(values), max(values))

    @property
    def moved(self) -> bool:
        """Whether the figures are too far apart to be those of one steady machine."""
        return self.high > self.low * MOVED


def take_turns(
    actions: Mapping[str, Callable[[], float]],
    passes: int,
    tell: Callable[[str], None],
    *,
    warm_up: bool = True,
) -> dict[str, list[float]]:
    """The figures that each action returned, pass by pass: A, B, A, B and so on.

    Args:
        actions: name to measurement, in the order of a pass.
        passes: how many figures of each.
        tell: called with what is about to be done.
        warm_up: whether one more pass comes first, whose figures are thrown away.
    """
    found: dict[str, list[float]] = {name: [] for name in actions}
    for number in range(0 if warm_up else 1, passes + 1):
        which = f"pass {number} of {passes}" if number else "warming up"
        for name, action in actions.items():
            tell(f"{name}, {which}")
            figure = action()
            if number:
                found[name].append(figure)
    return found


class CpuTime:
    """Processor seconds of this process, all threads, for measurements that take turns.

    Where others keep the cores busy, work that is handed from thread to thread waits for its turn
    and a plain loop does not; what both cost the processor can still be compared.
    """

    def __init__(self) -> None:
        self._seconds: dict[str, list[float]] = {}

    def of(self, name: str, action: Callable[[], float]) -> Callable[[], float]:
        """The same measurement, its processor time noted."""
        spent = self._seconds.setdefault(name, [])

        def noted() -> float:
            before = time.process_time()
            figure = action()
            spent.append(time.process_time() - before)
            return figure

        return noted

    def ratio(self, yardstick: str, name: str) -> Spread:
        """The yardstick's seconds as parts of a measurement's, pass by pass, the warm-up aside."""
        return ratio(self._seconds[yardstick][1:], self._seconds[name][1:])


def ratio(figures: Sequence[float], yardstick: Sequence[float]) -> Spread:
    """Figures as parts of the yardstick of the same pass."""
    return Spread.of([f / y for f, y in zip(figures, yardstick, strict=True)])


def movement(name: str, figures: Sequence[float]) -> list[str]:
    """How far a yardstick moved within the run, in words; nothing when it held still."""
    spread = Spread.of(figures)
    return [f"{name} {spread.low:.2f} to {spread.high:.2f} GB/s"] if spread.moved else []


def moved_note(movements: Sequence[str]) -> list[str]:
    """One note about all yardsticks that moved; none when all held still."""
    note = (
        "the machine was not quiet, take ratios and not rates: within the run these yardsticks "
        f"moved: {'; '.join(movements)}"
    )
    return [note] if movements else []


def gbps(size_bytes: int, seconds: float) -> float:
    """A rate in units of 10^9 bytes per second."""
    return size_bytes / seconds / 1e9


# --- memory --------------------------------------------------------------------------------------


def cache_bytes() -> int:
    """Size of the last level of processor cache; 0 where the kernel does not tell."""
    try:
        return parse_size(_L3.read_text().strip() + "iB")
    except (OSError, ValueError):
        return 0


def working_set_bytes(*, copies: int) -> int:
    """Bytes that no processor cache holds; `copies` buffers of that size must fit in memory.

    Raises:
        ConfigError: they do not.
    """
    wanted = max(WORKING_SET_BYTES_MIN, round_up(2 * cache_bytes(), MIB))
    free_bytes = memory_bytes("MemAvailable")
    if copies * wanted > free_bytes:
        raise ConfigError(
            f"{format_size(copies * wanted)} of memory are needed and {format_size(free_bytes)} "
            "are free; hint: end something large, a smaller set would measure the processor's cache"
        )
    return wanted


def pattern(count: int, seed: int) -> NDArray[np.uint64]:
    """So many words, no two of them equal, nor those of two seeds below 2^20."""
    words = np.arange(count, dtype=np.uint64)
    words += np.uint64(seed << 40)
    words *= _ODD
    return words


class Memory:
    """Ordinary memory of this process, touched, every 8 bytes of it different from all others.

    Attributes:
        address: where it starts.
        bytes: the whole as numpy sees it.
    """

    def __init__(self, size_bytes: int, *, seed: int = 0) -> None:
        """Take and fill it; `size_bytes` is a multiple of 8."""
        self._map = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.bytes = np.frombuffer(self._map, np.uint8)
        self.address = int(self.bytes.ctypes.data)
        self.bytes.view(np.uint64)[:] = pattern(size_bytes // 8, seed)

    def clear(self) -> None:
        """Zeros everywhere."""
        self.bytes[:] = 0


class Memcpy:
    """One thread's memcpy, object after object, between two buffers that no cache holds."""

    def __init__(self, source: Memory, target: Memory) -> None:
        self._source = source
        self._target = target

    def gbps(self, object_bytes: int) -> float:
        """The rate of copying each object of the source once."""
        count = min(len(self._source.bytes), len(self._target.bytes)) // object_bytes
        source, target = self._source.address, self._target.address
        started = time.perf_counter()
        for offset in range(0, count * object_bytes, object_bytes):
            ctypes.memmove(target + offset, source + offset, object_bytes)
        return gbps(count * object_bytes, time.perf_counter() - started)


# --- disk ----------------------------------------------------------------------------------------


def fio_missing() -> str:
    """Why fio cannot be used, with what to do about it; empty when it can."""
    return "" if shutil.which("fio") else f"fio is not installed; {_FIO_HINT}"


@dataclass(frozen=True, slots=True)
class Fio:
    """Sequential reads and writes of fio, as a yardstick for threads that call pread and pwrite.

    Attributes:
        folder: where its files are; it makes and removes them there.
        block_bytes: bytes of one call.
        jobs: threads, each with a file of its own.
        job_bytes: bytes of each thread's file.
        direct: whether the page cache is bypassed.
    """

    folder: Path
    block_bytes: int
    jobs: int
    job_bytes: int
    direct: bool = True

    def command(self, mode: str) -> list[str]:
        """The command line; `mode` is read or write."""
        return [
            "fio", "--name=kvwise-yardstick", f"--directory={self.folder}", f"--rw={mode}",
            f"--bs={self.block_bytes}", f"--size={self.job_bytes}", f"--numjobs={self.jobs}",
            "--ioengine=psync", f"--direct={int(self.direct)}", "--fallocate=none", "--thread",
            "--group_reporting", "--output-format=json",
        ]  # fmt: skip

    def spoken(self, mode: str) -> str:
        """The command as somebody would type it."""
        return shlex.join(self.command(mode))

    def write(self) -> float:
        """GB/s of writing new files; they stay for `read`."""
        self.remove()
        return self._run("write")

    def read(self) -> float:
        """GB/s of reading what `write` left."""
        return self._run("read")

    def remove(self) -> None:
        """Remove its files."""
        for path in self.folder.glob("kvwise-yardstick.*"):
            path.unlink(missing_ok=True)

    def _run(self, mode: str) -> float:
        """Run it.

        Raises:
            SetupError: fio is missing, took too long, or failed; the message says what it said.
        """
        if missing := fio_missing():
            raise SetupError(missing)
        try:
            done = subprocess.run(
                self.command(mode), capture_output=True, text=True, errors="replace",
                timeout=FIO_S, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise SetupError(f"fio took longer than {FIO_S:.0f} s in {self.folder}") from error
        except OSError as error:
            raise SetupError(f"fio cannot be started: {error}; {_OTHER_HINT}") from error
        if done.returncode:
            raise SetupError(f"fio failed in {self.folder}: {(done.stderr or done.stdout).strip()}")
        return _rate(done.stdout, mode)


def _rate(report: str, mode: str) -> float:
    """GB/s in fio's report; there may be remarks in front of the JSON.

    Raises:
        SetupError: the report holds no such figure.
    """
    try:
        (job,) = json.loads(report[report.index("{") :])["jobs"]
        rate = gbps(job[mode]["io_bytes"], job[mode]["runtime"] / 1e3)
    except (ValueError, LookupError, TypeError, ArithmeticError, RecursionError) as error:
        raise SetupError(f"fio's report was not understood: {error!r}; {_OTHER_HINT}") from error
    if not (isfinite(rate) and rate > 0):
        raise SetupError(f"fio's report was not understood: {rate} GB/s; {_OTHER_HINT}")
    return rate
