"""Owns the scenarios of `test_pains.py`; each runs in a process of its own and prints JSON.

`python pains_child.py SCENARIO JSON` inside the engine's environment. It asserts nothing.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.engines.rig import LONG, Rig

RESULT = "RESULT "
RANK = 8


def write_adapter(folder: Path, model: str, seed: int) -> str:
    """An adapter of random weights for the attention of every layer of a model."""
    import torch
    from safetensors.torch import save_file

    config = json.loads((Path(model) / "config.json").read_text(encoding="utf-8"))
    hidden, head = config["hidden_size"], config["head_dim"]
    rows = {
        "q_proj": config["num_attention_heads"] * head,
        "v_proj": config["num_key_value_heads"] * head,
    }
    torch.manual_seed(seed)
    tensors = {}
    for layer in range(config["num_hidden_layers"]):
        for name, width in rows.items():
            at = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            tensors[f"{at}.lora_A.weight"] = torch.randn(RANK, hidden)
            tensors[f"{at}.lora_B.weight"] = torch.randn(width, RANK)
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    facts = {
        "peft_type": "LORA",
        "base_model_name_or_path": model,
        "r": RANK,
        "lora_alpha": RANK,
        "target_modules": list(rows),
        "bias": "none",
        "task_type": "CAUSAL_LM",
    }
    (folder / "adapter_config.json").write_text(json.dumps(facts), encoding="utf-8")
    return str(folder)


def adapters(rig: Rig, *, folder: str, model: str) -> dict[str, Any]:
    """One prompt with no adapter, two, a namesake of the first, and with that name as its salt.

    Each is asked twice, and what the engine itself remembers is forgotten before every question.
    """
    from vllm.lora.request import LoRARequest

    home = Path(folder)
    requests = {
        name: LoRARequest(called, number, write_adapter(home / name, model, number))
        for number, (name, called) in enumerate(
            (("one", "alice"), ("two", "bob"), ("namesake", "alice")), start=1
        )
    }
    asked: dict[str, dict[str, Any]] = {"plain": {}}
    asked |= {name: {"lora": request} for name, request in requests.items()}
    asked["salt"] = {"salt": "alice"}
    seen: dict[str, Any] = {}
    for turn in ("first", "second"):
        for name, how in asked.items():
            rig.forget()
            prompt = {"prompt": LONG} | ({"cache_salt": how["salt"]} if "salt" in how else {})
            (answer,) = rig.llm.generate(
                [prompt], rig.params(), lora_request=how.get("lora"), use_tqdm=False
            )
            seen[f"{turn} {name}"] = {
                "tokens": list(answer.outputs[0].token_ids),
                "loaded": (answer.kv_transfer_params or {})["kvwise"].get("load_tokens", 0),
            }
    return seen


def images() -> dict[str, Any]:
    """Keys of prompts with the same text and different pictures, from vLLM's own block hashes."""
    from types import SimpleNamespace

    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.request import Request

    from kvwise.engines.vllm.prompts import Adapters, Grid, prompt_of

    init_none_hash(sha256)
    hasher, grid = get_request_block_hasher(32, sha256), Grid(b"s" * 16, 32, 64)

    def keys(picture: str) -> str:
        feature = SimpleNamespace(
            identifier=picture,
            mm_hash=picture,
            mm_position=SimpleNamespace(offset=70, length=50),
        )
        request = Request(
            request_id=picture or "none",
            prompt_token_ids=list(range(256)),
            sampling_params=SamplingParams(max_tokens=1),
            pooling_params=None,
            mm_features=[feature] if picture else None,
            block_hasher=hasher,
        )
        prompt = prompt_of(request, Adapters())
        prompt.grow(grid)
        return prompt.keys.hex()

    pictures = ["a" * 64, "a" * 63 + "b", "b" + "a" * 63]
    return {"keys": [keys(one) for one in ["", *pictures]], "again": keys(pictures[0])}


def main() -> None:
    """Run one scenario and print what was seen as the last line."""
    name, text = sys.argv[1:]
    given = json.loads(text)
    seen = images() if name == "images" else adapters(Rig(**given["rig"]), **given["more"])
    print(RESULT + json.dumps(seen), flush=True)


if __name__ == "__main__":
    main()
