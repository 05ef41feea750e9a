"""The conformance suites of codecs, and a small reference codec. They measure nothing.

Use: a test class inherits `CodecSuite` and gives `codec()`; it may give `payloads()` too when the
codec needs bytes of a certain form. One that changes bytes inherits `LossyCodecSuite`.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from kvwise.codecs.base import BLOCK_BYTES, Buffers, Codec, scratch, total_bytes
from kvwise.codecs.elements import Elements, Kind
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


class LossyCodecSuite(CodecSuite):
    """What a codec that changes bytes must do too: as little as it says, and always the same.

    A test class gives `codec()`, `elements`, and `allowed()`; signs, tensors that are not finite
    and what is beyond whole tensors must come back as they were.
    """

    elements: Elements

    def allowed(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """The error that is stated for each element of tensors, one in each row."""
        raise NotImplementedError

    def payloads(self) -> Iterator[bytes]:
        """What looks like KV: usual, tiny and huge, with zeros, with an odd end, not finite."""
        kind, tensor = self.elements.kind, self.elements.tensor_elements
        chance = np.random.default_rng(1)
        spread = np.exp2(chance.uniform(-8, 8, (8, tensor)))
        usual = chance.standard_normal((8, tensor)) * spread
        tiny, huge = (2.0**-22, 2.0**6) if kind is Kind.FP16 else (2.0**-128, 2.0**110)
        for factor in (1.0, tiny, huge):
            yield written_as(kind, usual * factor)
        spoiled = usual.copy()
        spoiled[1, 7], spoiled[3, 0], spoiled[6, -1] = np.nan, np.inf, -np.inf
        yield written_as(kind, spoiled) + b"odd"
        usual[::2], usual[3, ::3] = 0, -0.0
        yield written_as(kind, usual)
        yield bytes(8 * tensor * kind.bytes)

    def test_says_that_it_is_lossy(self) -> None:
        """Whoever wants his bytes back can see that he must not ask this codec."""
        assert not self.codec().lossless

    def test_errors_are_as_stated(self) -> None:
        """No element is further from what it was than the codec says; something is, though."""
        seen = 0.0
        for data in self.payloads():
            before, after = self._rows(data), self._rows(self._again(data))
            whole = np.isfinite(before).all(axis=1)
            errors = np.abs(after[whole] - before[whole])

            assert (errors <= self.allowed(before[whole])).all()
            seen = max(seen, errors.max())
        assert seen > 0

    def test_what_cannot_be_scaled_is_kept(self) -> None:
        """Tensors with elements that are not finite are the same to the bit, and so is the end."""
        for data in self.payloads():
            again, tensor_bytes = self._again(data), self._tensor_bytes
            end = len(data) // tensor_bytes * tensor_bytes
            kept = np.flatnonzero(~np.isfinite(self._rows(data)).all(axis=1)).tolist()
            parts = [slice(one * tensor_bytes, (one + 1) * tensor_bytes) for one in kept]

            assert [data[part] for part in parts] == [again[part] for part in parts]
            assert again[end:] == data[end:]

    def test_signs_are_kept(self) -> None:
        """Every element keeps its sign, zeros too."""
        for data in self.payloads():
            before, after = self._rows(data), self._rows(self._again(data))

            assert (np.signbit(before) == np.signbit(after)).all()

    def test_a_second_time_changes_nothing(self) -> None:
        """What came back once comes back the same from then on, however often it moves."""
        for data in self.payloads():
            once = self._again(data)

            assert self._again(once) == once

    def test_stored_bytes_are_always_the_same(self) -> None:
        """Threads that encode the same payload at one time write the same bytes."""
        codec, data = self.codec(), next(iter(self.payloads()))
        with ThreadPoolExecutor(4) as threads:
            found = list(threads.map(lambda _: b"".join(codec.encode(pieces_of(data))), range(16)))

        assert set(found) == {found[0]}

    @property
    def _tensor_bytes(self) -> int:
        return self.elements.tensor_elements * self.elements.kind.bytes

    def _again(self, data: bytes) -> bytes:
        """What comes back."""
        codec, payload, back = self.codec(), pieces_of(data), pieces_of(bytes(len(data)))
        stored = codec.encode(payload)
        reader_of(codec, stored, payload).decode(stored, back)
        return bytes(back[0])

    def _rows(self, data: bytes) -> NDArray[np.float64]:
        """The elements of whole tensors, one tensor in each row."""
        end = len(data) // self._tensor_bytes * self._tensor_bytes
        return read_as(self.elements.kind, data[:end]).reshape(-1, self.elements.tensor_elements)


def written_as(kind: Kind, values: NDArray[np.float64]) -> bytes:
    """Elements of a kind near these numbers."""
    with np.errstate(over="ignore"):
        if kind is Kind.FP16:
            return values.astype(np.float16).tobytes()
        floats = values.astype(np.float32)
    if kind is Kind.FP32:
        return floats.tobytes()
    return (floats.view(np.uint32) >> 16).astype(np.uint16).tobytes()


def read_as(kind: Kind, data: bytes) -> NDArray[np.float64]:
    """The numbers that elements of a kind stand for."""
    if kind is Kind.FP16:
        return np.frombuffer(data, np.float16).astype(np.float64)
    if kind is Kind.FP32:
        return np.frombuffer(data, np.float32).astype(np.float64)
    words = np.frombuffer(data, np.uint16).astype(np.uint32)
    return (words << 16).view(np.float32).astype(np.float64)
