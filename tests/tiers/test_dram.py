"""The arena: memory, its cut, its lease table. No engine and no daemon takes part."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import gc
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwise.core.pages import Pages
from kvwise.errors import BugError, ConfigError, FailureKind, ProtocolError, TierError
from kvwise.testing.codecs import scatter
from kvwise.testing.tiers import Medium, TierSuite
from kvwise.tiers import dram
from kvwise.tiers.base import Buffers, Found, Placed, Record, Spent, Tier, Want
from kvwise.tiers.dram import Arena, ArenaShape, Backing, SlotState
from kvwise.tiers.mapping import Mapping
from kvwise.units import GIB, KIB, MIB
from tests.processes import in_shared_memory

PAGE = 128 * KIB


# --- the arena under the suite of tiers ----------------------------------------------------------


class ArenaTier:
    """The arena as a tier: pages handed out by the brain's own free list, bytes by copying."""

    name = "arena"
    down: Sequence[str] = ()

    def __init__(self, capacity_bytes: int) -> None:
        self.arena = Arena.create(ArenaShape.of(capacity_bytes // PAGE, PAGE))
        self._pages = Pages(capacity_bytes // PAGE)
        self._objects: dict[int, tuple[tuple[int, ...], int]] = {}
        self._lock = threading.Lock()
        self._closed = False

    @property
    def used_bytes(self) -> int:
        return (self._pages.count - self._pages.free_count) * PAGE

    @property
    def free_bytes(self) -> int:
        return self._pages.free_count * PAGE

    def put(self, objects: Sequence[tuple[Record, Buffers]]) -> list[Placed | TierError]:
        return [self._put(record, buffers) for record, buffers in objects]

    def _put(self, record: Record, buffers: Buffers) -> Placed | TierError:
        if self._closed:
            return TierError(FailureKind.CLOSED, "closed")
        with self._lock:
            pages = self._pages.allocate(-(-record.raw_bytes // PAGE))
            if pages is None:
                return TierError(FailureKind.FULL, "no pages")
            self._objects[pages[0]] = pages, record.raw_bytes
        scatter(b"".join(buffers), self.arena.buffers(pages, record.raw_bytes))
        return Placed(pages[0], len(pages) * PAGE)

    def get(self, wants: Sequence[Want]) -> Iterator[tuple[int, TierError | None]]:
        for index, want in enumerate(wants):
            yield index, self._get(want)

    def _get(self, want: Want) -> TierError | None:
        if self._closed:
            return TierError(FailureKind.CLOSED, "closed")
        with self._lock:
            pages, raw_bytes = self._objects.get(want.location, ((), 0))
        if not pages:
            return TierError(FailureKind.MISSING, "no such object")
        scatter(b"".join(self.arena.buffers(pages, raw_bytes)), want.buffers)
        return None

    def free(self, placed: Sequence[Placed]) -> None:
        with self._lock:
            for one in placed:
                self._pages.free((one.location,))
                del self._objects[one.location]

    def scan(self) -> Iterator[Found]:
        return iter(())

    def spent(self) -> Sequence[Spent]:
        return ()

    def close(self) -> None:
        self._closed = True
        self.arena.close()


class ArenaMedium:
    """Memory has no outside; used pages are counted by what objects need."""

    def __init__(self) -> None:
        self.tier: ArenaTier | None = None

    def open(self, capacity_bytes: int) -> Tier:
        self.tier = ArenaTier(capacity_bytes)
        return self.tier

    def used_bytes(self) -> int:
        assert self.tier is not None
        return sum(len(pages) * PAGE for pages, _ in self.tier._objects.values())

    def overwrite(self, placed: Placed, offset: int, data: bytes) -> None:
        raise NotImplementedError

    def cut(self, placed: Placed, keep_bytes: int) -> None:
        raise NotImplementedError


class TestArenaTier(TierSuite):
    """Objects in pages behave like objects on any other tier."""

    def medium(self, home: Path) -> Medium:
        """Fresh memory."""
        return ArenaMedium()


# --- shape ---------------------------------------------------------------------------------------


@given(st.integers(1, 10_000), st.integers(1, 512), st.integers(1, 100_000))
def test_shape_holds_what_was_asked(pages: int, blocks: int, slots: int) -> None:
    """Any page count, page size and number of leases fits, aligned, with little waste."""
    shape = ArenaShape.of(pages, blocks * 4096, lease_slots=slots)

    assert shape.page_count == pages
    assert shape.lease_slots >= slots
    assert shape.data_offset % shape.page_bytes == 0
    assert shape.size_bytes == shape.data_offset + pages * shape.page_bytes
    assert ArenaShape(shape.size_bytes, shape.page_bytes, shape.data_offset) == shape


@pytest.mark.parametrize(
    ("size_bytes", "page_bytes", "data_offset"),
    [(GIB, 0, 4096), (GIB, 5000, 4096), (GIB, 4096, 0), (GIB, 4096, 100), (8191, 4096, 4096)],
)
def test_impossible_shapes(size_bytes: int, page_bytes: int, data_offset: int) -> None:
    """Pages that would not be aligned, or none at all, are configuration errors."""
    with pytest.raises(ConfigError):
        ArenaShape(size_bytes, page_bytes, data_offset)


# --- memory --------------------------------------------------------------------------------------


@pytest.fixture
def arena() -> Iterator[Arena]:
    """A small arena."""
    arena = Arena.create(ArenaShape.of(16, PAGE))
    yield arena
    arena.close()


@pytest.mark.pain("M4")
def test_memory_is_taken_when_it_is_used() -> None:
    """A large arena costs nothing at first, and what was written after that."""
    arena = Arena.create(ArenaShape.of(4 * GIB // PAGE, PAGE), huge_pages=False)
    before = arena.resident_bytes
    arena.page(1000)[:] = b"x" * PAGE
    arena.page(30_000)[:] = b"x" * PAGE

    assert before == 0
    assert arena.resident_bytes == 2 * PAGE
    assert arena.backing is Backing.SMALL
    arena.close()


def test_pages_can_be_had_beforehand() -> None:
    """Populated pages take memory before anybody writes, and keep what was written."""
    arena = Arena.create(ArenaShape.of(8, PAGE), huge_pages=False)
    arena.page(2)[:4] = b"kept"
    had = arena.populate(1, 3)

    assert had
    assert arena.resident_bytes == 3 * PAGE
    assert arena.page(2)[:4].tobytes() == b"kept"
    for first, count in ((-1, 1), (6, 3), (2, -1)):
        with pytest.raises(BugError):
            arena.populate(first, count)
    arena.close()


def test_pages_are_where_they_say(arena: Arena) -> None:
    """A page, the view of all pages and the address are the same memory, aligned."""
    arena.page(3)[:5] = b"hello"

    assert arena.pages[3 * PAGE : 3 * PAGE + 5].tobytes() == b"hello"
    assert ctypes.string_at(arena.address + 3 * PAGE, 5) == b"hello"
    assert arena.address % 4096 == 0
    assert arena.pages.nbytes == 16 * PAGE


def test_pages_outside_are_our_bug(arena: Arena) -> None:
    """Page numbers that do not exist are refused, negative ones too."""
    for number in (-1, 16):
        with pytest.raises(BugError):
            arena.page(number)
        with pytest.raises(BugError):
            arena.buffers((number, 0), 2 * PAGE)


@given(st.permutations(range(16)), st.integers(1, 16), st.integers(1, PAGE))
def test_buffers_are_the_pages_in_order(order: list[int], count: int, last: int) -> None:
    """Buffers hold the bytes of the pages in order, neighbours joined, cut at the size."""
    arena = Arena.create(ArenaShape.of(16, PAGE), huge_pages=False)
    pages, size_bytes = tuple(order[:count]), (count - 1) * PAGE + last
    for number in pages:
        arena.page(number)[:1] = bytes([number])
        arena.page(number)[-1:] = bytes([number])
    buffers = arena.buffers(pages, size_bytes)
    joined = b"".join(buffers)
    breaks = sum(b != a + 1 for a, b in pairwise(pages))

    assert len(joined) == size_bytes
    assert [joined[k * PAGE] for k in range(count)] == list(pages)
    assert len(buffers) == breaks + 1
    del buffers
    arena.close()


@pytest.mark.parametrize("size_bytes", [0, PAGE, 2 * PAGE + 1])
def test_buffers_that_do_not_end_in_the_last_page(arena: Arena, size_bytes: int) -> None:
    """A size that needs more or fewer pages than were given is refused."""
    with pytest.raises(BugError):
        arena.buffers((0, 1), size_bytes)


def test_closing_while_somebody_looks() -> None:
    """Views and arrays over the memory outlive `close`, which may come twice."""
    arena = Arena.create(ArenaShape.of(16, PAGE))
    array = np.frombuffer(arena.pages, dtype=np.uint8)
    view = arena.page(1)
    array[PAGE] = 7
    arena.close()
    arena.close()

    assert view[0] == 7
    assert arena.fd == -1


def test_closing_gives_memory_and_descriptor_back() -> None:
    """After `close` the process has neither the mapping nor the descriptor."""

    def held() -> tuple[int, int]:
        maps = Path("/proc/self/maps").read_text()
        return len(list(Path("/proc/self/fd").iterdir())), maps.count("kvwise-arena")

    gc.collect()  # arenas of other tests may go meanwhile, and must not be counted
    before = held()
    arena = Arena.create(ArenaShape.of(16, PAGE))
    arena.close()

    assert held() == before


def test_nobody_can_shrink_it(arena: Arena) -> None:
    """A holder of the descriptor cannot cut the memory from under the others."""
    with pytest.raises(PermissionError):
        os.ftruncate(arena.fd, 4096)
    assert fcntl.fcntl(arena.fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK


# --- huge pages ----------------------------------------------------------------------------------


def test_huge_pages_when_the_pool_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a pool, the arena maps whole huge pages and says so."""
    asked: list[tuple[int, int]] = []
    real = dram._map_memfd

    def pool(size_bytes: int, flags: int) -> tuple[int, Mapping]:
        asked.append((size_bytes, flags & os.MFD_HUGETLB))
        return real(size_bytes, flags & ~(os.MFD_HUGETLB | os.MFD_HUGE_2MB))

    monkeypatch.setattr(dram, "_map_memfd", pool)
    arena = Arena.create(ArenaShape.of(3, PAGE))

    assert arena.backing is Backing.HUGETLB
    assert asked == [(2 * MIB, os.MFD_HUGETLB)]
    assert arena.shape.page_count == 3
    arena.close()


@pytest.mark.parametrize(
    ("allowed", "expected"),
    [
        ("always within_size [advise] never deny force", Backing.TRANSPARENT),
        ("[always] within_size advise never deny force", Backing.TRANSPARENT),
        ("always within_size advise [never] deny force", Backing.SMALL),
        (None, Backing.SMALL),
    ],
)
def test_what_was_obtained_is_reported(
    allowed: str | None, expected: Backing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a pool, transparent huge pages are used where the kernel allows them."""
    setting = tmp_path / "shmem_enabled"
    if allowed is not None:
        setting.write_text(allowed)
    monkeypatch.setattr(dram, "_SHMEM_HUGE", setting)
    monkeypatch.setattr(dram, "_map_hugetlb", lambda _: None)
    arena = Arena.create(ArenaShape.of(3, PAGE))

    assert arena.backing is expected
    attached = Arena.attach(os.dup(arena.fd), arena.shape)
    assert attached.backing is Backing.ATTACHED
    attached.close()
    arena.close()


def test_a_real_failure_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """Running out of descriptors is an error, not a reason for small pages."""

    def broken(*_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "memfd_create", broken)
    with pytest.raises(OSError, match="Too many open files"):
        Arena.create(ArenaShape.of(3, PAGE))


# --- other processes -----------------------------------------------------------------------------

CHILD = """
import os, sys, time
from kvwise.tiers.dram import *
shape = ArenaShape(*map(int, sys.argv[2:5]))
arena = Arena.attach(int(sys.argv[1]), shape)
print(arena.progress_read(41), bytes(arena.page(2)[:3]), flush=True)
arena.page(2)[:3] = b"two"
arena.close()
"""


def test_another_process_sees_the_same(arena: Arena) -> None:
    """A process that was given the descriptor reads and writes the same pages and slots."""
    arena.page(2)[:3] = b"one"
    arena.progress_write(41, 7, SlotState.ACTIVE)
    shape = arena.shape
    numbers = (arena.fd, shape.size_bytes, shape.page_bytes, shape.data_offset)
    done = subprocess.run(
        [sys.executable, "-c", CHILD, *map(str, numbers)],
        pass_fds=[arena.fd],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    assert done.stdout == "(7, False) b'one'\n"
    assert arena.page(2)[:3].tobytes() == b"two"


def test_attaching_to_something_smaller_is_refused() -> None:
    """A descriptor that does not hold what the daemon promised is a protocol error, and closed."""
    fd = os.memfd_create("small")
    os.ftruncate(fd, MIB)
    with pytest.raises(ProtocolError, match=r"1\.0 MiB"):
        Arena.attach(fd, ArenaShape.of(16, PAGE))
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


@pytest.mark.pain("M5")
def test_nothing_stays_after_sigkill() -> None:
    """The memory has no name in any directory, so a killed process leaves nothing behind."""
    code = (
        "from kvwise.tiers.dram import *; import time\n"
        "arena = Arena.create(ArenaShape.of(64, 131072)); arena.page(5)[:] = b'x' * 131072\n"
        "print('up', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"up\n"
        maps = Path(f"/proc/{child.pid}/maps").read_text()
        named = in_shared_memory(child.pid)
        child.kill()
    mapped = [line.split(maxsplit=5)[5] for line in maps.splitlines() if "kvwise-arena" in line]

    assert mapped == ["/memfd:kvwise-arena (deleted)"]
    assert named == set()


def test_a_named_file_would_be_seen() -> None:
    """What the test above asks finds a mapped and an open file, and not what was unlinked."""
    with (
        tempfile.NamedTemporaryFile(prefix="kvwise-seen-", dir="/dev/shm") as held,
        tempfile.TemporaryFile(prefix="kvwise-seen-", dir="/dev/shm"),
    ):
        assert held.name in in_shared_memory(os.getpid())
        assert not [name for name in in_shared_memory(os.getpid()) if name.endswith("(deleted)")]


# --- a named arena -------------------------------------------------------------------------------


def test_named_arena_outlives_its_owner(tmp_path: Path) -> None:
    """Pages in a named file are still there for the next owner; leases of the last one are not."""
    shape, path = ArenaShape.of(4, PAGE), tmp_path / "arena"
    first = Arena.create(shape, path=path)
    first.page(1)[:4] = b"kept"
    first.progress_write(9, 3, SlotState.ACTIVE)
    first.close()
    second = Arena.create(shape, path=path)

    assert second.backing is Backing.NAMED
    assert second.page(1)[:4].tobytes() == b"kept"
    assert second.progress_read(9) == (0, True)
    assert path.stat().st_mode & 0o777 == 0o600
    second.close()


def test_named_arena_has_one_owner(tmp_path: Path) -> None:
    """A named arena that is in use is refused to a second process, and free after close."""
    shape, path = ArenaShape.of(4, PAGE), tmp_path / "arena"
    first = Arena.create(shape, path=path)
    with pytest.raises(ConfigError, match="in use"):
        Arena.create(shape, path=path)
    first.close()
    Arena.create(shape, path=path).close()


def test_named_arena_needs_a_place(tmp_path: Path) -> None:
    """A path that cannot be opened is a configuration error that names it."""
    with pytest.raises(ConfigError, match="nowhere"):
        Arena.create(ArenaShape.of(4, PAGE), path=tmp_path / "nowhere" / "arena")


def test_named_arena_needs_room(tmp_path: Path) -> None:
    """An arena larger than its filesystem is refused, before a write could kill the process."""
    with pytest.raises(ConfigError, match="are wanted"):
        Arena.create(ArenaShape.of(1 << 30, MIB), path=tmp_path / "arena")
