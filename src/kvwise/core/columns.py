"""Columns: the same simple thing done to many rows at once. The only user of numpy in this room.

It owns nothing and decides nothing: each function takes columns (arrays of machine integers) and
rows, and is a loop that the processor runs instead of the interpreter. A view of a column lives
no longer than the call that made it, since an array with a view cannot grow. No result depends on
the order in which numpy stores to repeated indices, so equal inputs give equal results anywhere.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

EMPTY = 0xFFFFFFFF
"""No row: an empty slot, a failed look-up, the parent of the first block of a chain."""

LOST = 0xFFFFFFFE
"""The parent of a block whose parent is not there."""

_U32 = np.uint32
_U64 = np.uint64
Words = NDArray[np.uint64]
Places = NDArray[np.intp]


class Shards(Protocol):
    """A hash table of rows in shards, see `table.Table`; `hi` and `lo` are the rows' keys."""

    slots: array[int]
    base: array[int]
    mask: array[int]
    hi: array[int]
    lo: array[int]


# --- the table -----------------------------------------------------------------------------------


def find(shards: Shards, keys: bytes) -> array[int]:
    """The row of each key, EMPTY where there is none."""
    return _rows(_find(shards, *_halves(keys)))


def neighbours(shards: Shards, keys: bytes, row: int) -> int:
    """How many of the keys, from the first on, are those of this row and of the rows after it."""
    hi, lo = _halves(keys)
    his, los = _view(shards.hi)[row : row + len(hi)], _view(shards.lo)[row : row + len(hi)]
    other = (his != hi[: len(his)]) | (los != lo[: len(los)])
    return int(other.argmax()) if other.any() else len(other)


def parents(shards: Shards, keys: bytes) -> array[int]:
    """The row of each parent's key: EMPTY for the root of all chains, LOST where there is none."""
    hi, lo = _halves(keys)
    found = _find(shards, hi, lo)
    found[found == EMPTY] = LOST
    found[(hi == 0) & (lo == 0)] = EMPTY
    return _rows(found)


def newcomers(shards: Shards, keys: bytes) -> array[int]:
    """Places of the keys that have no row; of equal ones only the first."""
    hi, lo = _halves(keys)
    places = np.flatnonzero(_find(shards, hi, lo) == EMPTY)
    ordered = np.sort(hi[places])
    if (ordered[1:] == ordered[:-1]).any():
        order = places[np.lexsort((places, lo[places], hi[places]))]
        again = (hi[order[1:]] == hi[order[:-1]]) & (lo[order[1:]] == lo[order[:-1]])
        places = np.sort(np.concatenate([order[:1], order[1:][~again]]))
    return _rows(places)


def insert(shards: Shards, rows: array[int]) -> None:
    """Give each row a slot. Their keys are new and different, and their shards have the room."""
    slots, left = _view(shards.slots), _view(rows)
    shard = _shard(shards, _view(shards.lo)[left])
    base, mask = _view(shards.base)[shard].view(np.intp), _view(shards.mask)[shard]
    place = _view(shards.hi)[left] & mask
    while left.size:
        at = base + place.view(np.intp)
        free = slots[at] == EMPTY
        slots[at[free]] = left[free]  # whichever of two rows stays: the other one goes on
        lost = np.flatnonzero(slots[at] != left)
        left, base, mask = left[lost], base[lost], mask[lost]
        place = (place[lost] + _U64(1)) & mask


def shards_of_keys(keys: bytes, shards: int) -> array[int]:
    """The shard of each key."""
    return _rows(_halves(keys)[1] & _U64(shards - 1))


def shards_of(shards: Shards, rows: array[int]) -> array[int]:
    """The shard of each row."""
    return _rows(_shard(shards, _view(shards.lo)[_view(rows)]))


def occupied(slots: array[int]) -> array[int]:
    """The rows in a table's slots."""
    rows = _view(slots)
    return _rows(rows[rows != EMPTY])


def _find(shards: Shards, hi: Words, lo: Words) -> NDArray[np.uint32]:
    """All keys look at the slots where they belong, and those that meet others look further."""
    if not len(shards.hi):
        return np.full(len(hi), EMPTY, _U32)
    slots, his, los = _view(shards.slots), _view(shards.hi), _view(shards.lo)
    shard = _shard(shards, lo)
    base = _view(shards.base).view(np.intp).take(shard, mode="clip")
    mask = _view(shards.mask).take(shard, mode="clip")
    place = (hi & mask).view(np.intp)
    mask = mask.view(np.intp)
    found: NDArray[np.uint32] = slots.take(base + place, mode="clip")
    left, rows = np.arange(len(hi)), found
    while left.size:
        at = rows.astype(np.intp)
        other = (his.take(at, mode="clip") != hi) | (los.take(at, mode="clip") != lo)
        on = np.flatnonzero(other & (rows != EMPTY))
        left, hi, lo, base, mask, place = left[on], hi[on], lo[on], base[on], mask[on], place[on]
        place = (place + 1) & mask
        rows = slots.take(base + place, mode="clip")
        found[left] = rows
    return found


def _shard(shards: Shards, lo: Words) -> Places:
    return (lo & _U64(len(shards.base) - 1)).view(np.intp)


# --- rows ----------------------------------------------------------------------------------------


def fill(column: array[int], rows: array[int], value: int) -> None:
    """Give the column one value in all of the rows."""
    view = _view(column)
    view[_at(rows)] = view.dtype.type(value)


def spread(column: array[int], rows: array[int], values: array[int]) -> None:
    """Give the column one value for each of the rows."""
    _view(column)[_at(rows)] = _view(values)


def spread_keys(shards: Shards, rows: array[int], keys: bytes) -> None:
    """Give the rows their keys."""
    at = _at(rows)
    _view(shards.hi)[at], _view(shards.lo)[at] = _halves(keys)


def add(column: array[int], rows: array[int], step: int) -> None:
    """Add to the column in each of the rows, which are different."""
    view = _view(column)
    view[_at(rows)] += np.array(step).astype(view.dtype)


def halve(column: array[int]) -> None:
    """Halve every value of the column."""
    view = _view(column)
    view >>= view.dtype.type(1)


def count(column: array[int], rows: array[int]) -> None:
    """Add one to the column for every time a row is named; EMPTY is nobody."""
    at, view = _view(rows), _view(column)
    np.add.at(view, at[at != EMPTY], view.dtype.type(1))


def gather(column: array[int], rows: array[int]) -> array[int]:
    """The column's values in the rows."""
    return array(column.typecode, _view(column)[_at(rows)].tobytes())


def all_are(column: array[int], rows: array[int], value: int) -> bool:
    """Whether the column has this value in every one of the rows."""
    return bool((_view(column)[_at(rows)] == value).all())


def is_chain(parent: array[int], rows: array[int]) -> bool:
    """Whether the rows are a whole chain: the first has no parent, each is the next one's."""
    chain = _view(rows)
    if EMPTY in chain:
        return False
    above = _view(parent)[_at(rows)]
    return bool((above[0] == EMPTY) & (above[1:] == chain[:-1]).all())


def those(column: array[int], rows: array[int], value: int) -> array[int]:
    """The rows in which the column has the value."""
    return _rows(_view(rows)[_view(column)[_at(rows)] == value])


def follow(after: array[int], firsts: array[int], each: int) -> list[int]:
    """Where links lead from each of the first ones on, `each` of them in all, one after another."""
    steps = [_view(firsts).astype(np.intp)]
    for _ in range(each - 1):
        steps.append(_view(after)[steps[-1]].astype(np.intp))
    found: list[int] = np.stack(steps, axis=1).ravel().tolist()
    return found


def first_with(columns: Sequence[array[int]], rows: array[int], value: int) -> bytes:
    """For each row the first column that has the value, up to a row where none has."""
    at = _at(rows)
    found = np.full(len(rows), len(columns), np.uint8)
    for number in range(len(columns) - 1, -1, -1):
        found[_view(columns[number])[at] == value] = number
    bad = np.flatnonzero(found == len(columns))
    return found[: bad[0] if bad.size else None].tobytes()


def candidates(state: array[int], ready: int, kids: array[int]) -> array[int]:
    """The rows in a state that have no kids."""
    return _rows(np.flatnonzero((_view(state) == ready) & (_view(kids) == 0)))


def pick(packed: bytes, size: int, places: array[int]) -> bytes:
    """The items of `size` bytes at these places."""
    items = np.frombuffer(packed, np.dtype((np.void, size)))
    return packed if len(places) == len(items) else items[_view(places)].tobytes()


def others(places: array[int], count: int) -> list[int]:
    """The numbers below `count` that are not among these."""
    rest = np.ones(count, np.bool_)
    rest[_view(places)] = False
    found: list[int] = np.flatnonzero(rest).tolist()
    return found


def numbers(first: int, count: int) -> array[int]:
    """`count` numbers from `first` on."""
    return _rows(np.arange(first, first + count, dtype=_U64))


def unpack(packed: bytes, kind: str) -> array[int]:
    """Little-endian numbers of an array's kind."""
    native = np.dtype(kind)
    return array(kind, np.frombuffer(packed, native.newbyteorder("<")).astype(native).tobytes())


def divide(sizes: array[int], unit: int) -> array[int]:
    """Sizes in whole units."""
    view = _view(sizes)
    return array(sizes.typecode, (view // view.dtype.type(unit)).tobytes())


def total(sizes: array[int]) -> int:
    """Their sum."""
    return int(_view(sizes).sum(dtype=_U64))


# --- the tree ------------------------------------------------------------------------------------


def unrooted(capacity: int, rows: array[int], above: array[int]) -> array[int]:
    """Places of the rows from which no way leads up to a root, or to a row that is not among them.

    `above` has their parents as `parents` gives them. All rows follow their ways at once, each
    round twice as far as before; what has not arrived by then goes in circles.
    """
    good, bad = capacity, capacity + 1
    up = np.full(capacity + 2, good, np.intp)
    parent = _view(above).astype(np.intp)
    parent[_view(above) == EMPTY] = good
    parent[_view(above) == LOST] = bad
    mine = _view(rows).astype(np.intp)
    up[mine], up[bad] = parent, bad
    way = mine[parent < capacity]
    for _ in range(len(mine).bit_length() + 1):
        if not way.size:
            break
        further = up[up[way]]
        up[way] = further
        way = way[further < capacity]
    return _rows(np.flatnonzero(up[mine] != good))


def link(
    tree: tuple[array[int], array[int], array[int]], rows: array[int], above: array[int]
) -> None:
    """Put rows below their parents, the last of siblings first; EMPTY is no parent.

    `tree` has the columns of first children, next and previous siblings.
    """
    child, after, before = (_view(column) for column in tree)
    some = np.flatnonzero(_view(above) != EMPTY)
    parent = _view(above)[some]
    order = np.argsort(parent, kind="stable")
    parent, row = parent[order], _view(rows)[some[order]]
    sibling = parent[1:] == parent[:-1]
    first = np.concatenate([np.ones(min(len(row), 1), np.bool_), ~sibling])
    last = np.concatenate([~sibling, np.ones(min(len(row), 1), np.bool_)])
    old = child[parent[first]]
    after[row[first]] = old
    before[old[old != EMPTY]] = row[first][old != EMPTY]
    after[row[1:][sibling]] = row[:-1][sibling]
    before[row[:-1][sibling]] = row[1:][sibling]
    before[row[last]] = EMPTY
    child[parent[last]] = row[last]


# --- forms ---------------------------------------------------------------------------------------


def _halves(keys: bytes) -> tuple[Words, Words]:
    """Both halves of joined keys."""
    both = np.frombuffer(keys, "<u8").astype(_U64, copy=False)
    return both[0::2], both[1::2]


def _view(column: array[int]) -> NDArray[Any]:
    """A column as numpy sees it."""
    return np.frombuffer(column, np.dtype(column.typecode))


def _at(rows: array[int]) -> slice | Places:
    """Rows as an index: a slice where they are neighbours, which is many times quicker."""
    view, count = _view(rows), len(rows)
    if count and rows[-1] - rows[0] == count - 1 and (view[1:] - view[:-1] == 1).all():
        return slice(rows[0], rows[0] + count)
    return view.astype(np.intp)


def _rows(found: NDArray[Any]) -> array[int]:
    """Row numbers as the rest of the room takes them."""
    return array("I", found.astype(_U32, copy=False).tobytes())
