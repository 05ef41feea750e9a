"""Leases and page lists: they survive the trip, and a client needs no store to read them."""

from __future__ import annotations

import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from kvwise.live.leases import join_lease, pack_pages, split_lease, unpack_pages


@given(epoch=st.integers(1, (1 << 31) - 1), number=st.integers(1, (1 << 32) - 1))
def test_a_lease_is_two_numbers(epoch: int, number: int) -> None:
    """Epoch and number come back, and the whole fits 63 bits."""
    lease = join_lease(epoch, number)

    assert split_lease(lease) == (epoch, number)
    assert 0 < lease < 1 << 63


@given(pages=st.lists(st.integers(0, (1 << 32) - 1)))
def test_pages_are_little_endian(pages: list[int]) -> None:
    """Four bytes a page, the least significant first."""
    packed = pack_pages(pages)

    assert unpack_pages(packed) == tuple(pages)
    assert packed == b"".join(page.to_bytes(4, "little") for page in pages)


def test_a_client_imports_no_store() -> None:
    """An engine's process loads the client alone: no brain, no tiers on disk, no metrics."""
    script = (
        "import sys, kvwise.live.embedded\n"
        "unwanted = {'kvwise.live.node', 'kvwise.core.brain', 'kvwise.tiers.disk',"
        " 'prometheus_client', 'click', 'rich'}\n"
        "print(sorted(unwanted & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=60
    )

    assert done.stdout.strip() == "[]"
