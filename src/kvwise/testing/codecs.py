"""The conformance suite of codecs, and a small reference codec. It measures nothing.

Use: a test class inherits `CodecSuite` and gives `codec()`; it may give `payloads()` too when the
codec needs bytes of a certain form.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from itertools import pairwise

from kvwise.codecs.base import BLOCK_BYTES, Buffers, Codec, scratch, total_bytes
from kvwise.codecs.plain import PLAIN
from kvwise.errors import FrameError

HOSTILE_ROUNDS = 200


class Deflate:
    """zlib as a codec: slow, lossless, and enough to prove whatever carries codecs."""

    name = "deflate"
    id = 0xFFFF
    lossless = True

    def encode(self, payload: Buffers) -> Buffers:
        """The compressed bytes, or the payload when they would not save a block."""
        packed = zlib.compress(b"".join(payload), 1)
        if len(packed) + BLOCK_BYTES > total_bytes(payload):
            return payload
        stored = scratch(len(packed))
        stored[:] = packed
        return [stored]

    def decode(self, stored: Buffers, payload: Buffers) -> None:
        """Decompress into the payload."""
        inflater = zlib.decompressobj()
        try:
            # One byte more than is wanted shows that there is too much, without unpacking a bomb.
            raw = inflater.decompress(b"".join(stored), total_bytes(payload) + 1)
        except zlib.error as error:
            raise FrameError(f"not deflated: {error}") from error
        if len(raw) != total_bytes(payload) or not inflater.eof:
            raise FrameError(f"{len(raw)} bytes for a payload of {total_bytes(payload)}")
        scatter(raw, payload)


def scatter(data: bytes, pieces: Buffers) -> None:
    """Spread bytes over pieces of memory that hold just as many."""
    start = 0
    for piece in pieces:
        piece[:] = data[start : start + piece.nbytes]
        start += piece.nbytes


def pieces_of(data: bytes, *cuts: int) -> list[memoryview]:
    """Page-aligned copies of `data`, cut at these offsets."""
    bounds = [0, *cuts, len(data)]
    pieces = []
    for start, end in pairwise(bounds):
        piece = scratch(end - start)
        piece[:] = data[start:end]
        pieces.append(piece)
    return pieces


def reader_of(codec: Codec, stored: Buffers, payload: Buffers) -> Codec:
    """The codec that a frame around `stored` would name: plain when encoding saved nothing."""
    return PLAIN if stored is payload else codec


class CodecSuite:
    """What every codec must do. Inherit it in a class whose name starts with Test."""

    def codec(self) -> Codec:
        """The codec under test."""
        raise NotImplementedError

    def payloads(self) -> Iterator[bytes]:
        """Payloads it must carry: odd sizes, easy ones and noise."""
        noise = random.Random(1)
        for size_bytes in (1, 4095, 4096, 4097, 65536, 720 * 1024 + 24):
            yield bytes(size_bytes)
            yield noise.randbytes(size_bytes)

    def test_names_itself(self) -> None:
        """It has a name, and a number that fits the frame."""
        codec = self.codec()

        assert codec.name
        assert 0 <= codec.id <= 0xFFFF

    def test_round_trip(self) -> None:
        """What was encoded decodes to as many bytes, the same ones if it says lossless."""
        codec = self.codec()
        for data in self.payloads():
            payload, back = pieces_of(data), pieces_of(bytes(len(data)))
            stored = codec.encode(payload)
            reader_of(codec, stored, payload).decode(stored, back)

            if codec.lossless:
                assert back[0] == data

    def test_payload_is_not_changed(self) -> None:
        """Encoding leaves the payload alone: it may still be on its way to a device."""
        for data in self.payloads():
            payload = pieces_of(data)
            self.codec().encode(payload)

            assert payload[0] == data

    def test_saves_a_block_or_does_nothing(self) -> None:
        """The answer is the payload itself unless it is at least one block smaller."""
        for data in self.payloads():
            payload = pieces_of(data)
            stored = self.codec().encode(payload)

            assert stored is payload or total_bytes(stored) + BLOCK_BYTES <= len(data)

    def test_cuts_do_not_matter(self) -> None:
        """However the payload lies in memory, the same bytes are stored and restored."""
        codec = self.codec()
        for data in self.payloads():
            if len(data) <= 2 * BLOCK_BYTES:
                continue
            payload = pieces_of(data, BLOCK_BYTES)
            stored = codec.encode(payload)
            back = pieces_of(bytes(len(data)), 2 * BLOCK_BYTES)
            reader_of(codec, stored, payload).decode(stored, back)

            assert b"".join(stored) == b"".join(codec.encode(pieces_of(data)))
            assert not codec.lossless or b"".join(back) == data

    def test_foreign_bytes_raise_frame_error(self) -> None:
        """Bytes that no encoder made decode to something or raise `FrameError`, nothing else."""
        codec, noise = self.codec(), random.Random(2)
        for _ in range(HOSTILE_ROUNDS):
            stored = noise.randbytes(noise.randrange(1, 6000))
            payload = pieces_of(bytes(noise.randrange(1, 6000)))
            try:
                codec.decode(pieces_of(stored), payload)
            except FrameError:
                continue

    def test_damaged_bytes_raise_frame_error(self) -> None:
        """Stored bytes with one bit flipped or cut short never escape `FrameError`."""
        codec, noise = self.codec(), random.Random(3)
        for data in self.payloads():
            flipped = bytearray(b"".join(codec.encode(pieces_of(data))))
            flipped[noise.randrange(len(flipped))] ^= 1 << noise.randrange(8)
            for damaged in (bytes(flipped), bytes(flipped[: len(flipped) // 2 + 1])):
                try:
                    codec.decode(pieces_of(damaged), pieces_of(bytes(len(data))))
                except FrameError:
                    continue
