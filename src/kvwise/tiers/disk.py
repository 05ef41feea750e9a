"""The disk tier: framed objects in segments over one or more directories. It decides nothing.

A call is cut into runs of neighbouring frames, each moved by one system call, straight between
arena and medium. The caller and some helper threads share the runs: while one of them makes or
verifies a checksum, another one's bytes move, so the medium stays busy. Reads and writes have
helpers of their own, and reads never wait behind queued writes.

A call waits for the kernel without a deadline: until the kernel answers, the pages are its own, and
an early return would let somebody reuse memory that a device still writes to.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np

from kvwise.codecs import frame
from kvwise.codecs.base import BLOCK_BYTES, Codec, scratch, total_bytes
from kvwise.codecs.forms import INSTALL, Codecs
from kvwise.codecs.plain import PLAIN
from kvwise.core.elements import Coding
from kvwise.core.timing import Work
from kvwise.errors import BugError, ConfigError, FailureKind, TierError
from kvwise.tiers import directio
from kvwise.tiers.base import FOUND_MAX, Buffers, Found, Placed, Record, Spent, Want
from kvwise.tiers.crew import Crew
from kvwise.tiers.directio import Io
from kvwise.tiers.extents import (
    DIRECTORIES_MAX,
    SEGMENT_BYTES_MAX,
    Extent,
    pack_location,
    unpack_location,
)
from kvwise.tiers.footer import Entries
from kvwise.tiers.meters import Meters
from kvwise.tiers.room import Expected, Room
from kvwise.tiers.runs import SPARE_BYTES, Draft, Part, ReadRun, read_runs
from kvwise.tiers.segments import Directory
from kvwise.units import GIB, MIB

READ_RUN_BYTES = 4 * MIB
WRITE_RUN_BYTES, WRITE_RUN_BYTES_MIN = 8 * MIB, 2 * MIB
"""Neighbouring frames move together at about these sizes.

Measured with objects of 720 KiB, 2 and 16 MiB beside fio: reads of 2 MiB came at 0.8 to 1.0 of its
rate and reads of 4 MiB at 0.9 to 1.2, while 8 MiB brought no more; writes of 2 MiB at 0.85, of
8 MiB at 0.94. The first object of a load comes a little later for it. Writes are cut finer where
several directories share them, or where segments are small.
"""

CLOSE_S = 10.0
"""How long `close` waits for the kernel to answer what is under way."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DiskConfig:
    """How a disk tier is set up.

    Attributes:
        directories: one for each drive; created with mode 0700 when missing.
        capacity_bytes: hard cap on the bytes in all of them.
        min_free_bytes: what every filesystem keeps free, whoever else fills it.
        segment_bytes: size at which a new segment file is begun.
        io: how files are accessed; AUTO takes direct I/O where the filesystem does.
        readers: reads under way in each directory at one time.
    """

    directories: tuple[Path, ...]
    capacity_bytes: int
    min_free_bytes: int = GIB
    segment_bytes: int = 256 * MIB
    io: Io = Io.AUTO
    readers: int = 2

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        if not 1 <= len(self.directories) <= DIRECTORIES_MAX:
            raise ConfigError(f"the disk tier needs 1 to {DIRECTORIES_MAX} directories")
        if len({path.resolve() for path in self.directories}) < len(self.directories):
            raise ConfigError("a directory of the disk tier is named twice")
        if self.capacity_bytes <= 0 or self.min_free_bytes < 0 or self.readers < 1:
            raise ConfigError("the disk tier needs a positive capacity and at least one reader")
        if not MIB <= self.segment_bytes <= SEGMENT_BYTES_MAX:
            raise ConfigError(f"segment_bytes must be {MIB} to {SEGMENT_BYTES_MAX}")


class DiskTier:
    """A `Tier` on files. Thread-safe; see the module for how calls overlap."""

    name = "disk"

    def __init__(
        self,
        config: DiskConfig,
        *,
        clock_ns: Callable[[], int],
        codec: Codec = PLAIN,
        codecs: Codecs | None = None,
    ) -> None:
        """Open and lock every directory.

        Args:
            config: see there.
            clock_ns: a monotonic clock, for measuring how fast each directory is.
            codec: writes objects that ask for no form; what any codec wrote stays readable.
            codecs: for the others; its own if it is not given any.

        Raises:
            ConfigError: a directory cannot be used; the message says why.
        """
        self._clock_ns = clock_ns
        self._codecs = codecs or Codecs(codec)
        self._meters = Meters(clock_ns)
        self._trial = _Trial()
        self._capacity_bytes = config.capacity_bytes
        self._directories = _open_all(config)
        self._room = Room(
            self._directories,
            capacity_bytes=config.capacity_bytes,
            min_free_bytes=config.min_free_bytes,
        )
        self._direct = any(directory.io is Io.DIRECT for directory in self._directories)
        count = len(self._directories)
        run_bytes = max(WRITE_RUN_BYTES_MIN, config.segment_bytes // 4)
        self._write_run_bytes = min(WRITE_RUN_BYTES // count, run_bytes)
        self._readers = Crew(max(1, count * config.readers - 1), "kvwise-disk-read")
        self._writers = Crew(count, "kvwise-disk-write")
        self._spares = _Spares()
        self._gate = _Gate()

    @property
    def used_bytes(self) -> int:
        """Bytes of all frames and footers, and of segments that another version wrote."""
        return self._room.used_bytes

    @property
    def free_bytes(self) -> int:
        """Bytes that may still be written before the cap or a watermark."""
        return self._room.free_bytes

    @property
    def io(self) -> tuple[Io, ...]:
        """How the files of each directory are accessed."""
        return tuple(directory.io for directory in self._directories)

    @property
    def down(self) -> tuple[str, ...]:
        """Why directories were given up, one line for each that was."""
        return tuple(directory.down for directory in self._directories if directory.down)

    def put(self, objects: Sequence[tuple[Record, Buffers]]) -> list[Placed | TierError]:
        """Write objects; see `Tier.put`."""
        for record, buffers in objects:
            if total_bytes(buffers) != record.raw_bytes:
                raise BugError(f"buffers of {total_bytes(buffers)} for {record.raw_bytes}")
        answers: list[Placed | TierError] = []
        found: dict[int, list[Placed | TierError]] = {}
        sizes = [frame.frame_bytes(record.raw_bytes) for record, _ in objects]
        groups = list(_groups(sizes, self._write_run_bytes))
        with self._room.expecting(sum(sizes)) as expected:
            work = self._writers.work(groups, lambda g: self._write(objects[g], expected))
            for group, answered in work:
                found[group.start] = answered
        for group in groups:
            answers += found[group.start]
        return answers

    def get(self, wants: Sequence[Want]) -> Generator[tuple[int, TierError | None]]:
        """Read objects; see `Tier.get`."""
        runs = list(read_runs(self._parts(wants), READ_RUN_BYTES))
        with closing(self._readers.work(runs, self._read)) as reading:
            for run, found in reading:
                for part, error in zip(run.parts, found, strict=True):
                    yield part.index, error

    def free(self, placed: Sequence[Placed]) -> None:
        """Give space back; see `Tier.free`.

        Raises:
            TierError: the tier is closed, or the medium kept some of it; what it kept stays
                counted in `used_bytes`.
        """
        extents: dict[int, list[Extent]] = {}
        for one in placed:
            number, extent = self._extent(one.location, one.stored_bytes)
            extents.setdefault(number, []).append(extent)
        with self._gate.passing() as is_open:
            if not is_open:
                raise _closed()
            failures = [self._directories[n].free(found) for n, found in extents.items()]
        for failure in failures:
            if failure is not None:
                raise failure

    def scan(self) -> Iterator[Found]:
        """Every whole record an earlier process left; those beyond the cap are given back."""
        if not self._gate.is_open:
            raise _closed()
        kept_bytes, foreign = 0, 0
        batches = _Batches()
        for directory in self._directories:
            for segment, walked in directory.walk(self._codecs.numbers):
                room_bytes = self._capacity_bytes - kept_bytes
                entries = _within(directory, segment, walked.entries, room_bytes)
                kept_bytes += directory.bytes_of(segment)
                foreign += walked.foreign
                self._codecs.find(kind.codec for kind in entries.kinds)
                yield from batches.add(directory.number, segment, entries)
        yield from batches.rest()
        if foreign:
            text = "%s: gave up %d objects whose codecs are not here; hint: %s"
            _log.warning(text, self.name, foreign, INSTALL)

    def spent(self) -> Sequence[Spent]:
        """What its work took since this was asked last."""
        return self._meters.take()

    def close(self) -> None:
        """Finish what is under way, then give up files, locks and threads; idempotent."""
        if not self._gate.close(CLOSE_S):
            _log.error("the disk does not answer: closed with transfers under way")
            return
        self._readers.close()
        self._writers.close()
        for directory in self._directories:
            directory.close(self._room.admit)

    def _extent(self, location: int, size_bytes: int) -> tuple[int, Extent]:
        """Where a location is, checked."""
        number, extent = unpack_location(location, size_bytes)
        if number >= len(self._directories) or size_bytes < frame.HEADER_BYTES:
            raise BugError(f"location {location:#x} of {size_bytes} bytes is not of this tier")
        return number, extent

    def _write(
        self, objects: Sequence[tuple[Record, Buffers]], expected: Expected
    ) -> list[Placed | TierError]:
        """Write neighbours, wherever there is room for them; one answer for each."""
        drafts = [self._draft(record, buffers) for record, buffers in objects]
        answers: list[Placed | TierError] = []
        while left := drafts[len(answers) :]:
            with self._gate.passing() as is_open:
                if not is_open:
                    return answers + [_closed() for _ in left]
                taken = self._room.take([draft.size_bytes for draft in left], expected)
                if isinstance(taken, TierError):
                    return answers + [taken for _ in left]
                directory, count = taken
                answers += self._append(directory, left[:count])
        return answers

    def _append(self, directory: Directory, drafts: Sequence[Draft]) -> list[Placed | TierError]:
        """Write frames for which room was reserved; one answer for each."""
        spares = self._spares.cut(len(drafts))
        pieces = [
            piece
            for draft, spare in zip(drafts, spares, strict=True)
            for piece in draft.pieces(spare)
        ]
        headers = [draft.header for draft in drafts]
        with self._meters.moving(Work.WRITE, sum(draft.size_bytes for draft in drafts)):
            extents, failure = directory.append(pieces, headers, self._room.admit)
        answers: list[Placed | TierError] = [
            Placed(pack_location(directory.number, extent), extent.size_bytes) for extent in extents
        ]
        if failure is not None:
            answers += [failure for _ in drafts[len(extents) :]]
        return answers

    def _draft(self, record: Record, buffers: Buffers) -> Draft:
        """What to write for an object."""
        codec, form = self._codecs.writer(record.form), record.form
        coding = Coding.PLAIN if codec.id == PLAIN.id else form.coding
        with self._meters.coding(Work.ENCODE, lambda: coding, record.raw_bytes):
            stored = codec.encode(buffers)
        if form.trial and stored is not buffers:
            decoding = self._meters.coding(Work.DECODE, lambda: form.coding, record.raw_bytes)
            with self._trial.memory(record.raw_bytes) as memory, decoding:
                codec.decode(stored, [memory])
        draft = Draft(record, stored, PLAIN.id if stored is buffers else codec.id)
        if self._direct:
            directio.require_aligned(draft.body)
        return draft

    def _parts(self, wants: Sequence[Want]) -> Iterator[tuple[int, Part]]:
        """What to read for each want, with its directory."""
        for index, want in enumerate(wants):
            if total_bytes(want.buffers) != want.raw_bytes:
                raise BugError(f"buffers of {total_bytes(want.buffers)} for {want.raw_bytes}")
            number, extent = self._extent(want.location, want.stored_bytes)
            yield number, Part(index, want, extent)

    def _read(self, run: ReadRun) -> list[TierError | None]:
        """Read neighbours and verify them; for each, why it did not come."""
        with self._gate.passing() as is_open:
            if not is_open:
                return [_closed() for _ in run.parts]
            spares = self._spares.cut(len(run.parts))
            encoded = self._spares.encoded([part.encoded_bytes for part in run.parts])
            pieces = [
                part.pieces(spare, own)
                for part, spare, own in zip(run.parts, spares, encoded, strict=True)
            ]
            faults = self._fetch(run, pieces)
        pairs = zip(run.parts, faults, strict=True)
        return [fault or part.judge(self._codecs, self._meters) for part, fault in pairs]

    def _fetch(self, run: ReadRun, pieces: Sequence[list[memoryview]]) -> list[TierError | None]:
        """Read neighbours into their pieces; for each, why it did not come whole."""
        directory, joined = self._directories[run.directory], [p for some in pieces for p in some]
        if self._direct:
            directio.require_aligned(joined)
        start_ns = self._clock_ns()
        with self._meters.moving(Work.READ, run.extent.size_bytes):
            count, fault = directory.read(run.extent, joined)
        self._room.observe(directory, count, self._clock_ns() - start_ns)
        if fault is not None and len(run.parts) > 1:
            # One bad sector must not take its neighbours along: read each for itself.
            pairs = zip(run.parts, pieces, strict=True)
            return [self._fetch(ReadRun(run.directory, [part]), [own])[0] for part, own in pairs]
        end = run.extent.offset + count
        return [None if part.extent.end <= end else fault or _beyond(part) for part in run.parts]


class _Spares(threading.local):
    """Memory of each thread for one run, kept because fresh is slow.

    It is for headers and ends, and for payloads that still have to be decoded.
    """

    def __init__(self) -> None:
        self._memory = scratch(0)
        self._encoded = scratch(0)

    def encoded(self, sizes: Sequence[int]) -> list[memoryview]:
        """Pieces of whole blocks of these sizes, good until the thread asks again."""
        total_bytes = sum(sizes)
        if self._encoded.nbytes < total_bytes:
            self._encoded = scratch(total_bytes)
        ends = [*accumulate(sizes)]
        return [self._encoded[end - size : end] for end, size in zip(ends, sizes, strict=True)]

    def cut(self, count: int) -> list[memoryview]:
        """Pieces of `SPARE_BYTES` for so many frames, good until the thread asks again."""
        if self._memory.nbytes < count * SPARE_BYTES:
            self._memory = scratch(count * SPARE_BYTES)
        return [self._memory[n * SPARE_BYTES : (n + 1) * SPARE_BYTES] for n in range(count)]


class _Trial:
    """Memory for what is only decoded to see how long that takes: one at a time, touched before."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._memory = scratch(0)

    @contextmanager
    def memory(self, size_bytes: int) -> Iterator[memoryview]:
        """So many bytes, for oneself."""
        with self._lock:
            if self._memory.nbytes < size_bytes:
                self._memory = scratch(size_bytes)
                self._memory[:] = bytes(size_bytes)
            yield self._memory[:size_bytes]


class _Gate:
    """Lets transfers in until it is closed, and knows when the last one is out."""

    def __init__(self) -> None:
        self.is_open = True
        self._inside = 0
        self._changed = threading.Condition()

    @contextmanager
    def passing(self) -> Iterator[bool]:
        """Be inside for a while, if the gate is open; the answer says whether it is."""
        with self._changed:
            is_open = self.is_open
            self._inside += is_open
        try:
            yield is_open
        finally:
            with self._changed:
                self._inside -= is_open
                self._changed.notify_all()

    def close(self, timeout_s: float) -> bool:
        """Let nobody in any more and wait for those inside; whether all came out in time."""
        with self._changed:
            self.is_open = False
            return self._changed.wait_for(lambda: not self._inside, timeout_s)


class _Batches:
    """Gathers what segments hold into batches of `FOUND_MAX` records that have a kind in common."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[bytes, bytes, int], list[tuple[bytes, ...]]] = {}
        self._counts: Counter[tuple[bytes, bytes, int]] = Counter()

    def add(self, number: int, segment: int, entries: Entries) -> Iterator[Found]:
        """Take in the frames of a segment of a directory; batches that are full by that."""
        first = np.uint64(pack_location(number, Extent(segment, 0, 0)))
        for kind, some in entries.by_kind():
            what = kind[:3]
            for start in range(0, len(some), FOUND_MAX):
                part = some.only(slice(start, start + FOUND_MAX))
                if self._counts[what] + len(part) > FOUND_MAX:
                    yield self._take(what)
                locations = (part.offsets // BLOCK_BYTES).astype("<u8") + first
                columns = (part.keys, part.parents, locations, part.sizes.astype("<u4"))
                joined = tuple(column.tobytes() for column in columns)
                self._waiting.setdefault(what, []).append(joined)
                self._counts[what] += len(part)

    def rest(self) -> Iterator[Found]:
        """What waits for more."""
        for what in list(self._waiting):
            yield self._take(what)

    def _take(self, what: tuple[bytes, bytes, int]) -> Found:
        """The records of a kind that wait."""
        del self._counts[what]
        columns = zip(*self._waiting.pop(what), strict=True)
        keys, parents, locations, stored_bytes = (b"".join(column) for column in columns)
        return Found(*what, keys, parents, locations, stored_bytes)


def _open_all(config: DiskConfig) -> list[Directory]:
    """Open and lock every directory, or none."""
    directories: list[Directory] = []
    try:
        for number, path in enumerate(config.directories):
            directories.append(
                Directory(path, number, io=config.io, segment_bytes=config.segment_bytes)
            )
    except ConfigError:
        for directory in directories:
            directory.close()
        raise
    return directories


def _within(directory: Directory, segment: int, entries: Entries, room_bytes: int) -> Entries:
    """What is left of a segment's frames when the room there is must do; the rest is given back."""
    if directory.bytes_of(segment) <= room_bytes:
        return entries
    directory.drop_footer(segment)
    fits = np.cumsum(entries.sizes) <= room_bytes
    excess = entries.only(~fits)
    pairs = zip(excess.offsets.tolist(), excess.sizes.tolist(), strict=True)
    directory.free(Extent(segment, offset, size_bytes) for offset, size_bytes in pairs)
    return entries.only(fits)


def _groups(sizes: Sequence[int], run_bytes: int) -> Iterator[slice]:
    """Cut a batch into neighbours of about `run_bytes`."""
    start, held_bytes = 0, 0
    for index, size_bytes in enumerate(sizes):
        held_bytes += size_bytes
        if held_bytes >= run_bytes or index + 1 == len(sizes):
            yield slice(start, index + 1)
            start, held_bytes = index + 1, 0


def _beyond(part: Part) -> TierError:
    """The answer where the file ends before the frame does."""
    return TierError(FailureKind.MISSING, f"{part.extent} is beyond the end of its segment")


def _closed() -> TierError:
    """The answer to what came after `close`."""
    return TierError(FailureKind.CLOSED, "the disk tier is closed")
