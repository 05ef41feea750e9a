"""Owns the switch that takes kvwise away from a running engine, and gives it back.

Two processes of one program differ by several in a hundred from one start to the next, which is
more than kvwise may cost. So one engine is asked with and without it: while the switch is off, its
scheduler and its worker have no connector, as if they had been started without one, and run what
vLLM runs then. What is left of kvwise are threads that sleep and a daemon that nobody asks.

`scheduler` and `worker` run inside vLLM, which is told their names; the rest runs in the bench.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any, Self

PLACE = "KVWISE_BENCH_SWITCH"
"""Names the file of the switch, in the environment of the engine."""

ARGUMENTS = ("--scheduler-cls", f"{__name__}.scheduler", "--worker-cls", f"{__name__}.worker")
"""What an engine on a CPU with a switch is started with."""

_SIZE_BYTES = 1


class Switch:
    """One byte that several processes see: whether there is kvwise."""

    def __init__(self, path: Path) -> None:
        """Look at the switch in this file.

        Raises:
            OSError: there is none.
        """
        with path.open("r+b") as file:
            self._byte = mmap.mmap(file.fileno(), _SIZE_BYTES)

    @classmethod
    def make(cls, path: Path) -> Self:
        """A new switch, on."""
        path.write_bytes(b"\1")
        return cls(path)

    @property
    def is_on(self) -> bool:
        """Whether the engine has kvwise."""
        return bool(self._byte[0])

    def turn(self, *, on: bool) -> None:
        """Give it to the engine, or take it away; the engine must have nothing to do meanwhile."""
        self._byte[0] = on


def scheduler(**arguments: Any) -> Any:
    """Make the scheduler that vLLM would, but for its connector, there while the switch is on."""
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler

    switch = Switch(Path(os.environ[PLACE]))
    is_async = arguments["vllm_config"].scheduler_config.async_scheduling
    usual: Any = AsyncScheduler if is_async else Scheduler

    class Switched(usual):  # type: ignore[misc]  # a class of vLLM, which is Any here
        """The usual scheduler, but for its connector."""

        @property
        def connector(self) -> Any:
            """The connector, or None where an engine without one has None."""
            return self._connector if switch.is_on else None

        @connector.setter
        def connector(self, value: Any) -> None:
            self._connector = value

    return Switched(**arguments)


def worker(**arguments: Any) -> Any:
    """Make the worker that vLLM would on a CPU, its connector there where the scheduler has one."""
    from vllm.distributed.kv_transfer import kv_transfer_state as held
    from vllm.v1.worker.cpu_worker import CPUWorker

    class Switched(CPUWorker):  # type: ignore[misc]  # a class of vLLM, which is Any here
        """The usual worker, but for its connector."""

        _connector: Any = None

        def execute_model(self, scheduler_output: Any) -> Any:
            """Run a step."""
            self._connector = self._connector or held.get_kv_transfer_group()
            has = scheduler_output.kv_connector_metadata is not None
            held._KV_CONNECTOR_AGENT = self._connector if has else None  # noqa: SLF001  vLLM's own way
            return super().execute_model(scheduler_output)

    return Switched(**arguments)
