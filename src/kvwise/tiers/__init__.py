"""Tiers: places that keep objects below the arena. They move and verify bytes; they never decide."""
