"""Work spread over processes that end with this one, however it ends. It knows no simulation."""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import active_children, get_context, parent_process
from threading import Thread
from typing import TypeVar

from kvwise.errors import KvwiseError

EXIT_ORPHANED = 1
LOOK_EVERY_S = 0.25
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

Job = TypeVar("Job")
Result = TypeVar("Result")


def spread(
    one: Callable[[Job], Result], todo: Sequence[Job], processes: int, at_once: int = 1
) -> Iterator[Result]:
    """What comes of every job, in order.

    Who stops asking, or is interrupted, ends the processes at once, whatever they are at.

    Args:
        one: does a job.
        todo: the jobs.
        processes: how many work at a time.
        at_once: jobs that a process is given together.

    Raises:
        KvwiseError: a process was ended by somebody else.
    """
    before, is_over = set(active_children()), False
    workers, context = min(processes, len(todo)), get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_follow) as pool:
        try:
            with _uninterrupted():
                parts = (todo[at : at + at_once] for at in range(0, len(todo), at_once))
                coming = deque(pool.submit(_each, one, part) for part in parts)
            while coming:
                yield from _result(coming.popleft())
            is_over = True
        except BrokenProcessPool as error:
            hint = "hint: where memory ran out, fewer --jobs need less"
            raise KvwiseError(f"a process ended in the middle of its work; {hint}") from error
        finally:
            if not is_over:
                for child in set(active_children()) - before:
                    child.kill()


def _each(one: Callable[[Job], Result], some: Sequence[Job]) -> list[Result]:
    """What comes of some jobs."""
    return [one(job) for job in some]


def _result(future: Future[list[Result]]) -> list[Result]:
    """The result, once it is there; a signal that comes just before a wait is seen after it."""
    while not wait([future], timeout=LOOK_EVERY_S).done:
        pass
    return future.result()


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Let signals come afterwards: a process whose start was interrupted is nobody's."""
    came = list[int]()
    before = {number: signal.signal(number, lambda got, _: came.append(got)) for number in _ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for late in came:
        signal.raise_signal(late)


def _follow() -> None:
    """Leave Ctrl-C to the parent, and end as soon as it has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Wait for the parent's end."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(EXIT_ORPHANED)
