"""The flags of engines that a plan comes to: vLLM with kvwise, SGLang with its own tiers.

It starts no engine. kvwise has no connector for SGLang; its flags there are those of SGLang's own
hierarchical cache, so that the sizes of the plan can be had there too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kvwise.planner.shapes import Kind, Precision
from kvwise.planner.site import HBM_SHARE, Decision, Site, Verdict
from kvwise.planner.stack import Stack, connector

VLLM_KV = {Precision.BF16: "auto", Precision.FP8: "fp8", Precision.NVFP4: "nvfp4"}
SGLANG_KV = {Precision.BF16: "auto", Precision.FP8: "fp8_e4m3", Precision.NVFP4: "fp4_e2m1"}
BLOCK_TOKENS = {Kind.FULL: "16", Kind.LATENT: "64"}
"""Of models all of whose layers are of one kind; others have what the engine chooses."""

PAGE_TOKENS = "64"
SGLANG_SHARE = 0.88
"""Of a GPU's memory, what weights and KV may take there; the rest is for activations."""


@dataclass(frozen=True, slots=True)
class Flags:
    """How to start one engine on one host.

    Attributes:
        engine: which, in which version the names of flags were looked up.
        words: the command.
        environment: variables that it needs.
        tried: what of it was run, and what was not.
    """

    engine: str
    words: tuple[str, ...]
    tried: str
    environment: Mapping[str, str] = field(default_factory=dict)


def vllm(site: Site, model: str, stack: Stack | None) -> Flags:
    """vLLM, with kvwise behind it where there is a stack and its connector serves the model."""
    words = ["vllm", "serve", model, "--tensor-parallel-size", str(site.gpus)]
    words += ["--gpu-memory-utilization", f"{HBM_SHARE:g}"]
    words += ["--kv-cache-dtype", VLLM_KV[site.kept.kv]]
    words += ["--enable-prefix-caching", "--prefix-caching-hash-algo", "sha256"]
    kinds = {layer.kind for layer in site.model.layers}
    if len(kinds) == 1 and (block := BLOCK_TOKENS.get(kinds.pop())):
        words += ["--block-size", block]
    if stack is not None and not site.model.state_bytes(site.kept):
        told = connector(str(stack["serve"]["socket"]))
        words += ["--kv-transfer-config", json.dumps(told, separators=(",", ":"))]
    return Flags(
        "vLLM 0.32",
        tuple(words),
        "its parser takes every flag; the connector and prefix caching were run on a CPU, with "
        "one and two ranks; nothing was run on a GPU, nor with KV in FP8 or NVFP4",
    )


def sglang(site: Site, model: str, decisions: Iterable[Decision], stack: Stack | None) -> Flags:
    """SGLang, with its own hierarchical cache of the same sizes."""
    verdicts = {one.boundary: one.verdict for one in decisions}
    words = ["python", "-m", "sglang.launch_server", "--model-path", model]
    words += ["--tp-size", str(site.gpus), "--mem-fraction-static", f"{SGLANG_SHARE:g}"]
    words += ["--kv-cache-dtype", SGLANG_KV[site.kept.kv], "--page-size", PAGE_TOKENS]
    environment = {}
    if stack is not None:
        each_gb = max(1, int(str(stack["dram"]["size"]).removesuffix("GB")) // site.gpus)
        words += ["--enable-hierarchical-cache", "--hicache-size", str(each_gb)]
        words += ["--hicache-write-policy", "write_through", "--hicache-io-backend", "kernel"]
        words += ["--hicache-mem-layout", "page_first"]
        if verdicts.get("nvme") is Verdict.YES:
            words += ["--hicache-storage-backend", "file"]
            paths = stack["disk"]["paths"]
            first = str(paths[0]) if isinstance(paths, list) else str(paths)
            environment["SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR"] = first
    return Flags(
        "SGLang 0.5.23",
        tuple(words),
        "not run: its hierarchical cache needs CUDA. --hicache-size is in GB for each rank; its "
        "file backend takes one directory, has no write budget and no cap",
        environment,
    )
