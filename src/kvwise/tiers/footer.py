"""The footer of a segment: where its frames are, written once behind the last of them. A hint only.

It saves a restart from reading a header for every frame. It promises nothing: whoever reads a frame
verifies that frame, and a footer that does not agree with the file is not used. It does no I/O.

    kinds    48 bytes each: space 16, layout 16, raw bytes u64, codec u16, zeros
    keys     16 bytes for each frame
    parents  16 bytes for each frame
    offsets  u32 for each frame, in blocks of 4 KiB
    sizes    u32 for each frame, in blocks
    kind     u16 for each frame, its number among the kinds
    zeros    up to the last 40 bytes of a block
    trailer  magic 8, version u16, frame version u16, kinds u32, frames u32, segment u32,
             start u64 (offset of the footer), checksum u64 (of all before it)

Numbers are little-endian. The trailer keeps its form and its place at the end of the file in every
version to come. Any bytes either decode or raise `FrameError`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from kvwise.codecs import frame
from kvwise.codecs.base import BLOCK_BYTES, scratch
from kvwise.codecs.frame import STORED_BYTES_MAX, Header
from kvwise.errors import FrameError
from kvwise.units import round_up

MAGIC = b"\x89KVWEND\n"
VERSION = 1
SHARE = 64
"""A footer is kept only where the live frames before it take at least this many times its bytes."""

KINDS_MAX = 1 << 16
_KIND = struct.Struct("<16s16sQH6x")
_TRAILER = struct.Struct("<8sHHIIIQQ")
_CHECKSUM_BYTES = 8
_SEED = 0x6B76_7769_7365_4931
_KEY = np.dtype("V16")
_ROW_BYTES = 16 + 16 + 4 + 4 + 2

Numbers = NDArray[np.int64]
Keys = NDArray[np.void]
Mask = NDArray[np.bool_]


class Kind(NamedTuple):
    """What many frames of a segment have in common; see `codecs.frame.Header`."""

    space: bytes
    layout: bytes
    raw_bytes: int
    codec: int


@dataclass(frozen=True, slots=True)
class Entries:
    """Frames of one segment, as columns.

    Attributes:
        kinds: what frames have in common.
        keys, parents: 16 bytes of each frame.
        offsets, sizes: where each frame starts and its bytes, padding included.
        kind: of each frame, its place in `kinds`.
    """

    kinds: Sequence[Kind]
    keys: Keys
    parents: Keys
    offsets: Numbers
    sizes: Numbers
    kind: Numbers

    @classmethod
    def of(cls, frames: Iterable[tuple[Header, int]]) -> Entries:
        """The columns of frames that are given by header and offset."""
        kinds: dict[Kind, int] = {}
        keys, parents = bytearray(), bytearray()
        rows: list[tuple[int, int, int]] = []
        for header, offset in frames:
            kind = Kind(header.space, header.layout, header.raw_bytes, header.codec)
            keys += header.key
            parents += header.parent
            rows.append((offset, header.frame_bytes, kinds.setdefault(kind, len(kinds))))
        table = np.array(rows, np.int64).reshape(-1, 3)
        return cls(
            list(kinds),
            np.frombuffer(bytes(keys), _KEY),
            np.frombuffer(bytes(parents), _KEY),
            table[:, 0],
            table[:, 1],
            table[:, 2],
        )

    def __len__(self) -> int:
        """How many frames."""
        return len(self.offsets)

    @property
    def live_bytes(self) -> int:
        """Bytes of all frames."""
        return int(self.sizes.sum())

    def only(self, mask: Mask | slice) -> Entries:
        """Some of the frames."""
        return Entries(
            self.kinds,
            self.keys[mask],
            self.parents[mask],
            self.offsets[mask],
            self.sizes[mask],
            self.kind[mask],
        )

    def by_kind(self) -> Iterator[tuple[Kind, Entries]]:
        """The frames of each kind."""
        if len(self.kinds) == 1:
            yield self.kinds[0], self
            return
        for number, kind in enumerate(self.kinds):
            some = self.only(self.kind == number)
            if len(some):
                yield kind, some


class Trailer(NamedTuple):
    """The end of a footer: what the rest of it looks like, and which segment it is of."""

    kinds: int
    frames: int
    segment: int
    start: int
    checksum: int

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole footer."""
        return size_bytes(self.frames, self.kinds)


def size_bytes(frames: int, kinds: int = 1) -> int:
    """Bytes of a footer for so many frames."""
    return round_up(kinds * _KIND.size + frames * _ROW_BYTES + _TRAILER.size, BLOCK_BYTES)


def pays(footer_bytes: int, live_bytes: int) -> bool:
    """Whether a footer is small enough beside the live frames of its segment."""
    return footer_bytes * SHARE <= live_bytes


def pack(entries: Entries, segment: int, start: int) -> memoryview:
    """The footer of a segment that is written at `start`; page-aligned, whole blocks."""
    count, kinds = len(entries), len(entries.kinds)
    block = scratch(size_bytes(count, kinds))
    columns = (
        b"".join(_KIND.pack(*kind) for kind in entries.kinds),
        entries.keys.tobytes(),
        entries.parents.tobytes(),
        (entries.offsets // BLOCK_BYTES).astype("<u4").tobytes(),
        (entries.sizes // BLOCK_BYTES).astype("<u4").tobytes(),
        entries.kind.astype("<u2").tobytes(),
    )
    data = b"".join(columns)
    block[: len(data)] = data
    end = block.nbytes - _CHECKSUM_BYTES
    trailer = _TRAILER.pack(MAGIC, VERSION, frame.VERSION, kinds, count, segment, start, 0)
    block[block.nbytes - _TRAILER.size : end] = trailer[:-_CHECKSUM_BYTES]
    block[end:] = _checksum(block).to_bytes(_CHECKSUM_BYTES, "little")
    return block


def trailer(end: memoryview) -> Trailer:
    """What the last bytes of a file say about the footer they end.

    Raises:
        FrameError: no footer ends here, or one of a version this reader does not know.
    """
    if len(end) < _TRAILER.size or len(end) % BLOCK_BYTES:
        raise FrameError(f"no footer ends after {len(end)} bytes")
    fields = _TRAILER.unpack(end[-_TRAILER.size :])
    magic, version, frame_version, kinds, frames, segment, start, checksum = fields
    if magic != MAGIC:
        raise FrameError("no footer ends here")
    if version != VERSION or frame_version > frame.VERSION:
        raise FrameError(f"a footer of version {version} for frames of version {frame_version}")
    if not 0 < kinds <= KINDS_MAX:
        raise FrameError(f"a footer of {kinds} kinds is not believable")
    return Trailer(kinds, frames, segment, start, checksum)


def unpack(block: memoryview, said: Trailer) -> Entries:
    """The frames that a whole footer names, in the order of their offsets.

    Raises:
        FrameError: it is damaged, or names what cannot be.
    """
    if len(block) != said.size_bytes or _checksum(block) != said.checksum:
        raise FrameError("the footer's checksum does not hold")
    at = said.kinds * _KIND.size
    kinds = [Kind(*fields) for fields in _KIND.iter_unpack(block[:at])]
    columns: list[NDArray[np.generic]] = []
    for dtype in (_KEY, _KEY, np.dtype("<u4"), np.dtype("<u4"), np.dtype("<u2")):
        columns.append(np.frombuffer(block, dtype, said.frames, at))
        at += columns[-1].nbytes
    keys, parents, offsets, sizes, kind = columns
    entries = Entries(
        kinds,
        keys.astype(_KEY),
        parents.astype(_KEY),
        offsets.astype(np.int64) * BLOCK_BYTES,
        sizes.astype(np.int64) * BLOCK_BYTES,
        kind.astype(np.int64),
    )
    _require_possible(entries, said.start)
    return entries


def _require_possible(entries: Entries, start: int) -> None:
    """Raise `FrameError` unless the frames lie one after another before the footer."""
    ends = entries.offsets + entries.sizes
    apart = bool((ends[:-1] <= entries.offsets[1:]).all()) and bool((ends[-1:] <= start).all())
    if not apart or not bool((entries.sizes >= BLOCK_BYTES).all()):
        raise FrameError("the footer names frames that overlap or are none")
    if not bool((entries.kind < len(entries.kinds)).all()):
        raise FrameError("the footer names a kind that it does not have")
    if max(kind.raw_bytes for kind in entries.kinds) > STORED_BYTES_MAX:
        raise FrameError("the footer names an object that is not believable")


def _checksum(block: memoryview) -> int:
    """Checksum of a footer without the checksum at its end."""
    return xxhash.xxh3_64_intdigest(block[: block.nbytes - _CHECKSUM_BYTES], _SEED)
