"""The work of computing tokens, layer by layer: products with weights, and those of attention."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Work:
    """The work of one layer; each product is two FLOP.

    Attributes:
        weights: products with weights for each token.
        pair_products: for each token and one that it attends to, over all query heads.
        span_tokens: most tokens that a token attends to; 0 if there is no limit.
        selector_products: for each token and each one before it, to select what it attends to.
    """

    weights: int
    pair_products: int = 0
    span_tokens: int = 0
    selector_products: int = 0

    def flops(self, p0: int, p1: int) -> float:
        """FLOP to compute tokens p0..p1 after p0 that are there."""
        return 2.0 * (
            self.weights * (p1 - p0)
            + self.pair_products * pairs(p0, p1, self.span_tokens)
            + self.selector_products * pairs(p0, p1)
        )


def pairs(p0: int, p1: int, span_tokens: int = 0) -> float:
    """Pairs of tokens p0..p1 with those before them, at most `span_tokens` for each unless 0."""
    within = min(max(span_tokens, p0), p1) if span_tokens else p1
    grown = (within - p0) * (within + p0) / 2
    return grown + (p1 - within) * span_tokens
