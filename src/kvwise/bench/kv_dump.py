"""Owns the making of real KV: a model reads texts, and what it kept of them is written down.

It compresses and judges nothing. It runs as a script under the engine's Python, which has torch and
`transformers`; it needs no kvwise.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

BLOCK_TOKENS = 32
"""Tokens of one object, as in the engine on a CPU."""


def main() -> None:
    """Write `k.bin` and `v.bin`: objects of BLOCK_TOKENS tokens, in each layer after layer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--tokens", type=int, required=True, help="of each text, at most")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("texts", type=Path, nargs="+")
    options = parser.parse_args()
    with (options.out / "k.bin").open("wb") as keys, (options.out / "v.bin").open("wb") as values:
        for text in options.texts:
            layers = _read(options.model, text.read_text(encoding="utf-8"), options.tokens)
            keys.write(_objects([layer.keys for layer in layers]))
            values.write(_objects([layer.values for layer in layers]))


def _read(model: Path, text: str, tokens: int) -> list[Any]:
    """What each layer keeps of a text."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16)
    numbers = AutoTokenizer.from_pretrained(model)(text, return_tensors="pt").input_ids
    with torch.no_grad():
        kept = network(numbers[:, :tokens], use_cache=True).past_key_values
    return list(kept.layers)


def _objects(parts: list[Any]) -> bytes:
    """Tensors of all layers, (1, heads, tokens, width) each, as objects joined."""
    import torch

    whole = torch.stack([part[0] for part in parts])
    blocks = whole.shape[2] // BLOCK_TOKENS
    whole = whole[:, :, : blocks * BLOCK_TOKENS]
    cut = whole.reshape(*whole.shape[:2], blocks, BLOCK_TOKENS, whole.shape[3])
    joined = cut.permute(2, 0, 1, 3, 4).contiguous()
    return bytes(joined.view(torch.int16).numpy().tobytes())


if __name__ == "__main__":
    main()
