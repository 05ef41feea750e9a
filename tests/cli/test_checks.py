"""Checks whose advice or answer depends on another check, and on a daemon under a crowd."""

from __future__ import annotations

import signal
import socket
import threading
from pathlib import Path

import pytest

from kvwise.cli import checks
from kvwise.cli.checks import Case, Grade
from kvwise.host import Host
from kvwise.tiers import mapping
from kvwise.units import GIB
from tests.cli.test_doctor import case, host, memory_host
from tests.live.support import served, settings


@pytest.mark.parametrize(
    ("wanted", "have", "expected"),
    [
        ("auto", (0, "always [never]", False), Grade.WARN),
        ("auto", (0, "always [never]", True), Grade.OK),
        ("on", (0, "always [never]", True), Grade.FAIL),
        ("off", (0, "always [never]", False), Grade.OK),
        ("auto", (0, "always [advise] never", False), Grade.OK),
        ("on", (4096, "always [never]", False), Grade.OK),
        ("auto", (0, "", False), Grade.WARN),
    ],
)
def test_huge_pages_follow_the_wish(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    wanted: str,
    have: tuple[int, str, bool],
    expected: Grade,
) -> None:
    """Missing huge pages are a warning, a failure when they were demanded, nothing when not."""
    reserved, mode, joins = have
    memory_host(tmp_path, total=64 * GIB, available=64 * GIB, huge=reserved)
    on = host(tmp_path, {"/sys/kernel/mm/transparent_hugepage/shmem_enabled": mode})
    monkeypatch.setattr(mapping, "can_join", lambda: joins)

    found = checks.check_huge_pages(case(on, dram__hugepages=wanted, dram__size="4GiB"))

    assert found.grade is expected
    assert bool(found.advice) is (expected is not Grade.OK)


@pytest.mark.parametrize(("total_bytes", "is_offered"), [(64 * GIB, True), (3 * GIB, False)])
def test_no_more_huge_pages_are_advised_than_there_is_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, total_bytes: int, is_offered: bool
) -> None:
    """An arena larger than the machine must shrink first; there is no reserving it."""
    memory_host(tmp_path, total=total_bytes, available=total_bytes)
    never = {"/sys/kernel/mm/transparent_hugepage/shmem_enabled": "always [never]"}

    monkeypatch.setattr(mapping, "can_join", lambda: False)
    found = checks.check_huge_pages(case(host(tmp_path, never), dram__size="4GiB"))

    assert ("sysctl vm.nr_hugepages=2048" in found.advice) is is_offered
    assert "echo advise" in found.advice


def test_a_daemon_is_asked(tmp_path: Path) -> None:
    """One that answers is fine; one that was stopped still listens, and is told."""
    config = settings(tmp_path)
    asked = Case(config)
    with served(config, tmp_path) as daemon:
        found = checks.check_socket(asked)
        assert (found.grade, "answers" in found.seen) == (Grade.OK, True)
        daemon.send(signal.SIGSTOP)
        found = checks.check_socket(asked)
        assert (found.grade, "gives no answer" in found.seen) == (Grade.FAIL, True)
        assert "start another" in found.advice
        daemon.send(signal.SIGCONT)


def test_a_daemon_whose_queue_is_full_gives_no_answer(tmp_path: Path) -> None:
    """A crowd at its door is no sign that nobody is in."""
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as first:
        server.bind(str(path))
        server.listen(0)
        first.connect(str(path))

        assert checks.door_at(path) is checks.Door.SILENT


def test_who_closes_the_door_is_no_daemon_of_ours(tmp_path: Path) -> None:
    """Another user's daemon, or another program, lets nobody attach."""
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()

        def close() -> None:
            server.accept()[0].close()

        closing = threading.Thread(target=close)
        closing.start()
        found = checks.check_socket(case(Host(), serve__socket=str(path)))
        closing.join()

    assert found.grade is Grade.FAIL
    assert "closes the connection" in found.seen
