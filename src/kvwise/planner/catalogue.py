"""The models that kvwise knows by name: the fields of their configurations that decide their KV."""

from __future__ import annotations

import json
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from kvwise.errors import ConfigError
from kvwise.planner.configs import model_of, read_config
from kvwise.planner.shapes import Model

CONFIG = "config.json"
WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth")
"""What files with weights are called."""

OFFERED = 3
"""So many files are named where one is not there."""

NAMELESS = "MODEL"
"""What stands for a model of which there is a configuration and no more."""


def names() -> list[str]:
    """Every model's short name, in order."""
    return sorted(_table())


def find_model(said: str) -> Model:
    """The model that somebody means: a short name, a repository's name, or a path to a config.json.

    Raises:
        ConfigError: it is none of these, or cannot be read.
    """
    known, path = _table(), Path(said)
    name = said.lower()
    if name in known:
        return model_of(name, fields_of(name))
    for short, fields in known.items():
        if fields["repository"].lower() == name:
            return model_of(short, fields_of(short))
    if name and path.exists():
        _require_config(path)
        return read_config(path)
    if _is_path(said):
        raise ConfigError(f"there is no file {said}; hint: {_nearby(path)}")
    near = get_close_matches(name.split("/")[-1], known, n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    raise ConfigError(
        f"there is no model {said!r} here, and no such file; hint: {hint}"
        "'kvwise model' lists the names; any other model goes by the path of its config.json"
    )


def _require_config(path: Path) -> None:
    """Refuse a folder in which there is no configuration."""
    if path.is_dir() and not (path / CONFIG).exists():
        raise ConfigError(f"there is no {CONFIG} in {path}; hint: {_offered(path)}")


def _is_path(said: str) -> bool:
    """Whether somebody means a file: it looks like one, or what it is in is there."""
    path = Path(said)
    is_within = len(path.parts) > 1 and path.parent.exists()
    return is_within or path.suffix == ".json" or said.startswith(("/", "./", "../", "~"))


def _nearby(path: Path) -> str:
    """What is there in place of a path that is not: names like the first part that is missing."""
    parent = next(one for one in path.parents if one.exists())
    if not parent.is_dir():
        return f"{parent} is a file"
    missing = path.relative_to(parent).parts[0]
    try:
        every = {one.name.lower(): one for one in sorted(parent.iterdir())}
    except OSError as error:
        return f"{parent} cannot be read: {error.strerror}"
    near = [every[name] for name in get_close_matches(missing.lower(), every, n=3)]
    return f"did you mean {' or '.join(map(str, near))}?" if near else _offered(parent)


def _offered(folder: Path) -> str:
    """Files of a folder that may be configurations, the likeliest first, or that there are none."""
    found = sorted(folder.glob("*.json"), key=lambda one: ("config" not in one.name, one.name))
    if not found:
        return f"a model goes by the path of its {CONFIG}, and there is no JSON file in {folder}"
    more = f" and {len(found) - OFFERED} more" if len(found) > OFFERED else ""
    return f"there is {', '.join(map(str, found[:OFFERED]))}{more}"


def fields_of(name: str) -> dict[str, Any]:
    """The fields of a short name's configuration that its KV depends on."""
    return {key: value for key, value in _table()[name].items() if key != "repository"}


def repository(name: str) -> str:
    """Where the model of a short name is published."""
    return str(_table()[name]["repository"])


def engine_name(said: str) -> str:
    """What an engine calls the model that somebody means: where it is published, or its folder.

    A configuration without weights beside it is no model for an engine: it is `NAMELESS`.
    """
    known, name, path = _table(), said.lower(), Path(said)
    if name in known:
        return repository(name)
    for short in known:
        if repository(short).lower() == name:
            return repository(short)
    folder = path if path.is_dir() else path.parent
    return str(folder.absolute()) if _is_whole(path, folder) else NAMELESS


def _is_whole(path: Path, folder: Path) -> bool:
    """Whether an engine that is given the folder finds this configuration there, and weights."""
    config = folder / CONFIG
    if not config.is_file() or not (path.is_dir() or path.samefile(config)):
        return False
    return any(True for pattern in WEIGHTS for _ in folder.glob(pattern))


@cache
def _table() -> dict[str, dict[str, Any]]:
    text = files("kvwise.planner").joinpath("models.json").read_text("utf-8")
    table: dict[str, dict[str, Any]] = json.loads(text)
    return table
