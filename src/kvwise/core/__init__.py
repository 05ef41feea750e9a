"""Core: the pure room where everything is decided. It does no I/O and reads no clock."""
