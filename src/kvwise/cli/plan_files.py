"""The files that a plan is written to: all of them or none, over nothing that is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kvwise.bench.targets import Target, require_folder, require_targets, write_whole
from kvwise.cli.plan_options import Said
from kvwise.cli.plan_page import render
from kvwise.cli.plan_told import NAMED
from kvwise.errors import ConfigError
from kvwise.planner.catalogue import NAMELESS
from kvwise.planner.oracle import WORDS

JSON, PAGE, STACK = "plan.json", "plan.html", "stack.toml"
FOLDER = (JSON, PAGE, STACK, "vllm.sh", "sglang.sh")
"""All that may lie in the folder of a plan."""


def require_files(model_name: str, files: tuple[Path, ...], said: Said) -> None:
    """Refuse what could not be written, or would be lost, before anything is read.

    Raises:
        ConfigError: a file is read, there already, named twice, or cannot be written.
    """
    inputs = [*files, Path(model_name)]
    inputs += [said["hardware"]] if said["hardware"] is not None else []
    inputs += [Path(said["recompute"])] if said["recompute"].lower() not in WORDS else []
    targets: list[Target] = []
    for option, path in (("--html", said["html"]), ("--stack", said["stack"])):
        if path is not None:
            targets.append((option, path))
    folder = said["out"]
    if folder is not None and folder.is_dir() and any(map(folder.samefile, files)):
        raise ConfigError(
            f"--out would put {JSON} among the files of the trace in {folder}; hint: name another "
            "folder"
        )
    if folder is not None and folder.is_dir():
        targets += [("--out", folder / name) for name in FOLDER]
    elif folder is not None:
        require_folder(next(one for one in folder.absolute().parents if one.exists()), folder)
    require_targets(targets, inputs, may_replace=said["force"])


def write_files(told: dict[str, Any], said: Said) -> str:
    """Write the files that were asked for, and take away those of an older plan.

    Returns:
        What could not be written because the plan has no such thing; nothing where all was.
    """
    folder, page, stack = said["out"], said["html"], said["stack"]
    files: dict[Path, str] = {}
    if folder is not None:
        files |= {folder / JSON: json.dumps(told, indent=2), folder / PAGE: render(told)}
        for name, flags in told["engine_flags"].items():
            lines = ["#!/bin/sh", f"# {flags['engine']}: {flags['tried']}"]
            lines += [f"# {NAMELESS}: {NAMED}"] if NAMELESS in flags["command"] else []
            files[folder / f"{name}.sh"] = "\n".join([*lines, flags["shell"], ""])
    if page is not None:
        files[page] = render(told)
    if told["stack_toml"] is not None:
        stacks = [folder / STACK] if folder is not None else []
        stacks += [stack] if stack is not None else []
        files |= dict.fromkeys(stacks, told["stack_toml"])
    if folder is not None:
        _make(folder)
    write_whole(files)
    if folder is not None:
        for path in {folder / name for name in FOLDER} - files.keys():
            path.unlink(missing_ok=True)
    if stack is not None and stack not in files:
        return f"{stack} was not written: this plan comes to nothing that a daemon would serve"
    return ""


def _make(folder: Path) -> None:
    """Make the folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot make {folder}: {error.strerror}") from error
