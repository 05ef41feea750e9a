"""Frames: bytes decode or raise `FrameError`, and old bytes stay readable. No file is written."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import xxhash
from hypothesis import example, given
from hypothesis import strategies as st

from kvwise.codecs import frame
from kvwise.codecs.frame import HEADER_BYTES, STORED_BYTES_MAX, Header
from kvwise.errors import FrameError

GOLDEN = Path(__file__).parent.parent / "golden"
DIGESTS = st.binary(min_size=16, max_size=16)
HEADERS = st.builds(
    Header,
    codec=st.integers(0, 0xFFFF),
    key=DIGESTS,
    parent=DIGESTS,
    space=DIGESTS,
    layout=DIGESTS,
    raw_bytes=st.integers(0, STORED_BYTES_MAX),
    stored_bytes=st.integers(0, STORED_BYTES_MAX),
    payload_checksum=st.integers(0, 2**64 - 1),
)
PAYLOAD = bytes(range(256)) * 20
SAMPLE = Header(
    codec=0,
    key=bytes(range(16)),
    parent=bytes(range(16, 32)),
    space=bytes(range(32, 48)),
    layout=bytes(range(48, 64)),
    raw_bytes=len(PAYLOAD),
    stored_bytes=len(PAYLOAD),
    payload_checksum=frame.checksum([PAYLOAD]),
)


def sealed(block: bytearray) -> bytes:
    """The block with a header checksum that holds, as a newer version would write it."""
    body = bytes(block[:-8])
    return body + xxhash.xxh3_64_intdigest(body, frame._HEADER_SEED).to_bytes(8, "little")


def test_golden_frame_is_what_we_write() -> None:
    """Version 1 writes the very bytes it always wrote."""
    padding = bytes(SAMPLE.frame_bytes - HEADER_BYTES - len(PAYLOAD))

    assert frame.pack(SAMPLE) + PAYLOAD + padding == (GOLDEN / "frame-1.bin").read_bytes()


def test_golden_frame_stays_readable() -> None:
    """A frame written by version 1 reads back, payload and all."""
    data = (GOLDEN / "frame-1.bin").read_bytes()
    header = frame.unpack(data[:HEADER_BYTES])

    assert header == SAMPLE
    assert len(data) == header.frame_bytes
    assert frame.checksum([data[HEADER_BYTES:][: header.stored_bytes]]) == header.payload_checksum


@given(HEADERS)
def test_round_trip(header: Header) -> None:
    """Every header reads back as it was written, in one block."""
    block = frame.pack(header)

    assert len(block) == HEADER_BYTES
    assert frame.unpack(block) == header
    assert frame.version(block) == frame.VERSION


@given(st.binary(max_size=2 * HEADER_BYTES))
@example(b"")
@example(bytes(HEADER_BYTES))
@example(frame.MAGIC + bytes(HEADER_BYTES - len(frame.MAGIC)))
def test_noise_raises_frame_error(data: bytes) -> None:
    """Bytes that nobody wrote as a header are refused with `FrameError`."""
    with pytest.raises(FrameError):
        frame.unpack(data)


@given(HEADERS, st.integers(0, HEADER_BYTES * 8 - 1))
def test_any_flipped_bit_is_noticed(header: Header, bit: int) -> None:
    """No bit of the header block can change unnoticed, padding included."""
    block = bytearray(frame.pack(header))
    block[bit // 8] ^= 1 << bit % 8
    with pytest.raises(FrameError):
        frame.unpack(bytes(block))


@given(HEADERS, st.integers(8, HEADER_BYTES - 9), st.binary(min_size=1, max_size=64))
def test_hostile_header_decodes_or_raises(header: Header, at: int, junk: bytes) -> None:
    """With a checksum that holds, any content decodes within bounds or raises `FrameError`."""
    block = bytearray(frame.pack(header))
    block[at : at + len(junk)] = junk
    try:
        read = frame.unpack(sealed(block[:HEADER_BYTES]))
    except FrameError:
        return

    assert read.frame_bytes <= STORED_BYTES_MAX + HEADER_BYTES
    assert len(read.key) == 16


@pytest.mark.parametrize("number", [0, 2, 0xFFFF])
def test_other_versions_are_told_apart_from_damage(number: int) -> None:
    """A whole header of an unknown version names its version and is not decoded."""
    block = bytearray(frame.pack(SAMPLE))
    block[8:10] = number.to_bytes(2, "little")
    foreign = sealed(block)

    assert frame.version(foreign) == number
    with pytest.raises(FrameError, match=f"version {number}"):
        frame.unpack(foreign)


@pytest.mark.parametrize("at", [12, 104, 4000])
def test_reserved_bits_are_refused(at: int) -> None:
    """Version 1 gives no meaning to flags and the rest of the block, so it accepts only zeros."""
    block = bytearray(frame.pack(SAMPLE))
    block[at] = 1
    with pytest.raises(FrameError, match="mean nothing"):
        frame.unpack(sealed(block))


def test_size_beyond_belief_is_refused() -> None:
    """A header cannot make a reader believe in an object of petabytes."""
    with pytest.raises(FrameError, match="not believable"):
        frame.unpack(frame.pack(replace(SAMPLE, stored_bytes=STORED_BYTES_MAX + 1)))


@given(st.binary(max_size=5000), st.lists(st.integers(0, 5000), max_size=4))
def test_checksum_does_not_see_cuts(data: bytes, cuts: list[int]) -> None:
    """A payload has one checksum however its pieces lie in memory."""
    bounds = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    pieces = [data[a:b] for a, b in pairwise(bounds)]

    assert frame.checksum(pieces) == frame.checksum([data])


def test_checksum_of_payload_is_not_that_of_header() -> None:
    """The same bytes have different checksums as payload and as header."""
    body = frame.pack(SAMPLE)[:-8]

    assert frame.checksum([body]) != int.from_bytes(frame.pack(SAMPLE)[-8:], "little")


@pytest.mark.pain("D9")
@pytest.mark.parametrize(
    ("stored_bytes", "expected"), [(0, 4096), (1, 8192), (4096, 8192), (4097, 12288)]
)
def test_frames_are_whole_blocks(stored_bytes: int, expected: int) -> None:
    """A frame is its header and its payload, each in whole blocks."""
    assert frame.frame_bytes(stored_bytes) == expected
