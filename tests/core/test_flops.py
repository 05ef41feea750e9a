"""Flops: published numbers and worked examples come out of the formulas."""

from __future__ import annotations

import pytest

from kvwise.core.flops import (
    Decoder,
    ModelCost,
    grouped_kv_bytes,
    kappa_crit,
    kappa_hardware,
    kappa_measured,
    latent_kv_bytes,
    min_bandwidth,
    pair_flops,
    recompute_flops,
)

KV_BYTES = {
    "Llama-3.1-8B": grouped_kv_bytes(32, 8, 128, 2),
    "Llama-3.1-70B": grouped_kv_bytes(80, 8, 128, 2),
    "Llama-3.1-405B": grouped_kv_bytes(126, 8, 128, 2),
    "Qwen3-30B-A3B": grouped_kv_bytes(48, 4, 128, 2),
    "Qwen3-235B-A22B": grouped_kv_bytes(94, 4, 128, 2),
    "DeepSeek-V3": latent_kv_bytes(61, 512, 64, 2),
}
ACTIVE = dict(zip(KV_BYTES, (8.03e9, 70.6e9, 405e9, 3.3e9, 22e9, 37e9), strict=True))
MACHINES = ((64e9, 1.88e15), (15e9, 1.88e15), (55e9, 495e12), (15e9, 495e12), (6.4e9, 495e12))
TABLE = {
    "Llama-3.1-8B": (131072, 0.1225, (4.17, 0.98, 13.6, 3.71, 1.58), 4.04),
    "Llama-3.1-70B": (327680, 0.4309, (14.67, 3.44, 47.9, 13.1, 5.57), 1.15),
    "Llama-3.1-405B": (516096, 1.5695, (53.4, 12.5, 174, 47.6, 20.3), 0.315),
    "Qwen3-30B-A3B": (98304, 0.0671, (2.29, 0.54, 7.46, 2.03, 0.87), 7.37),
    "Qwen3-235B-A22B": (192512, 0.2286, (7.78, 1.82, 25.4, 6.93, 2.96), 2.17),
    "DeepSeek-V3": (70272, 1.0531, (35.9, 8.40, 117, 31.9, 13.6), 0.470),
}


def model(name: str) -> ModelCost:
    """A model of the table, attention left out."""
    return ModelCost(2 * ACTIVE[name], 0.0, KV_BYTES[name])


@pytest.mark.parametrize("name", TABLE)
def test_the_table_of_models_and_links(name: str) -> None:
    """KV bytes are exact; every ratio is as published, to what its digits say."""
    kv_bytes, ratio, kappas, least_gb_per_s = TABLE[name]
    cost = model(name)
    assert cost.kv_bytes == kv_bytes
    assert cost.token_flops / cost.kv_bytes == pytest.approx(ratio * 1e6, rel=0.01)
    for (rate, flops), expected in zip(MACHINES, kappas, strict=True):
        assert kappa_crit(cost, rate, flops) == pytest.approx(expected, rel=0.01)
    assert min_bandwidth(cost, 495e12, 0, 1) == pytest.approx(least_gb_per_s * 1e9, rel=0.01)


@pytest.mark.parametrize(
    ("name", "rate", "published", "share"),
    [
        ("Llama-3.1-70B", 64e9, 14.3, 0.03),
        ("Llama-3.1-70B", 15e9, 3.3, 0.05),
        ("Qwen3-235B-A22B", 64e9, 7.8, 0.03),
        ("Qwen3-235B-A22B", 15e9, 1.8, 0.03),
    ],
)
def test_published_ratios(name: str, rate: float, published: float, share: float) -> None:
    """What was published from rounded inputs is near what the exact ones give."""
    assert kappa_crit(model(name), rate, 1.88e15) == pytest.approx(published, rel=share)


@pytest.mark.parametrize(("flops", "least_gb_per_s"), [(8 * 312e12, 5.86), (8 * 989e12, 18.57)])
def test_reuse_needs_so_much_bandwidth(flops: float, least_gb_per_s: float) -> None:
    """The inequality with attention kept, for 8,192 tokens of a 70B model on eight devices.

    It counts 22 d^2 for the weights of a layer, and pairs without the causal half.
    """
    layers, wide = 80, 8192
    cost = ModelCost(
        token_flops=layers * 22.0 * wide**2,
        pair_flops=2 * layers * 4.0 * wide,
        kv_bytes=layers * 2 * wide / 8 * 2,
    )
    assert min_bandwidth(cost, flops, 0, 8192) == pytest.approx(least_gb_per_s * 1e9, rel=1e-3)
    assert kappa_crit(cost, least_gb_per_s * 1e9, flops, tokens=8192) == pytest.approx(1, rel=1e-3)


@pytest.mark.parametrize(
    ("tflops", "older", "newer"), [(595, 53.8, 107.6), (1882, 17.0, 34.0), (4741, 6.75, 13.5)]
)
def test_a_machines_part(tflops: float, older: float, newer: float) -> None:
    """Bytes per FLOP of three generations on two links."""
    assert kappa_hardware(32e9, tflops * 1e12) == pytest.approx(older * 1e-6, rel=0.01)
    assert kappa_hardware(64e9, tflops * 1e12) == pytest.approx(newer * 1e-6, rel=0.01)


def test_measured_seconds_give_the_same_ratio() -> None:
    """A 70B model on eight devices: the host link is far beyond break-even, one drive just so."""
    assert kappa_measured(42e-6, 8 * 55e9, 327680) == pytest.approx(56, rel=0.01)
    assert kappa_measured(42e-6, 14e9, 327680) == pytest.approx(1.8, rel=0.01)


def test_parts_add_up() -> None:
    """Computing a prompt in two parts takes as much as in one, and later tokens are dearer."""
    cost = Decoder(80, 8192, 64, 128, kv_heads=8, feed_forward=28672).cost()
    both = recompute_flops(cost, 0, 3000) + recompute_flops(cost, 3000, 9000)
    assert both == pytest.approx(recompute_flops(cost, 0, 9000))
    assert recompute_flops(cost, 9000, 10000) > recompute_flops(cost, 0, 1000)
    assert cost.kv_bytes == KV_BYTES["Llama-3.1-70B"]
    assert cost.token_flops == pytest.approx(2 * 68.5e9, rel=0.01)
    assert cost.pair_flops == pair_flops(80, 64, 128)
    assert cost.pair_tokens == pytest.approx(1.9e-5, rel=0.05)
