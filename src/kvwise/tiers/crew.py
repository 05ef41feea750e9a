"""A crew: the caller and a few helper threads share the work of one call. It knows no tiers.

The caller works too, so a short call changes no thread, and on a busy machine nothing waits for a
helper to be scheduled. Helpers take tasks from the same list, so that one worker's checksum runs
while another one's bytes move.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")


class Crew:
    """Helper threads for hire. A call that finds none free does all of its work itself."""

    def __init__(self, helpers: int, name: str) -> None:
        self._helpers = helpers
        self._pool = ThreadPoolExecutor(helpers, thread_name_prefix=name)

    def work(
        self, tasks: Iterable[Task], do: Callable[[Task], Result]
    ) -> Generator[tuple[Task, Result]]:
        """Do all tasks, begun in order; each comes out with its result once it is done.

        Closing the generator drops the tasks that nobody has begun and waits for the others. What
        `do` raises, on whatever thread, is raised here.
        """
        call = _Call(tasks, do)
        futures: list[Future[None]] = []
        hired = range(min(self._helpers, call.left - 1))
        with suppress(RuntimeError):  # the crew was closed: the caller works alone
            futures.extend(self._pool.submit(call.help) for _ in hired)
        try:
            while call.left:
                yield call.next(futures)
        finally:
            call.drop(futures)

    def close(self) -> None:
        """Send the helpers home once they have finished what they began."""
        self._pool.shutdown()


class _Call(Generic[Task, Result]):
    """The tasks of one call.

    Attributes:
        left: how many have not come out yet.
    """

    def __init__(self, tasks: Iterable[Task], do: Callable[[Task], Result]) -> None:
        self._waiting = deque(tasks)
        self._do = do
        self._done: SimpleQueue[tuple[Task, Result] | None] = SimpleQueue()
        self.left = len(self._waiting)

    def help(self) -> None:
        """Work on a helper's thread until nothing waits any more."""
        for task in self._tasks():
            done: tuple[Task, Result] | None = None
            try:
                done = task, self._do(task)
            finally:
                self._done.put(done)  # None: it raised, and the future says what

    def next(self, futures: Sequence[Future[None]]) -> tuple[Task, Result]:
        """What a helper has done, or else the next task done here."""
        self.left -= 1
        try:
            done = self._done.get_nowait()
        except Empty:
            for task in self._tasks():
                return task, self._do(task)
            done = self._done.get()
        if done is None:
            self.drop(futures)
            raise next(error for future in futures if (error := _raised(future)) is not None)
        return done

    def drop(self, futures: Sequence[Future[None]]) -> None:
        """Begin nothing more, and wait for what was begun."""
        self._waiting.clear()
        wait([future for future in futures if not future.cancel()])

    def _tasks(self) -> Iterator[Task]:
        """Tasks that nobody has begun, each given to one taker."""
        while True:
            try:
                task = self._waiting.popleft()
            except IndexError:
                return
            yield task


def _raised(future: Future[None]) -> BaseException | None:
    """What a helper died of, if it did."""
    return None if future.cancelled() else future.exception()
