"""Deferred writes: bounded, first in first out, and each key once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwise.core.queue import DeferredWrites


@given(st.lists(st.one_of(st.integers(0, 20), st.none()), max_size=80))
def test_against_a_list(moves: list[int | None]) -> None:
    """Pushes (a number) and pops (None) agree with a plain list, and the bound holds."""
    queue = DeferredWrites(100)
    model: list[bytes] = []
    for move in moves:
        if move is None:
            if model:
                assert queue.front() == model[0]
                assert queue.pop() == model.pop(0)
            continue
        key = bytes([move])
        fits = key in model or (len(model) + 1) * 10 <= 100
        assert queue.push(key, 10) is fits
        if fits and key not in model:
            model.append(key)
        assert (key in queue) == (key in model)
        assert len(queue) == len(model)
        assert queue.waiting_bytes == 10 * len(model) <= queue.bytes_max


def test_empty() -> None:
    """Nothing to take from an empty queue."""
    with pytest.raises(IndexError):
        DeferredWrites(10).pop()
