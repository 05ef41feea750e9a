"""What engines call a model: where it is published, a folder that has it, or nothing at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvwise.planner.catalogue import NAMELESS, engine_name


@pytest.mark.parametrize("said", ["qwen3-8b", "Qwen3-8B", "Qwen/Qwen3-8B", "qwen/qwen3-8b"])
def test_a_known_model_is_where_it_is_published(said: str) -> None:
    """However it is written."""
    assert engine_name(said) == "Qwen/Qwen3-8B"


def test_a_folder_is_a_model_if_it_has_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With weights it goes by its path; a configuration alone, or another one, is nameless."""
    config, other = tmp_path / "config.json", tmp_path / "Qwen--Qwen3-32B_config.json"
    for path in (config, other):
        path.write_text("{}")
    monkeypatch.chdir(tmp_path)

    assert engine_name(str(config)) == engine_name(str(tmp_path)) == NAMELESS
    (tmp_path / "model-00001-of-00002.safetensors").touch()
    assert engine_name("config.json") == engine_name(".") == str(tmp_path)
    assert engine_name(str(other)) == NAMELESS
