"""The shape of vLLM's KV cache: what is recognised, and what is refused in words."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kvwise.core.layout import GroupKind
from kvwise.engines.vllm.shape import Shape, read_shape
from kvwise.errors import EngineError
from tests.engines.toy import BLOCK, BLOCKS, PAGE, WINDOW, Tensor, disguise, kv_config, vllm_config


@pytest.fixture(autouse=True)
def _without_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests run without vLLM."""
    disguise(monkeypatch)


def tensors(config: Any, *, shape: tuple[int, ...] = (BLOCKS, PAGE)) -> dict[str, Any]:
    """A tensor of bytes for each layer."""
    return {
        name: Tensor(np.zeros(shape, dtype=np.uint8))
        for group in config.kv_cache_groups
        for name in group.layer_names
    }


def read(groups: tuple[str, ...] = ("full",), **changes: Any) -> Shape:
    """The shape of a rank with these groups."""
    config = kv_config(groups, **changes.pop("config", {}))
    given = changes.pop("tensors", None) or tensors(config)
    ranks, rank = changes.pop("ranks", 1), changes.pop("rank", 0)
    tokens = changes.pop("chunk_tokens", 0)
    return read_shape(vllm_config(ranks, rank), config, given, chunk_tokens=tokens)


@pytest.mark.pain("C4")
def test_blocks_lie_where_the_tensors_say() -> None:
    """Addresses, strides and sizes come from the tensors, in vLLM's order of layers."""
    config = kv_config(("full", "window"))
    given = tensors(config)
    shape = read(("full", "window"), tensors=given)
    assert [layer.address for layer in shape.layers] == [t.data_ptr() for t in given.values()]
    assert {(layer.stride, layer.page_bytes) for layer in shape.layers} == {(PAGE, PAGE)}
    assert list(shape.numbers) == list(given)
    groups = shape.facts.layout.groups
    assert [(g.kind, g.window_tokens) for g in groups] == [
        (GroupKind.FULL, 0),
        (GroupKind.WINDOW, WINDOW),
    ]


def test_blocks_with_other_layers_between_them_are_found() -> None:
    """In a block-outermost layout a block's layers are neighbours, and strides are wide."""
    config = kv_config(("full",))
    memory = np.zeros((BLOCKS, 2, PAGE), dtype=np.uint8)
    names = config.kv_cache_groups[0].layer_names
    given = {name: Tensor(memory[:, n]) for n, name in enumerate(names)}
    shape = read(tensors=given)
    assert {(layer.stride, layer.page_bytes) for layer in shape.layers} == {(2 * PAGE, PAGE)}


@pytest.mark.pain("C2")
def test_kernel_blocks_make_up_a_block() -> None:
    """If the kernel's blocks are smaller than vLLM's, several neighbours are one."""
    config = kv_config(("full",))
    given = tensors(config, shape=(BLOCKS * 4, PAGE // 4))
    shape = read(tensors=given)
    assert {(layer.stride, layer.page_bytes) for layer in shape.layers} == {(PAGE, PAGE)}


@pytest.mark.parametrize("kv_first", [True, False])
def test_blocks_in_several_pieces_are_served(kv_first: bool) -> None:
    """K and V may lie apart, whichever axis vLLM puts first."""
    config = kv_config(("full",))
    memory = np.zeros((2, BLOCKS, PAGE // 2), dtype=np.uint8)
    tensor = memory if kv_first else memory.swapaxes(0, 1)
    given = {name: Tensor(tensor.copy("K")) for name in config.kv_cache_groups[0].layer_names}
    shape = read(tensors=given)
    assert {layer.pieces for layer in shape.layers} == {(0, BLOCKS * PAGE // 2)}
    assert {(layer.stride, layer.page_bytes) for layer in shape.layers} == {(PAGE // 2, PAGE)}


def test_layers_that_share_kv_are_stored_once() -> None:
    """Two names for the same memory are one layer."""
    config = kv_config(("full",))
    given = tensors(config)
    first, second = given
    given[second] = given[first]
    assert len(read(tensors=given).layers) == 1


def test_every_rank_has_its_part() -> None:
    """With tensor parallelism an object has a part for each rank."""
    shapes = [read(ranks=4, rank=rank) for rank in range(4)]
    assert [shape.part for shape in shapes] == [0, 1, 2, 3]
    assert all(shape.stores for shape in shapes)
    assert {shape.facts for shape in shapes} == {shapes[0].facts}
    assert shapes[0].facts.layout.ranks == 4


@pytest.mark.pain("C4")
@pytest.mark.parametrize(
    ("groups", "replicas", "parts", "stores"),
    [
        (("mla",), 1, [0, 0, 0, 0], [True, False, False, False]),
        (("full",), 2, [0, 0, 1, 1], [True, False, True, False]),
    ],
)
def test_ranks_with_the_same_kv_share_a_part(
    groups: tuple[str, ...], replicas: int, parts: list[int], stores: list[bool]
) -> None:
    """Latent KV is the same on all ranks, replicated heads on some: the first of them stores."""
    shapes = [
        read(groups, ranks=4, rank=rank, config={"kv_tp_replicas": replicas}) for rank in range(4)
    ]
    assert [shape.part for shape in shapes] == parts
    assert [shape.stores for shape in shapes] == stores
    assert shapes[0].facts.layout.ranks == len(set(parts))


def test_a_chunk_fits_into_the_window() -> None:
    """A longer one would have lost its first blocks when it is complete."""
    assert read(("full", "window")).facts.layout.chunk_tokens == WINDOW
    assert read(("full",)).facts.layout.chunk_tokens > WINDOW
    assert read(("full", "window"), chunk_tokens=BLOCK).facts.layout.chunk_tokens == BLOCK


@pytest.mark.pain("C4", "G6")
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"groups": ("sink",)}, "SinkFullAttentionSpec cannot be restored"),
        ({"groups": ("full", "window"), "chunk_tokens": 2 * WINDOW}, "at most 8"),
        ({"chunk_tokens": BLOCK + 1}, "multiple of the block"),
        ({"config": {"hash_block_size": 2 * BLOCK}}, "only equal sizes"),
        ({"config": {"num_blocks": BLOCKS - 1}}, "no axis"),
        ({"config": {"kv_tp_replicas": 3}, "ranks": 4}, "cannot hold 3 copies"),
    ],
)
def test_what_is_not_recognised_is_refused(changes: dict[str, Any], words: str) -> None:
    """The message names what it was."""
    with pytest.raises(EngineError, match=words):
        read(**changes)


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        (np.zeros((BLOCKS, PAGE + 8), dtype=np.uint8), f"has {PAGE + 8} bytes"),
        (np.zeros((BLOCKS, 2 * PAGE), dtype=np.uint8)[:, ::2], "not contiguous"),
    ],
)
def test_tensors_that_scatter_a_block_are_refused(tensor: Any, words: str) -> None:
    """A block must be one run of as many bytes as vLLM declares."""
    given = dict.fromkeys(kv_config(("full",)).kv_cache_groups[0].layer_names, Tensor(tensor))
    with pytest.raises(EngineError, match=words):
        read(tensors=given)


@pytest.mark.pain("P2")
@pytest.mark.parametrize("flag", ["is_eagle_group", "host_resident"])
def test_groups_that_are_not_plain_are_refused(flag: str) -> None:
    """A drafter's KV, or KV that lives on the host, is not ours to move."""
    config = kv_config(("full",))
    setattr(config.kv_cache_groups[0], flag, True)
    with pytest.raises(EngineError, match="not a plain device group"):
        read_shape(vllm_config(), config, tensors(config), chunk_tokens=0)


@pytest.mark.pain("G6")
def test_states_that_are_no_tensor_are_refused() -> None:
    """Recurrent layers register lists of states."""
    given: dict[str, Any] = {
        name: [SimpleNamespace()] for name in kv_config(("full",)).kv_cache_groups[0].layer_names
    }
    with pytest.raises(EngineError, match="not one tensor but list"):
        read(tensors=given)
