"""Every comparison against the real peer, where that is installed; small, to see that it works."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvwise.bench.peers.cases import Case, Plan, cases
from kvwise.bench.peers.compare import Found, Ground, compare
from kvwise.bench.peers.installs import PEERS
from kvwise.units import MIB
from tests.bench.fakes import Notes

CASES = cases(Plan((MIB,), 4 * MIB, passes=1))


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("case", CASES, ids=[f"{c.peer}-{c.path}" for c in CASES])
def test_a_peer_that_is_installed_is_compared(case: Case, tmp_path: Path) -> None:
    """Both sides verify their bytes and give put and get; nothing is left on the disk."""
    if reason := PEERS[case.peer].absent({}):
        pytest.skip(reason)
    found = Found()
    compare(case, Ground({}, tmp_path, 1, Notes()), found)

    assert found.skipped == []
    assert {row["op"] for row in found.rows} == {"put", "get"}
    assert all(row["ratio"] > 0 for row in found.rows)
    assert list(tmp_path.iterdir()) == []
