"""The reference tier passes the suite it is the reference for. No other tier is looked at."""

from __future__ import annotations

from pathlib import Path

from kvwise.testing.memory import Shelf
from kvwise.testing.tiers import Medium, VerifyingTierSuite


class TestMemory(VerifyingTierSuite):
    """The suite that every tier inherits."""

    def medium(self, home: Path) -> Medium:
        """A fresh shelf."""
        return Shelf()
