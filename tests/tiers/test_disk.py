"""The disk tier on real files. Damage is done from outside, through the files themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvwise.testing.codecs import Deflate
from kvwise.testing.tiers import Medium, VerifyingTierSuite
from kvwise.tiers.directio import Io
from tests.tiers.media import Files


@pytest.mark.pain("W2", "W13", "C7", "D1", "D9")
class TestDirect(VerifyingTierSuite):
    """Direct I/O where the test directory takes it."""

    def medium(self, home: Path) -> Medium:
        """One directory."""
        return Files((home,))


class TestBuffered(VerifyingTierSuite):
    """The fallback through the page cache."""

    def medium(self, home: Path) -> Medium:
        """One directory."""
        return Files((home,), io=Io.BUFFERED)


class TestThreeDirectories(VerifyingTierSuite):
    """Objects striped over three directories."""

    def medium(self, home: Path) -> Medium:
        """Three directories on one filesystem."""
        return Files((home / "a", home / "b", home / "c"))


class TestCodec(VerifyingTierSuite):
    """A codec that cannot shrink the suite's payloads falls back to plain for each of them."""

    def medium(self, home: Path) -> Medium:
        """One directory, written through the reference codec."""
        return Files((home,), codec=Deflate())
