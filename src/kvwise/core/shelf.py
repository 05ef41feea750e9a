"""Shelf: the copies on one tier, their states, and the only code that moves them between states.

It knows nothing of other tiers and decides nothing.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from enum import IntEnum

from kvwise.core import columns
from kvwise.core.evict import Eviction
from kvwise.core.reuse import Stay
from kvwise.core.words import TierSpec
from kvwise.errors import BugError


class State(IntEnum):
    """The life of one copy."""

    ABSENT = 0
    STORING = 1
    READY = 2
    MOVING = 3
    EVICTING = 4


MOVES = {
    (State.ABSENT, "store"): State.STORING,
    (State.ABSENT, "load"): State.MOVING,
    (State.ABSENT, "recover"): State.READY,
    (State.STORING, "finish"): State.READY,
    (State.MOVING, "finish"): State.READY,
    (State.EVICTING, "finish"): State.EVICTING,
    (State.STORING, "doom"): State.EVICTING,
    (State.READY, "doom"): State.EVICTING,
    (State.ABSENT, "doom"): State.EVICTING,
    (State.MOVING, "doom"): State.EVICTING,
    (State.STORING, "clear"): State.ABSENT,
    (State.MOVING, "clear"): State.ABSENT,
    (State.READY, "clear"): State.ABSENT,
    (State.EVICTING, "clear"): State.ABSENT,
}
"""Next state by (state, verb); whatever is not here must not happen."""

_AFTER = {
    verb: tuple(MOVES.get((state, verb)) for state in State) for verb in {verb for _, verb in MOVES}
}
"""The same by verb and by the state's number."""

READY = int(State.READY)
"""As the column has it: comparing numbers is quicker than comparing members."""


class Shelf:
    """The copies on one tier, as columns beside the index's rows."""

    def __init__(self, spec: TierSpec, policy: Eviction, stay: Stay) -> None:
        """An empty tier."""
        self.spec = spec
        self.policy = policy
        self.stay = stay
        self.state = array("B")
        self.location = array("Q")
        self.stored = array("I")
        self.kids = array("I")
        self.used_bytes = 0
        self.ready = 0
        self.free_hint_bytes: int | None = None

    def grow(self, rows: int) -> None:
        """Give every row up to `rows` a place in the columns."""
        more = rows - len(self.state)
        for column in (self.state, self.location, self.stored, self.kids):
            column.frombytes(bytes(column.itemsize * more))

    def move(self, row: int, verb: str) -> int:
        """Change the state of a copy by the table; returns the state it had.

        Raises:
            BugError: the table has no such move.
        """
        before = self.state[row]
        self.move_all((row,), verb)
        return before

    def move_all(self, rows: Sequence[int], verb: str) -> None:
        """Change the states of different copies by the table.

        Raises:
            BugError: the table has no such move for one of them; those before it have changed.
        """
        state, afters, more = self.state, _AFTER[verb], 0
        found = {*map(state.__getitem__, rows)}
        if len(found) == 1:
            before = found.pop()
            after = afters[before]
            if after is not None:
                for row in rows:
                    state[row] = after
                self.ready += len(rows) * ((after == READY) - (before == READY))
                return
        for row in rows:
            before = state[row]
            after = afters[before]
            if after is None:
                name = State(before).name
                raise BugError(f"{self.spec.name}: cannot {verb} row {row} in state {name}")
            state[row] = after
            more += (after == READY) - (before == READY)
        self.ready += more

    def recover(self, rows: array[int], locations: array[int], stored_bytes: array[int]) -> None:
        """Many copies are found at once, as `move` would have it for each.

        Raises:
            BugError: one of them is there already.
        """
        if not columns.all_are(self.state, rows, State.ABSENT):
            raise BugError(f"{self.spec.name}: cannot recover what is there")
        columns.fill(self.state, rows, MOVES[State.ABSENT, "recover"])
        columns.spread(self.location, rows, locations)
        columns.spread(self.stored, rows, columns.divide(stored_bytes, self.spec.unit_bytes))
        self.ready += len(rows)
        self.account(columns.total(stored_bytes))

    def account(self, delta_bytes: int) -> None:
        """The tier holds `delta_bytes` more, and its filesystem has as many fewer."""
        self.used_bytes += delta_bytes
        if self.free_hint_bytes is not None:
            self.free_hint_bytes -= delta_bytes

    def room_bytes(self) -> int:
        """Bytes that may be written before the cap or the filesystem's own limit."""
        room = self.spec.capacity_bytes - self.used_bytes
        return room if self.free_hint_bytes is None else min(room, self.free_hint_bytes)

    def size_bytes(self) -> int:
        """Bytes of the columns."""
        columns = (self.state, self.location, self.stored, self.kids)
        return sum(c.itemsize * len(c) for c in columns)
