"""What the numbers of a payload are and whose, under the name that codecs use.

The brain tells codings apart by it, so `core/elements.py` owns it; nothing is defined here.
"""

from __future__ import annotations

from kvwise.core.elements import Elements, Kind

__all__ = ["Elements", "Kind"]
