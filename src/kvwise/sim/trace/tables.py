"""Reads CSV tables of arrivals and lengths: azure and burstgpt. They tell nothing of blocks.

Columns are found by the names in the header, so more of them and another order do no harm.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import NoReturn

from kvwise.sim.trace.assembly import NOTHING, Assembly, Place
from kvwise.sim.trace.records import NO_SESSION, Request
from kvwise.sim.trace.source import TIME_S_MAX, Source, shown
from kvwise.units import NS_PER_S

AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
BURST_COLUMNS = ("Timestamp", "Model", "Request tokens", "Response tokens")
BURST_SESSION = "Session ID"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DATE = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)?")
_NUMBER = re.compile(r"(\d{1,10})(?:\.(\d{1,9}))?")


class _Row:
    """A row of a table, and where it is."""

    def __init__(self, cells: dict[str, str], at: Place) -> None:
        """Cells by the name of their column."""
        self.at = at
        self._cells = cells

    def text(self, column: str) -> str:
        """What stands in a column, empty where there is none."""
        return self._cells.get(column, "").strip()

    def refuse(self, column: str, expected: str) -> NoReturn:
        """Refuse what stands in a column."""
        self.at.source.refuse(
            f"field {column}: {shown(self.text(column))} is not {expected}", self.at.line
        )

    def ns(self, column: str) -> int:
        """Seconds, as nanoseconds."""
        found = _NUMBER.fullmatch(self.text(column))
        if found is None or int(found[1]) > TIME_S_MAX:
            self.refuse(column, "a time in seconds")
        return int(found[1]) * NS_PER_S + int((found[2] or "0").ljust(9, "0"))

    def tokens(self, column: str) -> int:
        """A number of tokens; some programs write whole numbers with a point."""
        found = _NUMBER.fullmatch(self.text(column))
        if found is None or int(found[2] or "0"):
            self.refuse(column, "a number of tokens")
        return int(found[1])

    def date_ns(self, column: str) -> int:
        """A date and time, as nanoseconds since 1970; without a zone it is taken as UTC."""
        found = _DATE.fullmatch(self.text(column))
        if found is None:
            self.refuse(column, "a date and time")
        try:
            moment = datetime.fromisoformat(f"{found[1]}T{found[2]}{found[4] or '+00:00'}")
        except ValueError:
            self.refuse(column, "a date and time")
        whole_s = (moment - EPOCH) // timedelta(seconds=1)
        return whole_s * NS_PER_S + int((found[3] or "0").ljust(9, "0"))


def read_azure(sources: Sequence[Source], into: Assembly) -> None:
    """Read arrivals by date; the trace starts with the first of them."""
    when, input_tokens, output_tokens = AZURE_COLUMNS
    rows = [
        (row.date_ns(when), row.tokens(input_tokens), row.tokens(output_tokens), row.at)
        for source in sources
        for row in _rows(source, AZURE_COLUMNS)
    ]
    start_ns = min((row[0] for row in rows), default=0)
    for at_ns, asked, answered, at in rows:
        into.add(Request(at_ns - start_ns, asked, answered, NOTHING), at)


def read_burstgpt(sources: Sequence[Source], into: Assembly) -> None:
    """Read arrivals in seconds, with models and, in newer files, sessions."""
    when, model, input_tokens, output_tokens = BURST_COLUMNS
    for number, source in enumerate(sources):
        for row in _rows(source, BURST_COLUMNS):
            name = row.text(BURST_SESSION)
            session = into.session((number, name), name) if name else NO_SESSION
            request = Request(
                arrival_ns=row.ns(when),
                input_tokens=row.tokens(input_tokens),
                output_tokens=row.tokens(output_tokens),
                blocks=NOTHING,
                session=session,
                turn=into.next_turn(session),
                model=row.text(model),
            )
            into.add(request, row.at)


def cells(source: Source, line: int, text: bytes) -> list[str]:
    """One line of a table."""
    try:
        return next(csv.reader([text.decode("utf-8-sig")], strict=True), [])
    except (csv.Error, UnicodeDecodeError) as error:
        source.refuse(f"not a line of a table: {error}", line)


def _rows(source: Source, needed: Sequence[str]) -> Iterator[_Row]:
    """The rows of a table that has at least the columns that are needed."""
    header: list[str] = []
    for line, text in source.lines():
        row = cells(source, line, text)
        if not header:
            header = [name.strip() for name in row]
            for column in needed:
                if column not in header:
                    source.refuse(f"there is no column {column}", line)
        elif len(row) != len(header):
            source.refuse(f"{len(row)} fields under {len(header)} columns", line)
        else:
            yield _Row(dict(zip(header, row, strict=True)), Place(source, line))
