"""The KV of a model, layer by layer: how many bytes a sequence takes, and what a rank holds.

Pure arithmetic; which layers a model has is read elsewhere (`planner.configs`).

    attention         heads x head_elements x b for each token, K and V together
    window, chunk     the same, for the last `window_tokens` tokens at most
    latent            one vector for all heads, so that every rank of a tensor-parallel group has it
    compressed        beside a window, one vector for every `every_tokens` tokens
    state             so many bytes for a sequence of whatever length

b is the bytes of an element. Draft layers are not counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction

from kvwise.planner.work import Work

SELECTOR_SCALE_DIMS = 128
"""One FP32 scale for so many elements of an FP8 selector key."""


class Precision(Enum):
    """How elements are kept, with the bits of each."""

    FP32 = Fraction(32)
    BF16 = Fraction(16)
    FP8 = Fraction(8)
    NVFP4 = Fraction(9, 2)

    def bytes_of(self, elements: int) -> Fraction:
        """Bytes of so many elements; NVFP4 has a scale of one byte for 16 of them."""
        return elements * self.value / 8


class Kind(Enum):
    """How the KV of a layer grows with the sequence."""

    FULL = "full attention"
    WINDOW = "sliding window"
    CHUNKED = "chunked attention"
    LATENT = "latent"
    COMPRESSED = "compressed"
    STATE = "state"
    NONE = "no KV"


@dataclass(frozen=True, slots=True)
class Precisions:
    """What each kind of KV is kept in.

    Attributes:
        kv: keys, values and latents.
        selector: keys by which sparse attention selects tokens, where a model has them apart.
        state: recurrent states that the model does not insist on keeping in FP32.
    """

    kv: Precision = Precision.BF16
    selector: Precision = Precision.FP8
    state: Precision = Precision.BF16


@dataclass(frozen=True, slots=True)
class Layer:
    """The KV of one layer.

    Attributes:
        kind: how it grows.
        heads: KV heads that ranks share among them; 1 where each rank needs all of it.
        head_elements: elements of a token in each head, K and V together.
        window_tokens: of WINDOW, CHUNKED and COMPRESSED, how many tokens are kept at most.
        selector_dim: elements of a token's selector key, kept by every rank; 0 for none.
        selector_as_kv: whether selector keys are kept in the precision of the KV.
        every_tokens: of COMPRESSED, tokens that share a vector; 0 for a window alone.
        selector_bytes: of COMPRESSED, bytes of a selector key beside each such vector.
        state_elements: elements of a sequence, kept as `Precisions.state` says.
        fp32_elements: elements of a sequence that are kept in FP32 whatever is asked for.
        bf16_elements: elements of a sequence that are kept in BF16 whatever is asked for.
    """

    kind: Kind
    heads: int = 1
    head_elements: int = 0
    window_tokens: int = 0
    selector_dim: int = 0
    selector_as_kv: bool = False
    every_tokens: int = 0
    selector_bytes: int = 0
    state_elements: int = 0
    fp32_elements: int = 0
    bf16_elements: int = 0

    def token_bytes(self, kept: Precisions) -> Fraction:
        """Bytes that one more token adds to a long sequence."""
        one = kept.kv.bytes_of(self.heads * self.head_elements)
        if self.kind in (Kind.FULL, Kind.LATENT):
            return one + self._selector(kept)
        if self.kind is Kind.COMPRESSED and self.every_tokens:
            return (one + self.selector_bytes) / self.every_tokens
        return Fraction(0)

    def fixed_bytes(self, kept: Precisions) -> Fraction:
        """Bytes of a sequence that do not grow any more once it is long."""
        one = kept.kv.bytes_of(self.heads * self.head_elements)
        return self.window_tokens * one + self._state(kept)

    def sequence_bytes(self, tokens: int, kept: Precisions) -> Fraction:
        """Bytes of a sequence of so many tokens."""
        one = kept.kv.bytes_of(self.heads * self.head_elements)
        held = min(tokens, self.window_tokens) * one + self._state(kept)
        if self.kind in (Kind.FULL, Kind.LATENT):
            held += tokens * (one + self._selector(kept))
        if self.kind is Kind.COMPRESSED and self.every_tokens:
            held += tokens // self.every_tokens * (one + self.selector_bytes)
        return held

    def of_rank(self, tensor_parallel: int) -> Layer:
        """What the rank with most of it holds when so many share the heads of this layer."""
        if self.heads == 1:
            return self
        heads = -(-self.heads // tensor_parallel)
        shares = self.heads // heads
        return Layer(
            kind=self.kind,
            heads=heads,
            head_elements=self.head_elements,
            window_tokens=self.window_tokens,
            selector_dim=self.selector_dim,
            selector_as_kv=self.selector_as_kv,
            every_tokens=self.every_tokens,
            selector_bytes=self.selector_bytes,
            state_elements=-(-self.state_elements // shares),
            fp32_elements=-(-self.fp32_elements // shares),
            bf16_elements=-(-self.bf16_elements // shares),
        )

    def _selector(self, kept: Precisions) -> Fraction:
        """Bytes of a token's selector key."""
        if self.selector_as_kv:
            return kept.kv.bytes_of(self.selector_dim)
        scales = -(-self.selector_dim // SELECTOR_SCALE_DIMS)
        scaled = kept.selector is Precision.FP8
        return kept.selector.bytes_of(self.selector_dim) + 4 * scales * scaled

    def _state(self, kept: Precisions) -> Fraction:
        """Bytes of a sequence's state."""
        return (
            kept.state.bytes_of(self.state_elements)
            + Precision.FP32.bytes_of(self.fp32_elements)
            + Precision.BF16.bytes_of(self.bf16_elements)
        )


@dataclass(frozen=True, slots=True)
class Model:
    """A model as far as its KV goes.

    Attributes:
        name: what a person calls it.
        family: its `model_type`.
        layers: every layer in order, those without KV included.
        heads, kv_heads, head_dim, hidden: what its configuration says, for people to recognise.
        context_tokens: longest sequence it was made for; 0 if it does not say.
        declared: the precision that its configuration asks to keep KV in, if it does.
        work: the work of each layer; none where it is not known.
        why_no_work: why it is not known.
        weights: of the whole model, embeddings and all experts included; 0 where not known.
        has_experts: whether tokens are sent to some of many experts.
        weights_kept: the precision that its configuration says weights are kept in, if it does.
    """

    name: str
    family: str
    layers: tuple[Layer, ...]
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    context_tokens: int = 0
    declared: Precision | None = None
    work: tuple[Work, ...] = ()
    why_no_work: str = ""
    weights: int = 0
    has_experts: bool = False
    weights_kept: Precision | None = None

    def __hash__(self) -> int:
        """Cheap, so that what is computed of a model can be remembered; equal ones agree."""
        return self.weights + self.hidden + len(self.layers)

    def token_bytes(self, kept: Precisions) -> Fraction:
        """Bytes that one more token adds to a long sequence, over all layers and ranks."""
        return _sum(layer.token_bytes(kept) for layer in self.layers)

    def fixed_bytes(self, kept: Precisions) -> Fraction:
        """Bytes of a long sequence that do not grow: windows and states."""
        return _sum(layer.fixed_bytes(kept) for layer in self.layers)

    def state_bytes(self, kept: Precisions) -> Fraction:
        """Bytes of recurrent state: what a snapshot at a kept prefix point takes."""
        states = [layer for layer in self.layers if layer.kind is Kind.STATE]
        return _sum(layer.fixed_bytes(kept) for layer in states)

    def sequence_bytes(self, tokens: int, kept: Precisions) -> Fraction:
        """Bytes of a sequence of so many tokens, over all layers."""
        return _sum(layer.sequence_bytes(tokens, kept) for layer in self.layers)

    def snapshot_tokens(self, kept: Precisions) -> int:
        """Tokens whose KV takes as much as a snapshot of the state; 0 for a model without one."""
        token_bytes = self.token_bytes(kept)
        return int(self.state_bytes(kept) / token_bytes) if token_bytes else 0

    def token_flops(self) -> float:
        """FLOP of the weights that a token passes; 0 where the work is not known."""
        return 2.0 * sum(work.weights for work in self.work)

    def recompute_flops(self, p0: int, p1: int) -> float:
        """FLOP to compute tokens p0..p1 after p0 that are there; 0 where the work is not known."""
        return sum(work.flops(p0, p1) for work in self.work)

    def of_rank(self, tensor_parallel: int, pipeline_parallel: int = 1) -> Model:
        """What the rank with the largest part holds; its work is left out.

        Pipeline stages have as equal numbers of layers as can be; the stage counts that takes most
        bytes for a sequence of 32,768 tokens in BF16.
        """
        layers = [layer.of_rank(tensor_parallel) for layer in self.layers]
        stages = _stages(layers, pipeline_parallel)
        largest = max(
            stages,
            key=lambda stage: _sum(one.sequence_bytes(32_768, Precisions()) for one in stage),
        )
        return Model(
            name=self.name,
            family=self.family,
            layers=tuple(largest),
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            hidden=self.hidden,
            context_tokens=self.context_tokens,
            declared=self.declared,
        )

    def uneven(self, tensor_parallel: int) -> str:
        """Why so many ranks cannot share the heads, with what could; empty where they can."""
        shared = max((one.heads for one in self.layers if one.kind is not Kind.STATE), default=1)

        def fits(ranks: int) -> bool:
            even = shared % ranks == 0 or ranks % shared == 0
            return not (self.heads and self.heads % ranks) and even

        if fits(tensor_parallel):
            return ""
        counts = [ranks for ranks in (1, 2, 4, 8, 16, 32, 64) if fits(ranks)]
        return (
            f"{tensor_parallel} ranks cannot share the {self.heads} heads and {shared} KV heads "
            f"of {self.name} evenly; hint: {', '.join(map(str, counts))} can"
        )

    def structure(self) -> str:
        """Its kinds of layers in words, most frequent first."""
        counts = Counter(_words(layer) for layer in self.layers if layer.kind is not Kind.NONE)
        return ", ".join(f"{count} x {words}" for words, count in counts.most_common())


def _sum(parts: Iterable[Fraction]) -> Fraction:
    return sum(parts, Fraction(0))


def _stages(layers: list[Layer], count: int) -> list[list[Layer]]:
    """Cut layers into so many stages of neighbours, the longer ones last."""
    short, longer = divmod(len(layers), count)
    stages, start = [], 0
    for stage in range(count):
        end = start + short + (stage >= count - longer)
        stages.append(layers[start:end])
        start = end
    return [stage for stage in stages if stage]


def _words(layer: Layer) -> str:
    """A layer's kind with what sets it apart."""
    words = layer.kind.value
    if layer.kind in (Kind.WINDOW, Kind.CHUNKED):
        words += f" of {layer.window_tokens:,} tokens"
    if layer.kind is Kind.COMPRESSED:
        words = f"window of {layer.window_tokens:,} tokens"
        if layer.every_tokens:
            words += f" and one vector for every {layer.every_tokens}"
    if layer.selector_dim:
        words += " with selector keys"
    return words
