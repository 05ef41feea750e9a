"""The reference codec keeps the promises it is used to prove. It is not for production."""

from __future__ import annotations

from kvwise.codecs.base import Codec
from kvwise.testing.codecs import CodecSuite, Deflate


class TestDeflate(CodecSuite):
    """The suite that every codec inherits."""

    def codec(self) -> Codec:
        """The codec under test."""
        return Deflate()
