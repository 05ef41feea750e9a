"""Checks whose advice or answer depends on another check, and on a daemon under a crowd."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from kvwise.cli import checks
from kvwise.units import GIB
from tests.cli.test_doctor import case, host, memory_host


@pytest.mark.parametrize(("total_bytes", "is_offered"), [(64 * GIB, True), (3 * GIB, False)])
def test_no_more_huge_pages_are_advised_than_there_is_memory(
    tmp_path: Path, total_bytes: int, is_offered: bool
) -> None:
    """An arena larger than the machine must shrink first; there is no reserving it."""
    memory_host(tmp_path, total=total_bytes, available=total_bytes)
    never = {"/sys/kernel/mm/transparent_hugepage/shmem_enabled": "always [never]"}

    found = checks.check_huge_pages(case(host(tmp_path, never), dram__size="4GiB"))

    assert ("sysctl vm.nr_hugepages=2048" in found.advice) is is_offered
    assert "echo advise" in found.advice


def test_a_daemon_whose_queue_is_full_is_listening(tmp_path: Path) -> None:
    """A crowd at its door is no sign that nobody is in."""
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as first:
        server.bind(str(path))
        server.listen(0)
        first.connect(str(path))

        assert checks.listening(path)
