"""The disk tier's medium seen from outside: files, offsets, blocks. It uses no code of the tier."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from kvwise.codecs.base import Codec
from kvwise.codecs.forms import Codecs
from kvwise.codecs.plain import PLAIN
from kvwise.tiers.base import Placed
from kvwise.tiers.directio import Io
from kvwise.tiers.disk import DiskConfig, DiskTier
from kvwise.units import MIB


@dataclass(frozen=True)
class Files:
    """Directories of a disk tier, and how it is opened on them."""

    directories: tuple[Path, ...]
    io: Io = Io.AUTO
    segment_bytes: int = MIB
    min_free_bytes: int = 0
    codec: Codec = PLAIN
    codecs: Codecs | None = None

    def open(self, capacity_bytes: int) -> DiskTier:
        """The tier on these directories."""
        config = DiskConfig(
            self.directories,
            capacity_bytes,
            min_free_bytes=self.min_free_bytes,
            segment_bytes=self.segment_bytes,
            io=self.io,
        )
        return DiskTier(config, clock_ns=time.monotonic_ns, codec=self.codec, codecs=self.codecs)

    def used_bytes(self) -> int:
        """Bytes of the segment files that are no holes.

        Blocks that the filesystem counts agree, but for its own notes: ext4 keeps a file's list of
        extents in a block of its own once there are more than four.
        """
        paths = self.segments()
        data = sum(data_bytes(path) for path in paths)
        blocks = sum(512 * path.stat().st_blocks for path in paths)
        assert 0 <= blocks - data <= 4096 * len(paths), (blocks, data)
        return data

    def overwrite(self, placed: Placed, offset: int, data: bytes) -> None:
        """Change bytes of a stored object."""
        path, start = self.spot(placed)
        with path.open("r+b") as file:
            file.seek(start + offset)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def cut(self, placed: Placed, keep_bytes: int) -> None:
        """Cut the segment file inside a stored object."""
        path, start = self.spot(placed)
        os.truncate(path, start + keep_bytes)

    def cut_footers(self) -> None:
        """Leave the segments as a process does that is killed before it closes."""
        for path in self.segments():
            end = path.read_bytes()[-40:]
            if end.startswith(b"\x89KVWEND\n"):
                os.truncate(path, int.from_bytes(end[24:32], "little"))

    def segments(self) -> list[Path]:
        """All segment files."""
        return [path for home in self.directories for path in sorted(home.glob("segment-*.kvw"))]

    def spot(self, placed: Placed) -> tuple[Path, int]:
        """File and offset of a stored object: directory 8 bits, segment 32, block of 4 KiB 24."""
        directory, segment = placed.location >> 56, placed.location >> 24 & 0xFFFF_FFFF
        path = self.directories[directory] / f"segment-{segment:08x}.kvw"
        return path, (placed.location & 0xFF_FFFF) * 4096


def data_bytes(path: Path) -> int:
    """Bytes of a file that are no holes."""
    fd = os.open(path, os.O_RDONLY)
    end, found, total = 0, 0, os.fstat(fd).st_size
    while end < total:
        try:
            start = os.lseek(fd, end, os.SEEK_DATA)
        except OSError:
            break
        end = os.lseek(fd, start, os.SEEK_HOLE)
        found += end - start
    os.close(fd)
    return found
