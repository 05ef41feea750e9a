"""The result of a bench: rows, the machine they were measured on, and how to print them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]
"""One measured line, ready for JSON: `path` or `peer` names it, numbers carry their unit."""


@dataclass(frozen=True, slots=True)
class Rows:
    """What one run of a bench found.

    Attributes:
        bench: which one.
        command: how to run it again.
        started: when, ISO 8601 in UTC.
        machine: see `bench.machine.describe`.
        rows: the measurements.
        skipped: what was not measured, and why.
        failed: what was to be measured and went wrong.
        notes: what a reader must know to take the numbers right, such as a yardstick that moved.
    """

    bench: str
    command: str
    started: str
    machine: dict[str, Any]
    rows: Sequence[Row]
    skipped: Sequence[str] = ()
    notes: Sequence[str] = ()
    failed: Sequence[str] = ()

    def to_json(self) -> str:
        """The whole as a JSON object whose `rows` are the measurements."""
        names = ("bench", "command", "started", "machine", "rows", "skipped", "notes", "failed")
        return json.dumps({name: getattr(self, name) for name in names}, indent=2, default=list)
