"""Replay: what a cache would do for a recorded trace, by the brain itself. It parses no trace."""
