"""Engines that cannot be served safely are refused at the start, with what to change."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kvwise.engines.vllm.settings import Settings, read_settings
from kvwise.errors import ConfigError, EngineError


def engine(groups: int = 1, batches: int = 1, **changes: Any) -> tuple[Any, Any]:
    """VLLM's configuration as the connector reads it; changes have section__name names."""
    sections: dict[str, dict[str, Any]] = {
        "kv_transfer_config": {
            "kv_connector_extra_config": {},
            "kv_load_failure_policy": "recompute",
            "engine_id": "e",
            "is_kv_consumer": True,
            "is_kv_producer": True,
        },
        "cache_config": {
            "enable_prefix_caching": True,
            "prefix_caching_hash_algo": "sha256",
            "calculate_kv_scales": False,
        },
        "parallel_config": {
            "tensor_parallel_size": 2,
            "pipeline_parallel_size": 1,
            "decode_context_parallel_size": 1,
            "prefill_context_parallel_size": 1,
        },
        "compilation_config": {"cudagraph_mode": None},
    }
    plain: dict[str, Any] = {"speculative_config": None, "kv_events_config": None}
    for name, value in changes.items():
        section, _, key = name.partition("__")
        if key:
            sections[section][key] = value
        else:
            plain[section] = value
    made = {name: SimpleNamespace(**values) for name, values in sections.items()}
    config = SimpleNamespace(**made, **plain, max_concurrent_batches=batches)
    return config, SimpleNamespace(kv_cache_groups=[None] * groups)


def read(**changes: Any) -> Settings:
    """The settings of such an engine."""
    return read_settings(*engine(**changes))


def test_an_ordinary_engine_is_served() -> None:
    """One group and one step in flight: everything is possible."""
    settings = read()
    assert (settings.engine, settings.ranks) == ("e", 2)
    assert (settings.can_load, settings.can_store, settings.can_layer) == (True, True, True)
    assert (settings.full_graphs, settings.events) == (False, False)


@pytest.mark.parametrize(
    ("changes", "can_layer"),
    [
        ({"groups": 2}, False),
        ({"batches": 2}, False),
        ({"kv_transfer_config__kv_connector_extra_config": {"client.load": "async"}}, False),
        ({"kv_transfer_config__kv_connector_extra_config": {"client": {"load": "sync"}}}, True),
    ],
)
def test_loads_inside_steps_need_a_way_back(changes: dict[str, Any], can_layer: bool) -> None:
    """With several groups, or steps in flight, a failed load could not be undone."""
    assert read(**changes).can_layer is can_layer


@pytest.mark.pain("M7", "P2")
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"cache_config__enable_prefix_caching": False}, "prefix caching is off"),
        ({"cache_config__prefix_caching_hash_algo": "xxhash"}, "use sha256"),
        ({"cache_config__calculate_kv_scales": True}, "calculate-kv-scales"),
        ({"parallel_config__pipeline_parallel_size": 2}, "--pipeline-parallel-size 2"),
        ({"parallel_config__decode_context_parallel_size": 2}, "--decode-context-parallel-size"),
        ({"speculative_config": SimpleNamespace(method="eagle")}, "'eagle' keeps draft KV"),
        ({"groups": 2, "kv_transfer_config__kv_connector_extra_config": {"client.load": "sync"}},
         "2 KV cache groups"),
        ({"batches": 2, "kv_transfer_config__kv_connector_extra_config": {"client.load": "sync"}},
         "--no-async-scheduling"),
    ],
)  # fmt: skip
def test_what_would_be_unsafe_is_refused(changes: dict[str, Any], words: str) -> None:
    """The message says what to change."""
    with pytest.raises(EngineError, match=words):
        read(**changes)


@pytest.mark.pain("G2")
def test_a_mistyped_key_is_refused() -> None:
    """Kvwise's own keys are checked as everywhere."""
    with pytest.raises(ConfigError, match=r"client\.load"):
        read(kv_transfer_config__kv_connector_extra_config={"client.lod": "sync"})


def test_drafting_without_kv_is_served() -> None:
    """Drafts that are looked up in the prompt leave nothing to restore."""
    assert read(speculative_config=SimpleNamespace(method="ngram")).can_layer


def test_a_costly_policy_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    """VLLM's default fails requests whose load failed."""
    read(kv_transfer_config__kv_load_failure_policy="fail")
    assert "recompute" in caplog.text
