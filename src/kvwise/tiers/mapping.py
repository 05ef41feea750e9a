"""Shared memory mapped so that huge pages can back it. It knows neither pages nor leases.

A huge page backs a mapping only where address and place in the file agree to 2 MiB, and most
kernels are set up to give none to shared memory. Asked to join the small pages of such a stretch
(MADV_COLLAPSE, Linux 6.1), they do it all the same. It pays: an O_DIRECT transfer is cut at every
254th piece of physical memory or so, and 2 MiB are then one piece instead of some 250.
"""

from __future__ import annotations

import ctypes
import mmap
import os

from kvwise.units import MIB

HUGE_BYTES = 2 * MIB
"""A huge page of x86-64, and of Arm with 4 KiB pages."""

_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE
_COLLAPSE = 25  # MADV_COLLAPSE
_libc = ctypes.CDLL(None, use_errno=True)  # lets others run meanwhile, unlike Python's madvise
_madvise = _libc.madvise
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_mmap = _libc.mmap
_mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int64,
)
_mmap.restype = ctypes.c_void_p

_FIXED = 0x10  # MAP_FIXED and MAP_NORESERVE on x86 and Arm; Python names neither
_UNRESERVED = 0x4000


class Mapping:
    """A whole file of memory, mapped from a multiple of 2 MiB on.

    Attributes:
        address: where it starts in this process.
        view: all of it, writable.
    """

    def __init__(self, fd: int, size_bytes: int) -> None:
        """Map it; the descriptor stays the caller's.

        Raises:
            OSError: the kernel would not.
        """
        # Addresses are set aside first, and the file then takes the place of an aligned part of
        # them: Python's own object goes on owning the whole range, and unmaps it. Shared, because
        # private memory would count against RLIMIT_DATA.
        aside = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | _UNRESERVED
        self._range = mmap.mmap(-1, size_bytes + HUGE_BYTES, aside)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._range))
        skipped = -start % HUGE_BYTES
        self.address = start + skipped
        access = mmap.PROT_READ | mmap.PROT_WRITE
        flags = mmap.MAP_SHARED | _FIXED
        if _mmap(self.address, size_bytes, access, flags, fd, 0) != self.address:
            code = ctypes.get_errno()
            self._range.close()
            raise OSError(code, os.strerror(code))
        self.size_bytes = size_bytes
        self.view = memoryview(self._range)[skipped : skipped + size_bytes]
        self._skipped = skipped
        self._joined = bytearray(size_bytes // HUGE_BYTES)

    def advise(self, advice: int) -> None:
        """Python's `madvise` for all of it."""
        self._range.madvise(advice, self._skipped, self.size_bytes)

    def join(self, first: int, end: int) -> bool:
        """Have huge pages wherever one can hold some of these bytes; False where there are none.

        What was written stays. Also memory that was never used is provided by that.
        """
        good = end <= len(self._joined) * HUGE_BYTES
        for huge in range(first // HUGE_BYTES, -(-min(end, self.size_bytes) // HUGE_BYTES)):
            if huge < len(self._joined) and not self._joined[huge]:
                self._joined[huge] = self._join(self.address + huge * HUGE_BYTES)
                good = good and bool(self._joined[huge])
        return good

    def populate(self, first: int, end: int) -> bool:
        """Have the kernel provide these bytes now; False where it cannot (before Linux 5.14)."""
        return not _madvise(self.address + first, end - first, _POPULATE_WRITE)

    def close(self) -> None:
        """Unmap it; idempotent.

        Raises:
            BufferError: somebody holds a view of it; it is unmapped when the last one is gone.
        """
        self.view.release()
        self._range.close()

    @staticmethod
    def _join(address: int) -> bool:
        """Join one stretch; the kernel wants at least one of its pages to be there."""
        if _madvise(address, mmap.PAGESIZE, _POPULATE_WRITE):
            return False
        return not _madvise(address, HUGE_BYTES, _COLLAPSE)


def can_join() -> bool:
    """Whether this kernel joins small pages of shared memory into a huge one, found by doing it."""
    try:
        fd = os.memfd_create("kvwise-trial", os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, HUGE_BYTES)
            memory = Mapping(fd, HUGE_BYTES)
        finally:
            os.close(fd)
    except OSError:
        return False
    try:
        return memory.join(0, HUGE_BYTES)
    finally:
        memory.close()
