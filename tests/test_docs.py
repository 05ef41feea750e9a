"""Owns the promise that the documentation says what the code does. It judges no prose."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from types import NoneType
from typing import get_args

import pytest
from msgspec.structs import fields

from kvwise import config
from kvwise.cli.explain import REASONS
from kvwise.core.words import Why
from kvwise.sim.replay.stack import Stack
from kvwise.units import parse_size

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
CONFIGURATION = (DOCS / "configuration.md").read_text()
KEYS_MAX = 30


def rows(page: str) -> dict[str, tuple[str, str, str]]:
    """The keys of the configuration page: name to (allowed, default, effect)."""
    found = re.findall(r"^\| `([a-z]+\.\w+)` \| (.+?) \| (.+?) \| (.+) \|$", page, re.MULTILINE)
    return {name: (allowed, default, effect) for name, allowed, default, effect in found}


def test_there_are_few_keys() -> None:
    """There are at most 30 configuration keys, and the page says how many."""
    sections = {key.name.partition(".")[0] for key in config.KEYS}

    assert len(config.KEYS) <= KEYS_MAX
    assert f"There are {len(config.KEYS)} keys in {len(sections)} sections." in CONFIGURATION


def test_the_page_has_every_key() -> None:
    """The configuration page describes exactly the keys that exist, in their order."""
    assert list(rows(CONFIGURATION)) == [key.name for key in config.KEYS]


@pytest.mark.parametrize("key", config.KEYS, ids=lambda key: key.name)
def test_the_page_tells_defaults(key: config.Key) -> None:
    """The default on the page means, when it is parsed, the default in the code."""
    _, default, _ = rows(CONFIGURATION)[key.name]

    if default == "none":
        assert not key.default
    else:
        assert key.parse(default.strip("`")) == key.default


@pytest.mark.parametrize(
    "key", [k for k in config.KEYS if " | " in k.kind.allowed], ids=lambda key: key.name
)
def test_the_page_tells_allowed_words(key: config.Key) -> None:
    """Where only certain words are allowed, the page names them all."""
    allowed, _, _ = rows(CONFIGURATION)[key.name]

    assert allowed.replace("`", "").split(", ") == key.kind.allowed.split(" | ")


def test_every_key_of_a_stack_has_a_row() -> None:
    """The page of the simulator has every key of its file, with the default that it has."""
    page = (DOCS / "simulator.md").read_text()
    told = dict(re.findall(r"(?m)^\| `(\w+\.\w+)` \| (.+?) \| ", page))
    kinds = {one.name: one.type for one in fields(Stack) if one.name != "profile"}
    keys = {
        f"{name}.{key.name}": key
        for name, kind in kinds.items()
        for key in fields(next(one for one in (*get_args(kind), kind) if one is not NoneType))
    }

    assert list(told) == list(keys)
    for name, key in keys.items():
        if key.required or key.default is None:
            assert told[name] == ("required" if key.required else "none"), name
        else:
            value = tomllib.loads(f"x = {told[name].strip('`')}")["x"]
            is_size = isinstance(key.default, int) and isinstance(value, str)
            assert (parse_size(value) if is_size else value) == key.default, name


def test_every_reason_has_a_row() -> None:
    """The page of explain tells every reason once, those of choices in the words of the verb."""
    page = (DOCS / "explain.md").read_text()
    rows = re.findall(r"(?m)^\| `(\w+)` \| ([^|]+)", page)
    found = [(why, text) for why, text in rows if why != "why"]  # the name of the column

    assert sorted(why for why, _ in found) == sorted(why.value for why in Why)
    assert {why: text.strip() for why, text in found if Why(why) in REASONS} == {
        why.value: text for why, text in REASONS.items()
    }


def test_the_example_file_is_accepted(tmp_path: Path) -> None:
    """The TOML example of the configuration page is a configuration."""
    example = re.search(r"```toml\n(.+?)```", CONFIGURATION, re.DOTALL)
    assert example is not None
    path = tmp_path / "kvwise.toml"
    path.write_text(example[1])

    loaded = config.load(path, environ={})

    assert tomllib.loads(example[1])["disk"]["paths"] == list(loaded.disk.paths)


def test_every_page_is_in_the_table_of_contents() -> None:
    """No page is written and then not found."""
    contents = (ROOT / "mkdocs.yml").read_text()
    pages = [str(path.relative_to(DOCS)) for path in sorted(DOCS.rglob("*.md"))]

    assert [page for page in pages if f": {page}\n" not in contents] == []


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_make_verbs_that_are_named_exist(page: str) -> None:
    """Whatever `make` is told to do on the front pages, it can do."""
    verbs = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))

    named = re.findall(r"(?<!kvwise trace )\bmake ([a-z]+)", (ROOT / page).read_text())
    assert set(named) <= verbs
