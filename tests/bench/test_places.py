"""Folders that are filled once: finished ones are kept, interrupted ones are done again."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from kvwise.bench import places
from kvwise.bench.places import SetupError, cache_root, fill_once, finished
from tests.bench.fakes import Notes


def test_a_folder_is_filled_once(tmp_path: Path) -> None:
    """A second call finds what the first one made."""
    calls: list[Path] = []

    def fill(folder: Path) -> None:
        calls.append(folder)
        (folder / "content").write_text("whole")

    for _ in range(2):
        folder = fill_once(tmp_path / "deep" / "thing", 0, Notes(), fill)

    assert calls == [folder]
    assert (folder / "content").read_text() == "whole"


def test_an_interrupted_folder_is_done_again(tmp_path: Path) -> None:
    """What was left half way is removed, not reused."""
    folder = tmp_path / "thing"

    def interrupted(place: Path) -> None:
        (place / "half").touch()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fill_once(folder, 0, Notes(), interrupted)
    left_unfinished = not finished(folder)
    fill_once(folder, 0, Notes(), lambda place: (place / "whole").touch())

    assert left_unfinished
    assert sorted(path.name for path in folder.iterdir()) == [places.STAMP, "whole"]


def test_a_full_disk_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    """The message says how much is free and how much is needed."""
    with pytest.raises(SetupError, match=r"free, and 1024.0 TiB are needed; hint: free"):
        fill_once(tmp_path / "thing", 1024**5, Notes(), lambda _: None)

    assert not (tmp_path / "thing").exists()


def test_another_process_is_waited_for_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two installations do not run into each other; waiting has an end."""
    monkeypatch.setattr(places, "LOCK_WAIT_S", 0.05)
    monkeypatch.setattr(places, "_LOCK_POLL_S", 0.01)
    notes = Notes()
    with (tmp_path / "thing.lock").open("a") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(SetupError, match="another process has held"):
            fill_once(tmp_path / "thing", 0, notes, lambda _: None)

    assert "another process is filling thing, waiting for it" in notes.shown


def test_what_another_process_finished_meanwhile_is_used(tmp_path: Path) -> None:
    """The wait for a lock may end with nothing left to do."""
    folder = tmp_path / "thing"

    def fill(place: Path) -> None:
        (place / places.STAMP).touch()
        fill_once(folder, 0, Notes(), _never)

    assert fill_once(folder, 0, Notes(), fill) == folder


def _never(folder: Path) -> None:
    """Fail if called."""
    raise AssertionError(f"{folder} was filled twice")


def test_the_cache_follows_xdg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user decides where large things are kept."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    assert cache_root() == tmp_path / "kvwise"
