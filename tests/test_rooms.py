"""Owns the proof that rooms import downwards only. It says nothing about what is in a room.

import-linter sees chains of imports; the reading of the syntax tree here sees what it cannot: an
allow-list of the standard library for the brain's room, and imports hidden in functions.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "kvwise"
LINTER = Path(sys.executable).parent / "lint-imports"
ROOMS = [
    "cli",
    "bench",
    "planner",
    "testing",
    "engines",
    "live",
    "host",
    "config",
    "tiers",
    "codecs",
    "core",
]
"""From high to low; below all of them lie `units` and `errors`, which know only themselves."""
SIMULATOR, MAY_SIMULATE, SIMULATED = "sim", {"cli", "planner"}, {"codecs", "core"}
"""The simulator stands beside the rooms that serve: it runs the brain, and they never need it."""
GROUND = {"units", "errors"}
CORE_STDLIB = {
    "__future__",
    "array",
    "bisect",
    "collections",
    "dataclasses",
    "enum",
    "hashlib",
    "heapq",
    "itertools",
    "math",
    "struct",
    "typing",
}
CORE_NUMPY = "core/columns.py"
"""The one module of the brain's room that may use numpy beside the standard library."""
HOSTS = {"sglang", "torch", "transformers", "triton", "vllm"}
HOST_ROOMS = {"engines", "testing", "bench"}
"""Only engines serve a host; the other two make its models and measure it, inside functions."""
GPU_CODECS, GPU_HOSTS = re.compile(r"codecs/\w+_gpu\.py"), {"torch", "triton"}
"""Codecs on a GPU work on torch's tensors with Triton; whoever imports them has both."""


def room_of(path: Path, source: Path) -> str:
    """The room a file belongs to: its folder, or its own name at the top."""
    return path.relative_to(source).with_suffix("").parts[0]


def imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Every import with its line, wherever in the file it hides."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            named = [f"{module}.{alias.name}" for alias in node.names]
            yield from ((node.lineno, n) for n in (named if module == "kvwise" else [module]))


def may_import(room: str, other: str) -> bool:
    """Whether code in `room` may import from `other`."""
    if other == room or other in GROUND:
        return room not in GROUND or other == room
    if SIMULATOR in {room, other}:
        return other in SIMULATED if room == SIMULATOR else room in MAY_SIMULATE
    if room not in ROOMS or other not in ROOMS:
        return False
    if room == "config":
        return False
    return ROOMS.index(room) < ROOMS.index(other)


def may_compute(file: Path, top: str) -> bool:
    """Whether a file of the brain's room may import something that is not the project's."""
    return top in CORE_STDLIB or (top == "numpy" and file.as_posix() == CORE_NUMPY)


def may_host(file: Path, room: str, top: str) -> bool:
    """Whether a file may import a package of a host engine."""
    on_gpu = GPU_CODECS.fullmatch(file.as_posix()) is not None
    return room in HOST_ROOMS or (on_gpu and top in GPU_HOSTS)


def broken(path: Path, source: Path) -> list[str]:
    """What a file imports against the rules."""
    room, found = room_of(path, source), []
    for line, name in imports(ast.parse(path.read_text())):
        top, _, rest = name.partition(".")
        where = f"{path.relative_to(source)}:{line} imports {name}"
        if top == "kvwise":
            other = rest.split(".")[0]
            allowed = may_import(room, other) or room in {"__main__", "__init__"}
            if not (allowed or other in {"", "__version__"}):
                found.append(where)
        elif (room == "core" and not may_compute(path.relative_to(source), top)) or (
            top in HOSTS and not may_host(path.relative_to(source), room, top)
        ):
            found.append(where)
    return found


def lint(source: Path) -> subprocess.CompletedProcess[str]:
    """Run import-linter with the project's contracts on a copy of the package."""
    environment = {**os.environ, "PYTHONPATH": str(source.parent)}
    command = [str(LINTER), "--no-cache", "--config", str(ROOT / "pyproject.toml")]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def test_rooms_import_downwards() -> None:
    """No file imports from a room above it, nor anything its room may not know."""
    assert [b for path in sorted(SOURCE.rglob("*.py")) for b in broken(path, SOURCE)] == []


def test_import_linter_agrees() -> None:
    """The contracts in pyproject.toml hold, chains of imports included."""
    done = lint(SOURCE)

    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("core/bad.py", "import time"),
        ("core/bad.py", "def f():\n    import os"),
        ("core/bad.py", "import numpy"),
        ("core/columns.py", "import random"),
        ("core/bad.py", "from kvwise.tiers import base"),
        ("tiers/bad.py", "from kvwise.live.clock import now_ns"),
        ("tiers/bad.py", "from kvwise import config"),
        ("live/bad.py", "import torch"),
        ("codecs/bad.py", "import torch"),
        ("codecs/bad_gpu.py", "import vllm"),
        ("live/bad.py", "from kvwise import engines"),
        ("engines/bad.py", "import kvwise.bench.demo"),
        ("sim/bad.py", "from kvwise.tiers import base"),
        ("sim/bad.py", "from kvwise.live.clock import now_ns"),
        ("live/bad.py", "from kvwise.sim import world"),
        ("core/bad.py", "from kvwise.sim.dice import Dice"),
        ("config/bad.py", "from kvwise.core import words"),
        ("errors.py", "from kvwise import units"),
    ],
)
def test_a_planted_import_is_seen(tmp_path: Path, file: str, line: str) -> None:
    """Reading the syntax tree reports each kind of forbidden import."""
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    path.write_text(line)

    assert broken(path, tmp_path)


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("core/good.py", "from collections.abc import Sequence"),
        ("core/good.py", "from kvwise.errors import FailureKind"),
        ("core/columns.py", "import numpy as np"),
        ("live/good.py", "from kvwise.config import Config"),
        ("engines/good.py", "import torch"),
        ("codecs/good_gpu.py", "import torch"),
        ("cli/good.py", "import kvwise"),
        ("cli/good.py", "from kvwise.sim.world import run"),
        ("sim/good.py", "from kvwise.core.brain import Brain"),
    ],
)
def test_good_imports_pass(tmp_path: Path, file: str, line: str) -> None:
    """Imports downwards are left alone."""
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    path.write_text(line)

    assert broken(path, tmp_path) == []


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("core/keys.py", "import time"),
        ("core/index.py", "import numpy"),
        ("core/columns.py", "import xxhash"),
        ("tiers/base.py", "from kvwise.live import messages"),
        ("live/messages.py", "import torch"),
        ("live/messages.py", "import click"),
        ("tiers/base.py", "import numba"),
        ("live/messages.py", "from kvwise.sim import world"),
        ("sim/world.py", "from kvwise.tiers import base"),
    ],
)
def test_import_linter_can_fail(tmp_path: Path, file: str, line: str) -> None:
    """import-linter reports a contract as broken when a forbidden import is planted."""
    source = tmp_path / "kvwise"
    shutil.copytree(SOURCE, source, ignore=shutil.ignore_patterns("__pycache__"))
    path = source / file
    path.write_text(f"{path.read_text()}\n{line}\n")

    done = lint(source)

    assert done.returncode == 1, done.stdout
    assert "BROKEN" in done.stdout
