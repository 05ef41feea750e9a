"""Owns the reading of processor time that some processes have used. It starts and ends none.

On a machine that others use as well, a request takes as long as they let it; the processor time of
the processes that compute it hardly changes, so it tells small differences apart that times hide.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from kvwise.bench.places import SetupError

WORKER = "VLLM::Worker"
"""How vLLM calls the processes that compute. Its scheduler spins while it waits for them."""

_NAME, _SESSION, _USER, _SYSTEM = 0, 4, 12, 13
"""Fields of what the kernel says of a process, counted from its name."""


@dataclass(frozen=True, slots=True)
class Spent:
    """What threads have spent, in nanoseconds.

    Attributes:
        used_ns: on a processor, all threads together.
        waited_ns: ready to run, while others had the processor; of the first thread of each
            process, which computes: idle ones wait beside it and would be counted many times.
    """

    used_ns: int = 0
    waited_ns: int = 0

    def __add__(self, other: Spent) -> Spent:
        return Spent(self.used_ns + other.used_ns, self.waited_ns + other.waited_ns)

    def __sub__(self, other: Spent) -> Spent:
        return Spent(self.used_ns - other.used_ns, self.waited_ns - other.waited_ns)


class Meter:
    """Processor time of all threads of some processes, as long as each of them lives."""

    def __init__(self, pids: list[int]) -> None:
        self._pids = pids

    @classmethod
    def of_workers(cls, session: int) -> Self:
        """Measures the workers of the engine whose processes are in this session.

        Raises:
            SetupError: there is none.
        """
        pids = [pid for pid in processes({session}) if is_worker(pid)]
        if not pids:
            raise SetupError(
                f"the engine has no process called {WORKER}, whose processor time could be "
                "measured; hint: see its engine.log"
            )
        return cls(pids)

    def read(self) -> Spent:
        """What they have spent so far."""
        return sum((_spent(pid) for pid in self._pids), Spent())


def _spent(pid: int) -> Spent:
    """What the threads of a process have spent that still run."""
    total = Spent()
    for thread in Path(f"/proc/{pid}/task").iterdir():
        try:
            used_ns, waited_ns = (thread / "schedstat").read_text().split()[:2]
        except OSError:  # it has just ended
            continue
        total += Spent(int(used_ns), int(waited_ns) if thread.name == str(pid) else 0)
    return total


def processes(sessions: Collection[int]) -> list[int]:
    """The processes of these sessions that live now."""
    everything = [int(entry.name) for entry in Path("/proc").glob("[0-9]*")]
    return [pid for pid in everything if (stat := _stat(pid)) and int(stat[_SESSION]) in sessions]


def is_worker(pid: int) -> bool:
    """Whether this is a process of vLLM that computes."""
    stat = _stat(pid)
    return bool(stat) and stat[_NAME].startswith(WORKER)


def process_s(pid: int) -> float:
    """Processor time of a process and all threads it ever had, as coarse as the kernel's clock."""
    stat = _stat(pid)
    ticks = int(stat[_USER]) + int(stat[_SYSTEM]) if stat else 0
    return ticks / os.sysconf("SC_CLK_TCK")


def _stat(pid: int) -> list[str]:
    """What the kernel says of a process, its name first; nothing when it has just ended."""
    try:
        name, _, rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
    except OSError:
        return []
    return [name.partition("(")[2], *rest.split()]
