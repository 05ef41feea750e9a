"""Owns quiet around a measured engine: what else runs is kept off, frozen, or counted.

It ends nothing. vLLM's processes look for more work without a pause for a second after the last of
it: the worker on the cores that the next engine computes on, the scheduler wherever the kernel puts
it. Each of the two halves the speed of an engine that has to share a core with it. Waiting for that
second would take the two sides of a comparison apart, and a machine that others share is another
one a few seconds later; so an engine is frozen while the other one is measured.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from kvwise.bench.engine_cpu import is_worker, process_s, processes

_BUSY_FIELDS = (1, 2, 3, 6, 7)
"""Of the first line of /proc/stat: user, nice, system, and interrupts of both kinds."""


def keep_off(sessions: Collection[int], spare: Collection[int]) -> None:
    """Run everything in these sessions but the workers of engines on the spare cores, if any."""
    for pid in processes(sessions) if spare else ():
        if not is_worker(pid):
            for thread in Path(f"/proc/{pid}/task").iterdir():
                with suppress(OSError):  # it has just ended
                    os.sched_setaffinity(int(thread.name), spare)


def freeze(session: int) -> None:
    """Stop an engine where it is; its server, which waits, would still hear that it has to end."""
    _signal(session, signal.SIGSTOP)


def thaw(session: int) -> None:
    """Let an engine go on; idempotent."""
    _signal(session, signal.SIGCONT)


def _signal(session: int, number: signal.Signals) -> None:
    """Tell every process of a session but the first, which looks after the others."""
    for pid in processes({session}):
        if pid != session:
            with suppress(ProcessLookupError):
                os.kill(pid, number)


class Others:
    """Counts how busy the machine is with what is neither in these sessions nor this process."""

    def __init__(self, sessions: Collection[int]) -> None:
        """Begin to count."""
        self._pids = [*processes(sessions), os.getpid()]
        self._begin_s, self._before_s = time.perf_counter(), self._used_s()

    def cores(self) -> float:
        """How many cores they have used since, on average; no less than none."""
        seconds = time.perf_counter() - self._begin_s
        return max(0.0, (self._used_s() - self._before_s) / seconds)

    def _used_s(self) -> float:
        """Processor time of everything, less what is ours."""
        fields = Path("/proc/stat").read_text().splitlines()[0].split()
        ticks = sum(int(fields[field]) for field in _BUSY_FIELDS)
        return ticks / os.sysconf("SC_CLK_TCK") - sum(map(process_s, self._pids))
