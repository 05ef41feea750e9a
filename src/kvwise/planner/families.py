"""Families of requests: prompts that share more than what everybody has. It draws none of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from kvwise.sim.trace.records import Request

COMMON = 0.1
"""Beginnings that more than this share of the requests have say nothing of who belongs together."""


def family_of_each(requests: Sequence[Request]) -> list[int]:
    """For each request, which has blocks, the block that those who belong to it share."""
    longest = max((len(request.blocks) for request in requests), default=0)
    found: list[int] = []
    for depth in range(longest):
        found = [request.blocks[min(depth, len(request.blocks) - 1)] for request in requests]
        if max(Counter(found).values()) <= COMMON * len(requests):
            break
    return found
