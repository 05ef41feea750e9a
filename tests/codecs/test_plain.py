"""The plain codec keeps the codec's promises. Nothing is said here about media."""

from __future__ import annotations

import pytest

from kvwise.codecs.base import Codec
from kvwise.codecs.plain import PLAIN
from kvwise.errors import FrameError
from kvwise.testing.codecs import CodecSuite, pieces_of


class TestPlain(CodecSuite):
    """The suite that every codec inherits."""

    def codec(self) -> Codec:
        """The codec under test."""
        return PLAIN


def test_encoding_copies_nothing() -> None:
    """The stored bytes are the payload's own memory."""
    payload = pieces_of(b"kv" * 5000)

    assert PLAIN.encode(payload) is payload


def test_wrong_size_is_refused() -> None:
    """Bytes of another size are not a payload."""
    with pytest.raises(FrameError, match="5 plain bytes"):
        PLAIN.decode(pieces_of(b"12345"), pieces_of(b"1234"))
