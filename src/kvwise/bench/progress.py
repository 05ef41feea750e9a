"""Owns what a person sees while something long is under way. It measures and decides nothing."""

from __future__ import annotations

import time
from typing import Protocol, Self

from rich.console import Console
from rich.markup import escape
from rich.status import Status

_PLAIN_EVERY_S = 15.0


class Progress(Protocol):
    """Where long work says what it is doing."""

    def now(self, text: str) -> None:
        """Show what is happening at this moment, in place of what was shown before."""
        ...

    def done(self, text: str) -> None:
        """Report a finished step in a line that stays."""
        ...

    def note(self, text: str) -> None:
        """Say something that a person should know before it happens, in a line that stays."""
        ...


class Terminal:
    """Progress on a terminal: a spinner with the time it has taken; plain lines in a log file."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started_s = time.monotonic()
        self._printed_s = 0.0
        self._status: Status | None = console.status("") if console.is_terminal else None

    def __enter__(self) -> Self:
        if self._status:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status:
            self._status.stop()

    def now(self, text: str) -> None:
        """Show what is happening at this moment; in a log file only now and then."""
        elapsed_s = time.monotonic() - self._started_s
        if self._status:
            self._status.update(f"{escape(text)} [dim]({elapsed_s:.0f} s)[/dim]")
        elif elapsed_s - self._printed_s >= _PLAIN_EVERY_S:
            self._printed_s = elapsed_s
            self._line(f"  ... {escape(text)} ({elapsed_s:.0f} s)")

    def done(self, text: str) -> None:
        """Report a finished step in a line that stays."""
        self._line(f"[green]ok[/green] {escape(text)}")

    def note(self, text: str) -> None:
        """Say something that a person should know before it happens, in a line that stays."""
        self._line(f"   {escape(text)}")

    def _line(self, markup: str) -> None:
        """Print one line, not broken at a terminal's width: it may hold a path to copy."""
        self._console.print(markup, highlight=False, soft_wrap=True)


class Steps:
    """Progress of work in a known number of steps: it says which of them is under way."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress = progress
        self._total = total
        self._at = 0

    def next(self, title: str) -> None:
        """Begin the next step."""
        self._at += 1
        self._progress.note(f"step {self._at} of {self._total}: {title}")

    def now(self, text: str) -> None:
        """Show what is happening at this moment, and in which step."""
        self._progress.now(f"{self._at} of {self._total}: {text}")

    def done(self, text: str) -> None:
        """Report something finished in a line that stays."""
        self._progress.done(text)

    def note(self, text: str) -> None:
        """Say something in a line that stays."""
        self._progress.note(text)
