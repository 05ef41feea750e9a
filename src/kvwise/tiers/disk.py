"""The disk tier: framed objects in segments over one or more directories. It decides nothing.

`put` builds frames and checksums on the caller's thread while each directory's writer thread moves
the run before; `get` verifies on the caller's thread while reader threads fetch the next run. So
the medium stays busy, a checksum costs no throughput, and neighbours move in one call. Reads never
wait behind queued writes. Payload goes straight between arena and medium.

A call waits for the kernel without a deadline: until the kernel answers, the pages are its own, and
an early return would let somebody reuse memory that a device still writes to.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from kvwise.codecs import frame
from kvwise.codecs.base import Codec, scratch, total_bytes
from kvwise.codecs.plain import PLAIN
from kvwise.errors import BugError, ConfigError, FailureKind, TierError
from kvwise.tiers import directio
from kvwise.tiers.base import Buffers, Placed, Record, Want
from kvwise.tiers.directio import Io
from kvwise.tiers.room import Room
from kvwise.tiers.runs import SPARE_BYTES, Part, ReadRun, WriteRun, read_runs, write_pieces
from kvwise.tiers.segments import (
    DIRECTORIES_MAX,
    SEGMENT_BYTES_MAX,
    Directory,
    Extent,
    pack_location,
    unpack_location,
)
from kvwise.units import GIB, MIB

RUN_BYTES = 2 * MIB
"""Neighbouring frames move together at about this size.

Measured with objects of 720 KiB: 4 and 8 MiB moved no more bytes a second, and the first object of
a load came after 6 ms instead of 3.
"""

_RUNS_AHEAD = 1
"""Runs of one call that wait behind those under way, in each directory."""

_Appended = tuple[list[Extent], TierError | None]


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


class _Lane:
    """A directory and the threads that work for it."""

    def __init__(self, directory: Directory, readers: int) -> None:
        self.directory = directory
        self.ahead = readers + _RUNS_AHEAD
        name = f"kvwise-disk{directory.number}"
        self.writer = ThreadPoolExecutor(1, thread_name_prefix=f"{name}-write")
        self.reader = ThreadPoolExecutor(readers, thread_name_prefix=f"{name}-read")

    def close(self) -> None:
        """Finish what is under way."""
        self.writer.shutdown()
        self.reader.shutdown()
        self.directory.close()


class DiskTier:
    """A `Tier` on files. Thread-safe; see the module for how calls overlap."""

    name = "disk"

    def __init__(
        self, config: DiskConfig, *, clock_ns: Callable[[], int], codec: Codec = PLAIN
    ) -> None:
        """Open and lock every directory.

        Args:
            config: see there.
            clock_ns: a monotonic clock, for measuring how fast each directory is.
            codec: writes new objects; objects written plain stay readable.

        Raises:
            ConfigError: a directory cannot be used; the message says why.
        """
        self._clock_ns = clock_ns
        self._codec = codec
        self._codecs = {PLAIN.id: PLAIN, codec.id: codec}
        self._capacity_bytes = config.capacity_bytes
        self._closed = False
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
        self._room = Room(
            directories,
            capacity_bytes=config.capacity_bytes,
            min_free_bytes=config.min_free_bytes,
        )
        self._lanes = [_Lane(directory, config.readers) for directory in directories]

    @property
    def used_bytes(self) -> int:
        """Bytes of all frames, and of segments that a newer version wrote."""
        return self._room.used_bytes

    @property
    def free_bytes(self) -> int:
        """Bytes that may still be written before the cap or a watermark."""
        return self._room.free_bytes

    @property
    def io(self) -> tuple[Io, ...]:
        """How the files of each directory are accessed."""
        return tuple(lane.directory.io for lane in self._lanes)

    @property
    def down(self) -> tuple[str, ...]:
        """Why directories were given up, one line for each that was."""
        return tuple(lane.directory.down for lane in self._lanes if lane.directory.down)

    def put(self, objects: Sequence[tuple[Record, Buffers]]) -> list[Placed | TierError]:
        """Write objects; see `Tier.put`."""
        writing = _Put(self._room, self._lanes, len(objects))
        try:
            for index, (record, buffers) in enumerate(objects):
                if total_bytes(buffers) != record.raw_bytes:
                    raise BugError(f"{total_bytes(buffers)} bytes for {record.raw_bytes}")
                stored = self._codec.encode(buffers)
                codec_id = PLAIN.id if stored is buffers else self._codec.id
                writing.add(index, record, stored, codec_id)
        finally:
            writing.finish()
        return writing.answers

    def get(self, wants: Sequence[Want]) -> Generator[tuple[int, TierError | None]]:
        """Read objects; see `Tier.get`."""
        waiting: dict[int, deque[ReadRun]] = {}
        for run in read_runs(self._parts(wants), RUN_BYTES):
            waiting.setdefault(run.directory, deque()).append(run)
        flying: dict[Future[list[TierError | None]], ReadRun] = {}
        try:
            self._launch(waiting, flying)
            while flying:
                done = wait(flying, return_when=FIRST_COMPLETED).done
                for future in sorted(done, key=lambda f: flying[f].parts[0].index):
                    run = flying.pop(future)
                    self._launch(waiting, flying)
                    for part, fault in zip(run.parts, future.result(), strict=True):
                        yield part.index, fault or part.judge(self._codecs)
        finally:
            wait(flying)

    def free(self, placed: Sequence[Placed]) -> None:
        """Give space back; see `Tier.free`.

        Raises:
            TierError: the tier is closed, or the medium kept some of it; what it kept stays
                counted in `used_bytes`.
        """
        if self._closed:
            raise _closed()
        extents: dict[int, list[Extent]] = {}
        for one in placed:
            number, extent = self._extent(one.location, one.stored_bytes)
            extents.setdefault(number, []).append(extent)
        failures = [self._lanes[n].directory.free(found) for n, found in extents.items()]
        for failure in failures:
            if failure is not None:
                raise failure

    def scan(self) -> Iterator[tuple[Record, Placed]]:
        """Every whole record an earlier process left; those beyond the cap are given back."""
        if self._closed:
            raise _closed()
        kept = 0
        for lane in self._lanes:
            for header, extent in lane.directory.walk(frozenset(self._codecs)):
                if kept + extent.size_bytes > self._capacity_bytes:
                    lane.directory.free([extent])
                    continue
                kept += extent.size_bytes
                record = Record(
                    header.key, header.parent, header.space, header.layout, header.raw_bytes
                )
                location = pack_location(lane.directory.number, extent)
                yield record, Placed(location, extent.size_bytes)

    def close(self) -> None:
        """Finish what is under way, then give up files, locks and threads; idempotent."""
        self._closed = True
        for lane in self._lanes:
            lane.close()

    def _extent(self, location: int, size_bytes: int) -> tuple[int, Extent]:
        """Where a location is, checked."""
        number, extent = unpack_location(location, size_bytes)
        if number >= len(self._lanes) or size_bytes < frame.HEADER_BYTES:
            raise BugError(f"location {location:#x} of {size_bytes} bytes is not of this tier")
        return number, extent

    def _parts(self, wants: Sequence[Want]) -> Iterator[tuple[int, Part]]:
        """What to read for each want, with its directory."""
        spares = scratch(len(wants) * SPARE_BYTES)
        for index, want in enumerate(wants):
            if total_bytes(want.buffers) != want.raw_bytes:
                raise BugError(f"buffers of {total_bytes(want.buffers)} for {want.raw_bytes}")
            number, extent = self._extent(want.location, want.stored_bytes)
            spare = spares[index * SPARE_BYTES : (index + 1) * SPARE_BYTES]
            part = Part(index, want, extent, spare)
            if self._lanes[number].directory.io is Io.DIRECT:
                directio.require_aligned(part.pieces)
            yield number, part

    def _launch(
        self,
        waiting: dict[int, deque[ReadRun]],
        flying: dict[Future[list[TierError | None]], ReadRun],
    ) -> None:
        """Start reads until every directory has enough to do."""
        for number, runs in waiting.items():
            lane = self._lanes[number]
            busy = sum(run.directory == number for run in flying.values())
            while runs and busy < lane.ahead:
                run, busy = runs.popleft(), busy + 1
                try:
                    future = lane.reader.submit(self._fetch, lane.directory, run)
                except RuntimeError:  # the lane was closed meanwhile
                    future = Future()
                    future.set_result([_closed() for _ in run.parts])
                flying[future] = run

    def _fetch(self, directory: Directory, run: ReadRun) -> list[TierError | None]:
        """Read a run on a reader thread: for each part, why it did not come whole."""
        start_ns = self._clock_ns()
        count, fault = directory.read(run.extent, run.pieces)
        self._room.observe(directory, count, self._clock_ns() - start_ns)
        if fault is not None and len(run.parts) > 1:
            # One bad sector must not take its neighbours along: read each for itself.
            return [self._fetch(directory, ReadRun(run.directory, [p]))[0] for p in run.parts]
        end = run.extent.offset + count
        return [None if part.extent.end <= end else fault or _beyond(part) for part in run.parts]


class _Put:
    """One call of `put`: frames gather into runs, at most two runs a directory are under way.

    Attributes:
        answers: one for each object; final after `finish`.
    """

    def __init__(self, room: Room, lanes: Sequence[_Lane], count: int) -> None:
        self.answers: list[Placed | TierError] = [_closed() for _ in range(count)]
        self._room = room
        self._lanes = lanes
        self._spares = scratch(count * SPARE_BYTES)
        self._direct = any(lane.directory.io is Io.DIRECT for lane in lanes)
        self._growing: dict[int, WriteRun] = {}
        self._flying: dict[int, deque[tuple[Future[_Appended], WriteRun]]] = {}

    def add(self, index: int, record: Record, stored: Buffers, codec_id: int) -> None:
        """Frame one object and give it to a directory, if one has room."""
        spare = self._spares[index * SPARE_BYTES : (index + 1) * SPARE_BYTES]
        pieces = write_pieces(record, stored, codec_id, spare)
        if self._direct:
            directio.require_aligned(pieces)
        size_bytes = total_bytes(pieces)
        directory = self._room.take(size_bytes)
        if isinstance(directory, TierError):
            self.answers[index] = directory
            return
        run = self._growing.setdefault(directory.number, WriteRun())
        run.add(index, pieces, size_bytes)
        if run.size_bytes >= RUN_BYTES:
            self._send(directory.number)

    def finish(self) -> None:
        """Send what is left and wait for everything."""
        for number in list(self._growing):
            self._send(number)
        for number, flying in self._flying.items():
            while flying:
                self._settle(number)

    def _send(self, number: int) -> None:
        """Hand a run to the directory's writer."""
        lane, run = self._lanes[number], self._growing.pop(number)
        flying = self._flying.setdefault(number, deque())
        while len(flying) > _RUNS_AHEAD:
            self._settle(number)
        try:
            future = lane.writer.submit(lane.directory.append, run.pieces, run.sizes)
        except RuntimeError:  # the lane was closed meanwhile; the answers already say so
            lane.directory.unreserve(run.size_bytes)
            return
        flying.append((future, run))

    def _settle(self, number: int) -> None:
        """Wait for the oldest run of a directory and note its answers."""
        future, run = self._flying[number].popleft()
        extents, failure = future.result()
        for position, index in enumerate(run.indexes):
            if position < len(extents):
                location = pack_location(number, extents[position])
                self.answers[index] = Placed(location, run.sizes[position])
            elif failure is not None:
                self.answers[index] = failure


def _beyond(part: Part) -> TierError:
    """The answer where the file ends before the frame does."""
    return TierError(FailureKind.MISSING, f"{part.extent} is beyond the end of its segment")


def _closed() -> TierError:
    """The answer to what came after `close`."""
    return TierError(FailureKind.CLOSED, "the disk tier is closed")
