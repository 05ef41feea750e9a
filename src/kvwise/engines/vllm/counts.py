"""Counts: what the connector did since it was last asked, by name and label. Numbers only."""

from __future__ import annotations

SEPARATOR = "/"
"""Between a counter's name and its label in the flat dictionary that vLLM carries."""

COUNTERS: dict[str, tuple[str, str]] = {
    "decisions": ("why", "Requests by what was decided about loading, and why"),
    "loaded_tokens": ("tier", "Prompt tokens that were loaded instead of computed"),
    "loaded_bytes": ("", "Bytes copied from the arena to the device"),
    "load_seconds": ("", "Seconds from the start of loads to their last byte, added up"),
    "failed_loads": ("why", "Loads that ended before everything was on the device"),
    "stored_tokens": ("", "Tokens whose KV was stored"),
    "stored_bytes": ("", "Bytes copied from the device to the arena"),
    "discarded_stores": ("why", "Stores whose bytes were not believed"),
    "saved_seconds": ("", "Seconds that loads took less than computing would have, estimated"),
    "lost_seconds": ("", "Seconds that loads took more than computing would have, estimated"),
    "held_seconds": ("by", "Seconds that the engine waited for kvwise's copies or answers"),
    "unanswered": ("verb", "Questions that the cache did not answer in time"),
}
"""Every counter: the name of its label, if it has one, and what it counts."""


class Counts:
    """A bag of counters. Values never go down, and reading empties it."""

    def __init__(self) -> None:
        """All zero."""
        self._values: dict[str, float] = {}

    def add(self, name: str, value: float = 1, label: str = "") -> None:
        """Count; what is not positive is not counted."""
        if value > 0:
            key = f"{name}{SEPARATOR}{label}" if label else name
            self._values[key] = self._values.get(key, 0) + value

    def take(self) -> dict[str, float]:
        """Everything since the last call."""
        values, self._values = self._values, {}
        return values
