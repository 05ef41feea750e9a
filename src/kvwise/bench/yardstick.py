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
from pathlib import Path

import numpy as np

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


def ratio(figures: Sequence[float], yardstick: Sequence[float]) -> Spread:
    """Figures as parts of the yardstick of the same pass."""
    return Spread.of([f / y for f, y in zip(figures, yardstick, strict=True)])


def movement(name: str, figures: Sequence[float]) -> list[str]:
    """A note when a yardstick moved within the run; none when it held still."""
    spread = Spread.of(figures)
    note = (
        f"the yardstick {name} moved between {spread.low:.2f} and {spread.high:.2f} within the "
        "run: the machine was not quiet, take the ratio and not the rate"
    )
    return [note] if spread.moved else []


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


class Memory:
    """Ordinary memory of this process, touched, every 8 bytes of it different from all others.

    Attributes:
        address: where it starts.
        bytes: the whole as numpy sees it.
    """

    def __init__(self, size_bytes: int, *, seed: int = 0) -> None:
        self._map = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.bytes = np.frombuffer(self._map, np.uint8)
        self.address = int(self.bytes.ctypes.data)
        self.fill(seed)

    def fill(self, seed: int) -> None:
        """Give every word its value for this seed."""
        words = self.bytes[: len(self.bytes) // 8 * 8].view(np.uint64)
        words[:] = np.arange(len(words), dtype=np.uint64)
        words += np.uint64(seed << 40)
        words *= _ODD

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
                self.command(mode), capture_output=True, text=True, timeout=FIO_S, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise SetupError(f"fio took longer than {FIO_S:.0f} s in {self.folder}") from error
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
        return gbps(job[mode]["io_bytes"], job[mode]["runtime"] / 1e3)
    except (ValueError, KeyError, ZeroDivisionError) as error:
        raise SetupError(f"fio's report was not understood: {error}") from error
