"""kvwise: KV-cache offloading for LLM engines that decides, measures and explains.

This package root owns the version and nothing else; importing it starts nothing and reads nothing.
"""

from __future__ import annotations

__version__ = "0.1.0"
