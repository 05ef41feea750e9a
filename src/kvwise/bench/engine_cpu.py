"""Owns the reading of processor time that some processes have used. It starts and ends none.

On a machine that others use as well, a request takes as long as they let it; the processor time of
the processes that compute it hardly changes, so it tells small differences apart that times hide.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from kvwise.bench.places import SetupError

WORKER = "VLLM::Worker"
"""How vLLM calls the processes that compute. Its scheduler spins while it waits for them."""

_SESSION_FIELD = 3


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
        everything = [int(entry.name) for entry in Path("/proc").glob("[0-9]*")]
        pids = [pid for pid in everything if _is_worker(pid, session)]
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


def _is_worker(pid: int, session: int) -> bool:
    """Whether a process is a worker of this session."""
    try:
        name, _, rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
    except OSError:  # it has just ended
        return False
    return (
        name.partition("(")[2].startswith(WORKER) and int(rest.split()[_SESSION_FIELD]) == session
    )
