"""No rank ever waits for another one in the cache path. It reads sources; no engine is needed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src" / "kvwise"
COLLECTIVE = {
    *("all_reduce", "all_gather", "all_gather_object", "all_to_all", "broadcast_object_list"),
    *("reduce_scatter", "gather_object", "scatter_object_list", "monitored_barrier"),
    *("get_tp_group", "get_pp_group", "get_world_group", "init_process_group"),
}
MODULES = ("torch.distributed", "vllm.distributed.parallel_state", "vllm.distributed.device")


def collectives(tree: ast.Module) -> Iterator[str]:
    """Lines on which something is used that all ranks must call alike."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in COLLECTIVE:
            yield f"{node.lineno}: {node.attr}"
        elif isinstance(node, ast.Name) and node.id in COLLECTIVE:
            yield f"{node.lineno}: {node.id}"
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            yield from (f"{node.lineno}: {n}" for n in names if n.startswith(MODULES))
            yield from (f"{node.lineno}: {a.name}" for a in node.names if a.name in COLLECTIVE)
        elif isinstance(node, ast.Import):
            named = (alias.name for alias in node.names)
            yield from (f"{node.lineno}: {n}" for n in named if n.startswith(MODULES))


@pytest.mark.pain("H3", "P5")
def test_h3_p5_no_rank_waits_for_another() -> None:
    """Nothing that engines run is collective, so ranks that disagree cannot hang each other."""
    found = {
        str(path.relative_to(SOURCE)): list(collectives(ast.parse(path.read_text())))
        for room in ("engines", "live", "core", "tiers", "codecs")
        for path in sorted((SOURCE / room).rglob("*.py"))
    }

    assert len(found) > 40
    assert {name: lines for name, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "source",
    [
        "import torch.distributed as dist",
        "from torch import distributed\ndistributed.all_reduce(x)",
        "from vllm.distributed.parallel_state import get_tp_group",
        "from vllm.distributed import get_tp_group",
        "group.all_gather(x)",
    ],
)
def test_a_planted_collective_is_seen(source: str) -> None:
    """The control: each way to wait for other ranks is reported."""
    assert list(collectives(ast.parse(source)))
