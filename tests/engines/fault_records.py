"""Owns the damage that tests do to records on disk, by the bytes of the documented format.

It finds records and changes them in place; it knows neither tiers nor daemons.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from kvwise.codecs import frame
from kvwise.codecs.elements import Kind
from kvwise.codecs.exponent import Exponent, mode_of
from kvwise.codecs.frame import HEADER_BYTES, MAGIC, Header
from kvwise.core.keys import ROOT


@dataclass(frozen=True)
class Found:
    """One record: where it is and what its header says."""

    path: Path
    offset: int
    header: Header

    @property
    def end(self) -> int:
        """Offset of the first byte after it."""
        return self.offset + self.header.frame_bytes

    def read(self) -> bytearray:
        """Its payload."""
        with self.path.open("rb") as file:
            file.seek(self.offset + HEADER_BYTES)
            return bytearray(file.read(self.header.stored_bytes))

    def write(self, offset: int, data: bytes) -> None:
        """Change some of its bytes, all the way down to the medium."""
        with self.path.open("r+b") as file:
            file.seek(self.offset + offset)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())


def records(paths: Iterable[Path]) -> list[Found]:
    """All whole records, in the order of their writing."""
    found = []
    for path in paths:
        data = path.read_bytes()
        offset = data.find(MAGIC)
        while offset >= 0:
            header = frame.unpack(data[offset : offset + HEADER_BYTES])
            found.append(Found(path, offset, header))
            offset = data.find(MAGIC, offset + header.frame_bytes)
    return found


def chains(paths: Iterable[Path]) -> list[list[Found]]:
    """The records of each first chunk and of what follows it, first chunks as they were written."""
    every = records(paths)
    after = {one.header.parent: one for one in every if one.header.parent != ROOT}
    found = []
    for one in every:
        if one.header.parent == ROOT:
            chain = [one]
            while chain[-1].header.key in after:
                chain.append(after[chain[-1].header.key])
            found.append(chain)
    return found


def flip_payload(record: Found) -> None:
    """One bit of the payload is another one."""
    byte = record.read()[5000]
    record.write(HEADER_BYTES + 5000, bytes([byte ^ 1]))


def flip_header(record: Found) -> None:
    """One bit of the key in the header is another one."""
    record.write(16, bytes([record.header.key[0] ^ 1]))


def truncate(record: Found) -> None:
    """The file ends in the middle of the record."""
    os.truncate(record.path, record.offset + record.header.frame_bytes // 2)


def rename_key(record: Found) -> None:
    """The record is whole, and of another key."""
    other = bytes(byte ^ 0xFF for byte in record.header.key)
    record.write(0, frame.pack(replace(record.header, key=other)))


def forge(record: Found) -> None:
    """The payload is another one, and the checksums are right, also where a codec wrote it."""
    if record.header.codec == Exponent.id:
        payload = _other_numbers(record)
    else:
        payload = bytes(byte ^ 0xFF for byte in record.read())
    assert len(payload) == record.header.stored_bytes
    checksum = frame.checksum([payload])
    record.write(0, frame.pack(replace(record.header, payload_checksum=checksum)) + payload)


def _other_numbers(record: Found) -> bytes:
    """What the codec makes of 32-bit floats 2**40 times as large: as many bytes."""
    stored = memoryview(record.read())
    mode = mode_of([stored])
    assert mode is not None
    codec, payload = Exponent(mode, Kind.FP32), bytearray(record.header.raw_bytes)
    codec.decode([stored], [memoryview(payload)])
    others = np.frombuffer(payload, "<u4") + np.uint32(40 << 23)
    return b"".join(codec.encode([memoryview(others.tobytes())]))


Damage = Callable[[Found], None]
