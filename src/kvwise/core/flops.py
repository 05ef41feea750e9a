"""Flops: what computing and moving a token's KV costs on paper. Pure arithmetic, nothing measured.

Computing tokens p0..p1 of a prompt takes F * (p1 - p0) FLOP for the weights they pass, and
A * pairs for attention, one pair for each token and each one it attends to. Their KV takes B bytes
a token. From these three numbers of a model follow all rules of thumb about reload and recompute;
the engine's own measured seconds replace them as soon as there are any.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelCost:
    """What a model costs.

    Attributes:
        token_flops: F, for each token: two for each weight that it passes.
        pair_flops: A, for each pair of a token and one it attends to, over all layers.
        kv_bytes: B, for each token, over all layers and ranks.
    """

    token_flops: float
    pair_flops: float
    kv_bytes: float

    @property
    def pair_tokens(self) -> float:
        """How many tokens' share of the weights one pair is worth."""
        return self.pair_flops / self.token_flops


def grouped_kv_bytes(layers: int, kv_heads: int, head_dim: int, element_bytes: float) -> float:
    """KV bytes of a token where query heads share keys and values in groups."""
    return 2 * layers * kv_heads * head_dim * element_bytes


def latent_kv_bytes(layers: int, latent_dim: int, rope_dim: int, element_bytes: float) -> float:
    """KV bytes of a token where each layer keeps one latent vector."""
    return layers * (latent_dim + rope_dim) * element_bytes


def pair_flops(layers: int, heads: int, head_dim: int) -> float:
    """FLOP of one pair: a product with the key and one with the value in every query head."""
    return 4.0 * layers * heads * head_dim


def recompute_flops(model: ModelCost, p0: int, p1: int) -> float:
    """FLOP to compute tokens p0..p1 after p0 cached ones."""
    new = p1 - p0
    return model.token_flops * new + model.pair_flops * new * (p0 + new / 2)


def min_bandwidth(model: ModelCost, flops_per_s: float, p0: int, p1: int) -> float:
    """Bytes per second below which loading tokens p0..p1 takes longer than computing them."""
    return model.kv_bytes * (p1 - p0) * flops_per_s / recompute_flops(model, p0, p1)


def kappa_crit(
    model: ModelCost, bytes_per_s: float, flops_per_s: float, *, tokens: int = 0
) -> float:
    """How many times cheaper loading a token is than computing it; below 1 computing is cheaper.

    Also the ratio of cached to new tokens beyond which a request waits for transfers more than for
    computing. Without `tokens` attention is left out, with it a prefix of that length is meant.
    """
    if not tokens:
        return model.token_flops / model.kv_bytes * kappa_hardware(bytes_per_s, flops_per_s)
    return bytes_per_s / min_bandwidth(model, flops_per_s, 0, tokens)


def kappa_hardware(bytes_per_s: float, flops_per_s: float) -> float:
    """A machine's part of `kappa_crit`, in bytes per FLOP."""
    return bytes_per_s / flops_per_s


def kappa_measured(token_s: float, bytes_per_s: float, kv_bytes: float) -> float:
    """`kappa_crit` from the measured seconds of a token."""
    return token_s * bytes_per_s / kv_bytes


@dataclass(frozen=True, slots=True)
class Decoder:
    """The shape of a plain decoder.

    Attributes:
        feed_forward: inner width that a token passes, over all experts it is sent to.
    """

    layers: int
    hidden: int
    heads: int
    head_dim: int
    kv_heads: int
    feed_forward: int

    def cost(self) -> ModelCost:
        """What it costs, in elements of two bytes; embeddings are left out."""
        projections = 2 * self.hidden * self.head_dim * (self.heads + self.kv_heads)
        weights = self.layers * (projections + 3 * self.hidden * self.feed_forward)
        return ModelCost(
            token_flops=2.0 * weights,
            pair_flops=pair_flops(self.layers, self.heads, self.head_dim),
            kv_bytes=grouped_kv_bytes(self.layers, self.kv_heads, self.head_dim, 2),
        )
