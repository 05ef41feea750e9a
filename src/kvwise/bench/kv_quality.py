"""Owns what a model makes of restored KV: how likely it finds a text, and how it goes on itself.

It writes KV down, or judges KV that others bring back; it knows no codec and no store. It runs as
a script under the engine's Python, which has torch and `transformers`; it needs no kvwise.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Layers = list[tuple[Any, Any]]
"""K and V of each layer, (1, heads, tokens, width) each."""


def main() -> None:
    """Write down the KV of each text's prefix, or judge folders that have it.

    Objects of a prefix are in `NUMBER.kv`, block after block; in each, layer after layer, K, then
    V, head after head.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--texts", type=Path, required=True, help="a JSON list of texts")
    parser.add_argument("--prefix", type=int, required=True, help="tokens, at most")
    parser.add_argument("--rest", type=int, required=True, help="tokens that are judged")
    parser.add_argument("--generate", type=int, default=0, help="tokens that it goes on with")
    parser.add_argument("--block", type=int, required=True, help="tokens of an object")
    parser.add_argument("--write", type=Path, help="folder for KV; otherwise folders are judged")
    parser.add_argument("folders", type=Path, nargs="*")
    options = parser.parse_args()
    reader = Reader(options.model)
    texts = [
        reader.cut(text, options) for text in json.loads(options.texts.read_text(encoding="utf-8"))
    ]
    if options.write:
        found = [
            reader.write(prefix, options.write / f"{at}.kv", options.block)
            for at, (prefix, _) in enumerate(texts)
        ]
        print(json.dumps(found[0] | {"tokens": [[len(one) for one in text] for text in texts]}))
        return
    judged: dict[str, list[dict[str, Any]]] = {
        name: [] for name in ["", *(folder.name for folder in options.folders)]
    }
    for at, (prefix, rest) in enumerate(texts):
        ways = [reader.read(prefix)]
        ways += [
            reader.load(folder / f"{at}.kv", ways[0], options.block) for folder in options.folders
        ]
        answers = reader.judge(ways, rest, options.generate)
        for name, answer in zip(judged, answers, strict=True):
            judged[name].append(answer)
    print(json.dumps(judged))


class Reader:
    """The model, and what it does with texts and KV."""

    def __init__(self, model: Path) -> None:
        """Load it, in BF16."""
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self._torch = torch
        self._network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16)
        self._tokenizer = AutoTokenizer.from_pretrained(model)

    def cut(self, text: str, options: argparse.Namespace) -> tuple[list[int], list[int]]:
        """Tokens of a text's prefix, which are whole blocks, and those that are judged."""
        tokens = self._tokenizer(text).input_ids
        blocks = min(options.prefix, len(tokens) - options.rest) // options.block
        end = blocks * options.block
        return tokens[:end], tokens[end : end + options.rest]

    def read(self, tokens: Sequence[int]) -> Layers:
        """What the model keeps of a prefix."""
        with self._torch.no_grad():
            ids = self._torch.tensor([tokens])
            kept = self._network(ids, use_cache=True, logits_to_keep=1).past_key_values
        return [(layer.keys, layer.values) for layer in kept.layers]

    def write(self, prefix: Sequence[int], path: Path, block: int) -> dict[str, int]:
        """Write down the KV of a prefix; its shape."""
        torch = self._torch
        layers = self.read(prefix)
        both = torch.stack([torch.stack((keys[0], values[0])) for keys, values in layers])
        count, _, heads, _, width = both.shape
        blocks = both.reshape(count, 2, heads, -1, block, width).permute(3, 0, 1, 2, 4, 5)
        path.write_bytes(blocks.contiguous().view(torch.int16).numpy().tobytes())
        return {"layers": count, "heads": heads, "width": width}

    def load(self, path: Path, like: Layers, block: int) -> Layers:
        """KV that was brought back, in the shape of what it stands for."""
        torch = self._torch
        _, heads, tokens, width = like[0][0].shape
        bits = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.int16)
        blocks = bits.view(torch.bfloat16).reshape(-1, len(like), 2, heads, block, width)
        both = blocks.permute(1, 2, 3, 0, 4, 5).reshape(len(like), 2, 1, heads, tokens, width)
        return [(keys, values) for keys, values in both]

    def judge(
        self, ways: Sequence[Layers], rest: Sequence[int], generate: int
    ) -> list[dict[str, Any]]:
        """How the model finds and goes on with a text, given the KV of its prefix each way.

        `nll` is the sum over all tokens but the first, in nats; `choices` are what it would have
        said at each of them, and `generated` what it says by itself after the first. All ways are
        one batch, so that they are computed alike.
        """
        from transformers import DynamicCache

        torch = self._torch
        layers = [
            tuple(torch.cat([way[at][which] for way in ways]) for which in (0, 1))
            for at in range(len(ways[0]))
        ]
        with torch.no_grad():
            ids = torch.tensor([rest] * len(ways))
            logits = self._network(ids, past_key_values=DynamicCache(layers)).logits[:, :-1]
            answers = [self._judge(own.float(), ids[0, 1:]) for own in logits]
            tokens, kept = [ids[:, :1]], DynamicCache(layers)
            for _ in range(generate):
                step = self._network(tokens[-1], past_key_values=kept)
                tokens.append(step.logits[:, -1].argmax(dim=-1, keepdim=True))
        generated = torch.cat(tokens[1:], dim=1).tolist() if generate else [[] for _ in ways]
        pairs = zip(answers, generated, strict=True)
        return [answer | {"generated": own} for answer, own in pairs]

    def _judge(self, logits: Any, tokens: Any) -> dict[str, Any]:
        """How likely these tokens are, and which would have been the likeliest."""
        likely = self._torch.log_softmax(logits, dim=-1).gather(1, tokens[:, None])
        choices = logits.argmax(dim=-1).tolist()
        return {"nll": -float(likely.double().sum()), "choices": choices}


if __name__ == "__main__":
    main()
