"""Owns the tests of what prepares `.venv`, and of the pins. It installs nothing itself."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
import tomllib
import venv
from pathlib import Path

import pytest

from scripts import environment

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Point the script at an empty folder, and record what it would run instead of running it."""
    lock, stamp = tmp_path / "lock", tmp_path / "venv" / ".ready"
    lock.write_text("# pins\na==1\nb==2\n")
    ran: list[str] = []

    def create(folder: Path) -> None:
        folder.mkdir()
        ran.append("create")

    monkeypatch.setattr(environment, "LOCK", lock)
    monkeypatch.setattr(environment, "VENV", stamp.parent)
    monkeypatch.setattr(environment, "PYTHON", Path(sys.executable))
    monkeypatch.setattr(environment, "STAMP", stamp)
    monkeypatch.setattr(environment, "create", create)
    monkeypatch.setattr(environment, "has_pip", lambda _: stamp.parent.exists())
    monkeypatch.setattr(environment, "run", lambda command: ran.append(" ".join(command[-2:])))
    return ran


def test_a_fresh_clone_is_prepared_once(
    prepared: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The first time everything is installed with progress shown, the second time nothing is."""
    environment.prepare()
    shown = capsys.readouterr().out
    first = list(prepared)

    environment.prepare()

    assert first[0] == "create"
    assert len(first) == 3
    assert "installing 2 pinned packages" in shown
    assert prepared == first
    assert capsys.readouterr().out == ""


def test_new_pins_are_installed(prepared: list[str]) -> None:
    """A changed lock file is installed into the environment that is there."""
    environment.prepare()
    prepared.clear()

    environment.LOCK.write_text("a==2\n")
    environment.prepare()

    assert "create" not in prepared
    assert len(prepared) == 2


def test_an_interrupted_install_is_redone(
    prepared: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its stamp, which is written last, an environment counts as unfinished."""

    def interrupted(_: list[str]) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(environment, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        environment.prepare()

    assert not environment.STAMP.exists()
    assert prepared == ["create"]


def test_an_old_python_is_refused(prepared: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.10 is refused before anything is touched."""
    monkeypatch.setattr(sys, "version_info", (3, 10, 0))

    with pytest.raises(SystemExit, match=r"needs Python 3\.11"):
        environment.prepare()
    assert prepared == []


def test_a_missing_venv_module_is_explained(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where Debian's package cannot be installed, the message names it."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    monkeypatch.setattr(shutil, "which", lambda _: None)

    with pytest.raises(SystemExit, match=r"hint: install the package python3\.\d+-venv"):
        environment.create(tmp_path / "venv")


def test_a_missing_venv_module_is_installed_by_root(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As root on Debian the venv package is fetched, and the environment is made."""
    ran: list[str] = []
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(environment, "run", lambda command: ran.append(command[1]))
    monkeypatch.setattr(venv.EnvBuilder, "create", lambda *_: ran.append("create"))

    environment.create(tmp_path / "venv")

    assert ran == ["update", "install", "create"]


def test_a_failed_step_shows_its_output() -> None:
    """What a failed command printed is shown, with the command."""
    with pytest.raises(SystemExit, match="gone wrong"):
        environment.run([sys.executable, "-c", "import sys; sys.exit('gone wrong')"])


def test_everything_is_pinned() -> None:
    """Every requirement of the project and of its groups has exactly one pin."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    groups = project["dependency-groups"].values()
    wanted = [*project["project"]["dependencies"]]
    wanted += [item for group in groups for item in group if isinstance(item, str)]
    names = {re.split(r"[<>=!~ \[]", item)[0].lower().replace("-", "_") for item in wanted}

    lines = [line for line in environment.LOCK.read_text().splitlines() if line[0] != "#"]
    pinned = [line.partition("==")[0].lower().replace("-", "_") for line in lines]

    assert names - set(pinned) == set()
    assert len(pinned) == len(set(pinned))
    assert [line for line in lines if not re.fullmatch(r"[\w.-]+==[\w.]+", line)] == []


def test_ci_runs_what_a_developer_runs() -> None:
    """CI's script is executable and does nothing but `make test`."""
    script = ROOT / ".ci" / "run"

    assert os.access(script, os.X_OK)
    assert script.read_text().rstrip().endswith("exec make test")
