"""The conversion of the demo's model: names, order of rows, rounding, file format."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest

from kvwise.bench.smollm2 import (
    checkpoint_name,
    model_config,
    rotary_halves,
    to_bfloat16,
    write_safetensors,
)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("output_norm.weight", "model.norm.weight"),
        ("blk.0.attn_q.weight", "model.layers.0.self_attn.q_proj.weight"),
        ("blk.29.ffn_down.weight", "model.layers.29.mlp.down_proj.weight"),
    ],
)
def test_names_become_those_of_a_checkpoint(name: str, expected: str) -> None:
    """Every kind of tensor gets the name that the engine looks for."""
    assert checkpoint_name(name) == expected


@pytest.mark.parametrize("name", ["rope_freqs.weight", "blk.0.attn_x.weight", "blk.0.weight", ""])
def test_a_tensor_of_another_model_is_refused(name: str) -> None:
    """A tensor that would be left out silently is an error."""
    with pytest.raises(ValueError, match="no part of this model"):
        checkpoint_name(name)


def test_rotary_rows_are_put_back_in_halves() -> None:
    """Rows side by side in the file are half a head apart in the checkpoint."""
    heads, half = 2, 3
    numbers = np.arange(heads * 2 * half, dtype=np.float32)
    checkpoint = np.stack([numbers, numbers + 100], axis=1)
    side_by_side = checkpoint.reshape(heads, 2, half, 2).swapaxes(1, 2).reshape(-1, 2)

    assert np.array_equal(rotary_halves(side_by_side, heads), checkpoint)


@pytest.mark.parametrize(
    ("bits", "expected"),
    [
        (0x3F800000, 0x3F80),  # 1.0 is exact
        (0x3F808000, 0x3F80),  # half way: to the even neighbour, below
        (0x3F818000, 0x3F82),  # half way: to the even neighbour, above
        (0x3F808001, 0x3F81),  # more than half way
        (0xBF808001, 0xBF81),  # the same with a sign
        (0x00000000, 0x0000),
    ],
)
def test_bfloat16_rounds_to_the_nearest_even(bits: int, expected: int) -> None:
    """Rounding is that of the hardware, not truncation."""
    values = np.array([bits], dtype=np.uint32).view(np.float32)

    assert to_bfloat16(values)[0] == expected


def test_the_weights_file_reads_back(tmp_path: Path) -> None:
    """Header and offsets describe the bytes that follow."""
    tensors = {
        "a": np.arange(6, dtype=np.uint16).reshape(2, 3),
        "b": np.array([7], dtype=np.uint16),
    }
    write_safetensors(tmp_path / "model.safetensors", tensors)
    raw = (tmp_path / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header, data = json.loads(raw[8 : 8 + length]), raw[8 + length :]

    assert length % 8 == 0
    for name, bits in tensors.items():
        start, end = header[name]["data_offsets"]
        assert header[name]["dtype"] == "BF16"
        assert header[name]["shape"] == list(bits.shape)
        assert data[start:end] == bits.tobytes()


def test_the_configuration_has_the_heads_of_the_file() -> None:
    """The width of a head follows from width and heads."""
    field = {
        "llama.embedding_length": 576,
        "llama.feed_forward_length": 1536,
        "llama.block_count": 30,
        "llama.attention.head_count": 9,
        "llama.attention.head_count_kv": 3,
        "llama.attention.layer_norm_rms_epsilon": 9.999999747378752e-06,
        "llama.vocab_size": 49152,
        "llama.context_length": 8192,
        "llama.rope.freq_base": 100000.0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.padding_token_id": 2,
    }
    config = model_config(field)

    assert config["head_dim"] == 64
    assert config["rms_norm_eps"] == 1e-05
    assert config["rope_parameters"]["rope_theta"] == 100000.0
