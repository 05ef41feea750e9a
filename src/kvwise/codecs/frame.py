"""The frame: what a stored object says about itself. It judges bytes; it never fetches them.

A frame is one header block of 4 KiB and the stored payload, padded to whole blocks:

    0   magic            8 bytes   never changes
    8   version          u16       never changes its place
    10  codec            u16
    12  flags            u32       none is defined: 0
    16  key              16 bytes
    32  parent           16 bytes
    48  space            16 bytes  namespace digest
    64  layout           16 bytes  layout digest
    80  raw bytes        u64       payload before the codec
    88  stored bytes     u64       payload after the codec, without padding
    96  payload checksum u64       xxh3_64 of the stored bytes
    104 zeros            up to 4088
    4088 header checksum u64       xxh3_64 of the 4088 bytes before it; never changes

Magic, the place of the version and the header checksum hold for every version to come, so that a
reader can tell a newer frame from a damaged one. Numbers are little-endian. Each checksum has a
seed of its own, so that no payload passes for a header.

Any bytes either decode or raise `FrameError`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import xxhash

from kvwise.codecs.base import BLOCK_BYTES
from kvwise.errors import FrameError
from kvwise.units import round_up

MAGIC = b"\x89KVWISE\n"
VERSION = 1
HEADER_BYTES = BLOCK_BYTES
STORED_BYTES_MAX = 1 << 40
"""No object is larger (1 TiB): bounds what a hostile header can make a reader believe."""

_BODY = struct.Struct("<8sHHI16s16s16s16sQQQ")
_VERSION = struct.Struct("<H")
_CHECKSUM = struct.Struct("<Q")
_CHECKSUM_AT = HEADER_BYTES - _CHECKSUM.size
_HEADER_SEED = 0x6B76_7769_7365_4831
_PAYLOAD_SEED = 0x6B76_7769_7365_5031
_REST = bytes(_CHECKSUM_AT - _BODY.size)


@dataclass(frozen=True, slots=True)
class Header:
    """What a frame says about its object.

    Attributes:
        codec: number of the codec that wrote the payload.
        key, parent, space, layout: 16 bytes each, see `tiers.base.Record`.
        raw_bytes: payload bytes before the codec.
        stored_bytes: payload bytes as stored, padding not counted.
        payload_checksum: `checksum` of the stored bytes.
    """

    codec: int
    key: bytes
    parent: bytes
    space: bytes
    layout: bytes
    raw_bytes: int
    stored_bytes: int
    payload_checksum: int

    @property
    def frame_bytes(self) -> int:
        """Bytes of the whole frame: header, payload, padding."""
        return frame_bytes(self.stored_bytes)


def frame_bytes(stored_bytes: int) -> int:
    """Bytes of a frame around a stored payload of that size."""
    return HEADER_BYTES + round_up(stored_bytes, BLOCK_BYTES)


def checksum(pieces: Iterable[memoryview | bytes]) -> int:
    """xxh3_64 of the pieces' bytes in order; how they are cut does not matter.

    The hasher lets other threads run while it works, and reads 23 GB/s over 128 KiB pieces.
    """
    hasher = xxhash.xxh3_64(seed=_PAYLOAD_SEED)
    for piece in pieces:
        hasher.update(piece)
    return hasher.intdigest()


def pack(header: Header) -> bytes:
    """The header block."""
    body = _BODY.pack(
        MAGIC,
        VERSION,
        header.codec,
        0,
        header.key,
        header.parent,
        header.space,
        header.layout,
        header.raw_bytes,
        header.stored_bytes,
        header.payload_checksum,
    )
    covered = body + _REST
    return covered + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(covered, _HEADER_SEED))


def version(block: memoryview | bytes) -> int:
    """Format version of a header block that is whole, known to this reader or not.

    Raises:
        FrameError: this is no header block of any version.
    """
    if len(block) != HEADER_BYTES:
        raise FrameError(f"a header has {HEADER_BYTES} bytes, not {len(block)}")
    if block[: len(MAGIC)] != MAGIC:
        raise FrameError("no frame starts here")
    (found,) = _CHECKSUM.unpack_from(block, _CHECKSUM_AT)
    if found != xxhash.xxh3_64_intdigest(block[:_CHECKSUM_AT], _HEADER_SEED):
        raise FrameError("the header's checksum does not hold")
    return int(_VERSION.unpack_from(block, len(MAGIC))[0])


def unpack(block: memoryview | bytes) -> Header:
    """What a header block says.

    Raises:
        FrameError: no header, a damaged one, or one of a version this reader does not know.
    """
    found = version(block)
    reader = _READERS.get(found)
    if reader is None:
        raise FrameError(f"frame version {found} is newer than this reader ({VERSION})")
    return reader(block)


def _read_1(block: memoryview | bytes) -> Header:
    """Version 1, see the module."""
    _, _, codec, flags, key, parent, space, layout, raw, stored, payload = _BODY.unpack_from(block)
    if flags or bytes(block[_BODY.size : _CHECKSUM_AT]) != _REST:
        raise FrameError("a version 1 header has bits set that mean nothing in version 1")
    if max(raw, stored) > STORED_BYTES_MAX:
        raise FrameError(f"an object of {raw} bytes, stored as {stored}, is not believable")
    return Header(codec, key, parent, space, layout, raw, stored, payload)


_READERS: dict[int, Callable[[memoryview | bytes], Header]] = {1: _read_1}
"""One reader for each version ever written; none is ever taken out."""
