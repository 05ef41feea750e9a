"""The wire: messages to bytes and back. It holds no socket and knows no verbs."""

from __future__ import annotations

import struct
from typing import Generic, TypeVar

import msgspec

from kvwise.errors import ProtocolError
from kvwise.live.messages import FRAME_BYTES_MAX, Reply, Request

_LENGTH = struct.Struct("<I")
_encoder = msgspec.msgpack.Encoder()
M = TypeVar("M")


def pack(message: Request | Reply) -> bytearray:
    """One frame: length and message."""
    frame = bytearray(_LENGTH.size)
    _encoder.encode_into(message, frame, _LENGTH.size)
    _LENGTH.pack_into(frame, 0, len(frame) - _LENGTH.size)
    return frame


class Unpacker(Generic[M]):
    """Cuts a byte stream into messages of one family.

    Any bytes either become messages or raise `ProtocolError`, never anything else.
    """

    def __init__(self, decoder: msgspec.msgpack.Decoder[M]) -> None:
        """Nothing received yet."""
        self._decoder = decoder
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        """Take in what arrived."""
        self._buffer += data

    def next(self) -> M | None:
        """The next whole message, None when more bytes are needed.

        Raises:
            ProtocolError: the frame is too long, or holds no message of this family.
        """
        buffer = self._buffer
        if len(buffer) < _LENGTH.size:
            return None
        (size,) = _LENGTH.unpack_from(buffer)
        if size > FRAME_BYTES_MAX:
            raise ProtocolError(f"a frame of {size} bytes exceeds {FRAME_BYTES_MAX}")
        end = _LENGTH.size + size
        if len(buffer) < end:
            return None
        with memoryview(buffer) as view, view[_LENGTH.size : end] as body:
            try:
                message = self._decoder.decode(body)
            except (msgspec.MsgspecError, ValueError, RecursionError) as error:
                raise ProtocolError(f"not a message: {error}") from error
        del buffer[:end]
        return message


def requests() -> Unpacker[Request]:
    """What a daemon hears."""
    return Unpacker(msgspec.msgpack.Decoder(Request))


def replies() -> Unpacker[Reply]:
    """What a client hears."""
    return Unpacker(msgspec.msgpack.Decoder(Reply))
