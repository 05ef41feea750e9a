"""The host copier's calls for many pieces, compiled or not, against a loop of single moves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwise.engines import host_copy
from kvwise.engines.copying import CopyPlan
from kvwise.engines.host_copy import HostCopier

SLOTS = 48
SLOT = 64


def _spots(kind: str, count: int, step: int, seed: int) -> list[int]:
    """Slots for so many pieces: evenly spaced, the same backwards, or anywhere."""
    even = [n * step % SLOTS for n in range(count)]
    anywhere = [int(n) for n in np.random.default_rng(seed).permutation(SLOTS)[:count]]
    return {"even": even, "back": even[::-1], "any": anywhere}[kind]


spots = st.builds(
    _spots,
    st.sampled_from(["even", "back", "any"]),
    st.just(20),
    st.integers(1, 2),
    st.integers(0, 99),
)


def _copied(
    targets: list[int],
    sources: list[int],
    sizes: list[int],
    shift: int,
    *,
    store: bool,
    compiled: bool = False,
) -> tuple[list[int], list[int]]:
    """What the copier makes of pieces, and what a loop makes of them."""
    device = np.arange(SLOTS * SLOT, dtype=np.int64).astype(np.uint8)
    arena = np.zeros(SLOTS * SLOT + SLOT, dtype=np.uint8)
    expected = arena.copy()
    for target, source, size in zip(targets, sources, sizes, strict=True):
        at, start = target * SLOT + shift, source * SLOT
        expected[at : at + size] = device[start : start + size]
    here = np.array(sources) * SLOT + device.ctypes.data
    there = np.array(targets) * SLOT + arena.ctypes.data + shift
    plan = (here, there) if store else (there, here)
    whole = CopyPlan(*plan, np.array(sizes, dtype=np.int64), (0, len(sizes)))
    copier = HostCopier(compiled=compiled)
    if store:
        copier.store(whole, object())
    else:
        copier.load(whole, object(), lambda _: None)
    return arena.tolist(), expected.tolist()


ways = pytest.mark.parametrize("compiled", [True, False])


@ways
@given(spots, spots, st.integers(0, 7), st.data())
def test_pieces_land_where_a_loop_puts_them(
    compiled: bool, targets: list[int], sources: list[int], shift: int, data: st.DataObject
) -> None:
    """However pieces lie, and wherever their length changes, each ends up in its place."""
    choices = st.sampled_from([SLOT, SLOT // 2])
    one = st.builds(lambda size: [size] * 20, choices)
    sizes = data.draw(st.one_of(one, st.lists(choices, min_size=20, max_size=20)))
    store = data.draw(st.booleans())
    found, expected = _copied(targets, sources, sizes, shift, store=store, compiled=compiled)

    assert found == expected


@pytest.mark.parametrize("at_once", [1, 3, 256])
@pytest.mark.parametrize(
    ("targets", "sources"),
    [
        ("any", "even"),
        ("any", "back"),
        ("even", "any"),
        ("any", "any"),
    ],
)
def test_a_bound_on_a_call_loses_nothing(
    targets: str, sources: str, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same bytes move however many pieces one call may take."""
    monkeypatch.setattr(host_copy, "PIECES_MAX", at_once)
    places = _spots(targets, 20, 1, 1), _spots(sources, 20, 2, 2)
    found, expected = _copied(*places, [SLOT] * 20, 0, store=True)

    assert found == expected


@ways
def test_a_source_that_is_read_twice_is_served(compiled: bool) -> None:
    """One block may go to several places."""
    places = [3, 9, 4, 7, 5], [8] * 5
    found, expected = _copied(*places, [SLOT] * 5, 0, store=False, compiled=compiled)

    assert found == expected


@ways
def test_the_last_of_two_writers_wins(compiled: bool) -> None:
    """Pieces for one place are moved in the order of the plan."""
    places = [3, 9, 3, 7, 3], [1, 2, 3, 4, 5]
    found, expected = _copied(*places, [SLOT] * 5, 0, store=True, compiled=compiled)

    assert found == expected


@ways
def test_a_plan_without_copies_moves_nothing(compiled: bool) -> None:
    """An empty job is no job."""
    found, expected = _copied([], [], [], 0, store=True, compiled=compiled)

    assert found == expected


def test_pieces_of_one_object_take_few_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Evenly spaced sources and gapless targets are never moved one by one."""

    def refuse(*_: object) -> None:
        raise AssertionError("moved one by one")

    monkeypatch.setattr(host_copy, "_move_each", refuse)
    spread = _copied(_spots("any", 20, 1, 1), _spots("even", 20, 2, 0), [SLOT] * 20, 0, store=True)
    gather = _copied(_spots("even", 20, 1, 0), _spots("any", 20, 1, 3), [SLOT] * 20, 0, store=True)

    assert spread[0] == spread[1]
    assert gather[0] == gather[1]
