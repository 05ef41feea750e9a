"""Reads what a model's KV looks like from its `config.json`. A family it does not know is an error.

Guessing would be worse: read as plain attention, a model with latent or compressed KV comes out
fifteen times too large. What each family's fields mean is said at its reader.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from kvwise.errors import ConfigError
from kvwise.planner.compute import all_weights, work_of
from kvwise.planner.fields import LAYERS_MAX, Fields, read_bounded
from kvwise.planner.shapes import Kind, Layer, Model, Precision
from kvwise.planner.work import Work

NESTED = ("text_config", "llm_config")
"""Where models for more than text keep the part that has KV."""

CHOSEN = ("num_experts_per_tok", "num_experts_per_token", "top_k_experts")
"""Where a configuration says to how many experts a token is sent."""

ALWAYS_WINDOWED = ("mistral", "mixtral")
"""Families in which a window is used wherever one is given."""

CONFIG_BYTES_MAX = 64 * 1024 * 1024


def read_config(path: Path) -> Model:
    """A model from its `config.json`, or from the folder that has it.

    Raises:
        ConfigError: there is no such file, it is none, or its family is not known.
    """
    if path.is_dir():
        path /= "config.json"
    try:
        values = json.loads(read_bounded(path, CONFIG_BYTES_MAX))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is no JSON: {error}") from error
    return model_of(str(path), values)


def model_of(name: str, values: object) -> Model:
    """A model from the contents of its `config.json`; `name` says whose it is.

    Raises:
        ConfigError: its family is not known, or a field that it needs is missing.
    """
    if not isinstance(values, dict):
        raise ConfigError(f"{name} is no configuration: it is not a JSON object")
    inner = next((values[key] for key in NESTED if isinstance(values.get(key), dict)), values)
    family = str(inner.get("model_type") or values.get("model_type"))
    reader = FAMILIES.get(family)
    if reader is None:
        raise ConfigError(
            f"{name}: model_type {family!r} is not known, and its KV is not guessed at; "
            f"hint: known are {', '.join(sorted(FAMILIES))}"
        )
    fields = Fields(name, inner)
    layers = reader(fields)
    said = fields.layers() if fields.get("num_hidden_layers") is not None else len(layers)
    if not 1 <= len(layers) <= LAYERS_MAX or len(layers) != said:
        raise fields.error(f"{len(layers)} layers are described, and num_hidden_layers is {said}")
    work, why_no_work = _work(family, fields, layers)
    return Model(
        name=name,
        family=family,
        layers=tuple(layers),
        heads=fields.number("num_attention_heads"),
        kv_heads=_kv_heads(fields),
        head_dim=_head_dim(fields),
        hidden=fields.number("hidden_size"),
        context_tokens=fields.number("max_position_embeddings", 0),
        declared=_declared(values, inner),
        weights_kept=_weights_kept(values, inner),
        work=work,
        why_no_work=why_no_work,
        weights=_weights(family, fields, layers),
        has_experts=any(fields.get(field) for field in CHOSEN),
    )


def _work(family: str, fields: Fields, layers: list[Layer]) -> tuple[tuple[Work, ...], str]:
    """The work of each layer, or why it is not known: that is no reason to refuse a model."""
    try:
        work = work_of(family, fields, layers)
    except ConfigError as error:
        return (), str(error)
    return work, "" if work else f"{fields.name}: what computing takes is not known of {family}"


def _weights(family: str, fields: Fields, layers: list[Layer]) -> int:
    """Weights of the whole model; 0 where they are not known."""
    try:
        return all_weights(family, fields, layers)
    except ConfigError:
        return 0


def _declared(outer: Mapping[str, Any], inner: Mapping[str, Any]) -> Precision | None:
    """The precision that a configuration asks to keep KV in.

    It says so as text, or as {"num_bits": 8, "type": "float"}.
    """
    for values in (outer, inner):
        quantised = values.get("quantization_config")
        if not isinstance(quantised, dict):
            continue
        said = quantised.get("kv_cache_scheme") or quantised.get("kv_cache_quant_algo")
        if isinstance(said, dict):
            said = f"FP{said.get('num_bits')}" if said.get("type") == "float" else None
        if isinstance(said, str) and said.upper() in Precision.__members__:
            return Precision[said.upper()]
    return None


def _weights_kept(outer: Mapping[str, Any], inner: Mapping[str, Any]) -> Precision | None:
    """The precision that a configuration says weights are kept in, the widest if there are several.

    Some name it, others give bits; of 8 bits FP8 stands for all, of 4 NVFP4. None where it says
    nothing, or nothing that is known.
    """
    for values in (outer, inner):
        quantised = values.get("quantization_config")
        if not isinstance(quantised, dict):
            continue
        named = " ".join(_named(quantised)).upper()
        bits = set(_bits(quantised))
        if "FP8" in named or 8 in bits or quantised.get("load_in_8bit"):
            return Precision.FP8
        if "FP4" in named or 4 in bits or quantised.get("load_in_4bit"):
            return Precision.NVFP4
    return None


def _named(quantised: Mapping[str, Any]) -> Iterator[str]:
    """What a quantisation calls itself, for all layers and for some."""
    layers = quantised.get("quantized_layers")
    found = list(layers.values()) if isinstance(layers, dict) else []
    for one in (quantised, *found):
        if isinstance(one, dict):
            yield from (str(one.get(field, "")) for field in ("quant_method", "quant_algo"))


def _bits(quantised: Mapping[str, Any]) -> Iterator[object]:
    """How many bits weights have, for all layers and for groups of them."""
    yield quantised.get("bits")
    groups = quantised.get("config_groups")
    for group in groups.values() if isinstance(groups, dict) else ():
        weights = group.get("weights") if isinstance(group, dict) else None
        if isinstance(weights, dict):
            yield weights.get("num_bits")


# --- what several families have in common ---


def _kv_heads(fields: Fields) -> int:
    return fields.number("num_key_value_heads", fields.number("num_attention_heads"))


def _head_dim(fields: Fields) -> int:
    """Width of a head: not hidden / heads, where the configuration says otherwise."""
    heads, hidden = fields.number("num_attention_heads"), fields.number("hidden_size")
    if hidden < heads:
        raise fields.error(f"hidden_size {hidden} cannot be shared by {heads} heads")
    return fields.number("head_dim", hidden // heads)


def _full(fields: Fields) -> Layer:
    """A layer of grouped-query attention."""
    return Layer(Kind.FULL, heads=_kv_heads(fields), head_elements=2 * _head_dim(fields))


def _window(fields: Fields) -> Layer:
    """A layer of grouped-query attention over a sliding window."""
    window = fields.number("sliding_window")
    return Layer(
        Kind.WINDOW,
        heads=_kv_heads(fields),
        head_elements=2 * _head_dim(fields),
        window_tokens=window,
    )


def _by_type(fields: Fields, types: Mapping[Any, Layer], names: list[Any]) -> list[Layer]:
    """A layer for each name of its type.

    Raises:
        ConfigError: a name is not known.
    """
    known = list(types)
    for name in names:
        if name not in known:
            raise fields.error(f"a layer of type {name!r:.40} is not known")
    return [types[name] for name in names]


def _gated_delta(fields: Fields) -> Layer:
    """A layer of gated delta net: one FP32 matrix for each value head, and a short convolution."""
    value_heads = fields.number("linear_num_value_heads")
    key_heads = fields.number("linear_num_key_heads")
    key_dim = fields.number("linear_key_head_dim")
    value_dim = fields.number("linear_value_head_dim")
    passed = fields.number("linear_conv_kernel_dim") - 1
    return Layer(
        Kind.STATE,
        heads=value_heads,
        fp32_elements=value_heads * key_dim * value_dim,
        bf16_elements=(2 * key_heads * key_dim + value_heads * value_dim) * passed,
    )


def _mamba2(fields: Fields) -> Layer:
    """A layer of Mamba-2: a state for each head, and a short convolution."""
    heads, dim = fields.number("mamba_num_heads"), fields.number("mamba_head_dim")
    state, groups = fields.number("ssm_state_size"), fields.number("n_groups")
    passed = fields.number("conv_kernel") - 1
    convolved = (heads * dim + 2 * groups * state) * passed
    return Layer(Kind.STATE, heads=heads, state_elements=heads * dim * state + convolved)


# --- families ---


def _plain(fields: Fields) -> list[Layer]:
    """Every layer attends to everything, unless the configuration gives some of them a window.

    It does so by `layer_types`, by `use_sliding_window` for layers from `max_window_layers` on, or,
    in Mistral's families, by a `sliding_window` alone.
    """
    count = fields.layers()
    if fields.get("layer_types") is not None:
        return _alternating(fields)
    if fields.get("sliding_window") is None:
        return [_full(fields)] * count
    wanted = fields.get("use_sliding_window")
    if wanted is None and fields.get("model_type") in ALWAYS_WINDOWED:
        return [_window(fields)] * count
    if not wanted:
        return [_full(fields)] * count
    first = fields.number("max_window_layers", 0, least=0)
    return [_full(fields) if at < first else _window(fields) for at in range(count)]


def _alternating(fields: Fields) -> list[Layer]:
    """`layer_types` says which layers have a window."""
    types = {"full_attention": _full(fields)}
    names = fields.names("layer_types")
    if "sliding_attention" in names:
        types["sliding_attention"] = _window(fields)
    return _by_type(fields, types, names)


def _gemma4(fields: Fields) -> list[Layer]:
    """Global layers have heads of their own width and number; K and V are both counted."""
    full = Layer(
        Kind.FULL,
        heads=fields.number("num_global_key_value_heads", _kv_heads(fields)),
        head_elements=2 * fields.number("global_head_dim", _head_dim(fields)),
    )
    types = {"full_attention": full, "sliding_attention": _window(fields)}
    return _by_type(fields, types, fields.names("layer_types"))


def _llama4(fields: Fields) -> list[Layer]:
    """All layers but every fourth attend within chunks."""
    chunked = Layer(
        Kind.CHUNKED,
        heads=_kv_heads(fields),
        head_elements=2 * _head_dim(fields),
        window_tokens=fields.number("attention_chunk_size"),
    )
    if fields.get("layer_types") is not None:
        types = {"full_attention": _full(fields), "chunked_attention": chunked}
        return _by_type(fields, types, fields.names("layer_types"))
    count = fields.layers()
    return [_full(fields) if (at + 1) % 4 == 0 else chunked for at in range(count)]


def _mimo_flash(fields: Fields) -> list[Layer]:
    """K and V of different width; `hybrid_layer_pattern` has a one for each layer with a window."""
    full = Layer(
        Kind.FULL,
        heads=_kv_heads(fields),
        head_elements=_head_dim(fields) + fields.number("v_head_dim"),
    )
    window = Layer(
        Kind.WINDOW,
        heads=fields.number("swa_num_key_value_heads"),
        head_elements=fields.number("swa_head_dim") + fields.number("swa_v_head_dim"),
        window_tokens=fields.number("sliding_window"),
    )
    return _by_type(fields, {0: full, 1: window}, fields.names("hybrid_layer_pattern"))


def _latent(fields: Fields) -> list[Layer]:
    """One latent and one rotary key for all heads; some have selector keys, not on every layer."""
    elements = fields.number("kv_lora_rank") + fields.number("qk_rope_head_dim")
    plain = Layer(Kind.LATENT, head_elements=elements)
    if fields.get("index_head_dim") is None:
        return [plain] * fields.layers()
    full = Layer(Kind.LATENT, head_elements=elements, selector_dim=fields.number("index_head_dim"))
    if fields.get("indexer_types") is None:
        return [full] * fields.layers()
    return _by_type(fields, {"full": full, "shared": plain}, fields.names("indexer_types"))


def _compressed(fields: Fields) -> list[Layer]:
    """A window, and one vector for every `compress_ratios` tokens; 4 brings selector keys in FP4.

    The compressor of a layer keeps, in FP32, two vectors for each token that it has not written
    yet, and for twice as many where its vectors overlap, which those for 4 tokens do. The list of
    ratios has an entry for each draft layer too, behind the others.
    """
    dim, index_dim = fields.number("head_dim"), fields.number("index_head_dim")
    window = fields.number("sliding_window")
    count, layers = fields.layers(), []
    for ratio in fields.names("compress_ratios")[:count]:
        if not isinstance(ratio, int) or ratio not in (0, 4, 128):
            raise fields.error(f"a compress_ratio of {ratio!r:.40} is not known")
        overlaps = ratio == 4
        pending = 2 * ratio if overlaps else ratio
        layers.append(
            Layer(
                Kind.COMPRESSED,
                head_elements=dim,
                window_tokens=window,
                every_tokens=ratio,
                selector_bytes=index_dim // 2 if overlaps else 0,
                fp32_elements=2 * pending * (dim + index_dim * overlaps),
            )
        )
    return layers


def _kimi_linear(fields: Fields) -> list[Layer]:
    """Latent layers among layers of delta attention, numbered from 1."""
    linear = fields.inner("linear_attn_config")
    heads, dim = linear.number("num_heads"), linear.number("head_dim")
    passed = linear.number("short_conv_kernel_size") - 1
    state = Layer(
        Kind.STATE,
        heads=heads,
        fp32_elements=heads * dim * dim,
        bf16_elements=3 * heads * dim * passed,
    )
    latent = Layer(
        Kind.LATENT,
        head_elements=fields.number("kv_lora_rank") + fields.number("qk_rope_head_dim"),
    )
    full, count = linear.names("full_attn_layers"), fields.layers()
    named = [at for at in full + linear.names("kda_layers") if isinstance(at, int)]
    if sorted(named) != list(range(1, count + 1)):
        raise fields.error("linear_attn_config does not name every layer once")
    return [latent if at in full else state for at in range(1, count + 1)]


def _qwen_hybrid(fields: Fields) -> list[Layer]:
    """Attention among gated delta nets: by `layer_types`, or one in so many."""
    types = {"full_attention": _full(fields), "linear_attention": _gated_delta(fields)}
    if fields.get("layer_types") is not None:
        return _by_type(fields, types, fields.names("layer_types"))
    every, count = fields.number("full_attention_interval"), fields.layers()
    names = ["linear_attention" if (at + 1) % every else "full_attention" for at in range(count)]
    return _by_type(fields, types, list(names))


def _nemotron_h(fields: Fields) -> list[Layer]:
    """Attention among Mamba-2 and layers without KV: by name, or by a letter each."""
    attention, mamba, none = _full(fields), _mamba2(fields), Layer(Kind.NONE)
    pattern = fields.get("hybrid_override_pattern")
    if isinstance(pattern, str):
        letters = {"*": attention, "M": mamba, "-": none, "E": none}
        return _by_type(fields, letters, list(pattern))
    types = {"attention": attention, "mamba": mamba, "moe": none, "mlp": none}
    return _by_type(fields, types, fields.names("layers_block_type"))


def _nemotron_nas(fields: Fields) -> list[Layer]:
    """Each block says how many heads share a KV head, or that it has no attention."""
    heads, layers = fields.number("num_attention_heads"), []
    for number, block in enumerate(fields.names("block_configs")):
        said = Fields(f"{fields.name}: block {number}", block if isinstance(block, dict) else {})
        attention = said.inner("attention")
        if attention.get("no_op") or attention.get("replace_with_linear"):
            layers.append(Layer(Kind.NONE))
            continue
        kv_heads = heads // attention.number("n_heads_in_group", most=heads)
        layers.append(Layer(Kind.FULL, heads=kv_heads, head_elements=2 * _head_dim(fields)))
    return layers


def _minimax_m3(fields: Fields) -> list[Layer]:
    """Grouped-query attention; layers that select blocks keep a key for it beside."""
    sparse = fields.inner("sparse_attention_config")
    full = _full(fields)
    selecting = Layer(
        Kind.FULL,
        heads=full.heads,
        head_elements=full.head_elements,
        selector_dim=sparse.number("sparse_index_dim"),
        selector_as_kv=True,
    )
    return _by_type(fields, {0: full, 1: selecting}, sparse.names("sparse_attention_freq"))


FAMILIES: Mapping[str, Callable[[Fields], list[Layer]]] = {
    **dict.fromkeys(
        (
            "glm4_moe",
            "llama",
            "mimo",
            "minimax_m2",
            "mistral",
            "mixtral",
            "qwen2",
            "qwen2_moe",
            "qwen3",
            "qwen3_moe",
            "qwen3_vl_moe_text",
            "qwen3_vl_text",
        ),
        _plain,
    ),
    **dict.fromkeys(("deepseek_v3", "deepseek_v32", "glm_moe_dsa", "kimi_k2"), _latent),
    **dict.fromkeys(("gpt_oss", "step3p7"), _alternating),
    **dict.fromkeys(("deepseek_ref", "deepseek_v4"), _compressed),
    **dict.fromkeys(("minimax_m3", "minimax_m3_vl"), _minimax_m3),
    **dict.fromkeys(("qwen3_5_moe_text", "qwen3_5_text", "qwen3_next"), _qwen_hybrid),
    "gemma4_text": _gemma4,
    "kimi_linear": _kimi_linear,
    "llama4_text": _llama4,
    "mimo_v2_flash": _mimo_flash,
    "nemotron-nas": _nemotron_nas,
    "nemotron_h": _nemotron_h,
}
"""How each `model_type` is read."""
