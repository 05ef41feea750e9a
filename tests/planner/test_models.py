"""KV of models: byte for byte what is known of them, and whatever is not known is refused."""

from __future__ import annotations

import json
import os
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwise.errors import ConfigError
from kvwise.planner.catalogue import fields_of, find_model, names
from kvwise.planner.configs import FAMILIES, model_of, read_config
from kvwise.planner.hardware import read_hardware
from kvwise.planner.shapes import Kind, Layer, Precision, Precisions
from kvwise.planner.work import Work, pairs

KEPT = Precisions()

TABLE = {
    "deepseek-v3": (70_272, 0, 9_210_691_584),
    "deepseek-v3.2": (78_324, 0, 10_266_083_328),
    "deepseek-v4-flash": (5_872, 16_982_016, 786_636_800),
    "deepseek-v4-pro": (8_408, 25_477_120, 1_127_530_496),
    "gemma-4-26b-a4b": (20_480, 209_715_200, 2_894_069_760),
    "glm-5": (100_152, 0, 13_127_122_944),
    "glm-5.2": (92_628, 0, 12_140_937_216),
    "gpt-oss-120b": (36_864, 4_718_592, 4_836_556_800),
    "gpt-oss-20b": (24_576, 3_145_728, 3_224_371_200),
    "kimi-k2": (70_272, 0, 9_210_691_584),
    "kimi-k3": (27_648, 449_372_160, 4_073_250_816),
    "llama-3.1-405b": (516_096, 0, 67_645_734_912),
    "llama-3.1-70b": (327_680, 0, 42_949_672_960),
    "llama-3.1-8b": (131_072, 0, 17_179_869_184),
    "llama-3.3-nemotron-super-49b": (200_704, 0, 26_306_674_688),
    "llama-4-scout": (49_152, 1_207_959_552, 7_650_410_496),
    "mimo-v2-flash": (23_040, 25_559_040, 3_045_457_920),
    "minimax-m2.5": (253_952, 0, 33_285_996_544),
    "minimax-m3": (137_472, 0, 18_018_729_984),
    "mixtral-8x22b": (229_376, 0, 30_064_771_072),
    "nemotron-3-nano-30b-a3b": (6_144, 24_965_120, 830_271_488),
    "nemotron-3-ultra-550b-a55b": (12_288, 206_635_008, 1_817_247_744),
    "nemotron-h-56b": (40_960, 459_620_352, 5_828_329_472),
    "qwen3-235b-a22b": (192_512, 0, 25_232_932_864),
    "qwen3-30b-a3b": (98_304, 0, 12_884_901_888),
    "qwen3-32b": (262_144, 0, 34_359_738_368),
    "qwen3-8b": (147_456, 0, 19_327_352_832),
    "qwen3.5-122b-a10b": (24_576, 153_649_152, 3_374_874_624),
    "qwen3.5-27b": (65_536, 153_944_064, 8_743_878_656),
    "qwen3.5-397b-a17b": (30_720, 192_061_440, 4_218_593_280),
    "step-3.7-flash": (49_152, 69_206_016, 6_511_656_960),
}
"""Bytes of a token, bytes that do not grow, bytes of 131,072 tokens; all in BF16."""


def published(name: str) -> Path:
    """A folder of published configurations, or a skipped test that says what is missing."""
    folder = os.environ.get("KVWISE_MODELS")
    if folder is None:
        pytest.skip("published configurations are not at hand; set KVWISE_MODELS to their folder")
    return Path(folder) / name


@pytest.mark.parametrize("name", TABLE)
def test_the_bytes_of_known_models(name: str) -> None:
    """Each structure of KV comes out to the byte: for a token, beside, and for a long sequence."""
    model = find_model(name)
    token_bytes, fixed_bytes, long_bytes = TABLE[name]

    assert model.token_bytes(KEPT) == token_bytes
    assert model.fixed_bytes(KEPT) == fixed_bytes
    assert model.sequence_bytes(131_072, KEPT) == long_bytes


def test_every_row_of_the_published_table() -> None:
    """All rows of the table of published configurations are met exactly."""
    rows = json.loads(published("kv_table.json").read_text())
    assert len(rows) >= 33
    for row in rows:
        model = read_config(published(f"{row['model']}_config.json"))

        assert len(model.layers) == row["layers"]
        assert (model.kv_heads, model.head_dim) == (row["kv_heads"], row["head_dim"])
        assert model.token_bytes(KEPT) == row["marginal_bytes_per_token_bf16"]
        assert model.fixed_bytes(KEPT) == row["fixed_bytes_per_seq"]
        assert model.sequence_bytes(32_768, KEPT) == row["bytes_32k"]
        assert model.sequence_bytes(131_072, KEPT) == row["bytes_128k"]


def test_every_published_configuration_is_read() -> None:
    """Every file in the folder is a model that is known; those that ask for FP8 KV are seen."""
    paths = sorted(published("").glob("*_config.json"))
    declared = [read_config(path).declared for path in paths]

    assert len(paths) >= 87
    assert declared.count(Precision.FP8) == 13


@pytest.mark.parametrize("name", names())
def test_a_catalogued_model_is_whole(name: str) -> None:
    """It has layers with KV, a context, and is found by repository and short name alike."""
    model = find_model(name)

    assert model.sequence_bytes(1, KEPT) > 0
    assert model.context_tokens >= 8_192
    assert find_model(name.upper()).layers == model.layers


def test_the_catalogue_knows_thirty_models() -> None:
    """Enough that most people find theirs."""
    assert len(names()) >= 30


def test_selector_keys_have_a_precision_of_their_own() -> None:
    """In BF16 they take as much as other calculators count."""
    kept = Precisions(selector=Precision.BF16)
    told = [find_model(name).token_bytes(kept) for name in ("deepseek-v3.2", "glm-5", "glm-5.2")]

    assert told == [85_888, 109_824, 95_232]


def test_a_snapshot_is_worth_so_many_tokens() -> None:
    """The state of a hybrid at a kept prefix point, in bytes and in tokens of its other KV."""
    model = find_model("kimi-k3")

    assert model.state_bytes(KEPT) == 449_372_160
    assert model.snapshot_tokens(KEPT) == 16_253
    assert find_model("llama-3.1-8b").snapshot_tokens(KEPT) == 0


def test_precisions_scale_what_they_are_of() -> None:
    """FP8 halves and NVFP4 takes 4.5 of 16 bits; states keep what they have."""
    llama, hybrid = find_model("llama-3.1-8b"), find_model("qwen3.5-27b")

    assert llama.token_bytes(Precisions(Precision.FP8)) == 65_536
    assert llama.token_bytes(Precisions(Precision.NVFP4)) == 36_864
    assert hybrid.fixed_bytes(Precisions(Precision.FP8)) == 153_944_064
    nemotron = find_model("nemotron-3-nano-30b-a3b")
    assert nemotron.fixed_bytes(Precisions(state=Precision.FP32)) == 2 * 24_965_120


def test_ranks_share_heads_and_not_latents() -> None:
    """Tensor parallelism divides heads as far as they go; a latent is on every rank."""
    llama, deepseek = find_model("llama-3.1-70b"), find_model("deepseek-v3")

    assert llama.of_rank(8).token_bytes(KEPT) == 40_960
    assert llama.of_rank(16).token_bytes(KEPT) == 40_960
    assert deepseek.of_rank(8).token_bytes(KEPT) == 70_272
    assert find_model("qwen3.5-27b").of_rank(4).fixed_bytes(KEPT) == 153_944_064 // 4
    assert find_model("minimax-m3").of_rank(4).token_bytes(KEPT) == 60 * 2 * 128 * 2 + 57 * 256


def test_stages_share_layers() -> None:
    """Pipeline stages have equal numbers of layers as far as that goes; the fullest one counts."""
    assert find_model("llama-3.1-70b").of_rank(8, 4).token_bytes(KEPT) == 10_240
    assert len(find_model("deepseek-v3").of_rank(1, 2).layers) == 31
    assert len(find_model("smollm2-135m").of_rank(1, 64).layers) == 1


def test_windows_fill_up_first() -> None:
    """Below its window a layer grows like any other, beyond it no more."""
    window = Layer(Kind.WINDOW, heads=2, head_elements=8, window_tokens=100)

    assert window.sequence_bytes(40, KEPT) == 40 * 32
    assert window.sequence_bytes(100, KEPT) == window.sequence_bytes(5_000, KEPT) == 3_200
    assert window.token_bytes(KEPT) == 0


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"model_type": "brand_new", "num_hidden_layers": 2}, "'brand_new' is not known"),
        ({"num_hidden_layers": 2}, "'None' is not known"),
        ([], "not a JSON object"),
        ({"model_type": "llama", "num_hidden_layers": 2}, "num_attention_heads is missing"),
        (
            {"model_type": "llama", "num_hidden_layers": 1 << 40, "num_attention_heads": 2},
            "num_attention_heads|num_hidden_layers|hidden_size",
        ),
        (
            {
                "model_type": "gpt_oss",
                "num_attention_heads": 2,
                "hidden_size": 8,
                "sliding_window": 128,
                "layer_types": ["full_attention", "new_attention"],
            },
            "'new_attention' is not known",
        ),
        (
            {
                "model_type": "kimi_linear",
                "num_attention_heads": 2,
                "num_hidden_layers": 2,
                "hidden_size": 8,
                "kv_lora_rank": 8,
                "qk_rope_head_dim": 8,
                "linear_attn_config": {
                    "num_heads": 2,
                    "head_dim": 4,
                    "short_conv_kernel_size": 4,
                    "full_attn_layers": [1],
                    "kda_layers": [3],
                },
            },
            "does not name every layer once",
        ),
    ],
)
def test_what_is_not_known_is_not_guessed(values: Any, said: str) -> None:
    """An unknown family, layer or field is an error that names it."""
    with pytest.raises(ConfigError, match=said):
        model_of("x", values)


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("llama-3.1-8b", 8.03 - 2 * 0.525),
        ("llama-3.1-70b", 70.55 - 2 * 1.05),
        ("llama-3.1-405b", 405.85 - 2 * 2.1),
        ("mixtral-8x7b", 12.9 - 2 * 0.13),
        ("deepseek-v3", 37.0 - 0.93),
        ("kimi-k2", 32.0 - 1.17),
        ("gpt-oss-120b", 5.13 - 0.58),
        ("qwen3-235b-a22b", 22.2 - 2 * 0.62),
        ("qwen3-30b-a3b", 3.3 - 2 * 0.31),
        ("llama-4-scout", 17.2 - 2 * 1.03),
        ("llama-3.3-nemotron-super-49b", 49.9 - 2 * 1.05),
        ("smollm2-135m", 0.1345 - 0.0283),
    ],
)
def test_the_weights_that_a_token_passes(name: str, billions: float) -> None:
    """They are those that are published as active, less embeddings and output layer."""
    assert find_model(name).token_flops() / 2e9 == pytest.approx(billions, rel=0.03)


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("llama-3.1-405b", 405.85),
        ("deepseek-v3", 671.0),
        ("kimi-k2", 1026.4),
        ("gpt-oss-120b", 116.8),
        ("qwen3-235b-a22b", 235.1),
        ("qwen3-coder-480b-a35b", 480.2),
        ("mixtral-8x22b", 140.6),
        ("nemotron-3-ultra-550b-a55b", 550.0),
        ("qwen3.5-397b-a17b", 397.0),
    ],
)
def test_the_weights_of_a_whole_model(name: str, billions: float) -> None:
    """With all experts and embeddings they are as many as are published."""
    assert find_model(name).weights / 1e9 == pytest.approx(billions, rel=0.002)


def test_attention_costs_what_it_attends_to() -> None:
    """Every pair of tokens once, at most a window of them, and all of them to select some."""
    assert pairs(0, 100) == 5_000
    assert pairs(100, 200) == 15_000
    assert pairs(0, 100, 10) == 50 + 90 * 10
    assert pairs(50, 100, 10) == 50 * 10
    assert pairs(0, 10, 100) == 50
    assert pairs(80, 120, 100) == 20 * 90 + 20 * 100
    selecting = Work(weights=7, pair_products=3, span_tokens=10, selector_products=2)
    assert selecting.flops(0, 100) == 2 * (700 + 3 * 950 + 2 * 5_000)


def test_attention_is_what_grows() -> None:
    """A 70B model's long prefill: weights for each token, attention for each pair."""
    model = find_model("llama-3.1-70b")
    whole = model.recompute_flops(0, 131_072)

    assert whole == pytest.approx(
        131_072 * model.token_flops() + 4 * 80 * 64 * 128 * 131_072**2 / 2
    )
    split = model.recompute_flops(0, 100_000) + model.recompute_flops(100_000, 131_072)
    assert split == pytest.approx(whole)


SCALARS = st.none() | st.booleans() | st.integers(-2, 1 << 40) | st.floats() | st.text(max_size=9)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


@given(st.sampled_from(names()), st.data())
def test_any_field_may_be_anything(name: str, data: st.DataObject) -> None:
    """A configuration with fields changed or taken out is a model or a `ConfigError`."""
    fields = fields_of(name)
    for _ in range(data.draw(st.integers(1, 3))):
        key = data.draw(st.sampled_from(sorted(fields)))
        if data.draw(st.booleans()):
            fields[key] = data.draw(VALUES)
        else:
            del fields[key]
            if not fields:
                break
    try:
        model = model_of(name, fields)
    except ConfigError:
        return
    assert isinstance(model.token_bytes(KEPT), Fraction)
    assert model.recompute_flops(0, 1_000) >= 0
    assert model.structure()


PLAIN = {
    "model_type": "qwen2",
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_size": 32,
    "sliding_window": 128,
}


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({}, 0),
        ({"use_sliding_window": False}, 0),
        ({"use_sliding_window": True}, 4),
        ({"use_sliding_window": True, "max_window_layers": 3}, 1),
        ({"layer_types": ["full_attention", "sliding_attention"] * 2}, 2),
        ({"model_type": "mistral"}, 4),
        ({"model_type": "mistral", "sliding_window": None}, 0),
    ],
)
def test_a_plain_family_may_have_windows(changes: dict[str, Any], windows: int) -> None:
    """Layers that the configuration gives a window hold no more than that."""
    model = model_of("x", {**PLAIN, **changes})

    assert [layer.kind for layer in model.layers].count(Kind.WINDOW) == windows
    assert model.token_bytes(KEPT) == (4 - windows) * 2 * 2 * 8 * 2


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("gpt-oss-20b", {"num_hidden_layers": 2}),
        ("deepseek-v4-flash", {"compress_ratios": [4.0] * 44}),
        ("kimi-k3", {"linear_attn_config": {"num_heads": 1, "head_dim": 1}}),
    ],
)
def test_fields_that_do_not_go_together(name: str, changes: dict[str, Any]) -> None:
    """Layers that are more than there are, ratios that are none, and parts without their fields."""
    with pytest.raises(ConfigError, match=name):
        model_of(name, {**fields_of(name), **changes})


def test_what_is_no_file_is_not_read(tmp_path: Path) -> None:
    """A pipe would never end, and a device not before memory does."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/zero")):
        with pytest.raises(ConfigError, match="no regular file"):
            find_model(str(path))
        with pytest.raises(ConfigError, match="no regular file"):
            read_hardware(path)
    with pytest.raises(ConfigError, match="no model ''"):
        find_model("")


def test_files_that_are_none(tmp_path: Path) -> None:
    """A missing, broken or foreign file is an error that names it; a folder means its config."""
    with pytest.raises(ConfigError, match=r"no model 'lama-3.1-8b' here.*llama-3.1-8b"):
        find_model("lama-3.1-8b")
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    with pytest.raises(ConfigError, match="is no JSON"):
        find_model(str(broken))
    with pytest.raises(ConfigError, match=r"no config.json in .*hint: there is .*broken.json"):
        find_model(str(tmp_path))
    (tmp_path / "config.json").write_text(
        json.dumps(
            {
                "model_type": "llama",
                "num_hidden_layers": 3,
                "num_attention_heads": 4,
                "hidden_size": 32,
            }
        )
    )
    model = find_model(str(tmp_path))
    assert model.token_bytes(KEPT) == 3 * 2 * 32 * 2
    assert (model.work, "intermediate_size is missing" in model.why_no_work) == ((), True)


def test_families_are_all_read() -> None:
    """Each family that is known but for plain ones has a model in the catalogue that shows it."""
    shown = {find_model(name).family for name in names()}
    readers = {FAMILIES[family] for family in shown}

    assert readers == set(FAMILIES.values())


@pytest.mark.parametrize(
    ("quantised", "kept"),
    [
        (None, None),
        ({"quant_method": "fp8", "fmt": "e4m3"}, Precision.FP8),
        ({"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}, Precision.FP8),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, Precision.NVFP4),
        ({"quant_method": "mxfp4"}, Precision.NVFP4),
        ({"quant_method": "gptq", "bits": 4}, Precision.NVFP4),
        ({"config_groups": {"group_0": {"weights": {"num_bits": 8}}}}, Precision.FP8),
        (
            {"quantized_layers": {"a": {"quant_algo": "FP8"}, "b": {"quant_algo": "NVFP4"}}},
            Precision.FP8,
        ),
        ({"quantized_layers": [3], "config_groups": {"group_0": 3}, "bits": "4"}, None),
        ("fp8", None),
    ],
)
def test_weights_as_configured(quantised: object, kept: Precision | None) -> None:
    """A configuration says how weights are kept, the widest of several; else nothing is said."""
    fields = {**fields_of("qwen3-8b"), "quantization_config": quantised}
    assert model_of("x", fields).weights_kept is kept


def test_catalogued_weights_are_those_published() -> None:
    """Models that are published in fewer bits are taken so by their short names."""
    kept = {name: find_model(name).weights_kept for name in names()}

    assert kept["deepseek-v3"] is kept["kimi-k2"] is Precision.FP8
    assert kept["gpt-oss-120b"] is kept["kimi-k3"] is Precision.NVFP4
    assert kept["llama-3.1-70b"] is None
    assert {one for one in kept.values() if one} == {Precision.FP8, Precision.NVFP4}
