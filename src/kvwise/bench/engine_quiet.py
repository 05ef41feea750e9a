"""Owns quiet around a measured engine: what else runs is kept off, waited for, or counted.

It ends nothing. vLLM's processes look for more work without a pause for a second after the last of
it: the worker on the cores that the next engine computes on, the scheduler wherever the kernel puts
it. Each of the two halves the speed of an engine that has to share a core with it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from kvwise.bench.engine_cpu import Meter, is_worker, process_s, processes
from kvwise.bench.places import SetupError

IDLE_CORES = 0.1
"""Processes that use less are idle: an engine that nobody asks takes a hundredth."""

REST_DEADLINE_S = 30
_LOOK_S = 0.1
_BUSY_FIELDS = (1, 2, 3, 6, 7)
"""Of the first line of /proc/stat: user, nice, system, and interrupts of both kinds."""


def keep_off(sessions: Collection[int], spare: Collection[int]) -> None:
    """Run everything in these sessions but the workers of engines on the spare cores, if any."""
    for pid in processes(sessions) if spare else ():
        if not is_worker(pid):
            for thread in Path(f"/proc/{pid}/task").iterdir():
                with suppress(OSError):  # it has just ended
                    os.sched_setaffinity(int(thread.name), spare)


def rest(sessions: Collection[int], deadline_s: float = REST_DEADLINE_S) -> None:
    """Wait until nothing in these sessions has anything to do.

    Raises:
        SetupError: it goes on.
    """
    meter, deadline = Meter(processes(sessions)), time.monotonic() + deadline_s
    while True:
        begin_ns, before = time.perf_counter_ns(), meter.read()
        time.sleep(_LOOK_S)
        used = meter.read() - before
        if used.used_ns < IDLE_CORES * (time.perf_counter_ns() - begin_ns):
            return
        if time.monotonic() > deadline:
            raise SetupError(
                f"the engines did not come to rest within {deadline_s:.0f} s, so that none can be "
                "measured alone; hint: see engine.log for what they do without being asked"
            )


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
