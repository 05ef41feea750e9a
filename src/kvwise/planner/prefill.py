"""How long a GPU takes to compute a prompt, where nobody has measured it: a calibrated roofline.

    t = layers x (launch + experts) + exchange / (link x e_x)
        + (weights / e_w + attention / e_a + selecting / e_s) / (ranks x peak)

with BF16 peaks of one rank, and twice the activations of a layer exchanged among ranks. The seven
shares e and the two times were fitted to 100 published prefill times of eight models on five GPUs,
batch 1, between 2,048 and 131,072 tokens. Its median error there is 6 %, nine in ten are within
26 %, and the worst, a model with experts at 2,048 tokens, is off by half. What an engine measures
is always better.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvwise.errors import ConfigError
from kvwise.planner.hardware import Gpu
from kvwise.planner.shapes import Kind, Model, Precisions

ERROR_MEDIAN, ERROR_MOST = 0.06, 0.5
"""On the times that it was fitted to."""

LAUNCH_S = 0.10e-3
EXPERTS_S = 0.54e-3
"""What a layer takes beside its products, and what choosing experts adds."""

DENSE, EXPERTS = 0.76, 0.38
ATTENTION, LATENT, SPARSE = 0.59, 0.57, 0.022
SELECTING = 0.046
EXCHANGE = 0.64
"""Parts of the peak that weights, attention, selecting and exchanging reach."""

BLACKWELL = 0.82
BLACKWELL_TFLOPS = 2_000
"""GPUs with such a peak reach a smaller part of it."""


@dataclass(frozen=True, slots=True)
class Prefill:
    """A model on so many GPUs of a kind."""

    model: Model
    gpu: Gpu
    ranks: int

    def __post_init__(self) -> None:
        """Refuse what has no estimate."""
        if not self.model.work:
            raise ConfigError(
                f"{self.model.why_no_work}; hint: 'kvwise model' without --gpu shows its bytes"
            )
        require_growing_kv(self.model)

    @property
    def caution(self) -> str:
        """What a reader must know of how its GPUs exchange; empty for one, or where it is said."""
        if self.ranks == 1 or self.gpu.scale_up_gb_per_s:
            return ""
        return (
            f"Computing assumes that {self.gpu.name} exchange over their link to the host, "
            f"{self.gpu.host_link_gb_per_s:g} GB/s: nothing is said of a faster one. If they have "
            "one, prefill is quicker and a cache is worth less; hint: scale_up_gb_per_s in "
            "--hardware"
        )

    def seconds(self, tokens: int) -> float:
        """Estimated seconds to compute a prompt of so many tokens, alone."""
        work, layers = self.model.work, self.model.layers
        selecting = any(one.selector_products for one in work)
        latent = any(layer.kind is Kind.LATENT for layer in layers)
        peak = self.gpu.bf16_tflops * 1e12 * self.ranks
        if self.gpu.bf16_tflops > BLACKWELL_TFLOPS:
            peak *= BLACKWELL
        weights = self.model.token_flops() * tokens
        chosen = sum(2.0 * one.selector_products for one in work) * tokens**2 / 2
        attended = self.model.recompute_flops(0, tokens) - weights - chosen
        share = SPARSE if selecting else LATENT if latent else ATTENTION
        experts = self.model.has_experts
        each_s = LAUNCH_S + EXPERTS_S * experts
        return (
            len(layers) * each_s
            + weights / (peak * (EXPERTS if experts else DENSE))
            + attended / (peak * share)
            + chosen / (peak * SELECTING)
            + self._exchanged(tokens)
        )

    def _exchanged(self, tokens: int) -> float:
        """Seconds in which ranks add up what each has of a layer's two results."""
        if self.ranks == 1:
            return 0.0
        each_bytes = tokens * self.model.hidden * 2
        passed = 2 * each_bytes * (self.ranks - 1) / self.ranks
        rate = self.gpu.between_gb_per_s * 1e9 * EXCHANGE
        return 2 * len(self.model.layers) * passed / rate


def require_growing_kv(model: Model) -> None:
    """Refuse a model that has nothing to load.

    Raises:
        ConfigError: none of its KV grows with a prompt.
    """
    if not model.token_bytes(Precisions()):
        raise ConfigError(f"{model.name} has no KV that grows with a prompt to load")
