"""What is restored past the cache is what is restored in it, wherever either is chosen."""

from __future__ import annotations

import numpy as np
import pytest

from kvwise.codecs.base import scratch
from kvwise.codecs.elements import Kind
from kvwise.codecs.exponent import SEGMENT_BITS, Exponent
from kvwise.codecs.exponent_stream import ELEMENTS_PER_ESCAPE, LINE, can_stream

SEGMENT = 1 << SEGMENT_BITS
FEW = SEGMENT // ELEMENTS_PER_ESCAPE
"""The most beyond the window for which a segment is streamed."""


def segments(beyond: int, count: int) -> bytes:
    """Numbers of both signs and all mantissas, so many of each segment far from all others."""
    chance = np.random.default_rng(beyond)
    near = chance.integers(120, 128, (-(-count // SEGMENT), SEGMENT))
    for segment in near:
        segment[chance.choice(SEGMENT // 2, beyond, replace=False)] = 3
    words = chance.integers(0, 1 << 16, near.shape) & 0x807F | near << 7
    return words.astype(np.uint16).tobytes()[: 2 * count]


@pytest.mark.parametrize("offset", [0, 8])
@pytest.mark.parametrize("beyond", [0, 1, FEW, FEW + 1])
def test_both_ways_restore_every_bit(beyond: int, offset: int) -> None:
    """Whole segments and shorter last ones; on a line's border or not; few escapes or more."""
    codec = Exponent("fixed", Kind.BF16)
    for count in (3 * SEGMENT, 2 * SEGMENT + SEGMENT // 2, SEGMENT + SEGMENT // 2 + 64 * 5 + 3):
        data = segments(beyond, count)
        payload, target = scratch(len(data)), scratch(len(data) + LINE)[offset:][: len(data)]
        payload[:] = data
        stored = codec.encode([payload])

        assert stored[0] is not payload
        codec.decode(stored, [target])
        assert target == data


def test_which_way_is_chosen() -> None:
    """The control: of the cases above some are streamed, and others are not."""
    words = np.frombuffer(scratch(2 * SEGMENT + LINE), np.uint64)
    whole, aside = words[: SEGMENT // 4], words[1 : 1 + SEGMENT // 4]
    codes = np.empty(SEGMENT // 16, np.uint64)

    assert can_stream(codes, whole, FEW)
    assert not can_stream(codes, whole, FEW + 1)
    assert not can_stream(codes, aside, 0)
    assert not can_stream(codes[:20], whole[:80], 0)
