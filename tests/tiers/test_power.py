"""Power loss under a real filesystem: what its device held at some moment, mounted again.

The device is a file. A copy of it, taken while a process writes and the kernel has written back a
part, is what a drive would hold if the machine lost power just then. Only root can mount it.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from kvwise.errors import FailureKind
from kvwise.testing.tiers import blank, content, key_of, put_one, scanned, verdicts
from kvwise.tiers.base import Want
from kvwise.tiers.directio import Io
from kvwise.units import MIB
from tests.tiers.media import Files
from tests.tiers.mounts import ext4_image, mounted

IMAGE_BYTES = 64 * MIB
CAPACITY_BYTES = 24 * MIB
COPIES = 12

WRITER = """
import sys, time
from pathlib import Path
from kvwise.testing.tiers import *
from kvwise.tiers.disk import *
config = DiskConfig((Path(sys.argv[1]),), 24 << 20, min_free_bytes=0, segment_bytes=2 << 20,
                    io=Io(sys.argv[2]))
tier = DiskTier(config, clock_ns=time.monotonic_ns)
list(tier.scan())
sizes = (5_000, 60_000, 333_333)
held = []
for first in range(0, 1_000_000, 6):
    numbers = [(first + k) % 60 for k in range(6)]
    answers = tier.put([(record(n, sizes[n % 3]), filled(n, sizes[n % 3])) for n in numbers])
    held += [answer for answer in answers if isinstance(answer, Placed)]
    print("put", flush=True)
    while tier.used_bytes > 16 << 20:
        tier.free(held[:7])
        del held[:7]
"""


def copies_while_writing(tmp_path: Path, io: str) -> list[Path]:
    """The device at several moments of a process that puts and frees."""
    image, copies = ext4_image(tmp_path / "disk.img", IMAGE_BYTES), []
    with mounted(tmp_path / "mount", "-o", "loop,commit=1", str(image)) as home:
        argv = [sys.executable, "-c", WRITER, str(home / "kvwise"), io]
        with subprocess.Popen(argv, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            for number in range(COPIES):
                for _ in range(10):
                    assert child.stdout.readline()
                time.sleep(0.05 * (number % 5))
                child.send_signal(signal.SIGSTOP)
                copies.append(tmp_path / f"copy-{number}.img")
                with subprocess.Popen(["sync", "-f", str(home)]):
                    time.sleep(0.002 * (number % 7))
                    shutil.copyfile(image, copies[-1])
                child.send_signal(signal.SIGCONT)
            child.kill()
    return copies


@pytest.mark.slow
@pytest.mark.parametrize("io", ["direct", "buffered"])
def test_power_fails_while_writing(tmp_path: Path, io: str) -> None:
    """After each power loss what loads has its own bytes, space adds up, and work goes on."""
    sizes, numbers = (5_000, 60_000, 333_333), {key_of(n): n for n in range(60)}
    loads: Counter[str] = Counter()
    for image in copies_while_writing(tmp_path, io):
        subprocess.run(["e2fsck", "-fy", str(image)], check=False, capture_output=True)
        with mounted(tmp_path / "mount", "-o", "loop", str(image)) as home:
            files = Files((home / "kvwise",), io=Io(io), segment_bytes=2 * MIB)
            tier = files.open(CAPACITY_BYTES)
            found = scanned(tier)
            wants = [
                Want(r.key, r.space, r.raw_bytes, p.location, p.stored_bytes, blank(r.raw_bytes))
                for r, p in found
            ]
            for want, answer in zip(wants, verdicts(tier, wants), strict=True):
                loads[answer.value if answer else "whole"] += 1
                assert answer in {None, FailureKind.CORRUPT, FailureKind.MISSING}
                if answer is None:
                    number = numbers[want.key]
                    assert b"".join(want.buffers) == content(number, sizes[number % 3])
            assert tier.used_bytes == files.used_bytes()
            put_one(tier, 7, sizes[1])
            tier.free([spot for _, spot in found[::2]])
            assert tier.used_bytes == files.used_bytes()
            tier.close()

    print(loads)
    assert loads["whole"] > 20 * COPIES
