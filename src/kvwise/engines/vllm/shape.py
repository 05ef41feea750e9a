"""Reads the shape of the KV cache from vLLM's own tensors and refuses what it does not recognise.

The interior of a block stays opaque: it is described for the namespace and never looked into.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvwise.core.elements import Elements
from kvwise.core.layout import Group, GroupKind, Layout, default_chunk_tokens
from kvwise.engines.copying import DeviceLayer
from kvwise.engines.pieces import KvTensor, device_layer, inner_axes
from kvwise.engines.vllm.elements import Block, elements_of
from kvwise.engines.vllm.orders import Facts
from kvwise.errors import EngineError

if TYPE_CHECKING:
    from torch import Tensor
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec

KINDS = {
    "FullAttentionSpec": GroupKind.FULL,
    "MLAAttentionSpec": GroupKind.LATENT,
    "SlidingWindowSpec": GroupKind.WINDOW,
}
"""KV that is restored, by the exact class of vLLM's spec: subclasses keep other things."""


@dataclass(frozen=True, slots=True)
class Shape:
    """One rank's KV cache.

    Attributes:
        layers: in the order of the layout.
        numbers: place in `layers` of every layer name that has KV of its own.
        part: which rank's part of an object this rank reads and writes.
        stores: whether this rank writes it; of ranks with identical KV only the first does.
    """

    facts: Facts
    layers: tuple[DeviceLayer, ...]
    numbers: Mapping[str, int]
    part: int
    stores: bool


@dataclass(frozen=True, slots=True)
class _Layer:
    """One layer as found, and where its blocks are.

    Attributes:
        axes: order and sizes of the axes within a block, as they lie in memory.
        heads: KV heads that vLLM says it has; 0 if it does not.
    """

    name: str
    tensor: Tensor
    axes: list[tuple[int, int]]
    place: DeviceLayer
    heads: int = 0


def read_shape(
    vllm_config: VllmConfig,
    kv_cache_config: KVCacheConfig,
    kv_caches: Mapping[str, Tensor],
    *,
    chunk_tokens: int,
) -> Shape:
    """The shape of this rank's KV cache; `chunk_tokens` 0 chooses.

    Raises:
        EngineError: something in it is not recognised; the message names it.
    """
    groups: list[Group] = []
    layers: list[DeviceLayer] = []
    numbers: dict[str, int] = {}
    every: list[_Layer] = []
    for index, group in enumerate(kv_cache_config.kv_cache_groups):
        found = list(_own_layers(index, group, kv_caches, kv_cache_config.num_blocks))
        groups.append(_group(group, found))
        every += found
        for layer in found:
            numbers[layer.name] = len(layers)
            layers.append(layer.place)
    block_tokens = _block_tokens(kv_cache_config)
    replicas = _replicas(vllm_config, kv_cache_config, groups)
    rank = vllm_config.parallel_config.rank % vllm_config.parallel_config.tensor_parallel_size
    layout = Layout(
        block_tokens=block_tokens,
        chunk_tokens=_chunk_tokens(groups, block_tokens, replicas[1], chunk_tokens),
        groups=tuple(groups),
        ranks=replicas[1],
    )
    return Shape(
        facts=Facts(
            layout,
            _interior(vllm_config, kv_cache_config, every),
            _elements(vllm_config, kv_cache_config, every),
            kv_cache_config.num_blocks * block_tokens // len(groups),
        ),
        layers=tuple(layers),
        numbers=numbers,
        part=rank // replicas[0],
        stores=rank % replicas[0] == 0,
    )


def _block_tokens(kv_cache_config: KVCacheConfig) -> int:
    """Tokens of a block, the same in all groups, and the same as vLLM hashes."""
    sizes = {group.kv_cache_spec.block_size for group in kv_cache_config.kv_cache_groups}
    hashed = kv_cache_config.hash_block_size
    if len(sizes) != 1 or hashed not in (None, *sizes):
        raise EngineError(
            f"KV cache groups have blocks of {sorted(sizes)} tokens and hashes of {hashed}; only "
            "equal sizes are supported: set --block-size, and leave --prefix-match-unit out"
        )
    return int(sizes.pop())


def _own_layers(
    index: int, group: KVCacheGroupSpec, kv_caches: Mapping[str, Tensor], num_blocks: int
) -> Iterator[_Layer]:
    """The layers of a group that have KV of their own; those that share another's are left out."""
    seen: set[int] = set()
    if group.is_eagle_group or not group.enable_kv_transfer or group.host_resident:
        raise EngineError(f"KV cache group {group.layer_names[:2]}... is not a plain device group")
    for name in group.layer_names:
        tensor = kv_caches.get(name)
        if tensor is None or not hasattr(tensor, "data_ptr"):
            raise EngineError(f"KV of layer {name} is not one tensor but {type(tensor).__name__}")
        if tensor.data_ptr() in seen:
            continue
        seen.add(tensor.data_ptr())
        found = KvTensor(
            f"KV of layer {name}",
            int(tensor.data_ptr()),
            tuple(tensor.shape),
            tuple(tensor.stride()),
            int(tensor.itemsize),
        )
        place = device_layer(found, group=index, blocks=num_blocks)
        heads = int(getattr(group.kv_cache_spec, "num_kv_heads", 0))
        yield _Layer(name, tensor, inner_axes(found, num_blocks), place, heads)


def _group(group: KVCacheGroupSpec, layers: list[_Layer]) -> Group:
    """One group of the layout, from vLLM's spec, checked against the tensors."""
    spec = group.kv_cache_spec
    by_layer = getattr(spec, "kv_cache_specs", None) or {layer.name: spec for layer in layers}
    kinds = {type(by_layer[layer.name]).__name__ for layer in layers}
    if len(kinds) != 1 or not kinds <= KINDS.keys():
        raise EngineError(
            f"KV of kind {', '.join(sorted(kinds))} cannot be restored yet; served are "
            f"{', '.join(KINDS)}"
        )
    for layer in layers:
        declared = by_layer[layer.name]
        if getattr(declared, "tokens_per_state", 1) != 1:
            raise EngineError(f"layer {layer.name} keeps compressed states; not supported yet")
        if layer.place.page_bytes != declared.real_page_size_bytes:
            raise EngineError(
                f"a block of layer {layer.name} has {layer.place.page_bytes} bytes, vLLM declares "
                f"{declared.real_page_size_bytes}"
            )
    kind = KINDS[kinds.pop()]
    window = 0
    if kind is GroupKind.WINDOW:
        window = max(
            spec.sliding_window + getattr(spec, "extra_retained_tokens", 0)
            for spec in (by_layer[layer.name] for layer in layers)
        )
    return Group(kind, tuple(layer.place.page_bytes for layer in layers), window)


def _replicas(
    vllm_config: VllmConfig, kv_cache_config: KVCacheConfig, groups: list[Group]
) -> tuple[int, int]:
    """(neighbouring ranks with identical KV, ranks with a part of their own)."""
    size = vllm_config.parallel_config.tensor_parallel_size
    replicas = getattr(kv_cache_config, "kv_tp_replicas", 1)
    if all(group.kind is GroupKind.LATENT for group in groups):
        replicas = size
    if size % replicas:
        raise EngineError(f"{size} ranks cannot hold {replicas} copies of the KV each")
    return replicas, size // replicas


def _chunk_tokens(groups: list[Group], block_tokens: int, ranks: int, wanted: int) -> int:
    """Tokens of one object: at most a window, or its first blocks are gone when it is complete."""
    windows = [g.window_tokens for g in groups if g.kind is GroupKind.WINDOW]
    most = max(block_tokens, min(windows) // block_tokens * block_tokens) if windows else None
    if wanted:
        if wanted % block_tokens or (most is not None and wanted > most):
            raise EngineError(
                f"client.chunk_tokens = {wanted} must be a multiple of the block of {block_tokens} "
                f"tokens" + (f" and at most {most}, the sliding window" if most else "")
            )
        return wanted
    chosen = default_chunk_tokens(block_tokens, ranks * sum(sum(g.pages_bytes) for g in groups))
    return chosen if most is None else min(chosen, most)


def _elements(
    vllm_config: VllmConfig, kv_cache_config: KVCacheConfig, layers: list[_Layer]
) -> Elements | None:
    """What the numbers in the blocks are."""
    blocks = (Block(str(one.tensor.dtype), tuple(one.axes), one.heads) for one in layers)
    cache = vllm_config.cache_config
    return elements_of(blocks, str(cache.cache_dtype), str(kv_cache_config.kv_cache_layout))


def _interior(vllm_config: VllmConfig, kv_cache_config: KVCacheConfig, layers: list[_Layer]) -> str:
    """What decides the meaning of the bytes inside a block, in words."""
    import torch
    import vllm

    modules = vllm_config.compilation_config.static_forward_context
    parts = [f"vllm {vllm.__version__}", f"layout {kv_cache_config.kv_cache_layout}"]
    for layer in layers:
        module = modules[layer.name]
        kernel = type(getattr(module, "impl", module)).__qualname__
        part = f"{kernel} {getattr(module, 'isa', '')} {layer.tensor.dtype} {layer.axes}"
        if part not in parts:
            parts.append(part)
    device = layers[0].tensor.device
    if device.type == "cpu":
        capability = torch.backends.cpu.get_cpu_capability()
        parts.append(f"cpu {platform.machine()} {capability}")
    else:
        parts.append(f"{device.type} {torch.cuda.get_device_capability(device)}")
    return "; ".join(parts)
