"""The conformance suite notices tiers that break a promise. Each canary here must be caught."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from kvwise.codecs.frame import HEADER_BYTES
from kvwise.errors import TierError
from kvwise.testing.codecs import scatter
from kvwise.testing.memory import MemoryTier, Shelf
from kvwise.testing.tiers import Medium, VerifyingTierSuite
from kvwise.tiers.base import Buffers, Found, Placed, Record, Want


class Believing(MemoryTier):
    """Gives out whatever lies at a location."""

    def get(self, wants: Sequence[Want]) -> Iterator[tuple[int, TierError | None]]:
        for index, want in enumerate(wants):
            data = self._shelf.frames[want.location][HEADER_BYTES:].ljust(want.raw_bytes, b"?")
            scatter(data, want.buffers)
            yield index, None


class Greedy(MemoryTier):
    """Has no cap."""

    def __init__(self, shelf: Shelf, capacity_bytes: int) -> None:
        super().__init__(shelf, 1 << 40)


class Hoarding(MemoryTier):
    """Frees nothing."""

    def free(self, placed: Sequence[Placed]) -> None:
        return


class Forgetful(MemoryTier):
    """Finds nothing again after a restart."""

    def scan(self) -> Iterator[Found]:
        return iter(())


class Selfish(MemoryTier):
    """Scribbles over payloads that it was only to read."""

    def put(self, objects: Sequence[tuple[Record, Buffers]]) -> list[Placed | TierError]:
        answers = super().put(objects)
        for _, buffers in objects:
            buffers[0][0] ^= 1
        return answers


def suite_on(broken: type[MemoryTier]) -> VerifyingTierSuite:
    """The suite, run against a broken tier."""

    class Broken(Shelf):
        def open(self, capacity_bytes: int) -> MemoryTier:
            return broken(self, capacity_bytes)

    class Suite(VerifyingTierSuite):
        def medium(self, home: Path) -> Medium:
            return Broken()

    return Suite()


@pytest.mark.parametrize(
    ("broken", "test"),
    [
        (Believing, "test_wrong_key_is_corrupt"),
        (Believing, "test_wrong_namespace_is_corrupt"),
        (Believing, "test_any_damaged_byte_is_corrupt"),
        (Greedy, "test_cap_holds_at_every_step"),
        (Greedy, "test_smaller_cap_holds_after_restart"),
        (Hoarding, "test_free_gives_space_back"),
        (Hoarding, "test_freed_object_is_missing"),
        (Forgetful, "test_scan_finds_what_was_left"),
        (Selfish, "test_putting_leaves_the_payload_alone"),
    ],
)
def test_broken_tier_is_caught(broken: type[MemoryTier], test: str, tmp_path: Path) -> None:
    """A tier with one fault planted fails the test that is about that promise."""
    with pytest.raises(AssertionError):
        getattr(suite_on(broken), test)(tmp_path)
