"""Byte sizes and durations: parsing and printing. It knows nothing of caches."""

from __future__ import annotations

import re

KIB = 1024
MIB = 1024**2
GIB = 1024**3
NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000

_SIZE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([KMGTP]i?B|B)?\s*$", re.IGNORECASE)
_SCALE = {
    "b": 1,
    "kib": KIB,
    "mib": MIB,
    "gib": GIB,
    "tib": 1024**4,
    "pib": 1024**5,
    "kb": 1000,
    "mb": 1000**2,
    "gb": 1000**3,
    "tb": 1000**4,
    "pb": 1000**5,
}


def parse_size(text: str | int) -> int:
    """Bytes in `text`: an integer, or a number with B, KB, KiB and so on up to PB and PiB.

    Raises:
        ValueError: the text is not a size, or is negative.
    """
    if isinstance(text, int):
        if text < 0:
            raise ValueError(f"a size cannot be negative: {text}")
        return text
    found = _SIZE.match(text)
    if not found:
        raise ValueError(f"not a size: {text!r} (write 512GB, 4GiB or, in bytes, a number alone)")
    return int(float(found[1]) * _SCALE[(found[2] or "B").lower()])


def format_size(size_bytes: float) -> str:
    """`size_bytes` with a binary unit and at most one decimal: 1536 is 1.5 KiB."""
    value, units = float(size_bytes), ["B", "KiB", "MiB", "GiB", "TiB"]
    while abs(value) >= 1024 and len(units) > 1:
        value /= 1024
        units.pop(0)
    return f"{value:.0f} {units[0]}" if units[0] == "B" else f"{value:.1f} {units[0]}"


def format_seconds(seconds: float) -> str:
    """`seconds` as 12 us, 3.4 ms or 5.6 s, whichever reads best."""
    if abs(seconds) < 1e-3:
        return f"{seconds * 1e6:.0f} us"
    if abs(seconds) < 1:
        return f"{seconds * 1e3:.1f} ms"
    return f"{seconds:.2f} s"


def round_up(value: int, unit: int) -> int:
    """The least multiple of `unit` that is at least `value`."""
    return -(-value // unit) * unit
