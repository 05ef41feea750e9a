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

COMPUTED = {"bf16": "bfloat16", "fp16": "float32", "fp32": "float32"}
"""In which numbers a model computes what is kept in these; in bfloat16 for all others."""

KEPT = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "fp32": "float32",
    "e4m3": "float8_e4m3fn",
    "e5m2": "float8_e5m2",
}


def main() -> None:
    """Write `NAME.k.KIND.bin` and `NAME.v.KIND.bin` for each text `NAME.txt`.

    They are objects of BLOCK_TOKENS tokens, in each layer after layer.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--tokens", type=int, required=True, help="of each text, at most")
    parser.add_argument("--kinds", nargs="+", choices=KEPT, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("texts", type=Path, nargs="+")
    options = parser.parse_args()
    by_type: dict[str, list[str]] = {}
    for kind in options.kinds:
        by_type.setdefault(COMPUTED.get(kind, "bfloat16"), []).append(kind)
    for name, kinds in by_type.items():
        for text in options.texts:
            layers = _read(options.model, name, text.read_text(encoding="utf-8"), options.tokens)
            for kind in kinds:
                for part, whole in (("k", "keys"), ("v", "values")):
                    objects = _objects([getattr(layer, whole) for layer in layers], kind)
                    (options.out / f"{text.stem}.{part}.{kind}.bin").write_bytes(objects)


def _read(model: Path, name: str, text: str, tokens: int) -> list[Any]:
    """What each layer keeps of a text."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    network = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, name))
    numbers = AutoTokenizer.from_pretrained(model)(text, return_tensors="pt").input_ids
    with torch.no_grad():
        kept = network(numbers[:, :tokens], use_cache=True).past_key_values
    return list(kept.layers)


def _objects(parts: list[Any], kind: str) -> bytes:
    """Tensors of all layers, (1, heads, tokens, width) each, as objects joined.

    What is too large for a kind becomes its largest number, as engines do it at a scale of 1.
    """
    import torch

    whole = torch.stack([part[0] for part in parts])
    blocks = whole.shape[2] // BLOCK_TOKENS
    whole = whole[:, :, : blocks * BLOCK_TOKENS]
    cut = whole.reshape(*whole.shape[:2], blocks, BLOCK_TOKENS, whole.shape[3])
    joined = cut.permute(2, 0, 1, 3, 4).contiguous()
    target = getattr(torch, KEPT[kind])
    if target != joined.dtype:
        joined = joined.clamp(torch.finfo(target).min, torch.finfo(target).max).to(target)
    return bytes(joined.view(torch.uint8).numpy().tobytes())


if __name__ == "__main__":
    main()
