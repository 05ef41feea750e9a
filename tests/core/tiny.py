"""A tiny cache for tests that go through the brain step by step. Random worlds are in tests/sim."""

from __future__ import annotations

from kvwise.core.layout import Group, GroupKind, Layout
from kvwise.core.words import Namespace, TierSpec
from kvwise.core.world import BrainConfig

PAGE = 4096
CHUNK = 16
LAYOUT = Layout(16, CHUNK, (Group(GroupKind.FULL, (4096, 2048)),))
SPACE = Namespace(b"s" * 16, "tiny", LAYOUT, 1e-3)


def config(pages: int = 40, disk_objects: int = 30, **more: object) -> BrainConfig:
    """A brain with a small arena and a small disk."""
    tiers = (
        TierSpec("dram", pages * PAGE, PAGE, 0, 1e10, 0.0),
        TierSpec("disk", disk_objects * 12288, 4096, 4096, 1e9, 1e-4),
    )
    return BrainConfig(page_bytes=PAGE, tiers=tiers, queue_bytes=200_000, **more)  # type: ignore[arg-type]
