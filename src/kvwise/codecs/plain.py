"""The plain codec: stored bytes are the payload bytes. It copies nothing and changes nothing."""

from __future__ import annotations

from kvwise.codecs.base import Buffers, total_bytes
from kvwise.errors import FrameError


class Plain:
    """Keeps the payload as it is; readers fetch straight into the payload's memory."""

    name = "plain"
    id = 0
    lossless = True

    def encode(self, payload: Buffers) -> Buffers:
        """The payload itself."""
        return payload

    def decode(self, stored: Buffers, payload: Buffers) -> None:
        """Copy, unless the bytes were read in place."""
        if stored is payload:
            return
        if total_bytes(stored) != total_bytes(payload):
            raise FrameError(
                f"{total_bytes(stored)} plain bytes for a payload of {total_bytes(payload)}"
            )
        joined = b"".join(stored)
        start = 0
        for piece in payload:
            piece[:] = joined[start : start + piece.nbytes]
            start += piece.nbytes


PLAIN = Plain()
