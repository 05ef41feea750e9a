"""Work shared between a caller and helpers: all of it is done, once. No files here."""

from __future__ import annotations

import threading
import time

import pytest

from kvwise.tiers.crew import Crew


def square(number: int) -> int:
    """Something to do."""
    return number * number


@pytest.mark.parametrize("count", [0, 1, 2, 100])
def test_every_task_comes_out_once(count: int) -> None:
    """Each task comes out with its own result."""
    crew = Crew(3, "test")
    done = sorted(crew.work(range(count), square))
    crew.close()

    assert done == [(n, n * n) for n in range(count)]


def test_a_single_task_stays_on_its_thread() -> None:
    """One task is done by the caller: no other thread has to wake up."""
    crew = Crew(3, "test")
    names = [name for _, name in crew.work([1], lambda _: threading.current_thread().name)]
    crew.close()

    assert names == [threading.current_thread().name]


def test_helpers_help() -> None:
    """Tasks that wait for each other can only be done by several threads at a time."""
    crew, meeting = Crew(2, "test"), threading.Barrier(3, timeout=10)
    done = list(crew.work(range(3), lambda _: meeting.wait()))
    crew.close()

    assert sorted(place for _, place in done) == [0, 1, 2]


def test_busy_helpers_are_not_waited_for() -> None:
    """While another call keeps the helpers busy, a call does its work alone and goes home."""
    crew, leave, here = Crew(1, "test"), threading.Event(), threading.Semaphore(0)

    def stay(_: int) -> None:
        here.release()
        assert leave.wait(10)

    long = threading.Thread(target=lambda: list(crew.work(range(2), stay)))
    long.start()
    for _ in range(2):
        assert here.acquire(timeout=10)
    start = time.monotonic()
    done = list(crew.work(range(20), square))
    elapsed_s = time.monotonic() - start
    leave.set()
    long.join(10)
    crew.close()

    assert [task for task, _ in done] == list(range(20))
    assert elapsed_s < 5


def test_stopping_early_waits_for_what_was_begun() -> None:
    """After the generator was closed, nothing of the call runs, and nothing new begins."""
    crew, running, begun = Crew(2, "test"), [0], [0]
    lock = threading.Lock()

    def slow(_: int) -> None:
        with lock:
            running[0] += 1
            begun[0] += 1
        time.sleep(0.02)
        with lock:
            running[0] -= 1

    work = crew.work(range(50), slow)
    next(work)
    work.close()
    begun_before = begun[0]
    time.sleep(0.1)

    assert running == [0]
    assert begun[0] == begun_before < 50
    crew.close()


@pytest.mark.parametrize("bad", range(6))
def test_errors_reach_the_caller(bad: int) -> None:
    """What a task raises is raised to the caller, whoever worked on it."""
    crew = Crew(2, "test")

    def picky(number: int) -> int:
        time.sleep(0.002)
        if number == bad:
            raise ValueError(number)
        return number

    with pytest.raises(ValueError, match=str(bad)):
        list(crew.work(range(6), picky))
    assert len(list(crew.work(range(6), square))) == 6
    crew.close()


def test_a_closed_crew_leaves_the_work_to_the_caller() -> None:
    """Without helpers the call still does everything."""
    crew = Crew(2, "test")
    crew.close()
    crew.close()

    assert list(crew.work(range(5), square)) == [(n, n * n) for n in range(5)]
