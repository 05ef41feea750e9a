"""Owns the reading of processor time that some processes have used. It starts and ends none.

On a machine that others use as well, a request takes as long as they let it; the processor time of
the processes that compute it hardly changes, so it tells small differences apart that times hide.
"""

from __future__ import annotations

from pathlib import Path

from kvwise.bench.places import SetupError

WORKER = "VLLM::Worker"
"""How vLLM calls the processes that compute. Its scheduler spins while it waits for them."""

_SESSION_FIELD = 3


class Meter:
    """Processor time of all threads of some processes, as long as each of them lives."""

    def __init__(self, pids: list[int]) -> None:
        self._pids = pids

    @classmethod
    def of_workers(cls, session: int) -> Meter:
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

    def read_ns(self) -> int:
        """Nanoseconds used so far."""
        return sum(_used_ns(pid) for pid in self._pids)


def _used_ns(pid: int) -> int:
    """What the threads of a process have used that still run."""
    total_ns = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        try:
            total_ns += int((thread / "schedstat").read_text().split()[0])
        except OSError:  # it has just ended
            continue
    return total_ns


def _is_worker(pid: int, session: int) -> bool:
    """Whether a process is a worker of this session."""
    try:
        name, _, rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
    except OSError:  # it has just ended
        return False
    return (
        name.partition("(")[2].startswith(WORKER) and int(rest.split()[_SESSION_FIELD]) == session
    )
