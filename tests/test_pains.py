"""The table of pains in the documentation says what the tests say. It judges no test.

A test carries the ids of what it shows in a marker `pain`; the table names it in the same rows.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
PAGE = TESTS.parent / "docs" / "pains.md"
LAST = {"W": 13, "C": 11, "H": 6, "M": 8, "K": 5, "D": 13, "R": 7, "P": 10, "O": 5, "S": 3, "G": 8}
IDS = [f"{letter}{number}" for letter, last in LAST.items() for number in range(1, last + 1)]
STATUS = re.compile(r"held|(?:partly|not yet): \S.+")


def rows(page: str) -> dict[str, tuple[set[str], str]]:
    """Id to the tests that a row names and its status."""
    found = re.findall(r"^\| ([A-Z]\d+) \| [^|]+ \| ([^|]+) \| ([^|]+) \|$", page, re.MULTILINE)
    return {name: (set(re.findall(r"`([^`]+)`", tests)), status) for name, tests, status in found}


def marks(path: Path) -> Iterator[tuple[str, str]]:
    """Each id of a file with the test that carries it."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        for mark in getattr(node, "decorator_list", ()):
            if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.pain":
                where = f"{path.relative_to(TESTS)}::{getattr(node, 'name', '')}"
                yield from ((ast.literal_eval(argument), where) for argument in mark.args)


def marked() -> dict[str, set[str]]:
    """Id to the tests that carry it."""
    found: dict[str, set[str]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        for name, where in marks(path):
            found.setdefault(name, set()).add(where)
    return found


TABLE = rows(PAGE.read_text())
MARKED = marked()


def test_every_pain_has_a_row() -> None:
    """The table has each id once, in order."""
    assert list(TABLE) == IDS


@pytest.mark.parametrize("name", IDS)
def test_table_and_tests_agree(name: str) -> None:
    """A row names the tests that carry its id, and no others."""
    assert TABLE[name][0] == MARKED.get(name, set())


def test_no_test_carries_an_unknown_id() -> None:
    """An id that the table does not have would be lost."""
    assert set(MARKED) <= set(IDS)


@pytest.mark.parametrize("name", IDS)
def test_a_status_is_earned(name: str) -> None:
    """What is held, if only in part, has a test; what is not says why."""
    tests, status = TABLE[name]

    assert STATUS.fullmatch(status)
    assert bool(tests) is not status.startswith("not yet")


def test_what_was_planted_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: rows and markers are found, with every id and name."""
    monkeypatch.setattr("tests.test_pains.TESTS", tmp_path)
    path = tmp_path / "test_a.py"
    path.write_text(
        "@pytest.mark.pain('W1', 'D8')\n@pytest.mark.slow\ndef test_x(): ...\ndef test_y(): ...\n"
    )
    page = (
        "| W1 | words | `a.py::test_x`, `b.py::test_y` | partly: no |\n| W2 | other | - | held |\n"
    )

    assert list(marks(path)) == [("W1", "test_a.py::test_x"), ("D8", "test_a.py::test_x")]
    assert rows(page) == {
        "W1": ({"a.py::test_x", "b.py::test_y"}, "partly: no"),
        "W2": (set(), "held"),
    }
