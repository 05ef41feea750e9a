"""Pieces of memory seen as one array of bytes, and bytes spread over pieces. It allocates little.

Loops over elements want whole words in a row; a payload may lie in several pieces.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvwise.codecs.base import Buffers

_ALIGNED_BYTES = 8


def whole(buffers: Buffers) -> NDArray[np.uint8] | None:
    """The pieces as one array of whole words, if they lie like that."""
    if not buffers:
        return np.empty(0, np.uint8)
    if len(buffers) > 1:
        return None
    piece = np.frombuffer(buffers[0], dtype=np.uint8)
    return None if piece.ctypes.data % _ALIGNED_BYTES else piece


def joined(buffers: Buffers) -> NDArray[np.uint8]:
    """The pieces as one array of whole words, copied unless they lie like that."""
    found = whole(buffers)
    if found is not None:
        return found
    return np.concatenate([np.frombuffer(piece, dtype=np.uint8) for piece in buffers])


def spread(raw: NDArray[np.uint8], buffers: Buffers) -> None:
    """Fill pieces of memory with bytes, of which they hold just as many."""
    start = 0
    for piece in buffers:
        np.frombuffer(piece, dtype=np.uint8)[:] = raw[start : start + piece.nbytes]
        start += piece.nbytes
