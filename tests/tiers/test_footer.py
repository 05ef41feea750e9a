"""The footer of a segment as bytes: what was written comes back, anything else is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwise.codecs import frame
from kvwise.codecs.base import BLOCK_BYTES
from kvwise.codecs.frame import Header
from kvwise.errors import FrameError
from kvwise.testing.tiers import key_of
from kvwise.tiers import footer
from kvwise.tiers.footer import Entries


def headers(*sizes: int, spaces: int = 1) -> list[tuple[Header, int]]:
    """Headers of frames of so many stored bytes, one behind another, in turns of each space."""
    found, offset = [], 0
    for number, stored_bytes in enumerate(sizes):
        space = key_of(1000 + number % spaces)
        key, parent = key_of(number), key_of(number - 1)
        header = Header(0, key, parent, space, b"l" * 16, stored_bytes, stored_bytes, 7)
        found.append((header, offset))
        offset += header.frame_bytes
    return found


def told(entries: Entries) -> list[tuple[bytes, ...]]:
    """What columns say about each frame, as plain values."""
    rows = []
    for place in range(len(entries)):
        kind = entries.kinds[entries.kind[place]]
        numbers = (entries.offsets[place], entries.sizes[place], kind.raw_bytes, kind.codec)
        key, parent = bytes(entries.keys[place]), bytes(entries.parents[place])
        rows.append((key, parent, kind.space, kind.layout, *(b"%d" % n for n in numbers)))
    return rows


def read(block: memoryview) -> Entries:
    """The footer that these bytes are."""
    return footer.unpack(block, footer.trailer(block))


def packed(frames: list[tuple[Header, int]]) -> memoryview:
    """The footer of these frames, right behind them."""
    end = max((offset + header.frame_bytes for header, offset in frames), default=0)
    return footer.pack(Entries.of(frames), 5, end)


def resealed(block: memoryview) -> memoryview:
    """The same bytes with a checksum that holds: what an evil or mistaken writer could make."""
    block[-8:] = footer._checksum(block).to_bytes(8, "little")
    return block


@given(st.lists(st.integers(1, 30_000), min_size=1, max_size=300), st.integers(1, 5))
def test_what_was_written_comes_back(sizes: list[int], spaces: int) -> None:
    """Every frame is told with all that a scan needs, whatever its kind."""
    frames = headers(*sizes, spaces=spaces)
    block = packed(frames)

    assert told(read(block)) == told(Entries.of(frames))
    assert block.nbytes == footer.size_bytes(len(sizes), min(spaces, len(sizes)))


@given(st.binary(max_size=3 * BLOCK_BYTES))
def test_any_bytes_are_refused_cleanly(data: bytes) -> None:
    """Bytes that are no footer raise FrameError and nothing else."""
    for block in (data, data.ljust(BLOCK_BYTES, b"\0")[-BLOCK_BYTES:]):
        with pytest.raises(FrameError):
            read(memoryview(block))


@given(st.data())
def test_every_changed_bit_is_noticed(data: st.DataObject) -> None:
    """A footer with one bit changed anywhere is no footer."""
    block = packed(headers(*range(1, 200)))
    place = data.draw(st.integers(0, block.nbytes - 1))
    block[place] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(FrameError):
        read(block)


@given(st.data())
def test_whole_but_senseless_footers_are_refused_or_believed(data: st.DataObject) -> None:
    """Any content under a checksum that holds is refused, or names frames that could be."""
    block = packed(headers(*range(1, 40), spaces=3))
    for _ in range(data.draw(st.integers(1, 4))):
        block[data.draw(st.integers(0, block.nbytes - 9))] = data.draw(st.integers(0, 255))
    try:
        entries = read(resealed(block))
    except FrameError:
        return
    ends = entries.offsets + entries.sizes
    assert (ends[:-1] <= entries.offsets[1:]).all()
    assert (entries.sizes > 0).all()


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (-32, footer.VERSION + 1),  # version
        (-30, frame.VERSION + 1),  # version of the frames
        (-28, 0),  # no kind at all
        (-24, 1 << 15),  # frames, more than there is room for
    ],
)
def test_other_versions_and_counts_are_refused(place: int, value: int) -> None:
    """A trailer of a later version, or one that cannot be true, is refused though it is whole."""
    block = packed(headers(*range(1, 40)))
    width = 4 if place > -30 else 2
    block[place : place + width] = value.to_bytes(width, "little")
    with pytest.raises(FrameError):
        read(resealed(block))


def test_frames_that_overlap_are_refused() -> None:
    """A footer whose frames overlap, or reach into the footer itself, is not believed."""
    frames = headers(5000, 5000)
    over = [(frames[0][0], 0), (frames[1][0], BLOCK_BYTES)]
    late = [(frames[0][0], 0), (frames[1][0], 5 * BLOCK_BYTES)]
    for wrong in (over, late):
        with pytest.raises(FrameError):
            read(footer.pack(Entries.of(wrong), 5, 6 * BLOCK_BYTES))


def test_a_footer_pays_beside_many_frames_only() -> None:
    """What a footer may take is one part in 64 of the frames it names."""
    assert footer.pays(footer.size_bytes(40), 40 * 8192)
    assert not footer.pays(footer.size_bytes(10), 10 * 8192)
