"""Locations of frames: each names one place, and what no location can say is not taken for one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwise.codecs import frame
from kvwise.codecs.base import BLOCK_BYTES
from kvwise.codecs.frame import Header
from kvwise.errors import BugError
from kvwise.testing.memory import header_of
from kvwise.testing.tiers import CAPACITY_BYTES, content, key_of, read_back, record, scanned
from kvwise.tiers import footer
from kvwise.tiers.extents import (
    DIRECTORIES_MAX,
    SEGMENT_BYTES_MAX,
    SEGMENTS_MAX,
    Extent,
    pack_location,
    unpack_location,
)
from kvwise.tiers.footer import Entries
from tests.tiers.media import Files

RAW_BYTES = 6 * BLOCK_BYTES * footer.SHARE
SEGMENT = 5


@given(
    st.integers(0, DIRECTORIES_MAX - 1),
    st.integers(0, SEGMENTS_MAX - 1),
    st.integers(0, SEGMENT_BYTES_MAX // BLOCK_BYTES - 1),
)
def test_a_location_says_where(directory: int, segment: int, block: int) -> None:
    """Every place that can be packed into 64 bits comes out again."""
    extent = Extent(segment, block * BLOCK_BYTES, 8192)
    location = pack_location(directory, extent)

    assert 0 <= location < 1 << 64
    assert unpack_location(location, 8192) == (directory, extent)


@pytest.mark.parametrize(
    ("directory", "segment", "offset"),
    [
        (DIRECTORIES_MAX, 0, 0),
        (-1, 0, 0),
        (0, SEGMENTS_MAX, 0),
        (0, -1, 0),
        (0, 0, SEGMENT_BYTES_MAX),
        (0, 0, -BLOCK_BYTES),
        (0, 0, 100),
    ],
)
def test_no_location_for_an_impossible_place(directory: int, segment: int, offset: int) -> None:
    """A number that is too large would become another directory, segment or block."""
    with pytest.raises(BugError, match="no location can say"):
        pack_location(directory, Extent(segment, offset, 8192))


def segment_with(home: Path, offsets: list[int], *, sealed: bool) -> None:
    """A sparse segment file with frames at these offsets, the first of object 0, and a footer."""
    frames: list[tuple[Header, int]] = []
    with (home / f"segment-{SEGMENT:08x}.kvw").open("wb") as file:
        for number, offset in enumerate(offsets):
            data = content(number, RAW_BYTES)
            header = header_of(record(number, RAW_BYTES), [memoryview(data)])
            os.pwrite(file.fileno(), frame.pack(header) + data, offset)
            frames.append((header, offset))
        if sealed:
            end = offsets[-1] + frames[-1][0].frame_bytes
            os.pwrite(file.fileno(), footer.pack(Entries.of(frames), SEGMENT, end), end)


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("beyond", [0, BLOCK_BYTES, 3 * SEGMENT_BYTES_MAX])
def test_frames_beyond_the_last_location(tmp_path: Path, beyond: int, *, sealed: bool) -> None:
    """Frames that begin where no location reaches are given back; those before them are kept."""
    last = SEGMENT_BYTES_MAX - BLOCK_BYTES * 2000
    far = [SEGMENT_BYTES_MAX + beyond, SEGMENT_BYTES_MAX + beyond + 4096 * BLOCK_BYTES]
    segment_with(tmp_path, [0, last, *far], sealed=sealed)
    files = Files((tmp_path,))
    tier = files.open(CAPACITY_BYTES)
    found = {seen.key: spot for seen, spot in scanned(tier)}

    assert set(found) == {key_of(0), key_of(1)}
    assert tier.used_bytes == files.used_bytes() == 2 * (RAW_BYTES + BLOCK_BYTES)
    for number in range(2):
        spot = found[key_of(number)]
        assert files.spot(spot) == (files.segments()[0], (0, last)[number])
        assert read_back(tier, number, RAW_BYTES, spot) == content(number, RAW_BYTES)
    tier.close()


@pytest.mark.parametrize("sealed", [False, True])
def test_a_frame_at_the_last_location(tmp_path: Path, *, sealed: bool) -> None:
    """The last block that a location reaches may begin a frame, wherever that frame ends."""
    segment_with(tmp_path, [SEGMENT_BYTES_MAX - BLOCK_BYTES], sealed=sealed)
    files = Files((tmp_path,))
    tier = files.open(CAPACITY_BYTES)
    ((seen, spot),) = scanned(tier)

    assert seen.key == key_of(0)
    assert read_back(tier, 0, RAW_BYTES, spot) == content(0, RAW_BYTES)
    tier.close()
