"""What the connector relies on of vLLM, checked against its source: the installed one and 0.33.

Only text is read. The wheel of 0.33 is looked for and never fetched.
"""

from __future__ import annotations

import ast
import re
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvwise.bench.places import cache_root
from kvwise.engines.vllm.shape import KINDS
from tests.engines.support import ROOT, engine_python

BASE = "vllm/distributed/kv_transfer/kv_connector/v1/base.py"
OURS = ROOT / "src/kvwise/engines/vllm/connector.py"
LATER = {"supports_sleep_mode", "unregister_kv_caches"}
"""Hooks that 0.32 does not have yet."""

NEEDS = {
    "vllm/v1/core/sched/output.py": [
        "kv_connector_block_state",
        "def get_block_ids",
        "preempted_req_ids",
        "num_scheduled_tokens",
        "total_num_scheduled_tokens",
    ],
    "vllm/v1/core/kv_cache_manager.py": ["def evict_blocks", "def get_block_ids"],
    "vllm/v1/kv_cache_interface.py": [
        *(f"class {kind}" for kind in KINDS),
        "def real_page_size_bytes",
        "kv_tp_replicas",
        "hash_block_size",
        "enable_kv_transfer",
        "host_resident",
        "is_eagle_group",
        "kv_cache_layout",
    ],
    "vllm/v1/request.py": [
        "block_hashes",
        "cache_salt",
        "kv_transfer_params",
        "skip_reading_prefix_cache",
        "num_computed_tokens",
    ],
    "vllm/v1/outputs.py": ["kv_connector_worker_meta", "invalid_block_ids", "failed_recving"],
    "vllm/config/vllm.py": ["def max_concurrent_batches"],
    "vllm/config/compilation.py": ["def has_full_cudagraphs"],
    "vllm/distributed/kv_events.py": ["class BlockStored", "class BlockRemoved", "MEDIUM_CPU"],
    "vllm/v1/metrics/cache_hit_source.py": ["HOST", "DISK", "EXTERNAL_UNSPECIFIED"],
    "vllm/v1/core/block_pool.py": [r"null_block = self\.free_block_queue\.popleft\(\)"],
    "vllm/v1/worker/gpu_model_runner.py": ["handle_preemptions"],
}
"""Names by file; each is a regular expression."""

Source = Callable[[str], str]


def installed() -> Path | None:
    """Where the engine environment keeps vLLM."""
    python = engine_python()
    for place in python.parent.parent.glob("lib/python3*/site-packages") if python else ():
        if (place / "vllm").is_dir():
            return place
    return None


def wheel() -> Path | None:
    """The wheel of 0.33, if somebody put it there."""
    return next(iter(sorted((cache_root() / "wheels").glob("vllm-0.33.*.whl"))), None)


@pytest.fixture(scope="module", params=["installed", "0.33"])
def source(request: pytest.FixtureRequest) -> Iterator[Source]:
    """Reads files of one vLLM."""
    place = installed() if request.param == "installed" else wheel()
    if place is None:
        pytest.skip(
            "no engine environment; set KVWISE_ENGINE_PYTHON"
            if request.param == "installed"
            else "no vllm-0.33 wheel in ~/.cache/kvwise/wheels (pip download --no-deps)"
        )
    if place.is_dir():
        yield lambda name: (place / name).read_text(encoding="utf-8")
        return
    with zipfile.ZipFile(place) as archive:
        yield lambda name: archive.read(name).decode()


def methods(tree: ast.Module, name: str) -> dict[str, ast.FunctionDef]:
    """Methods of a class."""
    (found,) = (n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == name)
    return {n.name: n for n in found.body if isinstance(n, ast.FunctionDef)}


def parameters(function: ast.FunctionDef) -> list[str]:
    """Names of its parameters, in order."""
    every = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    return [argument.arg for argument in every]


def test_every_abstract_hook_is_there(source: Source) -> None:
    """VLLM could not make the connector otherwise."""
    base, ours = ast.parse(source(BASE)), methods(ast.parse(OURS.read_text()), "KvwiseConnector")
    wanted = {
        name
        for class_name in ("KVConnectorBase_V1", "SupportsHMA")
        for name, method in methods(base, class_name).items()
        if any(isinstance(d, ast.Name) and d.id == "abstractmethod" for d in method.decorator_list)
    }
    assert len(wanted) >= 8
    assert wanted <= ours.keys()


@pytest.mark.pain("G5")
def test_hooks_take_what_vllm_gives(source: Source) -> None:
    """Every hook has the parameters of vLLM's, by name and in order."""
    tree = ast.parse(source(BASE))
    base = methods(tree, "KVConnectorBase_V1") | methods(tree, "SupportsHMA")
    ours = methods(ast.parse(OURS.read_text()), "KvwiseConnector")
    hooks = {name for name in ours if not name.startswith("_")}
    assert hooks - base.keys() <= LATER
    for name in hooks & base.keys() | {"__init__"}:
        assert parameters(ours[name]) == parameters(base[name]), name


@pytest.mark.pain("G5")
@pytest.mark.parametrize("name", NEEDS)
def test_what_is_used_is_there(source: Source, name: str) -> None:
    """Attributes and functions outside the connector's interface still exist."""
    text = source(name)
    assert [need for need in NEEDS[name] if not re.search(need, text)] == []
