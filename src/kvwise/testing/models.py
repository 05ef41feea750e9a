"""Tiny models for tests, written to a directory without any network. It trains nothing.

Their weights are random but large, so that greedy text depends on every byte of KV: with small
weights a model repeats two tokens whatever its cache holds, and a test of equality proves nothing.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

LAYERS = 4
HIDDEN = 256
VOCABULARY = 512
POSITIONS = 4096
WINDOW = 64
MARKS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
STD = 0.2
"""Spread of the weights: about 43 of 48 greedy tokens differ from each other."""


def tiny_llama(directory: Path, *, seed: int = 0) -> Path:
    """A llama of 2.6 million parameters in float32: one group of layers with full attention."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    tokens = _tokenizer(directory)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=2 * HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=POSITIONS,
        initializer_range=STD,
        tie_word_embeddings=False,
        **tokens,
    )
    LlamaForCausalLM(config).to(torch.float32).save_pretrained(directory)
    return directory


def tiny_hybrid(directory: Path, *, seed: int = 0) -> Path:
    """The tiny llama with sliding windows in every other layer: two groups that share memory.

    Only vLLM reads it that way; transformers is no oracle for it.
    """
    tiny_llama(directory, seed=seed)
    path = directory / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["layer_types"] = ["sliding_attention", "full_attention"] * (LAYERS // 2)
    config["sliding_window"] = WINDOW
    path.write_text(json.dumps(config, indent=1), encoding="utf-8")
    return directory


def tiny_mla(directory: Path, *, seed: int = 0) -> Path:
    """A DeepSeek-V2 with latent KV, all layers dense."""
    import torch
    from transformers import DeepseekV2Config, DeepseekV2ForCausalLM

    torch.manual_seed(seed)
    tokens = _tokenizer(directory)
    config = DeepseekV2Config(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=2 * HIDDEN,
        moe_intermediate_size=HIDDEN // 2,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        kv_lora_rank=512,
        q_lora_rank=None,
        qk_rope_head_dim=64,
        qk_nope_head_dim=64,
        v_head_dim=64,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_group=1,
        topk_group=1,
        first_k_dense_replace=3,
        n_shared_experts=1,
        max_position_embeddings=POSITIONS,
        initializer_range=STD / 2,
        **tokens,
    )
    DeepseekV2ForCausalLM(config).save_pretrained(directory)
    return directory


def _tokenizer(directory: Path) -> dict[str, Any]:
    """Write a tokenizer of 256 bytes and 3 marks; the answer is the marks' ids for a config."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    directory.mkdir(parents=True, exist_ok=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=POSITIONS,
        **MARKS,
    )
    fast.chat_template = (
        "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"
    )
    fast.save_pretrained(directory)
    return {
        "bos_token_id": fast.bos_token_id,
        "eos_token_id": fast.eos_token_id,
        "pad_token_id": fast.pad_token_id,
    }
