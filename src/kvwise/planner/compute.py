"""What computing a token of a model takes, layer by layer, from its `config.json`.

Counted are products with the weights that a token passes, and those of attention; embeddings and
the output layer are left out, since a prefill makes one token of output. A family whose work is not
known has none, which is better than a guess.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from kvwise.errors import ConfigError
from kvwise.planner.fields import NUMBER_MAX, Fields
from kvwise.planner.shapes import Kind, Layer
from kvwise.planner.work import Work
from kvwise.units import round_up

EXPERTS = (
    ("num_experts_per_tok", "num_local_experts"),
    ("num_experts_per_tok", "num_experts"),
    ("num_experts_per_tok", "n_routed_experts"),
    ("num_experts_per_token", "num_experts"),
    ("top_k_experts", "num_experts"),
)
"""Fields that say how many experts a token is sent to, and among how many."""


def work_of(family: str, fields: Fields, layers: Sequence[Layer]) -> tuple[Work, ...]:
    """The work of each layer; nothing for a family whose work is not known.

    Raises:
        ConfigError: a field that it needs is missing.
    """
    forward = FORWARD.get(family)
    if forward is None:
        return ()
    passed = forward(fields, len(layers))
    if len(passed) != len(layers):
        raise ConfigError(f"{fields.name}: {len(passed)} feed-forward parts, {len(layers)} layers")
    return tuple(_work(fields, *pair) for pair in zip(layers, passed, strict=True))


def all_weights(family: str, fields: Fields, layers: Sequence[Layer]) -> int:
    """Weights of the whole model, its embeddings and all experts included; 0 if not known.

    Raises:
        ConfigError: a field that it needs is missing.
    """
    every = {chosen: fields.get(among) for chosen, among in EXPERTS if fields.get(among)}
    work = work_of(family, fields.changed(every), layers)
    if not work:
        return 0
    embedded = fields.number("vocab_size") * fields.number("hidden_size")
    both = 1 if fields.get("tie_word_embeddings") else 2
    return sum(one.weights for one in work) + both * embedded


# --- attention and states ---


def _work(fields: Fields, layer: Layer, passed: int) -> Work:
    """The work of a layer whose feed-forward part has so many weights."""
    if layer.kind is Kind.NONE:
        return Work(passed)
    if layer.kind is Kind.STATE:
        return Work(passed + _state(fields))
    if layer.kind is Kind.LATENT:
        return _latent(fields, layer, passed)
    hidden, heads = fields.number("hidden_size"), fields.number("num_attention_heads")
    width = layer.head_elements // 2
    gated = 2 if fields.get("attn_output_gate") or fields.get("linear_num_value_heads") else 1
    weights = hidden * (heads * width * (1 + gated) + layer.heads * layer.head_elements)
    span = layer.window_tokens
    return Work(passed + weights, heads * layer.head_elements, span)


def _latent(fields: Fields, layer: Layer, passed: int) -> Work:
    """Multi-head latent attention as prefill does it, with keys and values unfolded."""
    hidden, heads = fields.number("hidden_size"), fields.number("num_attention_heads")
    latent, rope = fields.number("kv_lora_rank"), fields.number("qk_rope_head_dim")
    nope, value = fields.number("qk_nope_head_dim"), fields.number("v_head_dim")
    asked = heads * (nope + rope)
    low = fields.number("q_lora_rank", 0)
    weights = low * (hidden + asked) if low else hidden * asked
    weights += hidden * (latent + rope) + latent * heads * (nope + value) + heads * value * hidden
    products, span = heads * (nope + rope + value), fields.number("index_topk", 0)
    if not layer.selector_dim:
        return Work(passed + weights, products, span)
    selectors = fields.number("index_n_heads")
    weights += low * selectors * layer.selector_dim + hidden * (layer.selector_dim + selectors)
    return Work(passed + weights, products, span, selectors * layer.selector_dim)


def _state(fields: Fields) -> int:
    """Products of a recurrent layer for each token; its state is read, changed and asked once."""
    hidden = fields.number("hidden_size")
    if fields.get("mamba_num_heads") is not None:
        heads, dim = fields.number("mamba_num_heads"), fields.number("mamba_head_dim")
        state, groups = fields.number("ssm_state_size"), fields.number("n_groups")
        into = 2 * heads * dim + 2 * groups * state + heads
        return hidden * (into + heads * dim) + 2 * heads * dim * state
    if fields.get("linear_attn_config") is not None:
        linear = fields.inner("linear_attn_config")
        wide, dim = (
            linear.number("num_heads") * linear.number("head_dim"),
            linear.number("head_dim"),
        )
        return hidden * wide * 5 + 3 * wide * dim
    keys = fields.number("linear_num_key_heads") * fields.number("linear_key_head_dim")
    values = fields.number("linear_num_value_heads") * fields.number("linear_value_head_dim")
    gates = 2 * fields.number("linear_num_value_heads")
    recurrent = 3 * values * fields.number("linear_key_head_dim")
    return hidden * (2 * keys + 3 * values + gates) + recurrent


# --- feed-forward parts ---


def _gated(fields: Fields, width: str) -> int:
    """Weights of three matrices between the hidden size and a width."""
    return 3 * fields.number("hidden_size") * fields.number(width)


def _experts(
    fields: Fields, names: tuple[str, str, str], *, shared: int = 0, hidden: int = 0
) -> int:
    """Weights that a token passes: its experts, the router, and what all tokens share.

    Args:
        fields: of the model.
        names: of the fields with an expert's width, how many are chosen, and among how many.
        shared: width of what all tokens pass beside them.
        hidden: the experts' own hidden size; 0 for the model's.
    """
    width, chosen, among = names
    outer = fields.number("hidden_size")
    inner = hidden or outer
    routed = 3 * inner * fields.number(width) * fields.number(chosen)
    return routed + outer * fields.number(among) + 3 * outer * shared


def _dense(fields: Fields, count: int) -> list[int]:
    return [_gated(fields, "intermediate_size")] * count


def _mixtral(fields: Fields, count: int) -> list[int]:
    one = _experts(fields, ("intermediate_size", "num_experts_per_tok", "num_local_experts"))
    return [one] * count


def _qwen(fields: Fields, count: int) -> list[int]:
    """Experts on every layer if it has any, with one that all tokens share if it has a width."""
    if fields.get("moe_intermediate_size") is None:
        return _dense(fields, count)
    shared = fields.get("shared_expert_intermediate_size") or 0
    if not isinstance(shared, int):
        raise fields.error("shared_expert_intermediate_size is not a number")
    width = ("moe_intermediate_size", "num_experts_per_tok", "num_experts")
    return [_experts(fields, width, shared=shared)] * count


def _deepseek(fields: Fields, count: int) -> list[int]:
    """Dense layers first, then experts with some that all tokens share."""
    shared = fields.number("moe_intermediate_size") * fields.number("n_shared_experts", 0)
    width = ("moe_intermediate_size", "num_experts_per_tok", "n_routed_experts")
    experts = _experts(fields, width, shared=shared)
    first = fields.number("first_k_dense_replace", 0, most=count)
    return [_gated(fields, "intermediate_size")] * first + [experts] * (count - first)


def _step(fields: Fields, count: int) -> list[int]:
    width = ("moe_intermediate_size", "num_experts_per_tok", "num_experts")
    experts = _experts(fields, width, shared=fields.number("share_expert_dim"))
    first = fields.number("first_k_dense_replace", 0, most=count)
    return [_gated(fields, "intermediate_size")] * first + [experts] * (count - first)


def _minimax_m3(fields: Fields, count: int) -> list[int]:
    width = ("intermediate_size", "num_experts_per_tok", "num_local_experts")
    shared = fields.number("shared_intermediate_size") * fields.number("n_shared_experts")
    experts = _experts(fields, width, shared=shared)
    dense = _gated(fields, "dense_intermediate_size")
    sparse = fields.inner("sparse_attention_config").names("sparse_attention_freq")
    return [experts if is_sparse else dense for is_sparse in sparse[:count]]


def _mimo_flash(fields: Fields, count: int) -> list[int]:
    width = ("moe_intermediate_size", "num_experts_per_tok", "n_routed_experts")
    experts, dense = _experts(fields, width), _gated(fields, "intermediate_size")
    return [experts if routed else dense for routed in fields.names("moe_layer_freq")[:count]]


def _llama4(fields: Fields, count: int) -> list[int]:
    """Experts on every so many layers, beside one that all tokens share; dense ones are wider."""
    width = ("intermediate_size", "num_experts_per_tok", "num_local_experts")
    experts = _experts(fields, width, shared=fields.number("intermediate_size"))
    every, dense = fields.number("interleave_moe_layer_step"), "intermediate_size_mlp"
    return [_gated(fields, dense) if (at + 1) % every else experts for at in range(count)]


def _gemma4(fields: Fields, count: int) -> list[int]:
    """A dense part on every layer, and experts beside it if there are any."""
    dense = _gated(fields, "intermediate_size")
    if not fields.get("enable_moe_block"):
        return [dense] * count
    width = ("moe_intermediate_size", "top_k_experts", "num_experts")
    return [dense + _experts(fields, width)] * count


def _kimi_linear(fields: Fields, count: int) -> list[int]:
    """Experts of their own hidden size, which tokens are projected to and from."""
    hidden, inner = fields.number("hidden_size"), fields.number("routed_expert_hidden_size")
    shared = fields.number("moe_intermediate_size") * fields.number("num_shared_experts")
    width = ("moe_intermediate_size", "num_experts_per_token", "num_experts")
    experts = _experts(fields, width, shared=shared, hidden=inner) + 2 * hidden * inner
    first = fields.number("first_k_dense_replace", 0, most=count)
    return [_gated(fields, "intermediate_size")] * first + [experts] * (count - first)


def _nemotron_h(fields: Fields, count: int) -> list[int]:
    """Two matrices, not three; experts may have a hidden size of their own."""
    hidden = fields.number("hidden_size")
    pattern = fields.get("hybrid_override_pattern")
    kinds = list(pattern) if isinstance(pattern, str) else fields.names("layers_block_type")
    dense = 2 * hidden * fields.number("intermediate_size")
    experts = 0
    if fields.get("n_routed_experts") is not None:
        latent = fields.number("moe_latent_size", 0)
        routed = fields.number("moe_intermediate_size") * fields.number("num_experts_per_tok")
        shared = fields.number("moe_shared_expert_intermediate_size")
        experts = 2 * (latent or hidden) * routed + 2 * hidden * (shared + latent)
        experts += hidden * fields.number("n_routed_experts")
    passed = {"-": dense, "mlp": dense, "E": experts, "moe": experts}
    return [passed.get(str(kind), 0) for kind in kinds][:count]


def _nemotron_nas(fields: Fields, count: int) -> list[int]:
    """Each block has a width of its own: 2/3 of a multiple of the hidden size, rounded up."""
    hidden, passed = fields.number("hidden_size"), []
    for number, block in enumerate(fields.names("block_configs")[:count]):
        said = Fields(f"{fields.name}: block {number}", block if isinstance(block, dict) else {})
        forward = said.inner("ffn")
        times = forward.get("ffn_mult")
        if forward.get("no_op") or forward.get("replace_with_linear"):
            passed.append(hidden * hidden if forward.get("replace_with_linear") else 0)
        elif isinstance(times, int | float) and 0 < times < NUMBER_MAX:
            width = round_up(int(2 * times * hidden / 3), 256)
            passed.append(3 * hidden * width)
        else:
            raise said.error("ffn_mult is missing or no number above 0")
    return passed


FORWARD: Mapping[str, Callable[[Fields, int], list[int]]] = {
    **dict.fromkeys(("llama", "mimo", "mistral", "qwen2", "qwen3", "qwen3_vl_text"), _dense),
    **dict.fromkeys(("gpt_oss", "minimax_m2", "mixtral"), _mixtral),
    **dict.fromkeys(
        (
            "qwen3_5_moe_text",
            "qwen3_5_text",
            "qwen3_moe",
            "qwen3_next",
            "qwen3_vl_moe_text",
        ),
        _qwen,
    ),
    **dict.fromkeys(("deepseek_v3", "deepseek_v32", "glm_moe_dsa", "kimi_k2"), _deepseek),
    **dict.fromkeys(("minimax_m3", "minimax_m3_vl"), _minimax_m3),
    "gemma4_text": _gemma4,
    "kimi_linear": _kimi_linear,
    "llama4_text": _llama4,
    "mimo_v2_flash": _mimo_flash,
    "nemotron-nas": _nemotron_nas,
    "nemotron_h": _nemotron_h,
    "step3p7": _step,
}
"""How the feed-forward parts of each `model_type` are read; the others have no figures."""
