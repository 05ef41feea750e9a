"""Owns the house rules that no other tool can check, and the proof that each of them can fail.

A rule is a function from one file to complaints. It never fixes anything.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "kvwise"
FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 500
CATCH_ALL_HOME = "live/workers.py"
PRINTING_ROOMS = ("cli/", "bench/")
ENTRY_POINTS = {
    "kvwise.__main__",
    "kvwise.cli",
    "kvwise.engines.vllm",
    "kvwise.live.store",
    "kvwise.testing.models",
}
"""Used from outside: the script and `python -m kvwise`, vLLM's module path, the embedded store for
scripts, and the model makers that run in the engine's own Python."""

Rule = Callable[[str, ast.Module], Iterator[str]]
Function = ast.FunctionDef | ast.AsyncFunctionDef


# --- rules for Python files ----------------------------------------------------------------------


def short_functions(_name: str, tree: ast.Module) -> Iterator[str]:
    """No function is longer than a screen."""
    for node in functions(tree):
        lines = (node.end_lineno or node.lineno) - node.lineno + 1
        if lines > FUNCTION_LINES_MAX:
            yield f"{node.lineno}: {node.name} has {lines} lines"


def no_star_no_global(_name: str, tree: ast.Module) -> Iterator[str]:
    """Names come from somewhere, and modules have no state to rebind."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and any(a.name == "*" for a in node.names):
            yield f"{node.lineno}: star import"
        if isinstance(node, ast.Global):
            yield f"{node.lineno}: global {', '.join(node.names)}"


def no_banned_calls(name: str, tree: ast.Module) -> Iterator[str]:
    """No builtin hash (differs between processes), no code from strings, no stray prints."""
    banned = {"hash", "eval", "exec", "__import__"}
    if not name.startswith(PRINTING_ROOMS):
        banned.add("print")
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in banned:
            yield f"{node.lineno}: {node.id}"


def no_object_deserialisers(_name: str, tree: ast.Module) -> Iterator[str]:
    """Cached bytes are untrusted; nothing that builds objects from them is imported."""
    banned = {"pickle", "marshal", "shelve", "dill", "cloudpickle"}
    for line, module in imported(tree):
        if module.split(".")[0] in banned:
            yield f"{line}: {module}"


def one_catch_all(name: str, tree: ast.Module) -> Iterator[str]:
    """Only the worker boundary swallows everything, once; to clean up and re-raise is fine."""
    allowed = 1 if name == CATCH_ALL_HOME else 0
    for node in ast.walk(tree):
        if not isinstance(node, ast.ExceptHandler) or reraises(node):
            continue
        if is_catch_all(node.type):
            allowed -= 1
            if allowed < 0:
                yield f"{node.lineno}: catches everything"


def is_catch_all(caught: ast.expr | None) -> bool:
    """Whether an except clause names Exception, BaseException or nothing."""
    named = caught.elts if isinstance(caught, ast.Tuple) else [caught]
    return any(
        one is None or (isinstance(one, ast.Name) and one.id in {"Exception", "BaseException"})
        for one in named
    )


def reraises(handler: ast.ExceptHandler) -> bool:
    """Whether an except clause ends by raising again what it caught."""
    last = handler.body[-1]
    return isinstance(last, ast.Raise) and last.exc is None


def plain_names(name: str, tree: ast.Module) -> Iterator[str]:
    """Names say what a thing is; versions, managers and utilities say nothing."""
    banned = re.compile(r"(_v\d+|_new|_utils?|Manager|Utils?)$|^utils?$")
    if banned.search(Path(name).stem):
        yield f"1: the module is called {name}"
    for node in ast.walk(tree):
        if isinstance(node, Function | ast.ClassDef) and banned.search(node.name):
            yield f"{node.lineno}: {node.name}"


def no_third_truth(_name: str, tree: ast.Module) -> Iterator[str]:
    """An answer with three values is an enum, never `bool | None`."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.BinOp):
            continue
        if {"bool", "None"} <= {part.strip() for part in ast.unparse(node).split("|")}:
            yield f"{node.lineno}: {ast.unparse(node)}"


def single_asserts(_name: str, tree: ast.Module) -> Iterator[str]:
    """One assertion states one thing, so that its failure says which."""
    for node in ast.walk(tree):
        test = node.test if isinstance(node, ast.Assert) else None
        if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
            yield f"{test.lineno}: asserts {ast.unparse(test)}"


def module_says_two_things(_name: str, tree: ast.Module) -> Iterator[str]:
    """A module's docstring says what it owns and what it refuses: two sentences at least."""
    text = " ".join((ast.get_docstring(tree) or "").split())
    if len(re.findall(r"[.!?:;](?:\s|$)", text)) < 2:
        yield f"1: docstring says too little: {text!r}"


def shown_by_each_test(_name: str, tree: ast.Module) -> Iterator[str]:
    """Every test has a docstring: one sentence that can be true or false."""
    for node in functions(tree):
        said = (ast.get_docstring(node) or "").rstrip()
        if node.name.startswith("test_") and not said.endswith("."):
            yield f"{node.lineno}: {node.name} has no docstring that is a sentence"


EVERYWHERE: list[Rule] = [short_functions, no_star_no_global, single_asserts]
IN_SOURCE: list[Rule] = [
    no_banned_calls,
    no_object_deserialisers,
    one_catch_all,
    plain_names,
    no_third_truth,
    module_says_two_things,
]
IN_TESTS: list[Rule] = [shown_by_each_test]


# --- helpers -------------------------------------------------------------------------------------


def functions(tree: ast.Module) -> Iterator[Function]:
    """Every function and method, wherever it is defined."""
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def python_files(folder: Path) -> list[Path]:
    """Every Python file below a folder, in a stable order."""
    return sorted(folder.rglob("*.py"))


def text_files() -> Iterator[tuple[str, str]]:
    """Every file of the project that is text: (path from the root, content)."""
    folders = ["src", "tests", "docs", "scripts", "bench", ".ci"]
    files = [p for folder in folders for p in (ROOT / folder).rglob("*")]
    for path in sorted([*files, *ROOT.glob("*.*"), ROOT / "Makefile"]):
        if path.is_file() and path.suffix in {"", ".py", ".md", ".toml", ".yml", ".lock", ".sh"}:
            yield str(path.relative_to(ROOT)), path.read_text()


def imported(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Every imported module with its line; `from a import b` yields both `a` and `a.b`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.lineno, node.module
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


@cache
def complaints(folder: Path, rules: tuple[Rule, ...]) -> dict[Rule, list[str]]:
    """What each rule says about the Python files of a folder; each file is parsed once for all."""
    found: dict[Rule, list[str]] = {rule: [] for rule in rules}
    for path in python_files(folder):
        name = str(path.relative_to(folder))
        tree = ast.parse(path.read_text())
        for rule in rules:
            found[rule] += [f"{path.relative_to(ROOT)}:{said}" for said in rule(name, tree)]
    return found


def module_name(path: Path, source: Path) -> str:
    """Dotted name of a file below the package folder."""
    parts = ["kvwise", *path.relative_to(source).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def is_script(tree: ast.Module) -> bool:
    """Whether a module can be run with `python -m`."""
    return any(isinstance(n, ast.If) and "__main__" in ast.unparse(n.test) for n in tree.body)


def all_imported(folder: Path) -> set[str]:
    """Every module that some file of a folder imports."""
    trees = (ast.parse(path.read_text()) for path in python_files(folder))
    return {name for tree in trees for _, name in imported(tree)}


def unused_modules(source: Path, tests: Path, scripts: Path) -> set[str]:
    """Modules with code that nothing imports and nobody can start.

    The shipped test suites are for tests, so imports in tests count for them.
    """
    trees = {module_name(p, source): ast.parse(p.read_text()) for p in python_files(source)}
    used = all_imported(source) | all_imported(scripts)
    used |= {name for name in all_imported(tests) if name.startswith("kvwise.testing")}
    started = ENTRY_POINTS | {name for name, tree in trees.items() if is_script(tree)}
    started |= {name for name in trees if re.fullmatch(r"kvwise\.cli\.\w+", name) and is_verb(name)}
    empty = {name for name, tree in trees.items() if len(tree.body) <= 1}
    packages = {name for name in trees if any(n.startswith(f"{name}.") for n in used)}
    return set(trees) - used - started - empty - packages


def is_verb(name: str) -> bool:
    """Whether a module of the command line is in its table of verbs, or of benches."""
    from kvwise.cli import VERBS
    from kvwise.cli.bench import BENCHES

    benches = (f"bench_{bench.replace('-', '_')}" for bench in BENCHES)
    return name.rsplit(".", 1)[1] in {*VERBS, *benches}


def titles(text: str) -> list[str]:
    """First-level headings of a Markdown page, code blocks left out."""
    prose = re.sub(r"^(```|~~~).*?^\1\s*$", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"^# .+$", prose, flags=re.MULTILINE)


def unfinished(text: str) -> list[str]:
    """Lines that promise work instead of doing it."""
    words = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X|HA" + r"CK)\b")
    return [line.strip() for line in text.splitlines() if words.search(line)]


def machine_paths(text: str) -> list[str]:
    """Lines that only mean something on one machine, or name a host that serves packages."""
    hosts = "pyp" + r"i\.org|pythonho" + "sted"
    places = re.compile(f"/wor{''}k/|/ro{''}ot/|/tmp/[A-Z]\\b|{hosts}")
    return [line.strip() for line in text.splitlines() if places.search(line)]


def missing_files(text: str) -> list[str]:
    """Names in backquotes that look like files of this project and are none."""
    named = re.findall(r"`([\w./-]+/[\w./-]*|[\w-]+\.(?:py|md|toml|lock))`", text)
    return [name for name in named if not any((base / name).exists() for base in (ROOT, SOURCE))]


# --- the house is tidy ---------------------------------------------------------------------------


@pytest.mark.parametrize("rule", [*EVERYWHERE, *IN_SOURCE], ids=lambda rule: rule.__name__)
def test_source_keeps_the_rule(rule: Rule) -> None:
    """No file of the package breaks the rule."""
    assert complaints(SOURCE, (*EVERYWHERE, *IN_SOURCE))[rule] == []


@pytest.mark.parametrize("rule", [*EVERYWHERE, *IN_TESTS], ids=lambda rule: rule.__name__)
def test_tests_keep_the_rule(rule: Rule) -> None:
    """No test file breaks the rule."""
    assert complaints(ROOT / "tests", (*EVERYWHERE, *IN_TESTS))[rule] == []


def test_files_are_short() -> None:
    """No Python file is longer than one reading."""
    folders = (SOURCE, ROOT / "tests", ROOT / "scripts", ROOT / "bench")
    files = [path for folder in folders for path in python_files(folder)]
    lengths = {str(p.relative_to(ROOT)): p.read_text().count("\n") for p in files}

    assert {name: n for name, n in lengths.items() if n > FILE_LINES_MAX} == {}


def test_every_module_is_used() -> None:
    """Every module is imported by another one, started from outside, or a shipped suite in use."""
    assert unused_modules(SOURCE, ROOT / "tests", ROOT / "bench") == set()


def test_pages_have_one_title() -> None:
    """Every Markdown page has exactly one first-level heading."""
    pages = [*sorted((ROOT / "docs").rglob("*.md")), *sorted(ROOT.glob("*.md"))]

    assert {p.name: titles(p.read_text()) for p in pages if len(titles(p.read_text())) != 1} == {}


def test_nothing_is_left_for_later() -> None:
    """No file holds a note about work that is still to be done."""
    assert [(n, found) for n, text in text_files() if (found := unfinished(text))] == []


def test_no_machine_is_named() -> None:
    """No file names a path or a package host of the machine it was written on."""
    assert [(n, found) for n, text in text_files() if (found := machine_paths(text))] == []


def test_architecture_page_names_real_files() -> None:
    """Whatever looks like a file on the architecture page exists."""
    assert missing_files((ROOT / "docs" / "architecture.md").read_text()) == []


def test_decisions_are_whole() -> None:
    """Decision records are numbered without gaps, and each says what was rejected."""
    records = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
    sections = ("## Context", "## Decision", "## Rejected")

    assert [int(p.name[:4]) for p in records] == list(range(1, len(records) + 1))
    assert [p.name for p in records if any(s not in p.read_text() for s in sections)] == []


# --- and each rule can fail ----------------------------------------------------------------------

PLANTED: list[tuple[Rule, str]] = [
    (short_functions, "def f():\n" + "    x = 1\n" * FUNCTION_LINES_MAX),
    (no_star_no_global, "from os import *"),
    (no_star_no_global, "def f():\n    global x\n    x = 1"),
    (no_banned_calls, "key = hash('a')"),
    (no_banned_calls, "keys = map(hash, names)"),
    (no_banned_calls, "eval('1')"),
    (no_banned_calls, "print('here')"),
    (no_object_deserialisers, "def f():\n    from pickle import loads"),
    (one_catch_all, "try:\n    f()\nexcept Exception:\n    pass"),
    (one_catch_all, "try:\n    f()\nexcept (OSError, BaseException):\n    pass"),
    (one_catch_all, "try:\n    f()\nexcept:\n    pass"),
    (plain_names, "class CacheManager: ..."),
    (plain_names, "def load_v2(): ..."),
    (no_third_truth, "def f() -> bool | None: ..."),
    (no_third_truth, "x: None | bool = None"),
    (single_asserts, "assert a and b"),
    (module_says_two_things, '"""Owns things."""'),
    (module_says_two_things, "x = 1"),
    (shown_by_each_test, "def test_a(): ..."),
    (shown_by_each_test, 'class TestA:\n    def test_a(self):\n        """words"""'),
]


@pytest.mark.parametrize(
    ("rule", "source"), PLANTED, ids=[f"{rule.__name__}-{n}" for n, (rule, _) in enumerate(PLANTED)]
)
def test_rule_sees_what_was_planted(rule: Rule, source: str) -> None:
    """Each rule complains about a violation made for it."""
    assert list(rule("core/thing.py", ast.parse(source)))


def test_cleaning_up_is_not_swallowing() -> None:
    """A handler that re-raises what it caught may catch anything."""
    source = "try:\n    f()\nexcept BaseException:\n    g()\n    raise\n"

    assert list(one_catch_all("core/thing.py", ast.parse(source))) == []


def test_the_worker_boundary_may_catch_once() -> None:
    """The one allowed place may catch everything once and no more."""
    once = "try:\n    f()\nexcept Exception:\n    pass\n"

    assert list(one_catch_all(CATCH_ALL_HOME, ast.parse(once))) == []
    assert list(one_catch_all(CATCH_ALL_HOME, ast.parse(once + once)))


def test_an_unused_module_is_found(tmp_path: Path) -> None:
    """A module that nobody imports is reported, its imported neighbour is not."""
    source, tests = tmp_path / "kvwise", tmp_path / "tests"
    (source / "core").mkdir(parents=True)
    tests.mkdir()
    (source / "__main__.py").write_text("from kvwise.core import used\nx = used")
    (source / "core" / "used.py").write_text("x = 1\ny = 2")
    (source / "core" / "lonely.py").write_text("x = 1\ny = 2")
    (tests / "test_lonely.py").write_text("from kvwise.core import lonely")

    assert unused_modules(source, tests, tmp_path / "bench") == {"kvwise.core.lonely"}


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (titles("# One\n```\n# not a title\n```\n# Two\n"), ["# One", "# Two"]),
        (titles("no title"), []),
        (unfinished("x = 1  # TO" + "DO later"), ["x = 1  # TO" + "DO later"]),
        (machine_paths("cd /wor" + "k/main"), ["cd /wor" + "k/main"]),
        (missing_files("`core/words.py` and `core/nowhere.py`"), ["core/nowhere.py"]),
    ],
)
def test_text_checks_see_what_was_planted(found: list[str], expected: list[str]) -> None:
    """Checks on text report planted lines and leave good ones alone."""
    assert found == expected
