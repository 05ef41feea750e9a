"""A process that is killed in the middle of writing. What it left is either whole or not found."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvwise.errors import FailureKind
from kvwise.testing.tiers import assert_adds_up, blank, content, key_of, put_one, scanned, verdicts
from kvwise.tiers.base import Want
from kvwise.tiers.directio import Io
from kvwise.units import GIB
from tests.tiers.media import Files

RAW_BYTES = 333_333

WRITER = """
import sys, time
from pathlib import Path
from kvwise.testing.tiers import *
from kvwise.tiers.disk import *
home = tuple(map(Path, sys.argv[2:]))
config = DiskConfig(home, 1 << 30, min_free_bytes=0, segment_bytes=3 << 20, io=Io(sys.argv[1]))
tier = DiskTier(config, clock_ns=time.monotonic_ns)
list(tier.scan())
objects = [(record(n, 333_333), filled(n, 333_333)) for n in range(24)]
print("writing", flush=True)
for first in range(0, 10_000, 6):
    chosen = [objects[(first + k) % 24] for k in range(6)]
    placed = [p for p in tier.put(chosen) if isinstance(p, Placed)]
    print("put", len(placed), flush=True)
    tier.free(placed[:3])
"""


def killed_writer(homes: tuple[Path, ...], io: str, puts: int, pause_s: float) -> None:
    """Run a process that writes and frees; kill it some time after its n-th batch."""
    argv = [sys.executable, "-c", WRITER, io, *map(str, homes)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        for _ in range(puts + 1):
            assert child.stdout.readline()
        time.sleep(pause_s)
        child.kill()


@pytest.mark.pain("W2", "W13", "D5", "D11")
@pytest.mark.parametrize("io", ["auto", "buffered"])
@pytest.mark.parametrize("directories", [1, 2])
def test_killed_in_the_middle(tmp_path: Path, io: str, directories: int) -> None:
    """After every kill, each object that is found loads with its own bytes, and space adds up."""
    homes = tuple(tmp_path / str(n) for n in range(directories))
    files = Files(homes, io=Io(io))
    by_key = {key_of(n): n for n in range(24)}
    seen = 0
    for life in range(5):
        killed_writer(homes, io, 3 + life, 0.0007 * life)
        tier = files.open(GIB)
        found = scanned(tier)
        wants = [
            Want(r.key, r.space, RAW_BYTES, p.location, p.stored_bytes, blank(RAW_BYTES))
            for r, p in found
        ]
        answers = verdicts(tier, wants)
        for want, answer in zip(wants, answers, strict=True):
            if answer is None:
                assert b"".join(want.buffers) == content(by_key[want.key], RAW_BYTES)
                seen += 1
            else:
                assert answer in {FailureKind.CORRUPT, FailureKind.MISSING}
        assert tier.used_bytes == files.used_bytes()
        assert_adds_up(tier, [placed for _, placed in found])
        put_one(tier, 7, RAW_BYTES)
        tier.free([placed for _, placed in found[::2]])
        tier.close()

    assert seen > 20
