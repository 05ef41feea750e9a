"""What engines call a model: where it is published, a folder that has it, or nothing at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvwise.errors import ConfigError
from kvwise.planner.catalogue import NAMELESS, engine_name, find_model


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


@pytest.mark.parametrize(
    ("said", "hint"),
    [
        ("./confg.json", "did you mean config.json?"),
        ("confg.json", "did you mean config.json?"),
        ("llama/confg.json", "did you mean llama/config.json?"),
        ("lama/config.json", "did you mean llama?"),
        ("llama/qwen-8b", "there is llama/config.json"),
        ("llama/config.json/x", "llama/config.json is a file"),
        ("empty/model.json", "there is no JSON file in empty"),
        ("empty", "there is no JSON file in empty"),
        ("many", r"there is many/my_config.json, many/a.json, many/b.json and 1 more"),
        ("qwen3-8c", "did you mean qwen3-8b"),
        ("meta/qwen3-8c", "did you mean qwen3-8b"),
    ],
)
def test_a_path_that_is_not_there(
    said: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path is answered with what lies near it, a name with names."""
    for folder, names in {
        "": ("config.json",),
        "llama": ("config.json",),
        "empty": (),
        "many": ("a.json", "b.json", "c.json", "my_config.json"),
    }.items():
        (tmp_path / folder).mkdir(exist_ok=True)
        for name in names:
            (tmp_path / folder / name).write_text("{}")
    monkeypatch.chdir(tmp_path)

    with pytest.raises(ConfigError, match=hint):
        find_model(said)


def test_a_folder_without_a_configuration(tmp_path: Path) -> None:
    """It is said that config.json is what is missing there."""
    with pytest.raises(ConfigError, match=r"there is no config\.json in"):
        find_model(str(tmp_path))
