"""The arena: one piece of shared memory that every object passes through. It decides nothing.

Which page belongs to which object is the brain's business; the arena only owns the memory, shares
it through its descriptor, and carries the lease table in front of the pages:

    [control region: lease slots][page 0][page 1]...
    0                            data_offset

A slot is 16 bytes: u32 lease, u32 ready, u32 state, u32 zero; lease L lives in slot L % slots. The
store writes slots, clients read them without a round trip.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import stat
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from pathlib import Path

from kvwise.codecs.base import BLOCK_BYTES
from kvwise.errors import BugError, ConfigError, ProtocolError
from kvwise.tiers.mapping import HUGE_BYTES, Mapping
from kvwise.units import format_size, round_up

SLOT_BYTES = 16
LEASE_SLOTS = 4096
_LOW = 0xFFFF_FFFF
_SHMEM_HUGE = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")


class Backing(Enum):
    """What kind of memory an arena got."""

    HUGETLB = "huge pages"
    TRANSPARENT = "transparent huge pages"
    JOINED = "huge pages, joined"
    SMALL = "small pages"
    NAMED = "named path"
    ATTACHED = "attached"


class SlotState(IntEnum):
    """Where a lease stands. The numbers lie in shared memory: never renumber."""

    FREE = 0
    ACTIVE = 1
    FAILED = 2
    ENDED = 3


@dataclass(frozen=True, slots=True)
class ArenaShape:
    """How big an arena is and how it is cut.

    Attributes:
        size_bytes: control region and pages.
        page_bytes: bytes of a page, a multiple of 4 KiB.
        data_offset: where page 0 starts, a multiple of 4 KiB; before it, the lease table.
    """

    size_bytes: int
    page_bytes: int
    data_offset: int

    def __post_init__(self) -> None:
        """Refuse what cannot be cut into aligned pages."""
        if self.page_bytes <= 0 or self.page_bytes % BLOCK_BYTES:
            raise ConfigError(
                f"a page must be a multiple of {BLOCK_BYTES} bytes, not {self.page_bytes}"
            )
        if self.data_offset <= 0 or self.data_offset % BLOCK_BYTES:
            raise ConfigError(
                f"pages must start at a multiple of {BLOCK_BYTES} bytes, not {self.data_offset}"
            )
        if self.page_count < 1:
            raise ConfigError(f"{self.size_bytes} bytes leave no room for one page")

    @classmethod
    def of(cls, page_count: int, page_bytes: int, *, lease_slots: int = LEASE_SLOTS) -> ArenaShape:
        """The shape that holds so many pages and tells so many leases apart.

        Pages start at a multiple of their size, so that none straddles a huge page needlessly.
        """
        data_offset = round_up(lease_slots * SLOT_BYTES, max(page_bytes, BLOCK_BYTES))
        return cls(data_offset + page_count * page_bytes, page_bytes, data_offset)

    @property
    def page_count(self) -> int:
        """Pages for objects."""
        return (self.size_bytes - self.data_offset) // self.page_bytes

    @property
    def lease_slots(self) -> int:
        """Leases that the table can tell apart at one time."""
        return self.data_offset // SLOT_BYTES


class Arena:
    """Shared memory mapped into this process. Made by `create` and `attach`.

    Attributes:
        fd: the descriptor that others map; open until `close`.
        shape: size and cut.
        backing: what kind of memory it is.
        pages: every page in one writable view: page p is [p * page_bytes, (p + 1) * page_bytes).
        address: where `pages` starts in this process.
    """

    def __init__(self, fd: int, memory: Mapping, shape: ArenaShape, backing: Backing) -> None:
        self.fd = fd
        self.shape = shape
        self.backing = backing
        self._memory = memory
        end = shape.data_offset + shape.page_count * shape.page_bytes
        self.pages = memory.view[shape.data_offset : end]
        self.address = memory.address + shape.data_offset
        # 64-bit words are loaded and stored whole, so nobody sees half of (lease, ready).
        self._words = memory.view[: shape.lease_slots * SLOT_BYTES].cast("Q")
        self._order = threading.Lock()

    @classmethod
    def create(
        cls, shape: ArenaShape, *, path: Path | None = None, huge_pages: bool = True
    ) -> Arena:
        """A new arena with an empty lease table. No memory is used before it is written.

        Args:
            shape: size and cut.
            path: a file on tmpfs or hugetlbfs, or a DAX device, to use instead of anonymous
                memory. It stays behind, and belongs to one process at a time.
            huge_pages: try huge pages first; `backing` tells what was obtained.

        Raises:
            ConfigError: the path cannot be used, or another process uses it.
        """
        if path is not None:
            arena = cls(*_map_named(path, shape.size_bytes), shape, Backing.NAMED)
            arena._words[:] = memoryview(bytes(arena._words.nbytes)).cast("Q")
            return arena
        if huge_pages:
            huge = _map_hugetlb(shape.size_bytes)
            if huge is not None:
                return cls(*huge, shape, Backing.HUGETLB)
        fd, memory = _map_memfd(shape.size_bytes, os.MFD_CLOEXEC)
        backing = Backing.SMALL
        if huge_pages and _transparent_allowed():
            memory.advise(mmap.MADV_HUGEPAGE)
            backing = Backing.TRANSPARENT
        elif huge_pages and memory.join(0, HUGE_BYTES):
            backing = Backing.JOINED
        return cls(fd, memory, shape, backing)

    @classmethod
    def attach(cls, fd: int, shape: ArenaShape, *, huge_pages: bool = True) -> Arena:
        """Map an arena that another process created; `fd` belongs to the arena from here on.

        Whoever writes a page first decides how it is backed, so huge pages are advised here too.

        Raises:
            ProtocolError: the descriptor does not hold that much memory.
            OSError: it cannot be mapped.
        """
        held_bytes = _mappable_bytes(fd, shape.size_bytes)
        if held_bytes < shape.size_bytes:
            os.close(fd)
            raise ProtocolError(
                f"the arena's descriptor holds {format_size(held_bytes)}, "
                f"not {format_size(shape.size_bytes)}"
            )
        try:
            memory = Mapping(fd, held_bytes)
            if huge_pages and _transparent_allowed():
                memory.advise(mmap.MADV_HUGEPAGE)
        except OSError:
            os.close(fd)
            raise
        return cls(fd, memory, shape, Backing.ATTACHED)

    @property
    def resident_bytes(self) -> int:
        """Memory in use now, by every process together (0 for a DAX device)."""
        return os.fstat(self.fd).st_blocks * 512

    def populate(self, first: int, count: int) -> bool:
        """Have the kernel provide these pages now; False where it cannot (before Linux 5.14).

        The first write to a page otherwise waits for zeroed memory, about 1 ms for each MiB. Huge
        pages that have to be joined are joined here, and so reach a little beyond.
        """
        if not 0 <= first <= first + count <= self.shape.page_count:
            raise BugError(f"pages {first}..{first + count} of {self.shape.page_count}")
        begin = self.shape.data_offset + first * self.shape.page_bytes
        end = begin + count * self.shape.page_bytes
        if self.backing is Backing.JOINED and self._memory.join(begin, end):
            return True
        return self._memory.populate(begin, end)

    def page(self, number: int) -> memoryview:
        """One page."""
        page_bytes = self.shape.page_bytes
        if not 0 <= number < self.shape.page_count:
            raise BugError(f"page {number} of {self.shape.page_count}")
        return self.pages[number * page_bytes : (number + 1) * page_bytes]

    def buffers(self, pages: Sequence[int], size_bytes: int) -> list[memoryview]:
        """The first `size_bytes` of these pages in order; neighbours come as one view."""
        page_bytes = self.shape.page_bytes
        if not (len(pages) - 1) * page_bytes < size_bytes <= len(pages) * page_bytes:
            raise BugError(f"{size_bytes} bytes do not end in the last of {len(pages)} pages")
        if min(pages) < 0 or max(pages) >= self.shape.page_count:
            raise BugError(f"pages {min(pages)}..{max(pages)} of {self.shape.page_count}")
        views, first, left = [], 0, size_bytes
        for last, page in enumerate(pages):
            if last + 1 < len(pages) and pages[last + 1] == page + 1:
                continue
            start = pages[first] * page_bytes
            length = min((last + 1 - first) * page_bytes, left)
            views.append(self.pages[start : start + length])
            first, left = last + 1, left - length
        return views

    def progress_write(self, lease: int, ready: int, state: SlotState) -> None:
        """Publish how far a lease is. One thread at a time."""
        word = lease % self.shape.lease_slots * 2
        self._words[word] = lease & _LOW | ready << 32
        self._fence()
        self._words[word + 1] = state
        self._fence()

    def progress_read(self, lease: int) -> tuple[int, bool]:
        """(chunks that are ready, whether no more will be). A lease that is over reads as failed.

        State before lease: when the slot passes to another lease, `progress_write` changes the
        lease first, so an old reader meets either its own end or the new lease, never both lives.
        """
        word = lease % self.shape.lease_slots * 2
        self._fence()
        state = self._words[word + 1] & _LOW
        self._fence()
        owner = self._words[word]
        if owner & _LOW != lease & _LOW:
            return 0, True
        return owner >> 32, state != SlotState.ACTIVE

    def close(self) -> None:
        """Give up the mapping and the descriptor; idempotent.

        Memory that somebody still holds a view of stays mapped until the last view is gone.
        """
        if self.fd < 0:
            return
        for piece in (self.pages.release, self._words.release, self._memory.close):
            with contextlib.suppress(BufferError):  # somebody holds a view
                piece()
        os.close(self.fd)
        self.fd = -1

    def _fence(self) -> None:
        """Keep memory accesses before and after apart on machines that reorder them (Arm).

        A release of a lock is ordered before the next acquire of it, hence the pair.
        """
        with self._order:
            pass
        with self._order:
            pass


def _map_memfd(size_bytes: int, flags: int) -> tuple[int, Mapping]:
    """Anonymous shared memory, sealed so that no holder of the descriptor can resize it."""
    fd = os.memfd_create("kvwise-arena", flags | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, size_bytes)
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
        memory = Mapping(fd, size_bytes)
    except OSError:
        os.close(fd)
        raise
    memory.advise(mmap.MADV_DONTDUMP)  # prompts of users have no place in a core file
    return fd, memory


def _map_hugetlb(size_bytes: int) -> tuple[int, Mapping] | None:
    """Memory from the reserved pool of huge pages; None when the pool cannot serve it."""
    flags = os.MFD_CLOEXEC | os.MFD_HUGETLB | os.MFD_HUGE_2MB
    try:
        return _map_memfd(round_up(size_bytes, HUGE_BYTES), flags)
    except OSError as error:
        if error.errno in (errno.ENOMEM, errno.EINVAL, errno.ENOSYS, errno.ENODEV, errno.EPERM):
            return None
        raise


def _transparent_allowed() -> bool:
    """Whether the kernel would back shared memory with huge pages when advised to."""
    try:
        chosen = _SHMEM_HUGE.read_text()
    except OSError:
        return False
    return any(f"[{mode}]" in chosen for mode in ("always", "within_size", "advise", "force"))


def _map_named(path: Path, size_bytes: int) -> tuple[int, Mapping]:
    """Open, lock, size and map a named arena.

    Raises:
        ConfigError: it cannot be had; the message says why.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(f"the arena cannot be at {path}: {error.strerror}") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if stat.S_ISREG(os.fstat(fd).st_mode):
            _require_room(fd, size_bytes)
            os.ftruncate(fd, round_up(size_bytes, os.fstatvfs(fd).f_bsize))
        return fd, Mapping(fd, _mappable_bytes(fd, size_bytes))
    except BlockingIOError:
        os.close(fd)
        raise ConfigError(f"the arena at {path} is in use by another process") from None
    except OSError as error:
        os.close(fd)
        raise ConfigError(f"the arena cannot be at {path}: {error.strerror}") from error


def _require_room(fd: int, size_bytes: int) -> None:
    """Refuse a filesystem that is too small: writing to a page it cannot give kills the process."""
    limits = os.fstatvfs(fd)
    room_bytes = limits.f_bavail * limits.f_frsize + os.fstat(fd).st_blocks * 512
    if limits.f_blocks and room_bytes < size_bytes:  # hugetlbfs without a limit says 0 blocks
        why = f"{format_size(size_bytes)} are wanted, {format_size(room_bytes)} are free"
        raise OSError(errno.ENOSPC, why)


def _mappable_bytes(fd: int, size_bytes: int) -> int:
    """Bytes to map: all of a file; of a device what is wanted, in whole huge pages."""
    status = os.fstat(fd)
    return status.st_size if stat.S_ISREG(status.st_mode) else round_up(size_bytes, HUGE_BYTES)
