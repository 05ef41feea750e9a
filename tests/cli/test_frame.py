"""Owns the tests of the command line's frame: help, errors, exit codes. Verbs have their own."""

from __future__ import annotations

import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import click
import pytest

import kvwise
from kvwise import cli
from kvwise.errors import CacheUnavailable, ConfigError

ROOT = Path(__file__).resolve().parents[2]
DOCTOR = "hint: `kvwise doctor` looks at this machine's limits\n"


@pytest.mark.parametrize("verb", cli.VERBS)
def test_every_verb_helps_itself(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each verb has a help page with an example that names it, and a --json option."""
    assert cli.run([verb, "--help"]) == 0

    page = capsys.readouterr().out
    assert f"kvwise {verb}" in page
    assert "Example" in page
    assert "--json" in page


def test_help_lists_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    """The front page shows each verb with its one line, and examples."""
    assert cli.run(["--help"]) == 0

    page = capsys.readouterr().out
    assert [verb for verb in cli.VERBS if f"\n  {verb} " not in page] == []
    assert "Examples:" in page


def test_help_needs_no_verb() -> None:
    """The front page is printed without importing any verb or what a verb needs."""
    code = "import sys; from kvwise import cli; cli.run(['--help']); print(sorted(sys.modules))"

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True
    )

    loaded = done.stdout.splitlines()[-1]
    assert "'kvwise.cli'" in loaded
    assert [
        n for n in ("kvwise.cli.doctor", "rich", "numpy", "kvwise.live") if f"'{n}'" in loaded
    ] == []


@pytest.mark.parametrize("module", ["click", "kvwise.errors", "kvwise.live.node", "msgspec"])
def test_a_hasty_ctrl_c_is_no_traceback(module: str, tmp_path: Path) -> None:
    """Ctrl-C while Python still loads the command line or a verb ends it without a traceback."""
    script = (
        "import os, runpy, signal, sys\n"
        "class Hasty:\n"
        "    def find_spec(name, path, target=None):\n"
        f"        if name == {module!r}:\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Hasty)\n"
        "sys.argv[:1] = ['kvwise', 'serve', '--dram', '16MiB', '--metrics', '', '--socket']\n"
        "runpy.run_module('kvwise', run_name='__main__')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "s")],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )

    assert done.returncode in (-signal.SIGINT, 130)
    assert done.stderr.strip() in ("", "interrupted")


def test_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    """`--version`, the package and its metadata agree."""
    assert cli.run(["--version"]) == 0

    metadata = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert capsys.readouterr().out == f"kvwise {kvwise.__version__}\n"
    assert metadata["project"]["version"] == kvwise.__version__


def test_module_runs_like_the_script() -> None:
    """`python -m kvwise` is the same program."""
    done = subprocess.run(
        [sys.executable, "-m", "kvwise", "--version"], capture_output=True, timeout=30, check=True
    )

    assert done.stdout.decode() == f"kvwise {kvwise.__version__}\n"


def failing(error: BaseException) -> Callable[[], None]:
    """A verb's body that raises."""

    def body() -> None:
        raise error

    return body


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (ConfigError("a is wrong; hint: write b"), 2, "error: a is wrong\nhint: write b\n"),
        (ConfigError("a is wrong"), 2, "error: a is wrong\n"),
        (CacheUnavailable("no answer in 250 ms"), 1, "error: no answer in 250 ms\n"),
        (click.ClickException("cannot"), 1, "error: cannot\n"),
        (FileNotFoundError(2, "No such file", "/x"), 1, f"error: /x: No such file\n{DOCTOR}"),
        (OSError(24, "Too many open files"), 1, f"error: Too many open files\n{DOCTOR}"),
        (MemoryError(), 1, f"error: out of memory\n{DOCTOR}"),
        (BrokenPipeError(), 1, ""),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (click.Abort(), 130, "interrupted\n"),
    ],
)
def test_errors_become_a_line_and_a_code(
    error: BaseException,
    code: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """An error is one line, its hint another, and the exit code says whose fault it is."""
    monkeypatch.setattr(
        cli.group, "get_command", lambda *_: click.Command("doctor", callback=failing(error))
    )

    assert cli.run(["doctor"]) == code
    assert capsys.readouterr().err.lstrip("\n") == said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["doctr"], "hint: did you mean 'kvwise doctor'?"),
        (["frobnicate"], "hint: kvwise --help lists the verbs"),
        (["doctor", "--nope"], "hint: kvwise doctor --help"),
        (["--nope"], "hint: kvwise --help"),
        (["doctor", "--dram", "3x"], "hint: write a size such as 4GiB"),
        (["doctor", "--disk-size", "1GiB"], "hint: set both for a disk tier"),
    ],
)
def test_wrong_usage_is_answered_with_what_to_do(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A slip on the command line exits with 2 and a hint."""
    assert cli.run(arguments) == 2

    shown = capsys.readouterr().err
    assert shown.startswith("error: ")
    assert said in shown


def test_no_arguments_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    """`kvwise` alone shows how it is used, which is not an error to explain."""
    assert cli.run([]) == 2

    shown = capsys.readouterr().err
    assert shown.startswith("Usage: kvwise")
    assert "error:" not in shown
