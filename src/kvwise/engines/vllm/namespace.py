"""The namespace of an engine: every fact that changes what KV bytes mean, in a field of its own.

Two engines share objects exactly when all fields agree. A fact that cannot be found out is refused,
never guessed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvwise.core.elements import Coding
from kvwise.core.flops import Decoder
from kvwise.core.keys import namespace_digest
from kvwise.core.layout import GroupKind, Layout
from kvwise.core.words import Namespace
from kvwise.engines.identity import settings_digest, weights_digest
from kvwise.engines.vllm.orders import Facts
from kvwise.errors import EngineError

if TYPE_CHECKING:
    from vllm.config import ModelConfig, VllmConfig

LENGTH_DEPENDENT = ("longrope", "dynamic", "su")
"""Rotary embeddings whose values depend on the longest sequence that the engine allows."""


def namespace_of(
    vllm_config: VllmConfig, facts: Facts, *, generation: str = "", lossy: str = "off"
) -> Namespace:
    """The namespace that an engine reads and writes.

    Args:
        vllm_config: of the engine.
        facts: what its ranks found out, the same on all of them.
        generation: set apart from what the files say, after weights changed in a running engine.
        lossy: as `client.lossy`; what may come back changed is never found by who did not ask.

    Raises:
        EngineError: the weights cannot be identified.
    """
    coding = Coding.PLAIN if lossy == "off" else Coding(lossy)
    model, parallel = vllm_config.model_config, vllm_config.parallel_config
    cache, layout = vllm_config.cache_config, facts.layout
    settings = model.hf_config.to_dict()
    rotary = str(settings.get("rope_parameters") or settings.get("rope_scaling") or "")
    depends = any(kind in rotary for kind in LENGTH_DEPENDENT)
    fields = {
        "engine": "vllm",
        "weights": _weights(model, str(vllm_config.load_config.load_format)),
        "settings": settings_digest(settings),
        "quantization": str(model.quantization),
        "dtype": str(model.dtype),
        "kv_dtype": str(cache.cache_dtype),
        "rotary_length": str(model.max_model_len) if depends else "",
        "interior": facts.interior,
        "layout": layout.digest().hex(),
        "ranks": f"tensor parallel {parallel.tensor_parallel_size}, parts {layout.ranks}",
        "hashes": f"{cache.prefix_caching_hash_algo} of {layout.block_tokens} tokens",
        "generation": generation,
    } | ({} if coding is Coding.PLAIN else {"lossy": coding.value})
    name = Path(model.model).name or "model"
    label = f"{name} {model.dtype} tp{parallel.tensor_parallel_size}".replace("torch.", "")
    return Namespace(
        digest=namespace_digest(fields),
        label=label,
        layout=layout,
        pair_tokens=0.0 if _slides(layout) else pair_tokens(settings),
        elements=facts.elements,
        lossy=coding,
    )


def pair_tokens(settings: Mapping[str, Any]) -> float:
    """What a pair of tokens costs beside a token, from a model's configuration; 0 if it is silent.

    Only a first guess: what the engine's steps take replaces it.
    """

    def number(*names: str) -> int:
        found = [settings.get(name) for name in names]
        return next((value for value in found if isinstance(value, int) and value > 0), 0)

    hidden, heads = number("hidden_size"), number("num_attention_heads")
    wide = number("moe_intermediate_size", "intermediate_size")
    layers = number("num_hidden_layers")
    if not (hidden and heads and wide and layers):
        return 0.0
    return (
        Decoder(
            layers=layers,
            hidden=hidden,
            heads=heads,
            head_dim=number("head_dim") or hidden // heads,
            kv_heads=number("num_key_value_heads") or heads,
            feed_forward=wide * max(1, number("num_experts_per_tok")),
        )
        .cost()
        .pair_tokens
    )


def _slides(layout: Layout) -> bool:
    """Whether some layers attend to a window only, so that pairs cost less than they seem to."""
    return any(group.kind is GroupKind.WINDOW for group in layout.groups)


def _weights(model: ModelConfig, load_format: str) -> str:
    """What identifies the weights: their content, or the exact commit of a hub."""
    path = Path(model.model)
    if load_format == "dummy":
        return "dummy"
    if path.is_dir():
        return weights_digest(path)
    commit = getattr(model.hf_config, "_commit_hash", None)
    if commit:
        return f"hub {model.model} {commit}"
    raise EngineError(
        f"the weights of {model.model!r} cannot be identified: it is no directory, and the hub "
        "gave no commit; download the model and give its directory"
    )
