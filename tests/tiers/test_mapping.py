"""Mapped memory: where it lies, who unmaps it, and huge pages joined from small ones."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvwise.tiers import mapping
from kvwise.tiers.dram import Arena, ArenaShape, Backing
from kvwise.tiers.mapping import HUGE_BYTES, Mapping, can_join
from kvwise.units import KIB, MIB

PAGE = 128 * KIB


@pytest.fixture
def fd() -> Iterator[int]:
    """A file of memory: five huge pages and a bit."""
    made = os.memfd_create("kvwise-test")
    os.ftruncate(made, 5 * HUGE_BYTES + 4 * KIB)
    yield made
    os.close(made)


@pytest.fixture
def memory(fd: int) -> Iterator[Mapping]:
    """All of it, mapped."""
    made = Mapping(fd, os.fstat(fd).st_size)
    yield made
    made.close()


def require_joining() -> None:
    """Leave out what needs a kernel that joins pages."""
    if not can_join():
        pytest.skip("this kernel joins no pages of shared memory (MADV_COLLAPSE, Linux 6.1)")


def resident_bytes(fd: int) -> int:
    """Memory that the file takes."""
    return os.fstat(fd).st_blocks * 512


def mapped_huge_bytes(address: int) -> int:
    """How much of the mapping at an address this process reaches through huge pages."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, _, rest = line.partition(" ")
        if "-" in first and not first.endswith(":"):
            low, high = (int(part, 16) for part in first.split("-"))
            inside = low <= address < high
        elif inside and first == "ShmemPmdMapped:":
            return int(rest.split()[0]) * KIB
    raise AssertionError("nothing is mapped there")


def test_it_starts_where_a_huge_page_may(fd: int) -> None:
    """Wherever the kernel has room: address and place in the file agree, whatever was asked."""
    made = [Mapping(fd, size) for size in (4 * KIB, HUGE_BYTES, 5 * HUGE_BYTES + 4 * KIB)]

    assert [one.address % HUGE_BYTES for one in made] == [0, 0, 0]
    made[0].view[100:105] = b"hello"
    assert [bytes(one.view[100:105]) for one in made] == [b"hello"] * 3
    assert [one.view.nbytes for one in made] == [4 * KIB, HUGE_BYTES, 5 * HUGE_BYTES + 4 * KIB]
    for one in made:
        one.close()
        one.close()


def test_addresses_are_given_back(fd: int) -> None:
    """After closing nothing of the file or of what was set aside for it is mapped."""
    before = Path("/proc/self/maps").read_text().count("kvwise-test")
    one = Mapping(fd, 3 * HUGE_BYTES)
    assert Path("/proc/self/maps").read_text().count("kvwise-test") == before + 1
    one.close()

    assert Path("/proc/self/maps").read_text().count("kvwise-test") == before


def test_a_refusal_leaves_nothing_behind(fd: int) -> None:
    """What cannot be mapped is the kernel's error, and the addresses are free again."""
    before = len(Path("/proc/self/maps").read_text().splitlines())
    for bad in (-1, os.open("/proc/self/stat", os.O_RDONLY)):
        with pytest.raises(OSError, match=r"descriptor|device|denied"):
            Mapping(bad, HUGE_BYTES)
        if bad >= 0:
            os.close(bad)

    assert len(Path("/proc/self/maps").read_text().splitlines()) <= before + 1


def test_addresses_are_no_data() -> None:
    """A process that may have little data of its own can share a large memory."""
    code = """
import resource
from kvwise.tiers.dram import Arena, ArenaShape
resource.setrlimit(resource.RLIMIT_DATA, (200 << 20, 200 << 20))
arena = Arena.create(ArenaShape.of(4096, 131072))
arena.page(4095)[:4] = b"here"
print(bytes(arena.page(4095)[:4]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.stdout == "b'here'\n", done.stderr


def test_attaching_in_vain_keeps_no_descriptor() -> None:
    """Where addresses are short, the descriptor that came with the arena is closed again."""
    code = """
import os, resource
from kvwise.tiers.dram import Arena, ArenaShape
shape = ArenaShape.of(8192, 131072)
arena = Arena.create(shape)
limit = 2 << 30
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
before = len(os.listdir("/proc/self/fd"))
for _ in range(5):
    try:
        Arena.attach(os.dup(arena.fd), shape)
    except OSError as error:
        print(error.errno, len(os.listdir("/proc/self/fd")) - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.stdout == "12 0\n" * 5, done.stderr


def test_joining_keeps_what_was_written(fd: int, memory: Mapping) -> None:
    """Huge pages take the place of small ones, used or not; other stretches stay as they were."""
    require_joining()
    for place in (0, HUGE_BYTES - 1, HUGE_BYTES, 3 * HUGE_BYTES + 12345):
        memory.view[place] = 1 + place % 251
    assert mapped_huge_bytes(memory.address) == 0

    assert memory.join(HUGE_BYTES // 2, HUGE_BYTES + 1)

    assert mapped_huge_bytes(memory.address) == 2 * HUGE_BYTES
    assert resident_bytes(fd) == 2 * HUGE_BYTES + 4 * KIB
    for place in (0, HUGE_BYTES - 1, HUGE_BYTES, 3 * HUGE_BYTES + 12345):
        assert memory.view[place] == 1 + place % 251
    assert not any(memory.view[1 : HUGE_BYTES - 1])


def test_another_mapping_finds_them(fd: int, memory: Mapping) -> None:
    """A client that maps the file later reaches the huge pages that a node joined."""
    require_joining()
    memory.join(0, 4 * HUGE_BYTES)
    client = Mapping(fd, memory.size_bytes)
    assert client.populate(0, 4 * HUGE_BYTES)

    assert mapped_huge_bytes(client.address) == 4 * HUGE_BYTES
    client.close()


def test_the_end_that_fills_no_huge_page(fd: int, memory: Mapping) -> None:
    """It is not joined, and the answer says so."""
    assert not memory.join(5 * HUGE_BYTES, memory.size_bytes)
    assert resident_bytes(fd) == 0
    assert memory.populate(5 * HUGE_BYTES, memory.size_bytes)
    assert resident_bytes(fd) == 4 * KIB


def test_a_kernel_that_refuses(fd: int, memory: Mapping, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small pages then: nothing is lost, and nothing is tried again at once for one that is."""
    real = mapping._madvise
    asked: list[int] = []

    def refuse(address: int, size_bytes: int, advice: int) -> int:
        asked.append(advice)
        return -1 if advice == mapping._COLLAPSE else int(real(address, size_bytes, advice))

    monkeypatch.setattr(mapping, "_madvise", refuse)
    memory.view[0] = 7
    assert not memory.join(0, HUGE_BYTES)
    assert memory.populate(0, HUGE_BYTES)

    assert memory.view[0] == 7
    assert mapped_huge_bytes(memory.address) == 0
    assert asked.count(mapping._COLLAPSE) == 1
    assert not can_join()


def test_an_arena_joins_ahead_of_use() -> None:
    """Pages that are asked for come in huge pages, no more than those that hold them."""
    require_joining()
    arena = Arena.create(ArenaShape.of(8 * MIB // PAGE, PAGE))
    if arena.backing is not Backing.JOINED:
        pytest.skip(f"this host backs arenas with {arena.backing.value}")
    had = arena.resident_bytes
    arena.page(20)[:4] = b"kept"
    assert arena.populate(17, 15)

    assert had == HUGE_BYTES
    assert arena.resident_bytes == 3 * HUGE_BYTES
    assert bytes(arena.page(20)[:4]) == b"kept"
    arena.close()


def test_an_arena_whose_end_is_small() -> None:
    """The last pages need not fill a huge page; they are provided all the same."""
    arena = Arena.create(ArenaShape.of(30, PAGE))
    assert arena.populate(0, 30)

    assert arena.resident_bytes == arena.shape.size_bytes
    arena.page(29)[:] = b"x" * PAGE
    arena.close()
