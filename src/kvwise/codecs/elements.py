"""What the numbers of a payload are and whose, under the name that codecs use.

The brain tells codings apart by it, so `core/elements.py` owns it; here is what is stored of it.
"""

from __future__ import annotations

from kvwise.core.elements import Elements, Kind

__all__ = ["KINDS", "Elements", "Kind"]

KINDS = tuple(Kind)
"""The number of a kind in stored bytes is its place here, so none is ever moved."""
