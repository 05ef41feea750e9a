"""Runs of pip: what is shown meanwhile, and what is said when one fails."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from kvwise.bench import pip
from kvwise.bench.pip import run_pip
from kvwise.bench.places import SetupError
from tests.bench.fakes import Notes


def _python(folder: Path, script: str) -> Path:
    """A program that stands where the interpreter would."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_progress_counts_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """First what is fetched, then what is unpacked."""
    monkeypatch.setattr(pip, "_TICK_S", 0.02)
    (tmp_path / "one.dist-info").mkdir()
    script = (
        "sleep 0.2; echo Collecting numpy==2.3.5; sleep 0.2; "
        "echo 'Collecting rich>=13'; sleep 0.2; "
        "echo Installing collected packages: numpy, rich; sleep 0.2"
    )
    notes = Notes()
    run_pip(_python(tmp_path, script), ["install"], total=2, site=tmp_path, progress=notes)

    assert notes.shown[0] == "fetching 2 packages"
    assert "fetching 1 of 2 packages: numpy" in notes.shown
    assert "fetching 2 of 2 packages: rich" in notes.shown
    assert notes.shown[-1] == "unpacking 1 of 2 packages"


def test_one_package_is_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A single package has a name instead of a number."""
    monkeypatch.setattr(pip, "_TICK_S", 0.02)
    script = "sleep 0.2; echo Installing collected packages: torch; sleep 0.2"
    notes = Notes()
    arguments = ["install", "torch==2.13.0"]
    run_pip(_python(tmp_path, script), arguments, total=1, site=None, progress=notes)

    assert notes.shown[0] == "fetching torch"
    assert notes.shown[-1] == "unpacking torch"


@pytest.mark.parametrize(
    ("said", "hint"),
    [
        (
            "ERROR: No matching distribution found for torch==2.13.0+cpu",
            "hint: point PIP_EXTRA_INDEX_URL at an index that has CPU builds of torch",
        ),
        ("ERROR: No matching distribution found for numba==0.65.0", "numba==0.65.0 among them"),
        ("OSError: [Errno 28] No space left on device", "hint: free some disk space"),
        ("NewConnectionError: failed", "hint: pip cannot reach its package index"),
    ],
)
def test_a_failure_ends_in_a_hint(tmp_path: Path, said: str, hint: str) -> None:
    """Each known cause says what to do; pip's own words are kept."""
    python = _python(tmp_path, f"echo '{said}'; exit 1")
    with pytest.raises(SetupError) as error:
        run_pip(python, ["install"], total=1, site=None, progress=Notes())

    assert hint in str(error.value)
    assert said in str(error.value)


def test_an_unknown_failure_shows_the_last_lines(tmp_path: Path) -> None:
    """What nobody foresaw is at least not hidden."""
    python = _python(tmp_path, "echo strange things; exit 3")
    with pytest.raises(SetupError, match="strange things"):
        run_pip(python, ["check"], total=1, site=None, progress=Notes())


def test_a_run_past_its_deadline_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing waits for ever on a dead line."""
    monkeypatch.setattr(pip, "PIP_DEADLINE_S", 0.1)
    monkeypatch.setattr(pip, "_TICK_S", 0.02)
    with pytest.raises(SetupError, match="did not finish"):
        run_pip(_python(tmp_path, "exec sleep 60"), ["check"], total=1, site=None, progress=Notes())
