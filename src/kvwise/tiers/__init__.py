"""Tiers: places that keep objects below the arena. They move and verify; they never decide."""
