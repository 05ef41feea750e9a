"""A refrain: a warning that would be repeated for each of a million objects, said now and then.

It counts what it leaves out, and decides nothing.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass

from kvwise.live.clock import now_ns
from kvwise.units import NS_PER_S

EVERY_S = 10.0
"""How often a warning of one kind is said again; in between it is counted."""

KINDS_MAX = 64
"""Kinds that are told apart; with more of them, all are said."""


@dataclass(slots=True)
class _Verse:
    """One kind of warning: its last words, when they were said, and how many came since."""

    text: str
    said_ns: int
    unsaid: int = 0


class Refrain:
    """Warnings by kind. The first of a kind is said at once; thread-safe."""

    def __init__(self, log: logging.Logger) -> None:
        """Nothing was said yet."""
        self._log = log
        self._lock = threading.Lock()
        self._verses: dict[object, _Verse] = {}

    def warn(self, kind: object, text: str) -> None:
        """Say it, or count it when the same kind was said a moment ago."""
        now = now_ns()
        with self._lock:
            verse = self._verses.get(kind)
            if verse is not None:
                verse.text = text
                verse.unsaid += 1
                return
            if len(self._verses) < KINDS_MAX:
                self._verses[kind] = _Verse(text, now)
        self._log.warning("%s", text)

    def look(self) -> None:
        """Say what was counted and is due; called now and then."""
        self._tell(now_ns() - int(EVERY_S * NS_PER_S))

    def close(self) -> None:
        """Say everything that was counted."""
        self._tell(now_ns())

    def _tell(self, before_ns: int) -> None:
        """Say what was counted since it was said last, if that was before a moment."""
        lines = []
        with self._lock:
            for kind, verse in list(self._verses.items()):
                if verse.said_ns > before_ns:
                    continue
                if verse.unsaid:
                    lines.append((verse.text, verse.unsaid))
                    verse.said_ns, verse.unsaid = now_ns(), 0
                else:
                    del self._verses[kind]
        for text, count in lines:
            self._log.warning("%s (the last of %d like it)", text, count)
